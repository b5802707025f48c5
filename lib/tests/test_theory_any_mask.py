"""The bound for every mask: against exact expectations, at the rows that reach it, and on bad input."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnrank import theory


def expected_rank(chances: np.ndarray) -> float:
    """E D of independent rows by adding up all outcomes: an independent way to the product formula."""
    n, m = chances.shape
    return sum(
        math.prod(chances[i, j] for i, j in enumerate(choice)) * len(set(choice))
        for choice in itertools.product(range(m), repeat=n)
    )


@st.composite
def chances_of_rows(draw):
    n, m = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    rows = []
    for _ in range(n):
        seen = draw(st.lists(st.sampled_from([0.0, 1.0, 1.0, 3.0]), min_size=m, max_size=m).filter(any))
        weights = np.array(seen) * np.array(draw(st.lists(st.floats(0.01, 1.0), min_size=m, max_size=m)))
        rows.append(weights / weights.sum())
    return np.array(rows)


@given(chances_of_rows(), st.floats(0.0, 1.0))
def test_no_independent_rows_exceed_the_bound(chances, mix):
    n, m = chances.shape
    surest = chances.max(1)
    p = max(surest.min(), min(1.0, mix))
    uncapped = int((surest > p).sum())
    assert expected_rank(chances) <= theory.mask_bound(max(p, 1 / m), n, keys=m, uncapped=uncapped) + 1e-12


@pytest.mark.parametrize("n", [1, 2, 7, 12])
@pytest.mark.parametrize("p", [1.0, 0.9, 0.5, 0.45, 1 / 3, 0.3, 1 / 7, 1 / 12])
def test_rows_of_neighbours_reach_the_bound_at_every_p(n, p):
    if p * n < 1:
        return
    whole = math.floor(1 / p + 1e-12)
    chances = np.zeros((n, n))
    for i in range(n):
        for step in range(whole):
            chances[i, (i + step) % n] += p
        chances[i, (i + whole) % n] += max(1 - whole * p, 0.0)
    chances = np.minimum(chances, 1.0)
    missed = np.prod(1 - chances, axis=0)
    assert n - missed.sum() == pytest.approx(theory.mask_bound(p, n), abs=1e-11)


def test_mask_bound_closed_forms():
    assert theory.mask_bound(0.5, 10) == pytest.approx(7.5)
    assert theory.mask_bound(1.0, 10) == 10
    assert theory.mask_bound(0.5, 10, uncapped=1) == pytest.approx(7.75)  # causal: 3/4 n + 1/4
    assert theory.causal_bound(10) <= theory.mask_bound(0.5, 10, uncapped=1)
    for n, m in ((12, 12), (12, 7), (5, 40)):  # no mask, all keys alike: the barrier
        assert theory.mask_bound(1 / m, n, keys=m) == pytest.approx(theory.occupancy_bound(n, keys=m), rel=1e-12)
    assert theory.mask_bound(0.5, 3, keys=50) == pytest.approx(3)  # few rows, many keys: all different
    assert theory.mask_bound(0.5, 9, keys=4, uncapped=6) == 4
    for p in np.linspace(0.01, 1, 50):
        bound = theory.mask_bound(float(p), 1000) / 1000
        assert bound <= -math.expm1(math.log1p(-min(p, 1 - 1e-15)) / p) + 1e-12 <= 1 - (1 - p) / math.e + 2e-12


def test_bound_grows_with_p_and_with_free_rows():
    values = [theory.mask_bound(float(p), 50) for p in np.linspace(0.02, 1, 200)]
    assert np.all(np.diff(values) >= -1e-12)
    values = [theory.mask_bound(0.3, 50, uncapped=f) for f in range(51)]
    assert np.all(np.diff(values) > 0) and values[-1] == 50


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"p": 0.0, "n": 4}, "p"),
        ({"p": 1.5, "n": 4}, "p"),
        ({"p": math.nan, "n": 4}, "p"),
        ({"p": 0.1, "n": 4}, "p must be at least 1 / keys"),
        ({"p": 0.5, "n": 0}, "n"),
        ({"p": 0.5, "n": 4, "keys": 0}, "keys"),
        ({"p": 0.5, "n": 4, "uncapped": 5}, "uncapped"),
        ({"p": 0.5, "n": 4, "uncapped": -1}, "uncapped"),
    ],
)
def test_bad_input_is_named(arguments, name):
    with pytest.raises(ValueError, match=name):
        theory.mask_bound(**arguments)


@pytest.mark.parametrize("m", [1, 7, 49, 98, 103])  # 49 (1 / 49) < 1 in floats
def test_equal_chances_are_taken_whatever_rounding_makes_of_their_sum(m):
    assert theory.mask_bound(1 / m, m) == pytest.approx(theory.occupancy_bound(m), rel=1e-12)


def test_sure_rows_attend_to_as_many_keys_as_there_are_rows_and_free_ones_have_no_cap():
    assert theory.mask_bound(1.0, 3, keys=5) == pytest.approx(3)
    assert theory.mask_bound(1.0, 5, keys=3) == 3
    assert theory.mask_bound(0.1, 4, uncapped=4) == 4  # p < 1 / 4 says nothing: no row is capped
