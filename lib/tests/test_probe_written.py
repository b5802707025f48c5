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
