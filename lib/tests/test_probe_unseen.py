"""Attention of a kind that the probe does not know is refused by name, alone and beside one that it sees; what is no
attention is not refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from attnrank import probe

WIDTH, N = 8, 12


class Mixer(nn.Module):
    """A layer of queries, keys and values, beside an attention that the probe sees where ``beside``."""

    def __init__(self, mix, beside: bool):
        super().__init__()
        self.mix = mix
        self.project = nn.Linear(WIDTH, 3 * WIDTH)
        self.seen = nn.MultiheadAttention(WIDTH, 2, batch_first=True) if beside else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.mix(*self.project(x).chunk(3, -1))
        return y if self.seen is None else self.seen(y, y, y)[0]


def positive(x: Tensor) -> Tensor:
    return F.elu(x) + 1


def each(attend):
    """The same for one sample at a time, without a batch."""
    return lambda q, k, v: torch.stack([attend(*one) for one in zip(q, k, v, strict=True)])


def heads_last(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.unflatten(-1, (2, 4)) for x in (q, k, v))
    return torch.einsum("bnmh,bmhd->bnhd", torch.einsum("bnhd,bmhd->bnmh", q, k).softmax(2), v).flatten(-2)


def few(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores, chosen = (q @ k.mT).topk(3, -1)
    taken = torch.stack([one[place] for one, place in zip(v, chosen, strict=True)])
    return (scores.softmax(-1)[..., None] * taken).sum(-2)


def by_rows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.empty(N, N)
    for i in range(N):
        scores[i] = (k[0] @ q[0, i, :, None])[:, 0]
    return (scores.softmax(-1) @ v[0])[None]


@torch.library.custom_op("attnrank_unseen::mix", mutates_args=())
def mix(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).softmax(-1) @ v


def null_key(q: Tensor, k: Tensor, v: Tensor, *, front: bool) -> Tensor:
    """A key beside those of the tokens, whose value is zero."""
    scores, null, zero = q @ k.mT, q.sum(-1, keepdim=True), torch.zeros_like(v[:, :1])
    order = slice(None, None, -1 if front else 1)
    return torch.cat([scores, null][order], -1).softmax(-1) @ torch.cat([v, zero][order], 1)


def balanced(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Columns, then rows, are normalised after the softmax."""
    a = (q @ k.mT / 20).softmax(-1)
    a = a / a.sum(-2, keepdim=True)
    return (a / a.sum(-1, keepdim=True)) @ v


@torch.jit.script
def scripted_softmax(scores: Tensor) -> Tensor:
    return scores.softmax(-1)


@torch.jit.script
def scripted(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.matmul(scripted_softmax(torch.matmul(q, k.transpose(-2, -1))), v)


@torch.jit.script
def scripted_fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v) if q.shape[0] > 1 else q


@torch.jit.script
def scripted_linear(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.matmul(q.exp(), torch.matmul(k.exp().transpose(-2, -1), v))


@torch.jit.script
def scripted_product(q: Tensor, k: Tensor) -> Tensor:
    return torch.matmul(q, k.transpose(-2, -1))


@torch.jit.script
def scripted_gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1.0 + torch.erf(x / 1.41))


SCRIPT = "is TorchScript that attends"
CANNOT, DIMENSION, LINEAR = "form that the probe cannot follow", "not that of the keys", "linear attention"
NULL, ELSE = r"keys or values that are added or left out \(null keys\)", "something else than softmax"
UNSEEN = {
    "linear attention": (LINEAR, lambda q, k, v: positive(q) @ (positive(k).mT @ v) / N),
    "linear attention, summed": (LINEAR, lambda q, k, v: positive(q) @ (positive(k).mT @ v).div(N)),
    "linear attention, einsum": (LINEAR, lambda q, k, v: torch.einsum("bnd,bmd,bme->bne", positive(q), positive(k), v)),
    "multi_dot": (LINEAR, each(lambda q, k, v: torch.linalg.multi_dot([q, k.T, v]))),
    "over the queries": (DIMENSION, lambda q, k, v: (q @ k.mT).softmax(1) @ v),
    "transposed": (DIMENSION, lambda q, k, v: (k @ q.mT).softmax(-2).mT @ v),
    "transposed, few keys": (DIMENSION, lambda q, k, v: (k[:, :7] @ q.mT).softmax(-2).transpose(1, 2) @ v[:, :7]),
    "heads last": (CANNOT, heads_last),
    "best three": (CANNOT, few),
    "by rows": (CANNOT, by_rows),
    "linear": (CANNOT, each(lambda q, k, v: F.linear(q, k).softmax(-1) @ v)),
    "inner": (CANNOT, each(lambda q, k, v: torch.inner(q, k).softmax(-1) @ v)),
    "tensordot": (CANNOT, each(lambda q, k, v: torch.tensordot(q, k, ([1], [1])).softmax(-1) @ v)),
    "addmm": (CANNOT, each(lambda q, k, v: torch.addmm(torch.zeros(N, N), q, k.T).softmax(-1) @ v)),
    "sums": (CANNOT, each(lambda q, k, v: ((q[:, None] * k).sum(-1).softmax(-1)[..., None] * v).sum(-2))),
    "null key before": (NULL, lambda q, k, v: null_key(q, k, v, front=True)),
    "null key after": (NULL, lambda q, k, v: null_key(q, k, v, front=False)),
    "first key left out": (NULL, lambda q, k, v: (q @ k.mT)[..., 1:].softmax(-1) @ v[:, 1:]),
    "first weight left out": (NULL, lambda q, k, v: (q @ k.mT).softmax(-1)[..., 1:] @ v[:, 1:]),
    "normalised again": (ELSE, balanced),
    "custom operation": ("attnrank_unseen::mix", lambda q, k, v: mix(q, k, v)),
    "TorchScript": (f"scripted {SCRIPT}", scripted),
    "TorchScript, fused": (f"scripted_fused {SCRIPT}", scripted_fused),
    "TorchScript, softmax": (f"scripted_softmax {SCRIPT}", lambda q, k, v: scripted_softmax(q @ k.mT) @ v),
    "TorchScript, linear": (f"scripted_linear {SCRIPT}", scripted_linear),
    "TorchScript, product": ("no product of queries and keys", lambda q, k, v: scripted_product(q, k).softmax(-1) @ v),
    "TorchScript, traced": (
        SCRIPT,
        torch.jit.trace(lambda q, k, v: (q @ k.mT).softmax(-1) @ v, (torch.ones(2, 3, 4),) * 3, check_trace=False),
    ),
    "vmap": ("torch.func", lambda q, k, v: torch.func.vmap(lambda a, b, c: (a @ b.T).softmax(-1) @ c)(q, k, v)),
    "vmap, fused": ("torch.func", lambda q, k, v: torch.func.vmap(F.scaled_dot_product_attention)(q, k, v)),
    "dropout": ("dropped in evaluation mode", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.01)),
}


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("kind", UNSEEN)
def test_unseen_attention_is_refused_by_name(kind: str, beside: bool) -> None:
    message, attend = UNSEEN[kind]
    x = torch.randn(2, N, WIDTH, generator=torch.Generator().manual_seed(1))
    with pytest.raises(ValueError, match=message) as error:
        probe(Mixer(attend, beside), x)
    assert "layer Mixer" in str(error.value)
    if beside:
        assert set(probe(Mixer(attend, beside), x, layers="seen")["layer"]) == {"seen"}


