"""The probe on torch.nn and the book's own models, what it leaves untouched, what it refuses, and its arguments."""

from __future__ import annotations

import math
import random
import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from probe_reference import TOL, assert_frame, explicit_ranks, softmax
from torch import nn
from torch.nn import functional as F

import attnrank
from attnrank import LayoutWarning, probe, theory
from attnrank.models import TransformerConfig, VisionTransformer
from attnrank.probe import attentions

COLUMNS = ["layer", "head", "n", "m", "head_dim", "kv_heads", "mask", "hardmax_rank", "numerical_rank", "stable_rank",
           "effective_rank", "bound", "deviation"]  # fmt: skip


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def encoder(**options):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, dtype=torch.float64)
    model = nn.TransformerEncoder(layer, 2, **options)
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    return model


def self_attention(layer: nn.TransformerEncoderLayer, x: np.ndarray, hidden: np.ndarray | None):
    """Attention matrices (S, H, n, n) and output of a post-norm layer of torch.nn, in plain numpy."""
    p = {name: value.detach().numpy() for name, value in layer.named_parameters()}
    heads, width = layer.self_attn.num_heads, x.shape[-1]
    qkv = x @ p["self_attn.in_proj_weight"].T + p["self_attn.in_proj_bias"]
    q, k, v = (part.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3) for part in np.split(qkv, 3, -1))
    scores = q @ k.transpose(0, 1, 3, 2) / math.sqrt(width // heads)
    if hidden is not None:
        scores = np.where(hidden, -np.inf, scores)
    a = softmax(scores)
    mixed = (a @ v).transpose(0, 2, 1, 3).reshape(x.shape)
    norm = lambda y, i: F.layer_norm(  # noqa: E731
        torch.from_numpy(y), (width,), *(torch.from_numpy(p[f"norm{i}.{w}"]) for w in ("weight", "bias"))
    ).numpy()
    y = norm(x + mixed @ p["self_attn.out_proj.weight"].T + p["self_attn.out_proj.bias"], 1)
    inner = np.maximum(y @ p["linear1.weight"].T + p["linear1.bias"], 0)
    return torch.from_numpy(a), norm(y + inner @ p["linear2.weight"].T + p["linear2.bias"], 2)


@pytest.mark.parametrize("mask", ["none", "padding", "causal"])
@pytest.mark.parametrize("compiled", [False, True])
def test_torch_encoder_on_its_fast_path(mask, compiled):
    model, x = encoder().eval(), draw(3, 10, 16)  # eval and no gradients: without the probe, the fast path
    padded = torch.arange(10).expand(3, 10) >= torch.tensor([10, 7, 10])[:, None]
    batch = {"src": x}
    hidden = None
    if mask == "padding":
        batch |= {"src_key_padding_mask": padded}
        hidden = padded[:, None, None].numpy()
    if mask == "causal":
        batch |= {"mask": nn.Transformer.generate_square_subsequent_mask(10, dtype=torch.float64), "is_causal": True}
        hidden = np.triu(np.ones((10, 10), dtype=bool), 1)
    with torch.no_grad():
        before = model(**batch)
        frame = probe(torch.compile(model, backend="eager") if compiled else model, batch, tol=TOL, per_sample=True)
        assert torch.equal(model(**batch), before)
    assert list(dict.fromkeys(frame["layer"])) == ["layers.0.self_attn", "layers.1.self_attn"]
    y = x.numpy()
    for i, layer in enumerate(model.layers):
        a, y = self_attention(layer, y, hidden)
        assert_frame(frame, f"layers.{i}.self_attn", a, ~padded if mask == "padding" else None)
    assert set(frame["mask"]) <= {mask, "none"}


@pytest.mark.parametrize("tokens, samples, doubted", [(2, 50, True), (50, 50, False), (50, 2, False)])
@pytest.mark.parametrize("batch_first", [False, True])
def test_a_layer_that_takes_tokens_first_says_what_it_took(tokens, samples, doubted, batch_first):
    """A batch of 2 samples of 50 tokens is 50 samples of 2 tokens to it, whose ranks look as plausible."""
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=batch_first), 2)
    x = torch.randn(samples, tokens, 8) if batch_first else torch.randn(tokens, samples, 8)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        frame = probe(encoder, x)
    assert frame["n"].eq(tokens).all()
    said = [(w.category, str(w.message), w.filename) for w in caught]
    expected = (
        LayoutWarning,
        "layer layers.0.self_attn takes tokens first (batch_first=False) and was given 2 tokens of 50 samples; if the "
        "samples come first, build it with batch_first=True, or transpose the batch; if it is meant, "
        "warnings.simplefilter('ignore', attnrank.LayoutWarning)",
        __file__,
    )
    assert said == [expected] * (doubted and not batch_first)


