"""experiments.formulas: the lines of figures against independent formulas, quadratures and simulations."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import integrate, special, stats

from attnrank import theory
from attnrank.experiments import almost_orthonormal as formulas
from attnrank.experiments.shared import lines


@given(n=st.integers(2, 10**6), d=st.integers(1, 10**6), d_h=st.integers(1, 4096))
def test_token_conditions_are_their_formulas(n, d, d_h):
    row, (n, d, d_h) = formulas.token_conditions(n, d, d_h), (mpmath.mpf(k) for k in (n, d, d_h))
    expected = {
        "paper": 1 / (n * mpmath.sqrt(n) * (d + d_h)),
        "total_variation": 1 / (n**2 * mpmath.sqrt(d_h)),
        "ratio": (d + d_h) / mpmath.sqrt(n * d_h),
        "effective_queries": 1 / n**2,
        "small_cosines": 1 / (n * mpmath.log(n) ** 3),
        "noise_stability": 1 / (n * mpmath.log(n)),
        "vanishing": 1 / n,
        "random_directions": mpmath.sqrt(4 * mpmath.log(n) / d),
    }
    assert row == pytest.approx({name: float(value) for name, value in expected.items()}, rel=1e-12)
    if d >= n:
        assert row["ratio"] >= 2 * math.sqrt(d / n) * (1 - 1e-12) >= 2 * (1 - 1e-12)


def equal_cells(n, mu):
    """n cells of measure 1/n under queries whose share mu is common: the mean by Simpson's rule over that share."""
    z = np.linspace(-12, 12, 200_001)
    shifted = (stats.norm.ppf(1 / n) + math.sqrt(mu) * z) / math.sqrt(1 - mu)
    return -n * math.expm1(n * integrate.simpson(stats.norm.logsf(shifted) * stats.norm.pdf(z), x=z))


@given(n=st.integers(2, 10**6), parts=st.integers(2, 50))
@settings(max_examples=20)
def test_eigenvalue_bounds_against_other_quadrature(n, parts):
    row = formulas.eigenvalue_bounds(n, 1 / parts)
    with mpmath.workdps(40):
        chance = 1 - mpmath.mpf(1) / n
        assert row["barrier"] == pytest.approx(float(n * (1 - chance**n)), rel=1e-12)
        assert row["effective_queries"] == pytest.approx(float(n * (1 - chance ** (n * parts))), rel=1e-12)
    assert row["noise_stability"] == pytest.approx(equal_cells(n, 1 - 1 / parts), rel=1e-7)


@given(n=st.integers(2, 10**6), parts=st.integers(1, 50))
def test_effective_queries_are_as_many_balls_in_the_same_cells(n, parts):
    """For an eigenvalue 1 / k the bound is the barrier of k n queries and n keys."""
    assert theory.effective_queries_bound(n, 1 / parts) == pytest.approx(
        theory.occupancy_bound(n * parts, n), rel=1e-12
    )
    assert theory.effective_queries_bound(n, 0.0) == n
    row = formulas.eigenvalue_bounds(n, 1 / parts)
    mu = 1 - 1 / parts
    # Never below the barrier, and at most (1 - 1/e) n + 4 / (1 - mu) n^{2 mu / (1 + mu)}.
    closed = n - n / math.e + 4 * parts * n ** (2 * mu / (1 + mu))
    assert theory.occupancy_bound(n) * (1 - 1e-9) <= row["noise_stability"] <= closed * (1 + 1e-9)


@given(n=st.integers(2, 10**9), scale=st.floats(1e-4, 5), share=st.floats(0.01, 1))
@example(n=3, scale=1.0, share=0.125)  # the largest quotient is not where the two entries of the minimum cross
@settings(deadline=None, max_examples=40)
def test_small_cosine_bound_covers_the_largest_excess(n, scale, share):
    largest = min(0.5, scale / n)
    total = share * n * (n - 1) * largest / 2
    log_p = np.linspace(-2 * math.log(n) - 12, -1e-9, 30_001)
    log_isoperimetric = stats.norm.logpdf(stats.norm.isf(np.exp(log_p)))
    log_pairs = math.log(6 * total * math.log(n)) + 2 / (1 + largest) * log_isoperimetric
    log_missed = n * np.log(-np.expm1(log_p))
    excess = math.exp((np.minimum(log_missed, log_pairs) - log_p).max())
    bound = theory.small_cosine_bound(n, largest, total)
    assert bound <= min(n, theory.occupancy_bound(n) + 1.01 * excess + total / (4 * n)) * (1 + 1e-9)
    assert bound >= min(n, theory.occupancy_bound(n) + excess + total / (4 * n)) * (1 - 1e-9)
    assert theory.occupancy_bound(n) <= bound <= n
    assert theory.small_cosine_bound(n, 0.0) == pytest.approx(theory.occupancy_bound(n), rel=1e-12)


