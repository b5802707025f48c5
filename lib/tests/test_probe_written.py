"""Attention written out as product, softmax, product: what is read off scores that are NaN, very low or masked."""

from __future__ import annotations

import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from attnrank import probe
from attnrank.probe import attentions

RANKS = ["head", "sample", "n", "m", "kv_heads", "mask", "hardmax_rank", "numerical_rank", "bound"]


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *given):
        return self.function(*given)


class Layer(nn.Module):
    """Two heads of width 8, written out, with their residual."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(16, 48, dtype=torch.float64)

    def forward(self, x, mask=0.0):
        q, k, v = (y.unflatten(-1, (2, 8)).transpose(1, 2) for y in self.project(x).chunk(3, -1))
        return x + ((q @ k.mT / 8**0.5 + mask).softmax(-1) @ v).transpose(1, 2).flatten(2)


def query(x):
    """Attention with one query NaN."""
    q = x.index_fill(1, torch.tensor([70]), torch.nan)
    return (q @ x.mT + torch.arange(x.shape[1]) % 3).softmax(-1) @ x


@pytest.mark.parametrize("ranks", [None, "hardmax"])
@pytest.mark.parametrize("hidden", [False, True])
def test_scores_that_are_nan_are_no_padding(hidden, ranks):
    """Else a layer that has diverged, or a sample, would vanish from the table without a word."""
    torch.manual_seed(0)
    x, mask = draw(2, 10, 16), torch.full((10, 10), -1e9 if hidden else 0.0, dtype=torch.float64).triu(1)
    layers = nn.ModuleList([Layer() for _ in range(4)])
    layers[2].project.weight.data.fill_(torch.nan)
    model = Function(lambda x: [layer(x, mask) for layer in layers])
    model.layers = layers
    with pytest.raises(ValueError, match=r"^layer layers\.2: "):
        probe(model, x, ranks=ranks)
    model.layers = layers[2:3]
    with pytest.raises(ValueError, match=r"^layer 0: "):
        probe(nn.Sequential(layers[2]), x, ranks=ranks)
    x[1] = torch.nan
    with pytest.raises(ValueError, match=r"^layer 0: "):
        probe(nn.Sequential(layers[0]), x, ranks=ranks)


def test_a_query_that_is_nan_is_refused_where_few_outputs_are_compared():
    with pytest.raises(ValueError, match="^layer Function: .*NaN"):
        probe(Function(query), draw(1, 130, 4), ranks="hardmax")


def test_a_mask_that_is_nan_hides_nothing():
    mask = torch.zeros(6, 6, dtype=torch.float64).index_fill(0, torch.tensor([2]), torch.nan)
    with pytest.raises(ValueError, match="^layer Function: .*NaN"):
        probe(Function(lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=mask)), draw(1, 2, 6, 4))


def written(scale, *, form=lambda s: s):
    return Function(lambda q, k, v: form(q @ k.mT * scale).softmax(-1) @ v)


def hide_last(scores):
    scores[..., -3:] = -torch.inf
    return scores


LOW = {
    "product": lambda s: s,
    "shifted": lambda s: s - s.amax(-1, keepdim=True),
    "half": lambda s: s.float(),
}


@pytest.mark.parametrize("form", LOW)
@pytest.mark.parametrize("scale", [10.0**e for e in range(-2, 7)])
def test_low_scores_hide_no_keys(form, scale):
    q, k, v = draw(3, 2, 2, 12, 4)
    if form == "half":
        q, k, v = q.float(), k.float(), v.float()
    found = probe(written(scale, form=LOW[form]), (q, k, v), per_sample=True)
    fused = Function(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=scale))
    pd.testing.assert_frame_equal(found[RANKS], probe(fused, (q, k, v), per_sample=True)[RANKS])
    if form == "product":
        last = probe(written(scale, form=hide_last), (q, k, v), per_sample=True)
        assert set(last["m"]) == {9} and set(last["mask"]) == {"padding"}


@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_scores_that_are_all_low_are_scores(scale):
    q, k, v = draw(3, 2, 2, 12, 4)
    q, k = q.abs() * 100, -k.abs() * 100
    found = probe(written(scale), (q, k, v), per_sample=True)
    fused = Function(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=scale))
    pd.testing.assert_frame_equal(found[RANKS], probe(fused, (q, k, v), per_sample=True)[RANKS])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("least", [-1e4, -6e4, -torch.inf])
@pytest.mark.parametrize("filled", [False, True])
def test_samples_that_are_all_padding_stay_hidden(dtype, least, filled):
    """Where every score of a row is hidden alike, a number for each row would explain them as well."""
    q, k, v = (x.to(dtype) for x in draw(3, 2, 2, 12, 4))
    padded = torch.tensor([False, True])[:, None, None, None]
    hide = lambda s: s.masked_fill(padded, least) if filled else s + torch.where(padded, least, 0.0).to(s.dtype)  # noqa: E731
    mask = attentions(written(0.5, form=lambda s: hide(s)), (q, k, v))[0].mask
    assert mask.visible[0].all() and not mask.visible[1].any()


def by_group(q, k, v, form):
    """Queries (S, H_k, group, n, d) of keys and values (S, H_k, m, d), in five dimensions."""
    k, v = k[:, :, None], v[:, :, None]
    if form == "expanded":
        k, v = (x.expand(-1, -1, q.shape[2], -1, -1) for x in (k, v))
    if form == "repeated":
        k, v = (x.repeat(1, 1, q.shape[2], 1, 1) for x in (k, v))
    return k, v


MASK = torch.ones(7, 7, dtype=torch.bool).tril()
MASKS = {
    "none": None,
    "for all": MASK,
    "for each sample": torch.stack([MASK, MASK.T, MASK, MASK])[:, None, None],
    "for each head": torch.stack([torch.stack([MASK, MASK.T, MASK]), torch.stack([MASK.T, MASK, MASK])]),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("form", ["one", "expanded", "repeated"])
@pytest.mark.parametrize("fused", [True, False])
def test_grouped_queries_in_five_dimensions(form, fused, mask):
    mask = MASKS[mask]
    q, (k, v) = draw(4, 2, 3, 7, 8), draw(2, 4, 2, 7, 8, seed=1)

    def attend(q, k, v, mask):
        if fused:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        scores = q @ k.mT / 8**0.5
        return (scores if mask is None else scores.masked_fill(~mask, -torch.inf)).softmax(-1) @ v

    five = probe(Function(lambda q, k, v: attend(q, *by_group(q, k, v, form), mask)), (q, k, v), per_sample=True)
    four = (q.flatten(1, 2), k.repeat_interleave(3, 1), v.repeat_interleave(3, 1))
    if mask is not None and mask.ndim > 2:
        mask = mask.flatten(-4, -3) if mask.ndim == 4 and len(mask) == 2 else mask[:, 0]
    expected = probe(Function(lambda q, k, v: attend(q, k, v, mask)), four, per_sample=True)
    pd.testing.assert_frame_equal(five, expected, atol=1e-12)
    assert set(five["kv_heads"]) == {2} and five["sample"].nunique() == 4


def test_heads_of_windows_that_share_their_keys_are_those_of_the_module():
    q, k = draw(4, 2, 3, 7, 8), draw(4, 2, 1, 7, 8, seed=1)
    model = Function(lambda q, k: F.scaled_dot_product_attention(q, k.expand_as(q), k.expand_as(q)))
    model.num_heads = 3
    frame = probe(model, (q, k), per_sample=True)
    assert frame["head"].nunique() == 3 and frame["sample"].nunique() == 8 and set(frame["kv_heads"]) == {1}


@pytest.mark.parametrize("repeat", [lambda k: k.repeat(1, 3, 1, 1), lambda k: k.repeat_interleave(3, 1)])
def test_key_heads_are_counted_in_any_order(repeat):
    q, k = draw(2, 6, 7, 8), repeat(draw(2, 2, 7, 8, seed=1))
    assert set(probe(Function(lambda q, k: F.scaled_dot_product_attention(q, k, k)), (q, k))["kv_heads"]) == {2}
    k[:, 4] = k[:, 0]
    k[1, 4, 0] += 1  # one of another head in one sample
    assert set(probe(Function(lambda q, k: F.scaled_dot_product_attention(q, k, k)), (q, k))["kv_heads"]) == {3}


class Heads(nn.Module):
    """Attention with samples and heads in one dimension; tokens first, without a batch, or one head for each sample."""

    def __init__(self, form, fused, heads=4):
        super().__init__()
        self.form, self.fused, self.num_heads = form, fused, heads
        self.project = nn.Linear(16, 48, dtype=torch.float64)

    def forward(self, x):
        q, k, v = (self.form(y, self.num_heads) for y in self.project(x).chunk(3, -1))
        if self.fused:
            return F.scaled_dot_product_attention(q, k, v, scale=0.5)
        return torch.bmm((torch.bmm(q, k.mT) * 0.5).softmax(-1), v)


JOINED = {
    "tokens first": lambda x, heads: x.reshape(len(x), x.shape[1] * heads, -1).transpose(0, 1),
    "samples first": lambda x, heads: x.unflatten(-1, (heads, -1)).transpose(1, 2).flatten(0, 1),
    "no batch": lambda x, heads: x.unflatten(-1, (heads, -1)).transpose(0, 1),
    "one head": lambda x, heads: x[..., ::heads],
}


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(("form", "shape", "heads", "samples"), [
    ("tokens first", (8, 2, 16), 4, 2), ("tokens first", (9, 2, 16), 4, 2), ("tokens first", (4, 1, 16), 4, 1),
    ("samples first", (2, 8, 16), 4, 2), ("samples first", (8, 8, 16), 4, 8), ("samples first", (8, 2, 16), 4, 8),
    ("no batch", (4, 16), 4, 1), ("no batch", (5, 16), 4, 1),
    ("one head", (8, 8, 16), 1, 8), ("one head", (8, 5, 16), 1, 8), ("one head", (4, 4, 16), 1, 4),
])  # fmt: skip
def test_heads_and_samples_in_one_dimension(form, shape, heads, samples, fused):
    torch.manual_seed(0)
    frame = probe(Heads(JOINED[form], fused), draw(*shape), per_sample=True)
    assert (frame["head"].nunique(), frame["sample"].nunique()) == (heads, samples)
