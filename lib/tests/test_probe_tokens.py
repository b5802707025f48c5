"""Whether queries and keys are taken for the same tokens: only then is a query padding where its own key is."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from attnrank import probe

N, REAL, WIDTH = 20, 8, 16


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X, OTHERS = draw(2, N, WIDTH), draw(2, N, WIDTH, seed=1)
PADDED = (torch.arange(N) >= REAL).expand(2, N)
POSITIONS = draw(N, WIDTH, seed=2)


class Attend(nn.Module):
    """``nn.MultiheadAttention`` of the query, key and value that ``given`` makes of the tokens."""

    def __init__(self, given):
        super().__init__()
        torch.manual_seed(0)
        self.given, self.attend = given, nn.MultiheadAttention(WIDTH, 2, batch_first=True, dtype=torch.float64)

    def forward(self, padded, *tokens):
        query, key, value = self.given(*tokens)
        return self.attend(query, key=key, value=value, key_padding_mask=padded)[0]


def norm(x):
    return F.layer_norm(x, (WIDTH,))


SELF = {
    "one object": lambda x: (x, x, x),
    "normalised three times": lambda x: (norm(x), norm(x), norm(x)),
    "positions added twice": lambda x: (x + POSITIONS, x + POSITIONS, x),
    "a view": lambda x: (x, x.view(x.shape), x),
    "a copy": lambda x: (x, x.clone(), x),
}


@pytest.mark.parametrize("batch", [True, False])
@pytest.mark.parametrize("how", SELF)
def test_queries_and_keys_that_are_equal_are_the_same_tokens(how, batch):
    given = (PADDED, X) if batch else (PADDED[0], X[0])
    frame = probe(Attend(SELF[how]), given)
    assert set(frame["n"]) == set(frame["m"]) == {REAL} and set(frame["mask"]) == {"padding"}
    expected = probe(Attend(SELF["one object"]), given)
    assert how == "positions added twice" or frame["n"].equals(expected["n"])


@pytest.mark.parametrize("batch", [True, False])
@pytest.mark.parametrize("others", [OTHERS, norm(X), X.float().double(), -X], ids=range(4))
def test_other_tokens_of_the_same_number_keep_all_queries(others, batch):
    given = (PADDED, X, others) if batch else (PADDED[0], X[0], others[0])
    frame = probe(Attend(lambda x, y: (x, y, y)), given)
    assert set(frame["n"]) == {N} and set(frame["m"]) == {REAL}


@pytest.mark.parametrize("keywords", [True, False])
def test_torchs_decoder_without_a_batch(keywords):
    torch.manual_seed(0)
    layer = nn.TransformerDecoderLayer(WIDTH, 2, 32, batch_first=True, dtype=torch.float64)
    for one in (slice(None), 0):
        x, others, padded = X[one], OTHERS[one], PADDED[one]
        given = {"tgt": x, "memory": others, "memory_key_padding_mask": padded}
        frame = probe(layer, given if keywords else (x, others, None, None, None, padded), layers=-1)
        assert frame[["n", "m"]].to_numpy().tolist() == [[N, REAL]] * 2


def test_keys_of_another_width_without_a_batch():
    layer = nn.MultiheadAttention(WIDTH, 2, kdim=12, vdim=12, dtype=torch.float64)
    others = draw(N, 12, seed=1)
    frame = probe(layer, {"query": X[0], "key": others, "value": others, "key_padding_mask": PADDED[0]})
    assert frame[["n", "m"]].to_numpy().tolist() == [[N, REAL]] * 2


class Single(nn.Module):
    """One sequence without a batch, which attends to ``beside`` or, where that is no tokens, to itself."""

    def __init__(self, to_itself):
        super().__init__()
        self.to_itself = to_itself

    def forward(self, x, beside, padded):
        k = x if self.to_itself else beside
        return F.scaled_dot_product_attention(x[None] * 2, k[None] * 3, k[None], attn_mask=~padded)[0]


@pytest.mark.parametrize("beside, to_itself, n", [
    (OTHERS[0], False, N), (X[0].clone(), False, REAL),
    (draw(N, WIDTH // 2), True, REAL), (draw(N), True, REAL), (torch.zeros(N, N).double(), True, REAL),
], ids=["tokens", "equal", "angles", "numbers", "mask"])  # fmt: skip
def test_a_sequence_without_a_batch_and_what_it_is_called_with(beside, to_itself, n):
    frame = probe(Single(to_itself), (X[0], beside, PADDED[0]))
    assert frame[["n", "m"]].to_numpy().tolist() == [[n, REAL]]


class Beside(nn.Module):
    """Attention of queries and keys that ``form`` makes of two arguments; keys that ``keep`` leaves out are hidden."""

    def __init__(self, form, fused):
        super().__init__()
        self.form, self.fused = form, fused
        self.project = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)

    def forward(self, x, y, keep):
        q, k = (self.project(one) for one in self.form(x, y))
        if self.fused:
            return F.scaled_dot_product_attention(q, k, k, attn_mask=keep[:, None])
        scores = torch.einsum("snd,smd->snm", q, k).masked_fill(~keep[:, None], -torch.inf)
        return scores.softmax(-1) @ k


SAME = {
    "a residual": lambda x, y: (x, x),
    "positions of queries and keys": lambda x, y: (x + y, x + y),
    "positions of the keys": lambda x, y: (x, x + y),
    "positions of the queries": lambda x, y: (x + y, x),
    "positions in place": lambda x, y: (x.clone().add_(y), x.clone().add_(y)),
}
CROSS = {
    "tokens": lambda x, y: (x, y),
    "tokens, the other way": lambda x, y: (y, x),
    "copied in": lambda x, y: (x, torch.empty_like(y).copy_(y)),
    "of the first attention": lambda x, y: (x + F.scaled_dot_product_attention(x, y, y), y),
    "stacked, split": lambda x, y: (x, torch.cat([y, y], -1).chunk(2, -1)[1]),
}


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("keywords", [True, False])
@pytest.mark.parametrize("how", [*SAME, *CROSS])
def test_two_arguments_are_other_tokens_where_queries_and_keys_share_none(how, keywords, fused):
    given = {"x": X, "y": OTHERS, "keep": ~PADDED}
    if keywords and how in CROSS:
        return  # by names of their own, arguments tell nothing
    frame = probe(Beside((SAME | CROSS)[how], fused), given if keywords else tuple(given.values()), layers=-1)
    assert frame[["n", "m"]].to_numpy().tolist() == [[REAL if how in SAME else N, REAL]]
