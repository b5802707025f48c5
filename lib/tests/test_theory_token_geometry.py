"""theory.token_geometry_rank: against the bound that it extends, against its own definition, and its bad inputs."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, special, stats

from attnrank import theory
from attnrank.theory import token_geometry


@pytest.mark.parametrize("n", [2, 79, 1000, 4096])
@pytest.mark.parametrize("k", [1.0, 1.05, 2.0, 8.0, 500.0])
def test_without_a_common_share_it_is_the_bound_resolved_by_head_dimension(n, k):
    expected = theory.head_dim_bound(n, k)
    assert theory.token_geometry_rank(n, k, math.inf, 0.0) == pytest.approx(expected, rel=1e-6)
    assert theory.token_geometry_rank(n, math.inf, k, 0.0) == pytest.approx(expected, rel=1e-6)
    assert theory.token_geometry_rank(n, 2 * k, 2 * k, 0.0) == pytest.approx(expected, rel=1e-6)
    assert theory.token_geometry_rank(n, k, math.inf, 1e-12) == pytest.approx(expected, rel=2e-4)  # by its own rule


@pytest.mark.parametrize("k", [1.0, math.inf])
@pytest.mark.parametrize("share", [0.3, 0.9, 1.0])
@pytest.mark.parametrize("n", [31, 4096])
def test_it_is_its_integral_where_that_has_one_or_two_variables(n, k, share):
    """The trapezoidal rule on a fine grid, for U = +-1 (k = 1) and for R U normal (k infinite)."""
    common, radius = np.linspace(-9.0, 9.0, 1801), np.linspace(-9.0, 9.0, 901)
    score = math.sqrt(share) * common[:, None] + math.sqrt(1.0 - share) * radius
    log_win = (n - 1) * special.log_ndtr(score)
    density = np.exp(-(radius**2) / 2) / math.sqrt(2 * math.pi)
    if k == 1.0:
        sides = (np.exp(log_win) + np.exp(log_win[:, ::-1])) / 2
        hit = integrate.trapezoid(-np.expm1(n * np.log1p(-np.minimum(sides, 1 - 1e-16))) * density, radius, axis=1)
    else:
        win = integrate.trapezoid(np.exp(log_win) * density, radius, axis=1)
        hit = -np.expm1(n * np.log1p(-np.minimum(win, 1 - 1e-16)))
    weights = np.exp(-(common**2) / 2) / math.sqrt(2 * math.pi)
    expected = n * integrate.trapezoid(hit * weights, common)
    assert theory.token_geometry_rank(n, k, math.inf, share) == pytest.approx(expected, rel=2e-4)


@pytest.mark.parametrize(
    ("n", "d_h", "directions", "share"), [(64, 8, 3.0, 0.3), (64, 192, 20.0, 0.8), (16, math.inf, 8.0, 0.5)]
)
def test_it_is_what_its_definition_says(n, d_h, directions, share):
    """Monte Carlo over R and C, false-alarm rate 1e-6, with the mean over U taken on quantiles of U^2 ~ Beta."""
    rng = np.random.default_rng(0)
    k = 1 / (1 / d_h + 1 / directions)
    u = np.sqrt(stats.beta.ppf((np.arange(500) + 0.5) / 500, 0.5, (k - 1) / 2))
    radius, common = stats.chi.rvs(k, size=4000, random_state=rng), rng.standard_normal(4000)
    score = math.sqrt(share) * common[:, None] + math.sqrt(1 - share) * radius[:, None] * np.concatenate([u, -u])
    win = np.exp((n - 1) * special.log_ndtr(score)).mean(1)
    samples = n * -np.expm1(n * np.log1p(-win))
    assert abs(theory.token_geometry_rank(n, d_h, directions, share) - samples.mean()) < 5 * samples.std() / math.sqrt(
        4000
    )


@settings(deadline=None, max_examples=10)
@given(n=st.integers(2, 300), k=st.floats(1.0, 100.0), share=st.floats(0.0, 0.95))
def test_a_common_share_and_fewer_directions_only_lower_it(n, k, share):
    here = theory.token_geometry_rank(n, k, math.inf, share)
    assert 0 < here <= theory.occupancy_bound(n) * (1 + 4e-4)
    assert theory.token_geometry_rank(n, 2 * k, math.inf, share) >= here * (1 - 4e-4)
    assert theory.token_geometry_rank(n, k, math.inf, min(share + 0.05, 1.0)) <= here * (1 + 4e-4)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.95])
def test_very_many_directions_are_infinitely_many(share):
    limit = theory.token_geometry_rank(1024, math.inf, math.inf, share)
    assert theory.token_geometry_rank(1024, math.inf, 5e4, share) < limit * (1 - 1e-5)  # what a wrong limit would pass
    for k in (1e6, 1e7, 1.1e7, 1e16, 1e300):
        assert theory.token_geometry_rank(1024, math.inf, k, share) == pytest.approx(limit, rel=5e-5)
        assert theory.token_geometry_rank(1024, k, k, share) == pytest.approx(limit, rel=5e-5)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_less_than_one_direction_counts_as_one(share):
    expected = theory.token_geometry_rank(64, 1.0, math.inf, share)
    assert theory.token_geometry_rank(64, 1.0, 1.0, share) == theory.token_geometry_rank(64, 1, 9, share) == expected
    assert theory.token_geometry_rank(64, 2.0, 2.5, share) > expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((64, 8, -math.inf, 0.1), "directions must be a finite number"),
        ((64, -math.inf, 8, 0.1), "d_h must be a finite number"),
        ((1, 8, 8, 0.1), "n must be at least 2"),
        ((64, 0.5, 8, 0.1), "d_h must be at least 1"),
        ((64, 8, math.nan, 0.1), "directions must be a finite number"),
        ((64, 8, 8, 1.1), "common_share must be at most 1"),
        ((64, 8, 8, -0.1), "common_share must be at least 0"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        theory.token_geometry_rank(*arguments)


@pytest.mark.parametrize("share", [1e-12, 0.1, 0.5, 0.9, 0.99, 1.0])
def test_for_the_longest_sequences(share, monkeypatch):
    """Infinite directions against the bound of an independent quadrature, some against thrice as many nodes."""
    n = 10**5
    expected = theory.anisotropic_bound(n, share)
    assert theory.token_geometry_rank(n, math.inf, math.inf, share) == pytest.approx(expected, rel=1e-3)
    cases = [(64, 100.0), (2, 3.0), (128, 128.0)]
    coarse = [theory.token_geometry_rank(n, *case, share) for case in cases]
    monkeypatch.setattr(token_geometry, "NODES", 90)
    assert coarse == pytest.approx([theory.token_geometry_rank(n, *case, share) for case in cases], rel=1e-3)
    with pytest.raises(ValueError, match="n must be at most 100000, got 100001"):
        theory.token_geometry_rank(n + 1, 64, 100.0, share)
