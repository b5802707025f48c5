"""experiments.growth: the sizing table against the bounds that it is read off."""

import math

import pytest

from attnrank import theory
from attnrank.experiments import growth


@pytest.mark.parametrize(("n", "gap"), [(128, 0.1), (1024, 0.05), (131072, 0.01)])
def test_gaussian_heads_are_sized_by_the_gap_rule(n, gap):
    assert growth.sizing(n, "gaussian", gap) == {"d_h": math.ceil(theory.saturation_head_dim(n, gap))}


@pytest.mark.parametrize("gap", [0.3, 0.1, 0.05, 0.02])
def test_normalised_heads_are_the_smallest_within_the_gap(gap):
    n = 128
    d_h = growth.sizing(n, "normalised", gap)["d_h"]

    def least(d_h):
        if d_h == 2:  # no smaller than the mean of the theorem, no larger than the barrier
            return 0.55788 * n
        return 2.0 if d_h == 1 else theory.normalised_lower_bound(n, d_h)

    assert theory.occupancy_bound(n) - least(d_h) <= gap * n
    assert d_h == 1 or theory.occupancy_bound(n) - least(d_h - 1) > gap * n


def test_causal_heads_are_the_smallest_that_the_bound_admits():
    n, gap = 12, 0.1
    d_h = growth.sizing(n, "causal", gap)["d_h"]
    distance = [theory.causal_limit(n) - theory.causal_head_dim_bound(n, d) for d in (d_h - 1, d_h)]
    assert distance[0] > gap * n >= distance[1]


@pytest.mark.parametrize(
    ("arguments", "name"), [((2, "gaussian", 0.1), "n"), ((64, "tied", 0.1), "kind"), ((64, "causal", 0.0), "gap")]
)
def test_bad_settings_are_refused_by_name(arguments, name):
    with pytest.raises(ValueError, match=f"^{name} "):
        growth.sizing(*arguments)
