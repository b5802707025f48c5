"""The spectrum of a random softmax at a fixed temperature, as the sequence grows: Mehler's expansion.

Queries and keys i.i.d. N(0, I) in R^{d_h}, logits <q, k> / (T sqrt(d_h)), T the temperature in units of sqrt(d_h) (a
Transformer is at 1). For T^2 d_h > 2 the squared singular values of the n x n softmax tend to
(1 + w^2)^{d_h / 2} w^k with multiplicity C(k + d_h - 1, k), k = 0, 1, ..., where w / (1 + w^2) = 1 / (T^2 d_h), 0 < w <
1.
"""

from __future__ import annotations

import math
import sys

import numpy as np

from attnrank import _check

LEVELS = 10**6  # more take long, and a limit so far down is of no use


def softmax_ratio(d_h: int, temperature: float) -> float:
    """w, the ratio of one level of squared singular values to the level before; 1 where T^2 d_h <= 2 (no limit).

    Parameters
    ----------
    d_h : head dimension, >= 1.
    temperature : T > 0, in units of sqrt(d_h).

    Raises
    ------
    ValueError : an argument out of its range.

    Examples
    --------
    >>> from attnrank import theory
    >>> round(theory.softmax_ratio(4, 2.0), 3)
    0.063

    Source: chapter softmax, the theorem of the spectrum.
    """
    d_h = _check.whole("d_h", d_h, minimum=1)
    square = _check.real("temperature", temperature, above=0.0, maximum=1e150) ** 2 * d_h
    if square <= 2.0:
        return 1.0
    return 2.0 / (square * (1.0 + math.sqrt(1.0 - (2.0 / square) ** 2)))  # the smaller root of w^2 - square w + 1 = 0


def softmax_singular_values(d_h: int, temperature: float, levels: int) -> tuple[np.ndarray, list[int]]:
    """The first ``levels`` distinct limits of the singular values of a softmax, decreasing, and their multiplicities.

    At most a million levels. Infinite where a limit is beyond the range of floats.

    Raises
    ------
    ValueError : an argument out of its range; T^2 d_h <= 2, where there are no limits.

    Examples
    --------
    >>> from attnrank import theory
    >>> values, multiplicities = theory.softmax_singular_values(4, 2.0, 3)
    >>> values.round(3).tolist(), multiplicities
    ([1.004, 0.251, 0.063], [1, 4, 10])

    Source: chapter softmax, the theorem of the spectrum.
    """
    d_h = _check.whole("d_h", d_h, minimum=1)
    w = softmax_ratio(d_h, temperature)
    if w == 1.0:
        raise ValueError(f"temperature must be above sqrt(2 / d_h) = {math.sqrt(2.0 / d_h):.4g}, got {temperature!r}")
    k = np.arange(_check.whole("levels", levels, minimum=1, maximum=LEVELS))
    # w is 0 beyond the smallest float: all queries see all keys alike
    with np.errstate(over="ignore"):
        values = np.exp(d_h / 4.0 * math.log1p(w**2) + k / 2.0 * math.log(w)) if w > 0.0 else (k == 0).astype(float)
    return values, [math.comb(int(i) + d_h - 1, int(i)) for i in k]


def softmax_rank_limit(d_h: int, temperature: float, tol: float) -> float:
    """What the numerical rank of an n x n softmax at a tolerance tends to as n grows: C(k + d_h, d_h), or infinity.

    k is the last level of the limiting spectrum that is not below ``tol``; the limit is 0 where there is none, and
    infinite where T^2 d_h <= 2 (for tol <= 1). At a tolerance that equals one of the limits the rank need not converge.

    Parameters
    ----------
    d_h : head dimension, >= 1.
    temperature : T > 0, in units of sqrt(d_h).
    tol : absolute tolerance in (0, 1].

    Returns
    -------
    float, in units of rank; infinity beyond the range of floats.

    Raises
    ------
    ValueError : an argument out of its range.

    Examples
    --------
    >>> from attnrank import theory
    >>> round(theory.softmax_rank_limit(4, 2.0, 0.01), 3)
    35.0

    Source: chapter softmax, the theorem of the spectrum.
    """
    d_h = _check.whole("d_h", d_h, minimum=1)
    w = softmax_ratio(d_h, temperature)
    tol = _check.real("tol", tol, above=0.0, maximum=1.0)
    if w == 1.0:
        return math.inf
    if w == 0.0:  # beyond the smallest float: all queries see all keys alike
        return 1.0
    level = math.floor((2.0 * math.log(tol) - d_h / 2.0 * math.log1p(w**2)) / math.log(w))
    fewer = min(level, d_h)
    if fewer and fewer * math.log((level + d_h) / fewer) > 710.0:  # C(n, k) >= (n / k)^k, the largest float is e^709.8
        return math.inf  # without the integer, which may have millions of digits
    try:
        return float(math.comb(level + d_h, d_h))
    except OverflowError:
        return math.inf


def softmax_stable_rank_limit(d_h: int, temperature: float) -> float:
    """What the stable rank of an n x n softmax tends to as n grows: (1 - w)^{-d_h}, for T^2 d_h > 2.

    Above exp(1/T^2), its limit as d_h grows.

    Parameters
    ----------
    d_h : head dimension, >= 1.
    temperature : T > 0, in units of sqrt(d_h).

    Returns
    -------
    float, in units of rank; infinity beyond the range of floats.

    Raises
    ------
    ValueError : an argument out of its range; T^2 d_h <= 2, where there is no such limit.

    Examples
    --------
    >>> from attnrank import theory
    >>> round(theory.softmax_stable_rank_limit(4, 2.0), 3)
    1.296

    Source: chapter softmax, the corollary on the stable rank.
    """
    w = softmax_ratio(d_h, temperature)
    if w == 1.0:
        raise ValueError(f"temperature must be above sqrt(2 / d_h) = {math.sqrt(2.0 / d_h):.4g}, got {temperature!r}")
    logarithm = -d_h * math.log1p(-w)
    return math.exp(logarithm) if logarithm < math.log(sys.float_info.max) else math.inf