@pytest.mark.parametrize("options", [{}, {"need_weights": False}, {"average_attn_weights": False}])
@pytest.mark.parametrize("batch_first", [False, True])
def test_multihead_attention_to_other_tokens(options, batch_first):
    torch.manual_seed(0)
    attend = nn.MultiheadAttention(12, 3, kdim=8, vdim=8, batch_first=batch_first, dtype=torch.float64)
    x, y = draw(2, 5, 12), draw(2, 7, 8, seed=1)

    class Cross(nn.Module):
        def __init__(self):
            super().__init__()
            self.cross = attend

        def forward(self, x, y):
            return self.cross(x, y, y, **options)

    given = (x, y) if batch_first else (x.transpose(0, 1), y.transpose(0, 1))
    frame = probe(Cross(), given, tol=TOL, per_sample=True)
    with torch.no_grad():
        a = attend(given[0], given[1], given[1], average_attn_weights=False)[1]
    assert_frame(frame, "cross", a)
    assert frame["bound"].tolist() == [theory.occupancy_bound(5, 7)] * 6


def test_torchs_transformer_with_its_cross_attention():
    torch.manual_seed(0)
    model = nn.Transformer(16, 4, 1, 1, 32, batch_first=True, dtype=torch.float64).eval()
    source, target = draw(2, 7, 16), draw(2, 5, 16, seed=1)
    causal = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    frame = probe(model, {"src": source, "tgt": target, "tgt_mask": causal}, tol=TOL, per_sample=True)
    given, handles = {}, []
    for name in dict.fromkeys(frame["layer"]):
        keep = lambda _module, args, kwargs, name=name: given.update({name: (args, kwargs)})  # noqa: E731
        handles.append(model.get_submodule(name).register_forward_pre_hook(keep, with_kwargs=True))
    model(source, target, tgt_mask=causal)  # with gradients: off the fast path
    assert [handle.remove() for handle in handles] == [None] * 3
    for name, (args, kwargs) in given.items():
        wanted = kwargs | {"need_weights": True, "average_attn_weights": False}
        assert_frame(frame, name, model.get_submodule(name)(*args, **wanted)[1])
    masks = frame.groupby("layer", sort=False)[["n", "m", "mask"]].first().to_numpy().tolist()
    assert masks == [[7, 7, "none"], [5, 5, "causal"], [5, 7, "none"]]


@pytest.mark.parametrize("where", ["itself", "a layer"])
def test_compiled_in_place(where):
    model, x = encoder(), draw(2, 6, 16)
    expected = probe(model, x, tol=TOL)
    (model if where == "itself" else model.layers[0]).compile(backend="eager")
    model(x)
    pd.testing.assert_frame_equal(probe(model, x, tol=TOL), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("form", "close"), [("sdpa", 1e-9), ("matmul", 1e-4)])
def test_half_precision_is_counted_in_float64(dtype, form, close):
    """Ranks of the queries and keys that the model rounded, as ``attnrank.ranks`` counts them.

    Where attention is written out, the temperature is read off scores that are rounded, too.
    """
    model, x = Written(FORMS[form]).to(dtype), draw(3, 12, 8).to(dtype)
    frame = probe(model, x, tol=TOL, per_sample=True)
    q, k, _ = (y.unflatten(-1, (2, -1)).transpose(1, 2).detach() for y in model.project(x).chunk(3, -1))
    scores = 0.5 * q.double().numpy() @ k.double().numpy().transpose(0, 1, 3, 2)
    a = torch.from_numpy(softmax(scores))
    for row in frame.to_dict("records"):
        expected = explicit_ranks(a[row["sample"], row["head"]])
        assert all(row[name] == expected[name] for name in ("hardmax_rank", "numerical_rank"))
        for name in ("stable_rank", "effective_rank"):
            assert row[name] == pytest.approx(expected[name], rel=close), name
    assert 1e-5 < frame["deviation"].max() < 0.1  # the model's own rounding


def test_the_books_own_model():
    config = TransformerConfig(width=24, heads=3, head_dim=5, depth=2, value_dim=4, temperature=0.5)
    generator = torch.Generator().manual_seed(0)
    model = VisionTransformer(config, image_size=12, patch_size=3, classes=3, generator=generator, dtype=torch.float64)
    images = draw(2, 3, 12, 12)
    frame = probe(model, images, tol=TOL, per_sample=True)
    for i, (q, k) in enumerate(model.queries_keys(images)):
        assert_frame(frame, f"encoder.blocks.{i}.attention", attnrank.attention(q, k, temperature=0.5))
    assert set(frame["head_dim"]) == {5} and set(frame["n"]) == {17} and set(frame["mask"]) == {"none"}
    assert frame["bound"].tolist() == [theory.head_dim_bound(17, 5)] * len(frame)


