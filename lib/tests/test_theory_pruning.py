"""examined_fraction against mpmath, closed forms and searches of random keys."""

import math

import mpmath
import numpy as np
import pytest
from scipy import stats

from attnrank.theory import examined_fraction

FALSE_ALARM = 1e-6


def by_mpmath(m, d_h):
    with mpmath.workdps(30):
        log_constant = (1 - mpmath.mpf(d_h) / 2) * mpmath.log(2) - mpmath.loggamma(mpmath.mpf(d_h) / 2)

        def integrand(r):
            return mpmath.exp(
                log_constant + (d_h - 1) * mpmath.log(r) - r * r / 2 + (m - 1) * mpmath.log(mpmath.ncdf(r))
            )

        middle, typical = mpmath.sqrt(d_h), mpmath.sqrt(2 * mpmath.log(m))
        edges = [
            mpmath.mpf(10) ** -9,
            *sorted({middle * x for x in (0.5, 0.8, 1, 1.2)} | {typical * x for x in (0.5, 0.8, 0.95, 1, 1.2)}),
        ]
        return float(mpmath.quad(integrand, [*edges, edges[-1] + 5, edges[-1] + 30], maxdegree=8))


@pytest.mark.parametrize("m", [2, 17, 1000, 131072, 10**9, 10**12])
@pytest.mark.parametrize("d_h", [1, 2.5, 8, 16, 64, 1000, 10**5])
def test_quadrature(m, d_h):
    assert examined_fraction(m, d_h) == pytest.approx(by_mpmath(m, d_h), rel=1e-6)


@pytest.mark.parametrize("m", [1, 2, 3, 10, 1000, 10**6, 10**12])
def test_one_dimension(m):
    # Phi(|Z|) = (1 + U)/2 with U uniform on (0, 1), so that the fraction is 2 (1 - 2^-m) / m: two keys, one a sign.
    assert examined_fraction(m, 1) == pytest.approx(2 * (1 - 2.0**-m) / m, rel=1e-6)


@pytest.mark.parametrize("d_h", [1, 2, 8])
def test_growth_for_fixed_head_dimension(d_h):
    # m f(m, d_h) is about the ratio of the densities of R and of a normal at the typical maximum of m normals.
    ratios = []
    for m in (10**6, 10**12):
        a = stats.norm.isf(1 / m)
        ratios.append(m * examined_fraction(m, d_h) / np.exp(stats.chi.logpdf(a, d_h) - stats.norm.logpdf(a)))
    assert abs(ratios[1] - 1) < max(abs(ratios[0] - 1), 1e-6) and abs(ratios[1] - 1) < 0.1


def test_bounds_monotonicity_and_the_end_of_the_gain():
    for m in (100, 10**5):
        fractions = [examined_fraction(m, d_h) for d_h in (1, 2, 4, 8, 16, 32, 64, 128)]
        assert fractions == sorted(fractions) and fractions[0] > 0 and fractions[-1] <= 1
        for d_h in (1, 5, 20, 50):
            fraction = examined_fraction(m, d_h)
            for a in (2.0, 3.0, 4.0, 5.0):
                below, above = stats.norm.cdf(a) ** (m - 1), stats.chi.sf(a, d_h)
                assert below * above <= fraction * (1 + 1e-6) and fraction <= (above + below) * (1 + 1e-6)
    assert examined_fraction(10**5, math.log(10**5)) < 0.15 and examined_fraction(10**5, 4 * math.log(10**5)) > 0.99


def looked_at(scores, lengths, reach):
    """Keys that each row of ``scores`` looks at, longest first, as the search has it."""
    order = np.argsort(-lengths)
    best = np.maximum.accumulate(scores[:, order], axis=1)
    going_on = best[:, :-1] < reach * lengths[order][1:]
    return 1 + np.logical_and.accumulate(going_on, axis=1).sum(1)


def measured(m, d_h, keys, reach=1.0):
    """Fraction of the keys that one unit query looks at, for ``keys`` independent draws of the keys."""
    generator = np.random.default_rng(m + d_h)
    fractions = []
    for _ in range(keys):
        k = generator.normal(size=(m, d_h))  # the direction of the query does not matter: take the first axis
        fractions.append(looked_at(k[:, :1].T, np.linalg.norm(k, axis=1), reach)[0] / m)
    return np.array(fractions)


@pytest.mark.parametrize(("m", "d_h"), [(1, 3), (2, 1), (10, 2), (50, 4), (300, 8)])
def test_searches_of_random_keys(m, d_h):
    fractions = measured(m, d_h, 3000)
    # Fractions lie in [0, 1]: the empirical Bernstein bound of Maurer and Pontil (2009), each side and each setting.
    log = math.log(2 * 2 * 5 / FALSE_ALARM)
    margin = math.sqrt(2 * fractions.var(ddof=1) * log / len(fractions)) + 7 * log / (3 * (len(fractions) - 1))
    assert abs(fractions.mean() - examined_fraction(m, d_h)) <= margin
    if m >= 50:  # negative control: a search that stops too early, at 0.8 of the length
        assert abs(measured(m, d_h, 3000, reach=0.8).mean() - examined_fraction(m, d_h)) > margin


def test_the_search_finds_the_best_key():
    generator = np.random.default_rng(0)
    q, k = generator.normal(size=(500, 4)), generator.normal(size=(300, 4))
    lengths = np.linalg.norm(k, axis=1)
    scores = q @ k.T / np.linalg.norm(q, axis=1, keepdims=True)
    ranks = np.empty(300, dtype=int)
    ranks[np.argsort(-lengths)] = np.arange(300)
    best = ranks[scores.argmax(1)]
    assert (best < looked_at(scores, lengths, 1.0)).all()
    assert not (best < looked_at(scores, lengths, 0.8)).all()


@pytest.mark.parametrize(
    ("arguments", "name"), [((0, 1), "m"), ((2.5, 1), "m"), ((5, 0.5), "d_h"), ((5, math.nan), "d_h")]
)
def test_refusals(arguments, name):
    with pytest.raises(ValueError, match=f"^{name} must be"):
        examined_fraction(*arguments)
