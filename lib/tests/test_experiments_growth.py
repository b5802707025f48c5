"""experiments.growth: the sizing table against its bounds, rules on curves drawn by hand, trials of both rules."""

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from attnrank import theory
from attnrank.experiments import growth
from attnrank.experiments.shared.heads import random_heads
from replayed_heads import distinct, gen, replay


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


FALSE_ALARM = 1e-6


def test_rules_on_curves_drawn_by_hand():
    curve = [0.1, 0.3, 0.4, 0.405, 0.5]
    assert theory.increment_stop(curve, 0.01) == 3.0  # though the next step is large again
    assert theory.increment_stop(curve, 0.15) == 2.0 and theory.increment_stop(curve, 0.001) is None
    assert theory.gap_stop([1, 2, 4, 8, 16], curve, 0.35) == pytest.approx(2 * math.sqrt(2))
    assert theory.gap_stop([1, 2, 4, 8, 16], curve, 0.05) == 1.0
    assert theory.gap_stop([1, 2, 4, 8, 16], curve, 0.6) is None


increments = st.lists(st.floats(-0.05, 0.2), min_size=2, max_size=30)


@settings(max_examples=200, deadline=None)
@given(true=increments, noise=st.floats(1e-4, 0.05), seed=st.integers(0, 2**32 - 1))
def test_the_rule_stops_within_the_interval_that_noise_allows(true, noise, seed):
    true = np.array([*true, -0.1])  # so that it stops
    error = np.random.default_rng(seed).uniform(-noise, noise, len(true)) * 0.999
    first, last = theory.stop_interval(true, 0.01, noise)
    stop = theory.increment_stop(np.concatenate([[0.0], np.cumsum(true + error)]), 0.01)
    assert first <= stop <= last


def test_stop_interval_says_when_a_stop_is_not_certain():
    assert theory.stop_interval([0.1, 0.012], 0.01, 0.005) == (2, None)
    assert theory.stop_interval([0.1, 0.02, 0.004], 0.01, 0.005) == (3, 3)
    with pytest.raises(ValueError, match="increments must fall to threshold"):
        theory.stop_interval([0.1, 0.02], 0.01, 0.005)


def test_as_many_seeds_as_bernstein_asks_keep_the_noise_within_bounds():
    noise, variance, comparisons, failure = 0.1, 0.01, 5, 0.2
    seeds = theory.seeds_needed(noise, variance, comparisons, failure)
    assert seeds == math.ceil((0.02 + 0.4 / 3) / 0.01 * math.log(50))
    draws = np.random.default_rng(0).choice([-0.1, 0.1], size=(400, comparisons, seeds))  # variance 0.01
    outside = (abs(draws.mean(-1)) > noise).any(-1).sum()
    assert stats.binom.sf(outside - 1, 400, failure) > FALSE_ALARM
    with pytest.raises(ValueError, match="failure"):
        theory.seeds_needed(0.1, 0.01, 5, 0.0)
    tiny = 5e-324  # 10 / tiny is no float
    expected = (0.02 + 0.4 / 3) / 0.01 * (math.log(10) - math.log(tiny))
    assert theory.seeds_needed(0.1, 0.01, 5, tiny) == math.ceil(expected)