class Written(nn.Module):
    """Attention written out in the ways that models have; ``form`` gives weights and values to their product."""

    def __init__(self, form, heads=2):
        super().__init__()
        self.form, self.num_heads = form, heads
        self.project = nn.Linear(8, 24, bias=False, dtype=torch.float64)
        nn.init.normal_(self.project.weight, generator=torch.Generator().manual_seed(3))

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for y in self.project(x).chunk(3, -1))
        return self.form(q, k, v).sum((1, -1))


def merged(q, k, v):
    """All heads of all samples in one dimension, added to a bias as baddbmm has it."""
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    scores = torch.baddbmm(torch.zeros(1, 1, 1, dtype=q.dtype), q, k.mT, alpha=0.5)
    return torch.bmm(scores.softmax(-1), v).unflatten(0, (-1, 2))


def long_einsum(q, k, v):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    a = torch.einsum("bqhd,bkhd->bhqk", q * 0.5, k).softmax(-1)
    return torch.einsum("bhqk,bkhd->bqhd", a, v).transpose(1, 2)


FORMS = {
    "matmul": lambda q, k, v: F.softmax(q @ k.mT / 2, dim=-1) @ v,
    "scaled before": lambda q, k, v: torch.matmul(torch.softmax(torch.matmul(q * 0.5, k.transpose(-1, -2)), -1), v),
    "shifted, masked, dropped out": lambda q, k, v: F.dropout(
        (lambda s: nn.Softmax(-1)((s - s.amax(-1, keepdim=True)).masked_fill(torch.zeros_like(s).bool(),
        -1e9)))(q @ k.mT * 0.5),
        0.1, training=False) @ v,
    "bmm": merged,
    "einsum": long_einsum,
    "einsum, keys first": lambda q, k, v: torch.einsum(
        "bhjd,bhij->bhid", v, torch.einsum("bhjd,bhid->bhij", k, q * 0.5).softmax(-1)),
    "sdpa": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.5),
    "aten": lambda q, k, v: torch.ops.aten.scaled_dot_product_attention(q, k, v, scale=0.5),
    "flex": lambda q, k, v: torch.nn.attention.flex_attention.flex_attention(q, k, v, scale=0.5),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_attention_written_out(form):
    import torch.nn.attention.flex_attention

    model, x = Written(FORMS[form]), draw(3, 6, 8)
    frame = probe(model, x, tol=TOL, per_sample=True)
    q, k, _ = (y.unflatten(-1, (2, -1)).transpose(1, 2).detach().numpy() for y in model.project(x).chunk(3, -1))
    assert_frame(frame, "Written", torch.from_numpy(softmax(0.5 * q @ k.transpose(0, 1, 3, 2))))
    assert set(frame["head_dim"]) == {4} and set(frame["mask"]) == {"none"}


class Scores(nn.Module):
    """Attention by scores as ``form`` writes them."""

    def __init__(self, form):
        super().__init__()
        self.form = form

    def forward(self, q, k, v):
        return self.form(q, k).softmax(-1).to(v.dtype) @ v


def causal(q, least):
    return torch.full(q.shape[-2:-1] * 2, least, dtype=q.dtype).triu(1)


PLAIN = {
    "product": lambda q, k: q @ k.mT / q.shape[-1] ** 0.5,
    "scaled before": lambda q, k: (q / q.shape[-1] ** 0.5) @ k.mT,
    "scaled by a tensor": lambda q, k: q @ k.mT * torch.tensor(q.shape[-1] ** -0.5, dtype=q.dtype),
    "added mask": lambda q, k: q @ k.mT * q.shape[-1] ** -0.5 + causal(q, torch.finfo(q.dtype).min),
    "shifted": lambda q, k: (lambda s: s - s.amax(-1, keepdim=True))(q @ k.mT / q.shape[-1] ** 0.5),
    "added by baddbmm": lambda q, k: torch.baddbmm(
        torch.zeros(1, dtype=q.dtype), q.flatten(0, 1), k.flatten(0, 1).mT, beta=0, alpha=q.shape[-1] ** -0.5
    ).unflatten(0, q.shape[:2]),
    "float32 softmax": lambda q, k: (q @ k.mT).float() / q.shape[-1] ** 0.5,
    "tiny": lambda q, k: q @ (k / 4096).mT / q.shape[-1] ** 0.5,
}  # fmt: skip
DISTANCE = (torch.arange(64)[:, None] - torch.arange(64)).abs()
BIASES = {
    "linear": -DISTANCE / 16,
    "linear, gentle": -DISTANCE / 64,
    "buckets": torch.randn(8, generator=torch.Generator().manual_seed(5))[(DISTANCE + 1).log2().long()],
}
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def standard(n, head_dim, dtype, common=2.0):
    """Standard Gaussian queries, keys and values, the keys with a common part."""
    q, k, v = draw(3, 2, 2, n, head_dim, seed=n + head_dim)
    return q.to(dtype), (k + common * draw(head_dim, seed=7)).to(dtype), v.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", PLAIN)
