"""models: how weights are drawn, by their law, by part and by seed."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from attnrank import models
from attnrank.models import TransformerConfig, VisionTransformer, draw_weight
from model_cases import CONFIG, IMAGE, normal, seeded, vision

FALSE_ALARM = 1e-6
LAWS = {  # o is fan_out, i is fan_in
    "normal": lambda o, i: stats.norm(),
    "truncated_normal": lambda o, i: stats.truncnorm(-2, 2, scale=0.02),
    "xavier": lambda o, i: stats.uniform(-math.sqrt(6 / (i + o)), math.sqrt(24 / (i + o))),
    "lecun": lambda o, i: stats.norm(scale=1 / math.sqrt(i)),
}


def rejected(weight: torch.Tensor, law, tests: int) -> bool:
    """Kolmogorov-Smirnov test of the entries and normal test of their second moment, each at FALSE_ALARM / tests."""
    w = weight.detach().double().numpy().ravel()
    variance, fourth = law.var(), law.moment(4)
    z = (np.mean(w**2) - variance) / math.sqrt((fourth - variance**2) / w.size)
    return min(stats.kstest(w, law.cdf).pvalue, 2 * stats.norm.sf(abs(z))) < FALSE_ALARM / tests


@pytest.mark.parametrize("init", models.INITIALISATIONS)
def test_draw_weight_has_the_stated_law(init):
    """300,000 entries: a standard deviation wrong by 1 % is rejected, so is every other scheme."""
    weight = draw_weight(init, 500, 600, seeded(7))
    assert weight.dtype == torch.float64
    assert not rejected(weight, LAWS[init](500, 600), 2)
    assert rejected(weight * 1.01, LAWS[init](500, 600), 2)
    for other in set(LAWS) - {init}:
        assert rejected(weight, LAWS[other](500, 600), 2)


@pytest.mark.parametrize("init", models.INITIALISATIONS)
def test_every_part_of_the_model_is_drawn_by_its_scheme(init):
    model = vision(TransformerConfig(width=40, heads=3, head_dim=7, depth=2, value_dim=5, init=init), seed=11)
    drawn = [(name, weight) for name, weight in model.named_parameters() if weight.ndim == 2]
    assert len(drawn) == 4 + 2 * 6
    for name, weight in drawn:
        query_key = "attention.query" in name or "attention.key" in name
        scheme = "lecun" if init == "normal" and not query_key else init
        if name in ("class_token", "position"):
            scheme = "truncated_normal"
        assert not rejected(weight, LAWS[scheme](*weight.shape), 2 * len(drawn)), name
    for name, weight in model.named_parameters():
        if weight.ndim == 1:
            assert torch.equal(weight, torch.full_like(weight, "norm" in name and name.endswith("weight"))), name


def test_truncated_normal_standard_deviation_is_that_of_the_docstring():
    assert stats.truncnorm(-2, 2, scale=0.02).std() == pytest.approx(0.0176, abs=5e-5)
    assert draw_weight("truncated_normal", 300, 300, seeded()).abs().max() <= 0.04


def test_xavier_bound_differs_from_the_stacked_one_of_torch():
    torch.manual_seed(0)
    stacked = nn.MultiheadAttention(64, 4).in_proj_weight
    assert stacked.abs().max() <= math.sqrt(6 / (4 * 64)) < draw_weight("xavier", 64, 64, seeded()).abs().max()


def test_same_seed_same_weights_whatever_the_dtype_and_the_global_generator():
    torch.manual_seed(1)
    state = torch.get_rng_state()
    reference = vision().state_dict()
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        model = vision(dtype=dtype).state_dict()
        assert model.keys() == reference.keys()
        assert all(torch.equal(model[name], reference[name].to(dtype)) for name in reference)
    assert VisionTransformer(CONFIG, **IMAGE, generator=seeded()).classifier.weight.dtype == torch.float32
    other = vision(seed=1).state_dict()
    assert not any(torch.equal(other[name], reference[name]) for name in reference if reference[name].ndim == 2)


def test_first_blocks_do_not_depend_on_depth():
    shallow, deep = vision(replace(CONFIG, depth=1)), vision(replace(CONFIG, depth=3))
    images = normal(2, 2, 8, 8)
    for a, b in zip(shallow.queries_keys(images)[0], deep.queries_keys(images)[0]):
        assert torch.equal(a, b)
