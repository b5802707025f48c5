"""Normalised keys: the second moment of a cell and the bound from below, against geometry, closed forms and
simulation."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import integrate, special, stats

from attnrank import theory

FALSE_ALARM = 1e-6


@pytest.mark.parametrize("n", [3, 10, 1000])
def test_on_the_circle_the_cell_is_half_the_sum_of_two_gaps(n):
    moment = integrate.quad(lambda s: (s / 2) ** 2 * stats.beta.pdf(s, 2, n - 2), 0, 1)[0]
    assert theory.normalised_second_moment(n, 2) == pytest.approx(n**2 * moment, rel=1e-9)
    exact = 1 - special.hyp2f1(-n, 2, n, 0.5)
    assert theory.normalised_lower_bound(n, 2) / n <= exact


@pytest.mark.parametrize(("n", "d_h"), [(8, 3), (24, 3), (24, 6), (60, 16)])
def test_the_moment_is_the_chance_that_two_queries_meet(n, d_h):
    rng = np.random.default_rng(7)
    heads, queries, chances = 2000, 100, []
    for _ in range(heads):
        keys = rng.standard_normal((n, d_h))
        keys /= np.linalg.norm(keys, axis=1, keepdims=True)
        counts = np.bincount((rng.standard_normal((queries, d_h)) @ keys.T).argmax(1), minlength=n)
        chances.append(n * (counts * (counts - 1)).sum() / (queries * (queries - 1)))
    margin = stats.norm.isf(FALSE_ALARM / 8) * stats.sem(chances)
    above = n * 2.0 ** (1 - n)  # what caps beyond a half-sphere are replaced by
    assert -margin <= theory.normalised_second_moment(n, d_h) - np.mean(chances) <= margin + above + 1e-4
    assert margin < 0.3 * abs(np.mean(chances) - 1.5 * n / (n + 1))  # control: another head dimension


@pytest.mark.parametrize(("n", "d_h"), [(4, 3), (5, 4), (6, 6)])
def test_what_is_integrated_are_caps_up_to_a_half_sphere(n, d_h):
    """Two queries meet at a key that neither is turned away from; caps up to 0.4 of the sphere are told (control)."""
    rng = np.random.default_rng(11)
    heads, queries = 8000, 60
    keys, looks = (rng.standard_normal((heads, count, d_h)) for count in (n, queries))
    keys, looks = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (keys, looks))
    scores = looks @ keys.swapaxes(1, 2)
    best, height = scores.argmax(-1), scores.max(-1)

    def chances(lowest):
        counts = ((best[..., None] == np.arange(n)) & (height >= lowest)[..., None]).sum(1)
        return n * (counts * (counts - 1)).sum(1) / (queries * (queries - 1))

    integral = theory.normalised_second_moment(n, d_h) - n * 2.0 ** (1 - n)
    margin = stats.norm.isf(FALSE_ALARM / 6) * stats.sem(chances(0.0))
    assert abs(integral - chances(0.0).mean()) <= margin + 1e-4
    share = 2 * stats.beta.ppf(0.6, (d_h - 1) / 2, (d_h - 1) / 2) - 1  # the cosine beyond which 0.4 of the sphere lies
    assert abs(integral - chances(share).mean()) > 2 * margin


@pytest.mark.parametrize("d_h", [3, 4, 5])
def test_long_sequences_have_poisson_voronoi_cells(d_h):
    limit = 1 + theory.poisson_voronoi_variance(d_h - 1)
    assert theory.normalised_second_moment(10**12, d_h) == pytest.approx(limit, rel=1e-4)


@given(n=st.integers(2, 10**6), d_h=st.integers(2, 500))
@example(n=3, d_h=2)
@settings(deadline=None, max_examples=15)
def test_bounds_are_ordered(n, d_h):
    second, above = theory.normalised_second_moment(n, d_h), n * 2.0 ** (1 - n)
    assert 1 <= second <= 1.5 + above
    assert theory.normalised_lower_bound(n, d_h) <= theory.occupancy_bound(n) * (1 + 1e-12)
    assert theory.normalised_second_moment(n, d_h + 1) <= second * (1 + 2e-4) + above  # none is above at d_h = 2


@pytest.mark.parametrize("d_h", [2, 3, 50])
def test_the_cells_of_two_keys_are_half_spheres(d_h):
    assert theory.normalised_second_moment(2, d_h) == 1.0 and theory.normalised_lower_bound(2, d_h) == 1.5


@pytest.mark.parametrize("n", [3, 10, 200])
def test_the_bound_from_below_on_the_circle_in_fractions(n):
    second = Fraction(3 * n, 2 * (n + 1))
    expected = n / second * (1 - (1 - second / n) ** n)
    assert theory.normalised_lower_bound(n, 2) == pytest.approx(float(expected), rel=1e-13)


def test_wide_keys_have_equal_cells():
    assert theory.normalised_second_moment(100, 10**6) == pytest.approx(1, abs=1e-4)
    assert theory.normalised_second_moment(100, 4096) == pytest.approx(1, abs=5e-4)
    assert theory.normalised_lower_bound(100, 4096) == pytest.approx(theory.occupancy_bound(100), rel=2e-4)
    assert math.isfinite(theory.normalised_lower_bound(10**12, 64))


@pytest.mark.parametrize(
    ("arguments", "name"), [((1, 3), "n"), ((10, 1), "d_h"), ((10.5, 3), "n"), ((10, math.nan), "d_h")]
)
def test_bad_arguments_are_refused_by_name(arguments, name):
    for function in (theory.normalised_second_moment, theory.normalised_lower_bound):
        with pytest.raises(ValueError, match=f"^{name} "):
            function(*arguments)