def test_rounded_scores_are_plain(form, dtype):
    for n, head_dim in ((1, 8), (3, 16), (64, 4), (64, 64), (40, 256)):
        for common in (0.0, 2.0, 10.0):
            given = standard(n, head_dim, dtype, common)
            found = attentions(Scores(PLAIN[form]), given)[0]
            assert found.mask.bias is None, (n, head_dim, common)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", BIASES)
def test_a_bias_is_no_rounding(bias, dtype):
    given = standard(64, 64, dtype)
    model = Scores(lambda q, k: q @ k.mT / 8 + BIASES[bias].to(dtype))
    frame = probe(model, given, ranks="hardmax", per_sample=True)
    assert set(frame["mask"]) == {"bias"}
    rounded = model.form(*given[:2])
    assert frame.sort_values(["sample", "head"])["hardmax_rank"].tolist() == [
        len(set(a.argmax(-1).tolist())) for a in rounded.flatten(0, 1)
    ]


def test_grouped_keys_without_repetition():
    model = Written(
        lambda q, k, v: F.scaled_dot_product_attention(q, k[:, ::2], v[:, ::2], is_causal=True, enable_gqa=True), 4
    )
    frame = probe(model, draw(2, 6, 8), tol=TOL, per_sample=True)
    repeated = Written(lambda q, k, v: F.scaled_dot_product_attention(
        q, k[:, ::2].repeat_interleave(2, 1), v[:, ::2].repeat_interleave(2, 1), is_causal=True), 4)  # fmt: skip
    pd.testing.assert_frame_equal(frame, probe(repeated, draw(2, 6, 8), tol=TOL, per_sample=True), atol=1e-12)
    assert set(frame["kv_heads"]) == {2} and set(frame["mask"]) == {"causal"}