@pytest.mark.parametrize("design", growth.DESIGNS)
def test_saturation_trials_apply_both_rules_to_one_measured_curve(design, monkeypatch):
    monkeypatch.setattr(growth, "STEPS", (1, 2, 3, 4, 5, 6))
    monkeypatch.setattr(growth, "HEAD_DIMS", (1, 2, 3, 4, 5, 6, 12, 24))
    dims, n, d, repetitions = (1, 2, 3, 4, 5, 6, 12, 24), 14, 30, 9
    generator, curve = gen(11), np.zeros(len(dims))
    for _ in range(repetitions):
        y = replay("gaussian", n, d, 2 * (sum(dims) if design == "independent" else 24), generator)
        start = 0
        for i, d_h in enumerate(dims):
            if design == "independent":
                q, k = y[:, start : start + d_h], y[:, start + d_h : start + 2 * d_h]
                start += 2 * d_h
            else:
                q, k = y[:, :d_h], y[:, 24 : 24 + d_h]
            curve[i] += distinct(q, k) / n / repetitions
    result = growth.saturation_trial("gaussian", n, d, design, repetitions, 11)
    assert result["increment_d_h"] == theory.increment_stop(curve[:6], 0.01)
    expected = theory.gap_stop(dims, curve, theory.occupancy_bound(n) / n - 0.1)
    assert result["gap_d_h"] == (None if expected is None else pytest.approx(expected, rel=1e-9))


def test_the_increment_rule_stops_at_once_or_never():
    assert growth.increment_rule(12, 5, threshold=100.0, largest=9, seed=0) == {"d_h": 1}
    rising = growth.increment_rule(64, 200, threshold=1e-9, largest=3, seed=0)  # the first increments are far above
    assert rising == {"d_h": 3}


@pytest.mark.parametrize("seed", [12, 24])
def test_an_increment_of_just_the_threshold_stops_the_rule(seed):
    n, heads, largest = 50, 10, 12
    ranks = [
        random_heads(n, d_h, heads, seed + growth.NEXT_SEED * (d_h - 1))["rank_mean"] for d_h in range(1, largest + 1)
    ]
    increments = [Fraction(round(heads * (after - before)), heads * n) for before, after in pairwise(ranks)]
    at, below = Fraction(1, 100), Fraction(99, 10_000)
    first = {most: 1 + [more <= most for more in increments].index(True) for most in (at, below)}
    assert increments[first[at] - 1] == at and first[at] < first[below]
    for most, stop in first.items():
        assert growth.increment_rule(n, heads, float(most), largest, seed) == {"d_h": stop}


@pytest.mark.parametrize("n", [64, 4096])
def test_saturation_solves_its_rule(n):
    def fraction(d_h):
        return theory.head_dim_bound(n, d_h) / n

    d_h = growth.saturation(n, "gap", 0.05)["d_h"]
    assert theory.occupancy_bound(n) / n - fraction(d_h) == pytest.approx(0.05, rel=1e-5)
    d_h = growth.saturation(n, "increment", 0.01)["d_h"]
    assert fraction(d_h + 1) - fraction(d_h) == pytest.approx(0.01, rel=1e-4)
    d_h = growth.saturation(n, "doubling", 0.01)["d_h"]
    assert fraction(2 * d_h) - fraction(d_h) == pytest.approx(0.01, rel=1e-4)
    for wider in (1.1, 2.0, 10.0):
        assert fraction(2 * wider * d_h) - fraction(wider * d_h) < 0.01


@pytest.mark.parametrize(
    ("function", "arguments", "name"),
    [
        (growth.increment_rule, (8, 4, 0.0, 9, 0), "threshold"),
        (growth.saturation, (64, "square", 0.1), "rule"),
        (growth.saturation, (64, "doubling", 0.9), "level"),
    ],
)
def test_bad_rules_are_refused_by_name(function, arguments, name):
    with pytest.raises(ValueError, match=name):
        function(*arguments)


def test_rules_stop_where_an_increment_is_the_threshold_and_a_rank_is_the_level():
    curve = np.array([1, 3, 4, 5, 5]) / 10  # 0.4 - 0.3 > 0.1 in floats
    assert theory.increment_stop(curve, 0.1) == 2.0
    assert theory.gap_stop([1, 2, 4, 8, 16], curve, 0.4) == pytest.approx(4.0)
    assert theory.gap_stop([1, 2, 4, 8, 16], curve, 0.5) == pytest.approx(8.0)
    assert theory.stop_interval([0.75, 0.5, 0.25], 0.375, 0.125) == (2, 3)