@pytest.mark.parametrize("added", ["add_bias_kv", "add_zero_attn"])
@pytest.mark.parametrize("need_weights", [False, True])
def test_keys_that_torch_adds_are_refused_as_those_written_out(added: str, need_weights: bool) -> None:
    x = torch.randn(2, N, WIDTH, generator=torch.Generator().manual_seed(1))
    layer = nn.MultiheadAttention(WIDTH, 2, batch_first=True, **{added: True})
    model = Mixer(lambda q, k, v: layer(q, k, v, need_weights=need_weights)[0], True)
    model.layer = layer
    with pytest.raises(ValueError, match=f"^layer layer: .*{NULL}"):
        probe(model, x)
    assert set(probe(model, x, layers="seen")["layer"]) == {"seen"}
    plain = {"embed_dim_to_check": WIDTH, "num_heads": 2, "out_proj_bias": None, "dropout_p": 0.0, "training": False,
             "in_proj_weight": layer.in_proj_weight, "in_proj_bias": None, "out_proj_weight": layer.out_proj.weight,
             "bias_k": layer.bias_k, "bias_v": layer.bias_v, "add_zero_attn": layer.add_zero_attn}  # fmt: skip
    with pytest.raises(ValueError, match=NULL):  # called by itself, with keywords
        probe(Mixer(lambda q, k, v: F.multi_head_attention_forward(q, k, v, **plain)[0], False), x)


class Other(nn.Module):
    """What has softmaxes and products and is no attention."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(WIDTH, 3), nn.Parameter(torch.randn(3, WIDTH, WIDTH))
        self.book = nn.Parameter(torch.randn(5, WIDTH))
        self.last = parametrizations.weight_norm(nn.Linear(WIDTH, 4))
        self.register_buffer("frequencies", torch.arange(1.0, 5.0))

    def forward(self, x: Tensor) -> Tensor:
        share = F.linear(x.double(), self.router.weight.double()).softmax(-1).float()  # as routers compute it
        for i, expert in enumerate(self.experts):
            x = x + share[..., i : i + 1] * (x @ expert)
        angle = torch.arange(N).float()[:, None] * self.frequencies
        x = x * torch.cat([angle.cos(), angle.sin()], -1)
        state = (x[..., None] * x[:, :, None]).cumsum(1)  # a recurrence
        x = x + (state @ x[..., None])[..., 0]
        pooled = (self.book[0] @ x.mT).softmax(-1)[:, None] @ x
        return self.last(pooled[:, 0]).softmax(-1)


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen, self.other = nn.MultiheadAttention(WIDTH, 2, batch_first=True), Other()

    def forward(self, x: Tensor) -> Tensor:
        return self.other(x + self.seen(x, x, scripted_gelu(x))[0])


def test_what_is_no_attention_is_not_refused() -> None:
    x = torch.randn(2, N, WIDTH, generator=torch.Generator().manual_seed(1))
    assert set(probe(Whole(), x)["layer"]) == {"seen"}
    with pytest.raises(ValueError, match="no attention was seen"):
        probe(Other(), x)


@pytest.mark.parametrize(("dtype", "least"), [(torch.float32, 1e-7), (torch.float16, 5e-3), (torch.bfloat16, 0.05)])
def test_the_rounding_of_large_scores_is_not_refused(dtype, least):
    q, k, v = torch.randn(3, 1, 4, 64, 16, generator=torch.Generator().manual_seed(0)).to(dtype)

    class Attend(nn.Module):
        def forward(self, q, k, v):
            return (q @ k.mT).softmax(-1) @ v

    assert probe(Attend(), (8 * q, k, v))["deviation"].max() > least


def test_functions_of_torchscript_are_as_before():
    call = torch.jit.ScriptFunction.__call__
    with pytest.raises(ValueError, match=SCRIPT):
        probe(Mixer(scripted, True), torch.ones(2, N, WIDTH))
    assert torch.jit.ScriptFunction.__call__ is call
    assert scripted(*torch.ones(3, 2, 4, 5)).shape == (2, 4, 5)
