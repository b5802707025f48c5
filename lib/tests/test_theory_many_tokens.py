"""Formulas at very many tokens, where sums and quadratures that are good for thousands would fail."""

import math

import numpy as np
import pytest
from scipy import special, stats

from attnrank import theory


@pytest.mark.parametrize("n", [10**3, 10**9, 10**12, 10**15])
def test_tied_heads_of_dimension_one_attend_to_two_tokens(n):
    """The smallest and the largest key: 2 (1 - 2^-n)."""
    assert theory.tied_bound(n, 1) == pytest.approx(2.0, rel=1e-10)


def test_cycles_of_two_heads_grow_like_a_quarter_of_the_logarithm():
    found = [theory.two_head_deficit(10**k) for k in (8, 9, 10)]
    assert np.diff(found) == pytest.approx(math.log(10) / 4, rel=1e-4)
    k = np.arange(1, 33)  # n = 64 by products
    falling = np.array([math.prod(1 - i / 64 for i in range(j)) for j in range(65)])
    assert theory.two_head_deficit(64) == pytest.approx(sum(falling[k] ** 2 * falling[2 * k] / (2 * k)), rel=1e-13)


@pytest.mark.parametrize("n", [10**6, 10**12, 10**20])
def test_gap_density_and_tokens_without_a_common_direction(n):
    """The density of the gap is that of an exponential law, of rate near a_n; without a direction cells are equal."""
    a = math.sqrt(2 * math.log(n))
    assert a - 0.5 * math.log(4 * math.pi * math.log(n)) / a < theory.gap_density(n) < a
    assert theory.anisotropic_bound(n, 0.0) == pytest.approx(theory.occupancy_bound(n), rel=1e-6)


def test_first_order_of_the_simplex_at_very_many_tokens():
    """It is a^2 / (2 e) in the limit, and a^2 grows by nearly 2 log 10 per decade."""
    steps = np.diff([theory.simplex_first_order(10**k) for k in (11, 12, 13, 14, 15)])
    assert (steps < math.log(10) / math.e).all() and (steps > 0.9 * math.log(10) / math.e).all()


@pytest.mark.parametrize("level", [0.05, 0.12, 0.12925, 0.1318])
def test_every_level_that_a_doubling_exceeds_has_its_head_dimension(level):
    gains = [(theory.head_dim_bound(1024, 2 * d) - theory.head_dim_bound(1024, d)) / 1024 for d in range(1, 129)]
    d_h = theory.doubling_head_dim(1024, level)
    assert max(gains) > level
    assert all(gain <= level for d, gain in enumerate(gains, 1) if d >= d_h)
    assert (theory.head_dim_bound(1024, 2 * d_h) - theory.head_dim_bound(1024, d_h)) / 1024 == pytest.approx(level)


@pytest.mark.parametrize("n", [10**3, 10**8, 10**12, 10**15, 10**20])
def test_tokens_that_are_all_alike_leave_one_steep_integral(n):
    """At cosine 1 the bound is n E[1 - (1 - Phi(G)^{n-1})^n]: a fine trapezoidal rule."""
    g = np.linspace(-10.0, 14.0, 2_400_001)
    with np.errstate(divide="ignore"):
        hit = -np.expm1(n * np.log1p(-np.exp((n - 1) * special.log_ndtr(g))))
    expected = n * float(np.sum(hit * stats.norm.pdf(g))) * 1e-5
    assert theory.anisotropic_bound(n, 1.0) == pytest.approx(expected, rel=1e-6)
