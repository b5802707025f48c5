"""How large a head must be: head dimensions at which the rank saturates, and the log-normal law behind them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import scipy

from attnrank import _check
from attnrank.theory.barrier import occupancy_bound
from attnrank.theory.head_dimension import head_dim_bound

#: Range of head dimensions in which :func:`attnrank.theory.head_dim_bound` is accurate.
LARGEST_HEAD_DIM = 1e5


def saturation_head_dim(n: int, gap: float) -> float:
    """Smallest real d_h >= 1 at which ``head_dim_bound`` comes within ``gap`` of the barrier, both divided by n.

    It grows like (log n)^2 / (e gap).

    Parameters
    ----------
    n : number of tokens, >= 1; up to 1e12.
    gap : fraction of n, > 0.

    Returns
    -------
    float, a head dimension.

    Raises
    ------
    ValueError : n not an integer >= 1, gap not > 0, or so small that d_h would exceed 1e5 (the range in which the
        bound is accurate).

    Examples
    --------
    >>> from attnrank import theory
    >>> round(theory.saturation_head_dim(2048, 0.05), 3)
    202.647

    Source: chapter growth, the saturation scale.
    """
    n = _check.whole("n", n, minimum=1)
    gap = _check.real("gap", gap, above=0.0)

    def excess(d_h: float) -> float:
        return (occupancy_bound(n) - head_dim_bound(n, d_h)) / n - gap

    if excess(1.0) <= 0.0:
        return 1.0
    guess = _clip(max(lognormal_variance(n, 1.0), 1.0) / (2.0 * math.e * gap))
    return _root(excess, guess, "gap", gap, n)


def marginal_head_dim(n: int, gain: float) -> float:
    """Smallest real d_h >= 1 from which on one more dimension adds at most ``gain`` to ``head_dim_bound(n, d_h) / n``.

    That is, ``(head_dim_bound(n, x + 1) - head_dim_bound(n, x)) / n <= gain`` for every x >= d_h. At small d_h and
    large n the increments are below ``gain`` too, before the bound has begun to rise: that is not saturation. For small
    gain it is near a_n^2 / (2 sqrt(e gain)), which is of order log n. It is 1 where no increment exceeds ``gain``: with
    gain = 0.01 for n >= 1e5, since the bound then rises too slowly everywhere.

    Parameters
    ----------
    n : number of tokens, >= 1; up to 1e12.
    gain : fraction of n, at least 1e-6 (below, increments drown in the accuracy of the bound).

    Returns
    -------
    float, a head dimension.

    Raises
    ------
    ValueError : n not an integer >= 1, gain < 1e-6, or d_h would exceed 1e5.

    Examples
    --------
    >>> from attnrank import theory
    >>> round(theory.marginal_head_dim(1024, 0.001), 3)
    79.013

    Source: chapter growth; the rule that the first paper states for its Table 2, "increment less than or around 0.01".
    """
    n = _check.whole("n", n, minimum=1)
    gain = _check.real("gain", gain, minimum=1e-6)

    def excess(d_h: float) -> float:
        return (head_dim_bound(n, d_h + 1.0) - head_dim_bound(n, d_h)) / n - gain

    # The increment rises to its largest value and then falls for good: the answer lies beyond that.
    high = math.log(_clip(4.0 * math.sqrt(lognormal_variance(max(n, 3), 1.0) / gain) + 4.0))
    peak = scipy.optimize.minimize_scalar(
        lambda x: -excess(math.exp(x)), bounds=(0.0, high), method="bounded", options={"xatol": 1e-3}
    )
    steepest = math.exp(peak.x) if -peak.fun > excess(1.0) else 1.0
    return 1.0 if excess(steepest) <= 0.0 else _root(excess, math.exp(high), "gain", gain, n, steepest)


def lognormal_variance(n: int, d_h: float) -> float:
    """The variable of the collapse, ``v = a_n^4 / (2 d_h)`` with a_n the normal quantile of 1 - 1/n.

    For large n and d_h, n times the probability that a given key wins is close to log-normal, its logarithm having
    variance v and mean -v/2.

    Parameters
    ----------
    n : number of tokens, >= 2.
    d_h : head dimension, >= 1; need not be an integer.

    Returns
    -------
    float v >= 0.

    Raises
    ------
    ValueError : n not an integer >= 2, d_h not a finite number >= 1.

    Examples
    --------
    >>> from attnrank import theory
    >>> round(theory.lognormal_variance(2048, 64), 3)
    0.923

    Source: chapter head_dimension, the collapse.
    """
    n = _check.whole("n", n, minimum=2)
    d_h = _check.real("d_h", d_h, minimum=1.0)
    return float(scipy.stats.norm.isf(1.0 / n)) ** 4 / (2.0 * d_h)


def lognormal_limit(v: float, *, causal: bool = False) -> float:
    """The limit of rank / n for n -> infinity at fixed v: ``F(v) = E[1 - exp(-Y)]``, Y log-normal of mean 1.

    Y = exp(sqrt(v) G - v/2), G standard normal. All (n, d_h) collapse on this curve, which falls from 1 - 1/e at v = 0,
    like 1 - 1/e - v/(2e). Under a causal mask it is ``E[Y / (1 + Y)]``, from 1/2 at v = 0. Accurate to 1e-12 relative.

    Parameters
    ----------
    v : variance of the logarithm, >= 0; see :func:`lognormal_variance`.
    causal : query i chooses among keys 1..i only.

    Returns
    -------
    float, the limit of rank / n.

    Raises
    ------
    ValueError : v not a finite number >= 0.

    Examples
    --------
    >>> from attnrank import theory
    >>> round(theory.lognormal_limit(1.0), 3)
    0.488

    Source: chapter head_dimension, the collapse; chapter masks.
    """
    sigma, causal = math.sqrt(_check.real("v", v, minimum=0.0)), _check.flag("causal", causal)
    # With g = sigma/2 + x the log of the integrand is near -x^2/2 - sigma |x|/2 - v/8. The trapezoidal rule converges
    # geometrically: the integrand is analytic in a strip of half-width pi / (2 sigma).
    reach = -sigma / 2.0 + math.sqrt(sigma**2 / 4.0 + 90.0)
    step = min(0.4, 0.3 / max(sigma, 1e-300))
    x = step * np.arange(-math.ceil(reach / step), math.ceil(reach / step) + 1)
    y = sigma * x  # log Y
    share = scipy.special.expit(y) if causal else -np.expm1(-np.exp(np.minimum(y, 700.0)))
    return float(step * (share * np.exp(-((x + sigma / 2.0) ** 2) / 2.0)).sum()) / math.sqrt(2.0 * math.pi)


def _clip(d_h: float) -> float:
    return min(max(d_h, 1.0), LARGEST_HEAD_DIM)


def _root(excess: Callable[[float], float], guess: float, name: str, value: float, n: int, low: float = 1.0) -> float:
    """The root of a falling function above ``low``, where it is positive; sought around ``guess``."""
    high = max(guess, low)
    while excess(high) > 0.0:
        if high >= LARGEST_HEAD_DIM:
            raise ValueError(
                f"{name} must be reached by a head dimension up to {LARGEST_HEAD_DIM:g}, got {value!r} for n = {n}"
            )
        low, high = high, _clip(2.0 * high)
    return float(scipy.optimize.brentq(excess, low, high, xtol=1e-9, rtol=1e-10))


def doubling_head_dim(n: int, level: float) -> float:
    """Head dimension from which on twice the dimension adds at most ``level`` to ``head_dim_bound`` / n.

    The gain of a doubling rises to its largest value and then falls for good. Raises ValueError for a level below 1e-6,
    which the bound's own accuracy does not tell from none, and for one that no doubling exceeds.

    Examples
    --------
    >>> from attnrank import theory
    >>> round(theory.doubling_head_dim(1024, 0.05), 3)
    64.687
    """
    n, level = _check.whole("n", n, minimum=2), _check.real("level", level, minimum=1e-6)

    def excess(d_h: float) -> float:
        return (head_dim_bound(n, 2 * d_h) - head_dim_bound(n, d_h)) / n - level

    beyond = max(1.0, lognormal_variance(n, 1.0) / 4.0) + 1.0  # the peak is where v is 4 or a little more
    peak = scipy.optimize.minimize_scalar(
        lambda x: -excess(math.exp(x)), bounds=(0.0, math.log(beyond)), method="bounded", options={"xatol": 1e-6}
    )
    low = high = math.exp(peak.x)
    if excess(high) <= 0:
        raise ValueError(f"level must be below the largest gain of a doubling, got {level!r} for n = {n}")
    while excess(high) > 0:
        low, high = high, 2 * high
    return float(scipy.optimize.brentq(excess, low, high, rtol=1e-9))
