"""Causal masks: row i picks the best of keys 1..i. A barrier for any keys, and two bounds for random ones."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import scipy
from numpy.polynomial import chebyshev

from attnrank import _check
from attnrank._quadrature import gauss_legendre
from attnrank.theory.head_dimension import LARGEST, log_density, log_win_probability, norm_range
from attnrank.theory.lower_bound import log_moment_ratio

#: Panels of the rule for the norm of a key, norms at which its second moment is computed, and lengths for each power of
#: ten at which moments are.
NORM_PANELS, RATIO_NODES, LENGTHS = 64, 14, 6


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
    for e_i. The moments are integrals, computed at up to 60 lengths i and 14 norms and interpolated. Relative accuracy
    about 1e-4; takes a second or more.

    Parameters
    ----------
    n : number of tokens, >= 1.
    d_h : head dimension, >= 1. For d_h = 1 the mean itself is returned, ``1 + sum_{i=2}^n (2 - 2^(2-i)) / i``.

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
        return _mean_in_one_dimension(n)
    x, weights, norm = _norm_rule(n, d_h)
    lengths = np.unique(np.geomspace(2, n, max(12, round(LENGTHS * math.log10(n)))).round().astype(int))
    survival = np.array([_largest_log_survival(x, norm, int(i), d_h) for i in lengths])
    i = _steps(n)
    e = np.exp(scipy.interpolate.CubicSpline(np.log(lengths), np.log(survival + 1e-300))(np.log(i)))
    picked = _sums_from(i, -np.expm1(-_sums_from(i, e)))[0]
    return 1.0 + float(np.sum(weights * picked) / weights.sum())


def _mean_in_one_dimension(n: int) -> float:
    """1 + the sum of (2 - 2^(2-i)) / i over i = 2..n; what lies beyond 2^-60 is left out."""
    i = np.arange(2, min(n, 60) + 1)
    harmonic = scipy.special.digamma(n + 1.0) + np.euler_gamma
    return float(2.0 * harmonic - 1.0 - np.sum(2.0 ** (2 - i) / i))


def _norm_rule(n: int, d_h: int) -> tuple[np.ndarray, np.ndarray, Callable[[np.ndarray], np.ndarray]]:
    """Nodes x in (0, 1) and weights (k,) of a rule for the norm of a key, and the norm as a function of x.

    In long sequences only the longest keys are picked: the rule goes on to where less than 1e-10 of a key lies.
    """
    low, high = norm_range(1e-10 / n, d_h)

    def norm(x: np.ndarray) -> np.ndarray:
        return low + (high - low) * x**2

    nodes, weights = gauss_legendre(np.linspace(0.0, 1.0, NORM_PANELS + 1)[None], order=8)
    x = nodes[0]
    return x, weights[0] * x * np.exp(log_density(norm(x), d_h)), norm


def _steps(n: int) -> np.ndarray:
    """2 to n, from 512 on with gaps of .4 %."""
    if n <= 512:
        return np.arange(2, n + 1)
    sparse = np.geomspace(512, n, int(math.log(n / 512) / 0.004) + 2).round().astype(np.int64)
    return np.unique(np.concatenate([np.arange(2, 513), sparse]))


def _sums_from(i: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Sums of smooth sequences over i[k], i[k] + 1, ..., i[-1], from their values (len(i), ...) at ``i``.

    Between two values that are not neighbours the trapezoidal rule is used.
    """
    gaps = np.diff(i)[:, None]
    between = (gaps * (values[:-1] + values[1:]) + values[:-1] - values[1:]) / 2.0
    return np.concatenate([np.cumsum(between[::-1], axis=0)[::-1], np.zeros_like(values[:1])]) + values[-1]


def _largest_log_survival(
    x: np.ndarray, norm: Callable[[np.ndarray], np.ndarray], n: int, d_h: int
) -> np.ndarray:
    """The largest E[-log(1 - p)] over laws of p on [0, 1/2] with the first two moments that p has given r = norm(x).

    The third derivative of -log(1 - p) is positive, so that a law on an inner point and 1/2 is extremal: the parabola
    that touches at the one and passes through the other lies above. Both moments are smooth in x: they are computed at
    Chebyshev nodes and interpolated.
    """
    log_win = _interpolated(lambda at: log_win_probability(norm(at), n, d_h), 0.0, 1.0, 40)(x)
    mean = np.minimum(np.exp(log_win), 0.5 - 1e-9)
    largest = 2.0 * math.log(2.0) * mean  # any variance: p is 0 or 1/2
    matters = np.flatnonzero(mean > 1e-9 / n)
    ratio, mean = np.ones(len(matters)), mean[matters]
    if n > 2:
        log_ratio = _interpolated(
            lambda at: np.array([log_moment_ratio(r, n, d_h) for r in norm(at)]), x[matters[0]], x[matters[-1]],
            RATIO_NODES,
        )  # fmt: skip
        ratio = np.exp(np.maximum(log_ratio(x[matters]), 0.0))
    distance = 0.5 - mean
    variance = np.minimum(mean**2 * (ratio - 1.0), mean * distance)
    at_half = variance / (variance + distance**2)
    largest[matters] = at_half * math.log(2.0) - (1.0 - at_half) * np.log1p(variance / distance - mean)
    return largest


def _interpolated(
    function: Callable[[np.ndarray], np.ndarray], low: float, high: float, nodes: int
) -> Callable[[np.ndarray], np.ndarray]:
    """The polynomial through a function's values at so many Chebyshev nodes of [low, high]."""
    middle, half = (low + high) / 2.0, (high - low) / 2.0
    y = np.cos(math.pi * (np.arange(nodes) + 0.5) / nodes)
    coefficients = chebyshev.chebfit(y, function(middle + half * y), nodes - 1)
    return lambda x: chebyshev.chebval((x - middle) / half, coefficients)
