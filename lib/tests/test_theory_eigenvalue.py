"""theory.eigenvalue: half-spaces against mpmath and against other sets, and the bounds from the smallest eigenvalue."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from attnrank import theory


@pytest.mark.parametrize(
    ("p", "mu"),
    [(0.5, 0.3), (0.1, 0.9), (1e-4, 0.5), (1e-10, 0.7), (0.999, 0.2), (1e-3, 0.999), (1e-30, 0.9), (1e-30, 0.9999)],
)
def test_half_space_exponent_against_mpmath(p, mu):
    with mpmath.workdps(50):
        t = mpmath.sqrt(2) * mpmath.erfinv(2 * mpmath.mpf(p) - 1)

        def integrand(z):
            u = (t + mpmath.sqrt(mu) * z) / mpmath.sqrt(1 - mpmath.mpf(mu))
            return -mpmath.log(mpmath.erfc(u / mpmath.sqrt(2)) / 2) * mpmath.npdf(z)

        corner = -t / mpmath.sqrt(mu)
        expected = mpmath.quad(
            integrand, sorted({mpmath.mpf(-20), -5, 0, 5, mpmath.mpf(20), corner - 1, corner, corner + 1})
        )
    assert float(theory.half_space_exponent(p, mu)) == pytest.approx(float(expected), rel=1e-9)


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0), (2, 3)])
def test_half_space_exponent_has_the_shape_of_p(shape):
    values = theory.half_space_exponent(np.full(shape, 0.1), 0.3)
    assert values.shape == shape and (values == float(theory.half_space_exponent(0.1, 0.3))).all()


@given(p=st.floats(1e-12, 0.99), mu=st.floats(0, 0.99))
def test_half_space_exponent_lies_between_independence_and_reverse_hypercontractivity(p, mu):
    exponent = float(theory.half_space_exponent(p, mu))
    assert -math.log1p(-p) * (1 - 1e-9) <= exponent <= -math.log1p(-p) / (1 - mu) * (1 + 1e-9)


@pytest.mark.parametrize("mu", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("p", [0.01, 0.2, 0.6])
def test_half_spaces_are_extremal_among_sets_of_the_line(p, mu):
    """Intervals, complements of intervals and two rays that are not symmetric, by Simpson's rule."""
    half = float(theory.half_space_exponent(p, mu))
    outer = stats.norm.isf(p / 2)
    inner = stats.norm.ppf(0.5 + p / 2)
    uneven = stats.norm.isf(p / 4), stats.norm.isf(3 * p / 4)
    sets = {
        "interval": lambda c, s: c(-inner, inner, s),
        "two rays": lambda c, s: 1 - c(-outer, outer, s),
        "two uneven rays": lambda c, s: 1 - c(-uneven[0], uneven[1], s),
    }
    for name, chance in sets.items():
        def measure(low, high, shift):
            root = math.sqrt(1 - mu)
            return stats.norm.cdf((high - shift) / root) - stats.norm.cdf((low - shift) / root)

        z = np.linspace(-9, 9, 36_001)
        inside = np.minimum(chance(measure, math.sqrt(mu) * z), 1 - 1e-16)
        value = integrate.simpson(-np.log1p(-inside) * stats.norm.pdf(z), x=z)
        assert -math.log1p(-p) - 1e-6 <= value < half, name


@given(p=st.floats(1e-6, 0.999), mu=st.floats(0.01, 0.99))
@settings(deadline=None, max_examples=40)
def test_noise_stability_of_half_spaces(p, mu):
    """The lemma of noise stability where it is tightest among sets of one measure: P(q, q' in C) <= p^(2 / (1 +
    mu))."""
    t = stats.norm.ppf(p)
    both = stats.multivariate_normal.cdf([t, t], cov=[[1, mu], [mu, 1]])
    assert p**2 * (1 - 1e-4) <= both <= p ** (2 / (1 + mu)) * (1 + 1e-6)


@pytest.mark.parametrize("n", [1, 2, 5, 64, 10**4, 10**9, 10**12])
def test_smallest_eigenvalue_bound_at_its_ends(n):
    assert theory.smallest_eigenvalue_bound(n, 1.0) == pytest.approx(theory.occupancy_bound(n), rel=1e-12)
    assert theory.smallest_eigenvalue_bound(n, 0.0) == n


@given(n=st.integers(2, 10**12), smallest=st.floats(0.01, 1))
@settings(deadline=None, max_examples=60)
def test_smallest_eigenvalue_bound_beside_the_explicit_ones(n, smallest):
    bound, mu = theory.smallest_eigenvalue_bound(n, smallest), 1 - smallest
    assert bound <= theory.effective_queries_bound(n, smallest) * (1 + 1e-9)
    assert bound <= (1 - math.exp(-1)) * n + 4 / smallest * n ** (2 * mu / (1 + mu)) + 1e-9 * n
    equal = -n * math.expm1(-n * float(theory.half_space_exponent(1 / n, mu)))
    assert bound == pytest.approx(equal, rel=1e-9)  # equal cells are the worst


@given(n=st.integers(2, 40), smallest=st.floats(0.02, 1), power=st.floats(0.05, 30), seed=st.integers(0, 99))
@settings(deadline=None)
def test_smallest_eigenvalue_bound_covers_every_choice_of_cells(n, smallest, power, seed):
    cells = np.random.default_rng(seed).dirichlet(np.full(n, power)).clip(1e-15, 1 - 1e-15)
    total = -np.expm1(-n * theory.half_space_exponent(cells, 1 - smallest)).sum()
    assert total <= theory.smallest_eigenvalue_bound(n, smallest) * (1 + 1e-9)


def test_constant_of_the_remark_on_total_variation():
    """The excess of the effective queries over the barrier is at most .478 n (1 - smallest), at every n."""
    smallest = np.linspace(1e-3, 1 - 1e-6, 2000)
    for n in (2, 3, 10, 100, 10**6):
        excess = np.array([theory.effective_queries_bound(n, x) for x in smallest]) - theory.occupancy_bound(n)
        assert (excess <= 0.478 * n * (1 - smallest)).all()
    assert (excess / (n * (1 - smallest))).max() > 0.477


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: theory.smallest_eigenvalue_bound(0, 0.5), "n"),
        (lambda: theory.smallest_eigenvalue_bound(5, 1.5), "smallest"),
        (lambda: theory.smallest_eigenvalue_bound(5, -0.1), "smallest"),
        (lambda: theory.half_space_exponent(0.0, 0.5), "p"),
        (lambda: theory.half_space_exponent([0.5, 1.0], 0.5), "p"),
        (lambda: theory.half_space_exponent(0.5, 1.0), "mu"),
        (lambda: theory.half_space_exponent("a", 0.5), "p"),
        (lambda: theory.half_space_exponent(10**400, 0.5), "p"),
        (lambda: theory.half_space_exponent(None, 0.5), "p"),
        (lambda: theory.half_space_exponent(0.5j, 0.5), "p"),
        (lambda: theory.half_space_exponent([[0.5], [0.5, 0.5]], 0.5), "p"),
    ],
)
def test_bad_input_is_named(call, name):
    with pytest.raises(ValueError, match=rf"^{name}\b"):
        call()
