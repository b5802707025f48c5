"""The cosine recursion of random layers: its integral, its limits, and the encoders that it describes."""

import math

import numpy as np
import pytest
from scipy import special

from attnrank import theory
from attnrank.experiments.depth import causes
from attnrank.theory.random_layers import gelu_product


def test_gelu_product_closed_forms_and_a_fine_grid():
    assert gelu_product(0.0, 1.0) == pytest.approx(1 / (4 * math.pi), rel=1e-10)
    assert gelu_product(1.0, 1.0) == pytest.approx(1 / 3 + 1 / (2 * math.pi * math.sqrt(3)), rel=1e-10)
    assert gelu_product(-1.0, 1.0) < gelu_product(0.0, 1.0)

    for variance in (10.0, 128.0, 1e4):  # where GELU has a kink; at correlation 0 the two factors part
        assert gelu_product(0.0, variance) == pytest.approx(variance**2 / (2 * math.pi * (1 + variance)), rel=1e-14)
    # The trapezoidal rule on the whole line: of an entire function that falls like a Gaussian it errs by rounding only.
    x, y = np.meshgrid(*2 * [np.linspace(-9.0, 9.0, 361)])
    density = np.exp(-(x**2 + y**2) / 2) / (2 * math.pi) * 0.05**2
    for c, variance in ((0.3, 1.0), (0.8, 0.04), (-0.6, 2.5)):
        u, v = math.sqrt(variance) * x, math.sqrt(variance) * (c * x + math.sqrt(1 - c * c) * y)
        gelus = [z * special.erfc(-z / math.sqrt(2)) / 2 for z in (u, v)]
        assert gelu_product(c, variance) == pytest.approx((density * gelus[0] * gelus[1]).sum(), rel=1e-12)


def test_the_first_layers_by_hand():
    mlp = theory.random_layer_cosines(100, 2, attention=False)
    product = 1 / 3 + 1 / (2 * math.pi * math.sqrt(3))
    assert mlp == pytest.approx([0.0, (1 / (4 * math.pi)) / (1 + product)])
    uniform = theory.random_layer_cosines(
        100, 2, score_variance=0.0, mlp=False
    )  # every row takes the mean of all values
    assert uniform[1] == pytest.approx(0.01 / 1.01)
    assert theory.random_layer_cosines(100, 3, attention=False, mlp=False) == pytest.approx([0.0, 0.0, 0.0])
    large = theory.random_layer_cosines(100, 8, weight_variance=0.02**2, scale=1000.0)
    assert large.max() < 1e-6 and np.all(np.diff(large) >= 0)


@pytest.mark.parametrize(("part", "init"), [("both", "lecun"), ("mlp", "lecun"), ("attention", "lecun")])
def test_random_encoders_follow_the_recursion(part, init):
    n, d, samples = 60, 256, 8
    result = causes.depth_causes(part, "gelu", init, 1.0, n, d, 2, 64, samples, 3)
    seen = np.array([result[f"cosine_{layer}"] for layer in (1, 2, 3, 4)])
    expected = theory.random_layer_cosines(n, 4, width=d, attention=part != "mlp", mlp=part != "attention")
    assert np.abs(seen - expected).max() < 0.02  # a heuristic: terms of order 1/sqrt(d) are left out


def test_parts_share_tokens_and_weights_and_an_odd_activation_keeps_tokens_apart():
    arguments = ("lecun", 1.0, 50, 128, 2, 16, 6, 1)
    full, mlp = (causes.depth_causes(part, "gelu", *arguments) for part in ("both", "mlp"))
    odd = causes.depth_causes("mlp", "tanh", *arguments)
    assert full["rank_1"] == mlp["rank_1"] == odd["rank_1"]
    assert mlp["cosine_4"] > 0.05
    # An odd map of Gaussian weights has inner products of mean 0: ten standard errors, 1 / sqrt(128 * 1225 * 6) each.
    assert abs(odd["cosine_4"]) < 0.011


@pytest.mark.parametrize("change", [{"scale": 1e100}, {"scale": 1e-100}, {"weight_variance": 1e98}, {"width": 10**300}])
def test_extreme_sizes_leave_cosines(change):
    cosines = theory.random_layer_cosines(10, 20, **{"width": 100} | change)
    assert ((cosines >= 0) & (cosines <= 1)).all()
    if "weight_variance" not in change:  # at which two blocks say all, and the next two nothing of each other
        assert (np.diff(cosines) >= 0).all()


@pytest.mark.parametrize(
    ("change", "name"),
    [({"n": 0}, "n"), ({"depth": 0}, "depth"), ({"width": 0}, "width"), ({"scale": 0.0}, "scale"),
     ({"cosine": 1.5}, "cosine"), ({"score_variance": -1.0}, "score_variance"), ({"weight_variance": 0.0},
     "weight_variance"), ({"scale": 1e-200}, "scale"), ({"scale": 1e200}, "scale"), ({"attention": "no"}, "attention"),
     ({"mlp": 2}, "mlp"), ({"weight_variance": 1e200}, "weight_variance"), ({"weight_variance": 1e-200},
     "weight_variance"), ({"weight_variance": 1.0, "width": 10**200}, "weight_variance")],
)  # fmt: skip
def test_bad_input_is_named(change, name):
    arguments = {"n": 10, "depth": 2} | change
    with pytest.raises(ValueError, match=f"^{name} "):
        theory.random_layer_cosines(**arguments)
    with pytest.raises(ValueError, match="part"):
        causes.depth_causes("neither", "gelu", "lecun", 1.0, 8, 16, 1, 4, 2, 0)
