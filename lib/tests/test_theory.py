"""theory: closed forms against exact arithmetic, quadratures against mpmath and Monte Carlo."""

import math
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import head_dim_reference
from attnrank import hardmax_rank, theory
from attnrank.theory.barrier import hit_probability
from attnrank.theory.head_dimension import norm_range


def exact_occupancy(n, m):
    """E D by summing over the number of occupied cells, with integers: D = s has m!/(m-s)! S(n, s) / m^n."""
    ways = [0] * (m + 1)
    ways[0] = 1
    for _ in range(n):
        ways = [0] + [ways[s] * s + ways[s - 1] * (m - s + 1) for s in range(1, m + 1)]
    mean = Fraction(sum(s * w for s, w in enumerate(ways)), m**n)
    square = Fraction(sum(s * s * w for s, w in enumerate(ways)), m**n)
    return mean, square - mean**2


@given(n=st.integers(1, 30), m=st.integers(1, 30))
def test_occupancy_bound_is_the_mean_number_of_occupied_cells(n, m):
    mean, _ = exact_occupancy(n, m)
    assert theory.occupancy_bound(n, m) == pytest.approx(float(mean), rel=1e-13)


@given(n=st.integers(1, 40))
def test_occupancy_variance_is_exact(n):
    _, variance = exact_occupancy(n, n)
    assert theory.occupancy_variance(n) == pytest.approx(float(variance), rel=1e-11, abs=1e-12)


@given(n=st.integers(1, 10**12))
def test_occupancy_bound_lies_between_its_two_linear_bounds(n):
    bound, linear = theory.occupancy_bound(n), (1 - 1 / math.e) * n
    assert linear < bound * (1 + 1e-15) and bound <= linear * (1 + 1e-15) + 1 / math.e
    if n >= 100:
        assert (bound - linear) * 2 * math.e == pytest.approx(1, abs=2 / n + 1e-14 * n)


def test_occupancy_variance_tends_to_its_limit():
    assert theory.occupancy_variance(10**12) / 1e12 == pytest.approx(1 / math.e - 2 / math.e**2, rel=1e-10)


REFERENCE = pd.read_csv(head_dim_reference.TABLE)


@pytest.mark.parametrize(("n", "d_h", "bound"), list(REFERENCE.itertuples(index=False, name=None)))
def test_head_dim_bound_agrees_with_mpmath(n, d_h, bound):
    assert theory.head_dim_bound(int(n), d_h) == pytest.approx(bound, rel=1e-6)


def test_the_reference_table_covers_its_grid_and_is_what_its_script_computes():
    assert [tuple(row) for row in REFERENCE[["n", "d_h"]].to_numpy()] == head_dim_reference.GRID
    for n, d_h, bound in REFERENCE[REFERENCE.d_h == 1].itertuples(index=False, name=None):
        assert float(head_dim_reference.bound(int(n), int(d_h))) == pytest.approx(bound, rel=1e-12)


@given(d_h=st.floats(1.0, 1e7), tail=st.floats(-290.0, -1.0))
def test_norm_range_has_the_quantiles_of_the_chi_distribution(d_h, tail):
    low, high = norm_range(10.0**tail, d_h)
    exact = stats.chi.ppf(10.0**tail, d_h), stats.chi.isf(10.0**tail, d_h)
    assert (low, high) == pytest.approx(exact, rel=1e-14)


@pytest.mark.parametrize(("n", "d_h"), [(2, 3), (2, 1000), (1, 5)])
def test_head_dim_bound_is_the_occupancy_bound_where_every_key_wins_equally(n, d_h):
    assert theory.head_dim_bound(n, d_h) == pytest.approx(theory.occupancy_bound(n), rel=1e-8)


@pytest.mark.parametrize("n", [3, 9, 17, 40, 128, 129])
def test_head_dim_bound_at_head_dimension_three_is_an_integral_over_an_interval(n):
    """There a coordinate of a uniform point on the sphere is uniform on [-1, 1], and both its signs count."""
    x, weights = np.polynomial.legendre.leggauss(120)
    r = 6 * (x + 1)
    win = stats.norm.cdf(r[:, None] * x) ** (n - 1) @ weights / 2
    expected = n * (6 * weights * stats.chi.pdf(r, 3) * hit_probability(win, n)).sum()
    assert theory.head_dim_bound(n, 3) == pytest.approx(expected, rel=1e-6)