@pytest.mark.parametrize("first", [0.0, 1.0])
def test_key_heads_are_counted_in_all_samples(first):
    """Key heads that agree in one sample, here because the keys are zero or equal there, need not be the same."""
    x = draw(3, 6, 8)
    x[0] = first
    q, k, v = draw(3, 3, 4, 6, 2)
    k[0] = first
    for heads in (4, 2, 1):
        few = k[:, :: 4 // heads]
        frame = probe(Repeated(), (q, few.repeat_interleave(4 // heads, 1), v), per_sample=True)
        assert set(frame["kv_heads"]) == {heads}
    assert set(probe(encoder(), F.pad(x, (0, 8)), per_sample=True)["kv_heads"]) == {4}


class Repeated(nn.Module):
    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v)


@torch.library.custom_op("attnrank_tests::flash_attn_fwd", mutates_args=(), schema="(Tensor q) -> Tensor")
def kernel(q: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, q, q)


class LinearAttention(nn.Module):
    def forward(self, x):
        return x.cumsum(1)


class Mixed(nn.Module):
    """A layer that the probe sees beside one that it does not."""

    def __init__(self):
        super().__init__()
        self.seen, self.unseen = Written(FORMS["sdpa"]), LinearAttention()

    def forward(self, x):
        return self.unseen(x[..., 0] + self.seen(x))


REFUSED = {
    "flex_attention with a score_mod": Written(lambda q, k, v: torch.nn.attention.flex_attention.flex_attention(
        q, k, v, score_mod=lambda s, b, h, i, j: s + i - j)),
    "attnrank_tests.flash_attn_fwd": Written(lambda q, k, v: kernel(q)),
    "softmax written by hand": Written(lambda q, k, v: (lambda e: (e / e.sum(-1, keepdim=True)) @ v)((q @ k.mT).exp())),
    "linear attention": Written(lambda q, k, v: (q @ k.mT).relu() @ v),
    "additive attention": Written(lambda q, k, v: (q[:, :, :, None] + k[:, :, None]).tanh().sum(-1).softmax(-1) @ v),
    "form that the probe does not know": Written(lambda q, k, v: torch.einsum(
        "bhij,hg->bgij", (q @ k.mT).softmax(-1), torch.eye(2, dtype=q.dtype)) @ v),
    "not multiplied with values as it is": Written(lambda q, k, v: (
        (q @ k.mT).softmax(-1).permute(0, 2, 3, 1).matmul(torch.eye(2, dtype=q.dtype)).permute(0, 3, 1, 2) @ v)),
    "dropped in evaluation mode": Written(lambda q, k, v: F.dropout((q @ k.mT).softmax(-1), 0.01) @ v),
    "something else than softmax(q": Written(lambda q, k, v: (q @ k.mT).softmax(-1).transpose(-2, -1) @ v),
    "not that of the keys": Written(lambda q, k, v: (q @ k.mT).softmax(-2) @ v),
    "NaN or infinite": Written(lambda q, k, v: F.scaled_dot_product_attention(q, k, v / 0)),
    "q must be finite": Written(lambda q, k, v: F.scaled_dot_product_attention(q * torch.nan, k, v)),
    "layer Written: its scores overflow float64": Written(lambda q, k, v: F.scaled_dot_product_attention(
        1e200 * q, 1e200 * k, v, attn_mask=torch.eye(6).bool() | (torch.arange(6) < 1))),
    "layer Written: q and k must have finite scores": Written(lambda q, k, v: F.scaled_dot_product_attention(
        1e200 * q, 1e200 * k, v)),
    "layer unseen: LinearAttention ran": Mixed(),
    "no attention was seen": nn.Linear(8, 8, dtype=torch.float64),
    "nested tensors": Written(lambda q, k, v: F.scaled_dot_product_attention(
        *(torch.nested.nested_tensor(list(x)) for x in (q, k, v))).to_padded_tensor(0.0)),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_cannot_be_seen_is_refused_by_name(what):
    import torch.nn.attention.flex_attention  # noqa: F401

    with pytest.raises(ValueError) as error:
        probe(REFUSED[what], draw(2, 6, 8))
    assert what in str(error.value)


@pytest.mark.parametrize(("dtype", "factor", "refused"), [
    (torch.float64, 1.01, True), (torch.float64, 1.0001, False), (torch.bfloat16, 3.0, True),
    (torch.bfloat16, 1.2, False),
])  # fmt: skip
def test_how_far_an_output_may_be_from_its_attention(dtype, factor, refused):
    model = Written(lambda q, k, v: (F.softmax(q @ k.mT / 2, -1) * factor) @ v).to(dtype)
    if refused:
        with pytest.raises(ValueError, match="something else than softmax"):
            probe(model, draw(2, 6, 8).to(dtype), ranks="hardmax")
    else:
        assert 0 < probe(model, draw(2, 6, 8).to(dtype), ranks="hardmax")["deviation"].max() < factor - 0.99


def test_few_outputs_of_many_reach_to_the_last_query():
    """Without spectra 64 queries are compared: here the last two have another output."""
    last = torch.ones(130, 1, dtype=torch.float64).index_fill(0, torch.tensor([128, 129]), 1.5)
    with pytest.raises(ValueError, match="something else than softmax"):
        probe(Written(lambda q, k, v: (F.softmax(q @ k.mT / 2, -1) * last) @ v), draw(1, 130, 8), ranks="hardmax")


def test_a_bias_that_is_nan_is_refused_where_its_output_is_not_compared():
    mask = draw(200, 200, seed=5)
    assert set(probe(Dot(), (*draw(3, 1, 2, 200, 4), mask), ranks="hardmax")["mask"]) == {"bias"}
    mask[1, 7] = torch.nan
    with pytest.raises(ValueError, match="or are NaN, so that they have no softmax"):
        probe(Dot(), (*draw(3, 1, 2, 200, 4), mask), ranks="hardmax")


def test_a_deviation_is_in_units_of_the_values():
    q, k, v = draw(3, 1, 2, 6, 4).to(torch.bfloat16)
    one, two = (probe(Repeated(), (q, k, size * v), ranks="hardmax")["deviation"] for size in (1, 4))
    assert (one > 0).all() and one.tolist() == two.tolist()  # powers of two do not round


def test_layers_leaves_out_what_cannot_be_seen():
    frame = probe(Mixed(), draw(2, 6, 8), layers="seen")
    assert set(frame["layer"]) == {"seen"} and len(frame) == 2


def test_modules_that_run_in_other_threads_or_without_python_are_refused():
    with pytest.raises(ValueError, match=r"pass model\.module"):
        probe(nn.DataParallel(encoder()), draw(1, 4, 16))
    with pytest.raises(ValueError, match="TorchScript in itself"):
        probe(torch.jit.trace(encoder().eval(), draw(1, 4, 16), check_trace=False), draw(1, 4, 16))


class Restless(nn.Module):
    """Changes a buffer and draws random numbers in every forward pass, and attends differently in training mode."""

    def __init__(self):
        super().__init__()
        self.attend = Written(FORMS["sdpa"])
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        noise = torch.rand(()) + random.random() + np.random.rand()
        return self.attend(F.dropout(x, 0.5, self.training)) + noise


def test_the_model_is_left_as_it_was_found():
    model, x = Restless(), draw(2, 6, 8)
    model.train()
    model.attend.eval()
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    state = {name: value.clone() for name, value in model.state_dict().items()}
    random_states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    probe(model, x)
    assert model.training and not model.attend.training and not model.attend.project.training
    assert [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()] == hooks
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random_states[0]) and random.getstate() == random_states[1]
    assert np.random.get_state()[1].tolist() == random_states[2]
    assert all(p.grad is None for p in model.parameters())
    assert torch.is_grad_enabled()


def test_the_model_is_left_as_it_was_found_after_a_refusal():
    model = Mixed().train()
    with pytest.raises(ValueError, match="LinearAttention"):
        probe(model, draw(2, 6, 8))
    assert model.training and torch.is_grad_enabled()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_means_are_those_of_the_samples():
    model, x = encoder(), draw(4, 10, 16)
    samples = probe(model, x, per_sample=True)
    assert list(samples.columns) == [*COLUMNS[:2], "sample", *COLUMNS[2:]]
    mean = probe(model, x)
    assert list(mean.columns) == COLUMNS and len(mean) == 8 and list(mean["head"]) == [0, 1, 2, 3] * 2
    for name in ("hardmax_rank", "numerical_rank", "stable_rank", "effective_rank"):
        expected = samples.groupby(["layer", "head"], sort=False)[name].mean().to_numpy()
        np.testing.assert_allclose(mean[name], expected, rtol=1e-12)
    largest = samples.groupby(["layer", "head"], sort=False)["deviation"].max()
    assert mean["deviation"].tolist() == largest.tolist()
    split = probe(model, [x[:1], x[1:]])
    pd.testing.assert_frame_equal(split, mean)
    assert probe(model, [x[:1], x[1:]], per_sample=True)["sample"].max() == 3


class Projected(nn.Module):
    """Queries, keys and values of one sequence, or keys and values of another, handed to a module that attends."""

    def __init__(self, attend):
        super().__init__()
        self.attend, self.project = attend, Written(None).project

    def forward(self, x, mask, memory=None):
        q, k, v = self.project(x).chunk(3, -1)
        if memory is not None:
            _, k, v = self.project(memory).chunk(3, -1)
        return self.attend(q, k, v, mask)


class Dot(nn.Module):
    def forward(self, q, k, v, mask):
        if mask.is_floating_point():
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return (q @ k.mT / 4).masked_fill(~mask, -torch.inf).softmax(-1) @ v


@pytest.mark.parametrize("helper", [Dot(), Dot().forward], ids=["module", "function"])
@pytest.mark.parametrize("width", [12, 8])
def test_padding_is_seen_whatever_carries_the_mask(helper, width):
    """A mask of numbers is no sequence of other tokens, nor are keys that a module is handed; 8 is also the width."""
    x = draw(2, width, 8)
    real = torch.arange(width) < torch.tensor([width - 4, width])[:, None]
    visible = real[:, None].expand(2, width, width)
    for mask in (visible, torch.where(visible, 0.0, -torch.inf).double(), torch.where(visible, -0.5, -1e9).double()):
        frame = probe(Projected(helper), (x, mask), per_sample=True)
        assert frame[["n", "m"]].to_numpy().tolist() == [[width - 4] * 2, [width] * 2]
        frame = probe(Projected(helper), {"x": x, "mask": mask}, per_sample=True)
        assert frame["n"].tolist() == [width - 4, width]


@pytest.mark.parametrize("helper", [Dot(), Dot().forward], ids=["module", "function"])
def test_other_tokens_of_the_same_number_keep_all_queries(helper):
    real = torch.arange(12) < torch.tensor([8, 12])[:, None]
    batch = {"x": draw(2, 12, 8), "mask": real[:, None].expand(2, 12, 12), "memory": draw(2, 12, 8, seed=1)}
    frame = probe(Projected(helper), batch, per_sample=True)
    assert frame[["n", "m"]].to_numpy().tolist() == [[12, 8], [12, 12]]
    q, k, v = draw(3, 2, 12, 8)
    assert probe(Dot(), (q, k, v, batch["mask"]), per_sample=True)["n"].tolist() == [12, 12]


def test_samples_that_are_all_padding_keep_their_numbers():
    model, x = nn.MultiheadAttention(16, 2, batch_first=True, dtype=torch.float64), draw(3, 6, 16)
    whole = {"query": x, "key": x, "value": x}
    padded = torch.zeros(3, 6, dtype=torch.bool)
    padded[2] = True
    frame = probe(model, [whole | {"key_padding_mask": padded}, whole], per_sample=True)
    assert sorted(set(frame["sample"])) == [0, 1, 3, 4, 5]


def test_samples_of_different_lengths_are_averaged():
    model, x = encoder(), draw(2, 10, 16)
    padded = torch.arange(10).expand(2, 10) >= torch.tensor([10, 6])[:, None]
    frame = probe(model, {"src": x, "src_key_padding_mask": padded})
    assert set(frame["n"]) == {8} and set(frame["mask"]) == {"padding"}
    expected = (theory.head_dim_bound(10, 4) + theory.head_dim_bound(6, 4)) / 2
    assert frame["bound"].to_numpy() == pytest.approx(expected)


def test_samples_of_different_masks_have_in_common_the_least_open():
    given = {name: (*draw(3, 1, 6, 4), mask) for name, mask in (("none", torch.ones(6, 6).bool()),
             ("causal", torch.ones(6, 6).bool().tril()), ("window", window(6)))}  # fmt: skip
    for first, second in (("none", "causal"), ("causal", "window"), ("none", "window")):
        for batches in ([given[first], given[second]], [given[second], given[first]]):
            assert probe(Dot(), batches)["mask"].tolist() == [second]


def window(n):
    return torch.ones(n, n).bool().tril().triu(-1)


@pytest.mark.parametrize("scale", [-0.5, 0.5])
def test_a_negative_factor_turns_the_order_of_the_keys(scale):
    model, x = Written(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=scale)), draw(3, 6, 8)
    q, k, _ = (y.unflatten(-1, (2, -1)).transpose(1, 2).detach().numpy() for y in model.project(x).chunk(3, -1))
    frame = probe(model, x, tol=TOL, per_sample=True)
    assert_frame(frame, "Written", torch.from_numpy(softmax(scale * q @ k.transpose(0, 1, 3, 2))))


def test_a_layer_that_runs_twice_is_numbered():
    layer = Written(FORMS["sdpa"])

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return self.layer(x) + self.layer(2 * x)

    assert list(dict.fromkeys(probe(Twice(), draw(2, 6, 8))["layer"])) == ["layer", "layer#2"]


class FastAttention(nn.Module):
    """Has the name of an attention and raises before it attends."""

    def forward(self, x):
        raise RuntimeError("no kernel")


class Caught(nn.Module):
    """Tries a part, itself in a part, and attends after both have raised."""

    def __init__(self):
        super().__init__()
        self.parts, self.after = nn.Sequential(nn.Identity(), FastAttention()), Written(FORMS["sdpa"])

    def forward(self, x):
        try:
            return self.parts(x)
        except RuntimeError:
            return F.scaled_dot_product_attention(x, x, x).sum() + self.after(x)


@pytest.mark.filterwarnings("error")
def test_layers_keep_their_names_after_an_exception_that_the_model_catches():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.block, self.last = Caught(), Written(FORMS["sdpa"])

        def forward(self, x):
            y = self.block(x) + self.last(x)
            return F.scaled_dot_product_attention(x, x, x).sum() + y

    model = Model()
    frame = probe(model, draw(2, 6, 8), ranks="hardmax")
    assert list(dict.fromkeys(frame["layer"])) == ["block", "block.after", "last", "Model"]
    assert not any(m._forward_hooks or m._forward_hooks_always_called for m in model.modules())


def test_choosing_layers():
    model, x = encoder(), draw(1, 6, 16)
    both = probe(model, x)
    second = both[both["layer"] == "layers.1.self_attn"].reset_index(drop=True)
    for layers in ("layers.1.self_attn", ["layers.1.*"], 1, [-1], (1, "layers.1*")):
        pd.testing.assert_frame_equal(probe(model, x, layers=layers), second)
    pd.testing.assert_frame_equal(probe(model, x, layers=[0, -1]), both)


def test_choosing_ranks():
    model, x = encoder(), draw(2, 6, 16)
    every = probe(model, x, tol=0.1)
    for name in attnrank.probe.__globals__["RANKS"]:
        frame = probe(model, x, tol=0.1, ranks=name)
        columns = [c for c in COLUMNS[7:11] if frame[c].notna().any()]
        assert columns == [f"{name}_rank"]
        np.testing.assert_array_equal(frame[columns], every[columns])


def test_the_tolerance_is_a_hundredth():
    model, x = encoder(), draw(2, 12, 16)
    frames = {tol: probe(model, x, tol=tol, ranks="numerical") for tol in (0.01, 0.1)}
    pd.testing.assert_frame_equal(probe(model, x, ranks="numerical"), frames[0.01])
    assert probe(model, x).attrs == {"tol": 0.01} and frames[0.1].attrs == {"tol": 0.1}  # so that a table says it
    assert (frames[0.01]["numerical_rank"] > frames[0.1]["numerical_rank"]).any()


@pytest.mark.filterwarnings("error")
def test_spectra_of_long_sequences_only_when_asked_for(monkeypatch):
    assert attnrank.probe.__globals__["LONG"] == 2048
    monkeypatch.setitem(attnrank.probe.__globals__, "LONG", 8)
    assert probe(encoder(), draw(1, 8, 16))["stable_rank"].notna().all()
    q, k, v = draw(3, 1, 2, 9, 4)
    for given in ((q, k[:, :, :6], v[:, :, :6]), (q[:, :, :6], k, v)):  # 9 queries, or 9 keys
        with pytest.warns(UserWarning, match="more than 8 tokens"):
            assert probe(Repeated(), given)["stable_rank"].isna().all()
    model, x = encoder(), draw(1, 9, 16)
    with pytest.warns(UserWarning, match="more than 8 tokens"):
        frame = probe(model, x)
    assert frame["hardmax_rank"].notna().all() and frame["stable_rank"].isna().all()
    assert probe(model, x, ranks=["stable"])["stable_rank"].notna().all()


BAD = {
    "model must be": lambda: probe(lambda x: x, draw(1, 4, 16)),
    "batch must be a tensor": lambda: probe(encoder(), 3),
    "convert it with torch.from_numpy": lambda: probe(encoder(), np.zeros((1, 4, 16))),
    "batch must not be empty": lambda: probe(encoder(), []),
    "batch must not be empty, nor": lambda: probe(encoder(), draw(0, 4, 16)),
    "batch must not be empty, nor all": lambda: probe(encoder(), [draw(0, 4, 16), draw(0, 5, 16)]),
    "batch must not be empty, nor all padding": lambda: probe(Written(FORMS["matmul"]), draw(0, 6, 8)),
    "tol must be at least 0": lambda: probe(encoder(), draw(1, 4, 16), tol=-1.0),
    "ranks must be one of": lambda: probe(encoder(), draw(1, 4, 16), ranks=["soft"]),
    "ranks must name": lambda: probe(encoder(), draw(1, 4, 16), ranks=[]),
    "layers has no match for 'layers.7'": lambda: probe(encoder(), draw(1, 4, 16), layers=["layers.7"]),
    "layers has no match for 2": lambda: probe(encoder(), draw(1, 4, 16), layers=2),
    "layers must be names": lambda: probe(encoder(), draw(1, 4, 16), layers=[1.5]),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_arguments(message):
    with pytest.raises(ValueError) as error:
        BAD[message]()
    assert message in str(error.value)


@pytest.mark.parametrize("form", ["sdpa", "matmul"])
def test_a_batch_without_samples_among_others_changes_nothing(form):
    model, x = Written(FORMS[form]), draw(2, 6, 8)
    pd.testing.assert_frame_equal(probe(model, [x[:0], x, x[:0]]), probe(model, x))


def test_sequences_without_tokens_are_refused():
    for tokens in (draw(2, 0, 8), draw(0, 0, 8)):
        with pytest.raises(ValueError, match="^batch must not be empty, nor all padding"):
            probe(Written(FORMS["sdpa"]), tokens)


def test_attentions_of_no_batch():
    for batch in ([], draw(0, 4, 16)):
        with pytest.raises(ValueError, match="batch must not be empty"):
            attentions(encoder(), batch)


def test_the_function_and_the_command_have_one_name():
    import attnrank.probe as p
    from attnrank.probe import RANKS

    assert probe is attnrank.probe is p and callable(probe) and "hardmax" in RANKS
    help_text = subprocess.run(
        [sys.executable, "-m", "attnrank.probe", "--help"], check=True, capture_output=True, text=True
    )
    assert "--images FOLDER" in help_text.stdout and not help_text.stderr


def test_memory_is_linear_in_the_number_of_tokens():
    from attnrank.benchmarks import extra_memory

    code = """
import torch
from torch import nn
from torch.nn import functional as F
from attnrank import probe
class One(nn.Module):
    def forward(self, x):
        return F.scaled_dot_product_attention(x, x.flip(-1), x)
n = 6000
x = torch.randn(1, 1, n, 4, generator=torch.Generator().manual_seed(0))
probe(One(), x[:, :, :500], ranks="hardmax")
def work():
    probe(One(), x, ranks="hardmax")
"""
    extra = extra_memory(code)
    assert math.isnan(extra) or extra < 6000**2  # a byte an entry: less than a mask of 6,000 x 6,000


def test_the_cost_of_a_rank_is_measured_in_forward_passes():
    from attnrank.benchmarks import probing

    costs = probing.costs(16, ("hardmax", "stable"), rounds=1)
    assert set(costs) == {"hardmax", "stable"} and all(cost > 0 for cost in costs.values())