def test_small_cosine_bound_grows_like_log_cubed_at_one_over_n():
    excess = [theory.small_cosine_bound(10**k, 10.0**-k) - theory.occupancy_bound(10**k) for k in (8, 10, 12)]
    cubes = [math.log(10**k) ** 3 for k in (8, 10, 12)]
    ratio = np.divide(excess, cubes)
    assert (np.diff(ratio) > 0).all() and ratio.max() < 6  # 6 is the limit
    assert math.log(excess[2] / excess[1], 100) < 0.2  # and no power of n


def test_simplex_first_order_by_exact_means():
    means = {2: 1 / math.sqrt(math.pi), 3: 1.5 / math.sqrt(math.pi)}  # of the largest of 2 and of 3 normal numbers
    for n, mean in means.items():
        assert theory.simplex_first_order(n) == pytest.approx(n * mean**2 / (2 * (n - 1)) * (1 - 1 / n) ** (n - 2))
    large = np.random.default_rng(0).standard_normal((20_000, 100)).max(1)
    mean, error = large.mean(), large.std() / math.sqrt(20_000)
    root = math.sqrt(theory.simplex_first_order(100) * 2 * 99 / 100 / 0.99**98)
    assert abs(root - mean) < 4.9 * error


def test_curves_at_points_computed_another_way():
    def value(curve, n, x):
        return lines.formula_lines(curve, n, x)["value"]

    limit = integrate.quad(lambda g: stats.norm.pdf(g) * -math.expm1(-math.exp(math.sqrt(0.7) * g - 0.35)), -12, 12)[0]
    assert value("collapse", 0, 1.4) == pytest.approx(limit, rel=1e-9)
    assert value("collapse, first term", 0, 1.4) == pytest.approx(1 - math.exp(-1) - 1.4 / (4 * math.e))
    v = stats.norm.isf(1e-4) ** 4 / (2 * value("collapsed head dimension", 10**4, lines.GAP))
    assert value("collapse", 0, 2 * v) == pytest.approx(1 - math.exp(-1) - lines.GAP, abs=1e-9)
    assert value("normalised keys", 0, 2) == pytest.approx(5 / 9)
    assert value("tied", 50, 3) == pytest.approx(
        integrate.quad(lambda r: stats.chi.pdf(r, 3) * special.ndtr(r) ** 49, 0, np.inf)[0], rel=1e-7)  # fmt: skip
    assert value("softmax, first order", 2, 0.1) == pytest.approx(0.1 * math.log(2) / math.sqrt(math.pi))
    assert value("stable rank", 0, 1.0) == pytest.approx(math.e)
    assert value("freezing", 100, 0) == pytest.approx(math.sqrt(2 / math.log(100)))
    assert value("causal window", 512, 2) == pytest.approx((1 + 510 * 0.75 + 0.5 - 0.25 + 0.25) / 512, abs=1e-3)
    assert value("head dimension 8 on x tokens", 0, 2) == pytest.approx(0.75)
    assert value("heads together, d_h = 8", 2, 3) == pytest.approx(1 - 0.25**3)
    assert value("heads together, d_h = 512", 2, 1) == pytest.approx(0.75)
    assert value("anisotropic", 256, 0.0) == pytest.approx(1 - (1 - 1 / 256) ** 256)
    assert value("head dimension bound", 2, 16) == pytest.approx(0.75)
    assert value("random tokens, any keys", 256, 1.0) == 1.0
    assert {setting["curve"] for setting in lines.line_points()} == set(lines.CURVES)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: lines.formula_lines("spiral", 0, 1.0), "curve"),
        (lambda: formulas.token_conditions(1, 8, 4), "n"),
        (lambda: formulas.token_conditions(8, 0, 4), "d"),
        (lambda: formulas.token_conditions(8, 8, 0), "d_h"),
        (lambda: theory.simplex_first_order(1), "n"),
        (lambda: theory.effective_queries_bound(0, 0.5), "n"),
        (lambda: theory.effective_queries_bound(8, 1.5), "smallest"),
        (lambda: theory.small_cosine_bound(1, 0.1), "n"),
        (lambda: theory.small_cosine_bound(8, 0.6), "largest"),
        (lambda: theory.small_cosine_bound(8, 0.1, 99.0), "total"),
    ],
)
def test_bad_input_is_named(call, name):
    with pytest.raises(ValueError, match=rf"^{name} must"):
        call()
