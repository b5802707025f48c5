"""Causal masks: row i picks the best of keys 1..i. A barrier for any keys, and two bounds for random ones."""

from __future__ import annotations

import math

import numpy as np
from scipy import interpolate, stats

from attnrank import _check
from attnrank._quadrature import gauss_legendre
from attnrank.theory.head_dimension import LARGEST, log_density, log_win_probability
from attnrank.theory.lower_bound import log_moment_ratio


def causal_limit(n: int) -> float:
    """Expected rank under a causal mask when row i picks one of keys 1..i uniformly: ``(n + 1) / 2``.

    This is the limit d_h -> infinity for orthonormal tokens and Gaussian weights. Key j > 1 stays unpicked with
    probability (1 - 1/j)(1 - 1/(j+1))...(1 - 1/n) = (j - 1)/n, and key 1 is always picked.

    Parameters
    ----------
    n : number of tokens, >= 1.

    Returns
    -------
    float, in units of rank.

    Raises
    ------
    ValueError : n not an integer >= 1.

    Examples
    --------
    >>> from attnrank import theory
    >>> round(theory.causal_limit(1024), 3)
    512.5

    Source: chapter masks, causal masks.
    """
    return (_check.whole("n", n, minimum=1) + 1) / 2


def causal_bound(n: int) -> float:
    """The barrier under a causal mask, whatever the keys: ``3 n / 4`` (1 for n = 1).

    It holds for any distinct keys and independent queries whose law has a density that is symmetric under q -> -q
    (Gaussian query weights, say, and orthonormal tokens), and is reached at head dimension 1 by the keys -1, 2, -3,
    4, ... Among i >= 2 keys none wins with probability above 1/2, since its cell lies in a half-space.

    Parameters
    ----------
    n : number of tokens, >= 1.

    Returns
    -------
    float, in units of rank.

    Raises
    ------
    ValueError : n not an integer >= 1.

    Examples
    --------
    >>> from attnrank import theory
    >>> round(theory.causal_bound(1024), 3)
    768.0

    Source: chapter masks, causal masks.
    """
    n = _check.whole("n", n, minimum=1)
    return 0.75 * n if n > 1 else 1.0


def causal_head_dim_bound(n: int, d_h: int) -> float:
    """The causal limit resolved by head dimension: an upper bound on the expected rank of a random causal head.

    Orthonormal tokens, Gaussian query and key weights. Given the norm r of key j and all the other keys, it is never
    picked with probability prod_{i >= j} (1 - p_i), p_i its chance against the other keys up to i. By Jensen,

        E D <= 1 + sum_{j=2}^n E_R[ 1 - exp(-sum_{i=j}^n e_i(R)) ],    e_i(r) >= E[-log(1 - p_i) | r].

    As p_i <= 1/2, the largest value that this mean can have, with the true first two moments of p_i given r, is taken
    for e_i. The moments are integrals, computed at 16 lengths i and interpolated. The error of the whole is below 1e-4
    of n; relative to the bound it is below 3e-4 for n <= 1000 or d_h >= 16, and up to 2e-2 for smaller heads on longer
    sequences. Takes a few seconds, and memory of order n.

    Parameters
    ----------
    n : number of tokens, >= 1.
    d_h : head dimension, >= 1. For d_h = 1 only record keys can win, and the bound is 1 + 2/2 + 2/3 + ... + 2/n.

    Returns
    -------
    float, in units of rank.

    Raises
    ------
    ValueError : n not an integer in [1, 1e10], d_h not one in [1, 1e6].

    Examples
    --------
    >>> from attnrank import theory
    >>> round(theory.causal_head_dim_bound(1024, 64), 3)
    450.695

    Source: chapter masks, causal masks.
    """
    n, d_h = _check.whole("n", n, minimum=1, maximum=1e10), _check.whole("d_h", d_h, minimum=1, maximum=LARGEST)
    if n <= 2:
        return 1.0 if n == 1 else 1.5
    if d_h == 1:
        return 1.0 + float(np.sum(2.0 / np.arange(2.0, n + 1.0)))
    low, high = stats.chi.ppf(1e-8, d_h), stats.chi.isf(1e-8, d_h)
    r, weights = (values[0] for values in gauss_legendre(np.array([[low, high]]), order=32))
    weights = weights * np.exp(log_density(r, d_h))
    lengths = np.unique(np.geomspace(2, n, 16).round().astype(int))
    largest = np.array([_largest_log_survival(r, int(i), d_h) for i in lengths])
    i = np.arange(2, n + 1)
    total = 0.0
    for node in range(len(r)):
        logs = interpolate.CubicSpline(np.log(lengths), np.log(largest[:, node] + 1e-30))(np.log(i))
        total += weights[node] * float(-np.expm1(-np.cumsum(np.exp(logs)[::-1])).sum())
    return 1.0 + float(total / weights.sum())


def _largest_log_survival(r: np.ndarray, n: int, d_h: int) -> np.ndarray:
    """The largest E[-log(1 - p)] over laws of p on [0, 1/2] with the first two moments that p has given r, (k,).

    The third derivative of -log(1 - p) is positive, so that a law on an inner point and 1/2 is extremal: the parabola
    that touches at the one and passes through the other lies above.
    """
    mean = np.minimum(np.exp(log_win_probability(r, n, d_h)), 0.5 - 1e-9)
    largest = 2.0 * math.log(2.0) * mean  # any variance: p is 0 or 1/2
    for i in np.flatnonzero(mean > 1e-7 / n):
        ratio = math.exp(max(log_moment_ratio(r[i], n, d_h), 0.0)) if n > 2 else 1.0
        distance = 0.5 - mean[i]
        variance = min(mean[i] ** 2 * (ratio - 1.0), mean[i] * distance)
        at_half = variance / (variance + distance**2)
        largest[i] = at_half * math.log(2.0) - (1.0 - at_half) * math.log1p(variance / distance - mean[i])
    return largest
