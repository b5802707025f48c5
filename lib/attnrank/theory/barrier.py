"""Barriers that do not see the head dimension: how many keys independent queries attend to, on average."""

from __future__ import annotations

import math

import numpy as np

from attnrank import _check


def occupancy_bound(n: int, keys: int | None = None) -> float:
    """The barrier ``m (1 - (1 - 1/m)^n)``: the most that n i.i.d. queries attend to, on average, among m keys.

    It is the expected number of occupied cells when n balls fall uniformly into m cells; for m = n it lies between
    (1 - 1/e) n and (1 - 1/e) n + 1/e.

    Parameters
    ----------
    n : number of queries, >= 1; up to 1e12 and beyond.
    keys : number of keys m, >= 1; n when None.

    Returns
    -------
    float, in units of rank.

    Raises
    ------
    ValueError : n or keys not an integer >= 1.

    Examples
    --------
    >>> from attnrank import theory
    >>> round(theory.occupancy_bound(1024), 3)
    647.475

    Source: chapter barrier, the barrier theorem; for m = n the first paper's Theorem 1 and Lemma 2.
    """
    n = _check.whole("n", n, minimum=1)
    m = n if keys is None else _check.whole("keys", keys, minimum=1)
    return m * float(hit_probability(1.0 / m, n))


def occupancy_margin(n: int, probability: float, samples: int = 1) -> float:
    """What the mean rank of ``samples`` independent draws exceeds its expectation by with at most ``probability``.

    McDiarmid's inequality: given the keys the rank is a function of n independent choices, each of which changes it by
    at most 1, so P(mean >= expectation + t) <= exp(-2 samples t^2 / n). It holds for every n, not only asymptotically,
    also when each sample has keys of its own and expectation is replaced by a common bound on it.

    Parameters
    ----------
    n : number of queries, >= 1.
    probability : in (0, 1).
    samples : number of independent draws of the queries, >= 1.

    Returns
    -------
    float t, in units of rank.

    Raises
    ------
    ValueError : an argument out of its range.

    Examples
    --------
    >>> from attnrank import theory
    >>> round(theory.occupancy_margin(1024, 1e-6), 3)
    84.104

    Source: McDiarmid (1989); chapter barrier, the high-probability version.
    """
    n = _check.whole("n", n, minimum=1)
    samples = _check.whole("samples", samples, minimum=1)
    probability = _check.real("probability", probability, above=0.0, maximum=math.nextafter(1.0, 0.0))
    return math.sqrt(-n * math.log(probability) / (2.0 * samples))


def occupancy_variance(n: int) -> float:
    """Variance of the number of occupied cells when n balls fall uniformly into n cells; about 0.0972 n.

    It is the variance of the attention rank where every key is equally likely to win: random keys at d_h -> infinity.
    The exact value n(n-1)(1-2/n)^n + n(1-1/n)^n - n^2 (1-1/n)^{2n} cancels badly; it is summed here in a stable form.

    Parameters
    ----------
    n : number of queries and keys, >= 1.

    Returns
    -------
    float, in units of rank squared.

    Raises
    ------
    ValueError : n not an integer >= 1.

    Examples
    --------
    >>> from attnrank import theory
    >>> round(theory.occupancy_variance(1024), 3)
    99.561

    Source: Kolchin, Sevast'yanov and Chistyakov (1978), chapter 1; limit n (1/e - 2/e^2).
    """
    n = _check.whole("n", n, minimum=1, maximum=1e150)
    if n == 1:
        return 0.0
    empty = math.exp(n * math.log1p(-1.0 / n))  # P(a cell is empty)
    # P(two cells are empty) / empty^2 = (1 - 1/(n-1)^2)^n: the covariance is small and must not come from a difference.
    covariance = empty**2 * math.expm1(n * math.log1p(-1.0 / (n - 1.0) ** 2)) if n > 2 else -(empty**2)
    return n * empty * (1.0 - empty) + n * (n - 1.0) * covariance


def hit_probability(p: np.ndarray | float, n: int) -> np.ndarray:
    """1 - (1 - p)^n, without cancellation."""
    with np.errstate(divide="ignore"):
        return -np.expm1(n * np.log1p(-np.minimum(p, 1.0)))