@given(d_h=st.floats(1, 1e5))
@settings(max_examples=60, deadline=None)
def test_two_keys_win_equally_at_every_real_head_dimension(d_h):
    assert theory.head_dim_bound(2, d_h) == pytest.approx(1.5, rel=1e-6)


@pytest.mark.parametrize("n", [3, 1000, 10**6, 10**12])
@pytest.mark.parametrize("d_h", [1, 2, 3, 6])
def test_head_dim_bound_is_smooth_across_integers(n, d_h):
    """The quadrature changes its variable at 1, 2 and 6 and at integers; a fit through neighbours must not show it."""
    step = 0.05
    around = [theory.head_dim_bound(n, d_h + step * k) for k in range(1, 8)]
    weights = [7, -21, 35, -35, 21, -7, 1]  # polynomial extrapolation of degree 6 to k = 0
    extrapolated = sum(w * math.log(b) for w, b in zip(weights, around, strict=True))
    assert math.log(theory.head_dim_bound(n, d_h)) == pytest.approx(extrapolated, abs=1e-4)


@given(n=st.integers(2, 10**12), d_h=st.floats(1, 1e5))
@settings(max_examples=40, deadline=None)
def test_head_dim_bound_rises_with_head_dimension_and_stays_below_the_barrier(n, d_h):
    bound = theory.head_dim_bound(n, d_h)
    assert bound * (1 + 1e-6) >= 1 and bound <= theory.occupancy_bound(n) * (1 + 1e-6)
    assert theory.head_dim_bound(n, 1.5 * d_h) >= bound * (1 - 1e-6)


@pytest.mark.parametrize(("n", "d_h"), [(16, 4), (64, 8), (256, 32), (100, 192)])
def test_head_dim_bound_holds_and_is_tight_for_random_heads(n, d_h):
    """Orthonormal tokens and Gaussian weights: queries and keys are then i.i.d. Gaussian. False-alarm rate 1e-6."""
    samples = 400
    q, k = torch.randn(2, samples, n, d_h, generator=torch.Generator().manual_seed(n + d_h), dtype=torch.float64)
    rank = hardmax_rank(q, k).double()
    margin = 4.9 * float(rank.std()) / math.sqrt(samples)  # Phi(-4.9) < 1e-6
    assert rank.mean() <= theory.head_dim_bound(n, d_h) + margin
    assert rank.mean() >= (0.9 if d_h >= 32 else 0.6) * theory.head_dim_bound(n, d_h) - margin
    tied = hardmax_rank(q, q).double()  # the negative control: queries that are their own keys
    assert d_h < 32 or tied.mean() > theory.occupancy_bound(n) + margin


@pytest.mark.parametrize("n", [1, 7, 200])
def test_occupancy_margin_is_mcdiarmids(n):
    probability = math.exp(-2 * 5 * theory.occupancy_margin(n, 1e-6, samples=5) ** 2 / n)
    assert probability == pytest.approx(1e-6)


def test_occupancy_margin_at_the_least_probability():
    assert theory.occupancy_margin(1000, 5e-324) == pytest.approx(math.sqrt(1000 * 1074 * math.log(2) / 2), rel=1e-12)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: theory.occupancy_bound(0), "n"),
        (lambda: theory.occupancy_bound(2.5), "n"),
        (lambda: theory.occupancy_bound(True), "n"),
        (lambda: theory.occupancy_bound(3, 0), "keys"),
        (lambda: theory.occupancy_variance(-1), "n"),
        (lambda: theory.occupancy_margin(3, 0.0), "probability"),
        (lambda: theory.occupancy_margin(3, 1.0), "probability"),
        (lambda: theory.occupancy_margin(3, 0.5, samples=0), "samples"),
        (lambda: theory.head_dim_bound(0, 3), "n"),
        (lambda: theory.head_dim_bound(8, 0.5), "d_h"),
        (lambda: theory.head_dim_bound(8, math.nan), "d_h"),
        (lambda: theory.head_dim_bound(8, math.inf), "d_h"),
    ],
)
def test_bad_input_is_named(call, name):
    with pytest.raises(ValueError, match=rf"^{name} must"):
        call()


def test_chances_that_rounding_raises_above_one_are_certain():
    hits = hit_probability(np.array([0.0, 1e-300, 0.5, 1.0, 1.0 + 1e-12]), 3)
    assert hits == pytest.approx([0.0, 3e-300, 0.875, 1.0, 1.0], rel=1e-12, abs=0.0)
