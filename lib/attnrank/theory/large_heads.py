"""Large heads: the first term of what random heads lose to unequal keys, exactly, for a fixed number of tokens."""

from __future__ import annotations

import math

import numpy as np
import scipy
from numpy.typing import NDArray

from attnrank import _check
from attnrank._quadrature import panels, reach

#: Nodes of the rule, and the lengths for which it is evaluated together.
NODES, TOGETHER = 600, 1 << 10


def large_head_loss(n: int, d_h: float, *, causal: bool = False) -> float:
    """First term of the tokens that random heads lose to unequal keys: the limit less it is E D, up to O(d_h^-2).

    The limit, for d_h -> infinity, is ``occupancy_bound(n)``, or ``causal_limit(n)`` under a causal mask. The term
    holds for orthonormal tokens and Gaussian weights, n fixed and d_h -> infinity; it says nothing of small heads,
    where it may exceed n. With ``e_m`` the integral of phi^3 Phi^(m-3), phi and Phi the normal density and
    distribution function, it is ``(1 - 1/n)^n n^6 (n - 2) e_n^2 / (16 d_h)``, and under a causal mask the sum of
    ``i^2 (i - 1) (i - 2) l^3 e_i e_l / (16 n (l - 1) d_h)`` over 3 <= i < l <= n.

    Parameters
    ----------
    n : number of tokens, >= 1; at most 10^15, or 10^5 under a causal mask.
    d_h : head dimension, >= 1; need not be an integer.
    causal : row i picks one of keys 1..i only.

    Returns
    -------
    float >= 0, in units of rank.

    Raises
    ------
    ValueError : an argument out of its range.

    Examples
    --------
    >>> from attnrank import theory
    >>> round(theory.large_head_loss(1024, 512), 3)
    17.274
    >>> round(theory.large_head_loss(4, 1, causal=True), 6)    # 1 / (4 pi^2)
    0.02533

    Source: chapter head_dimension, the theorem on large heads; chapter masks, the causal one.
    """
    causal = _check.flag("causal", causal)
    n = _check.whole("n", n, minimum=1, maximum=1e5 if causal else 1e15)
    d_h = _check.real("d_h", d_h, minimum=1.0)
    if n < 3:
        return 0.0
    if not causal:
        missed = math.exp(n * math.log1p(-1.0 / n))
        return float(missed * (n - 2) * _three_alike(np.array([n]))[0] ** 2 / (16.0 * d_h))
    lengths = np.arange(3.0, n + 1)
    scaled = _three_alike(lengths)
    before = np.cumsum((lengths - 1.0) * (lengths - 2.0) / lengths * scaled)
    return float(np.sum(scaled[1:] / (lengths[1:] - 1.0) * before[:-1]) / (16.0 * n * d_h))


def _three_alike(lengths: NDArray) -> NDArray:
    """m^3 times the integral of phi^3 Phi^(m-3), for every m: the density of three alike that are the largest of m."""
    parts = []
    for first in range(0, len(lengths), TOGETHER):
        m = lengths[first : first + TOGETHER, None].astype(float)
        x, weights = panels(-9.0, reach(int(m[-1, 0])), NODES)
        log_density = -1.5 * (x**2 + np.log(2.0 * np.pi))
        parts.append(np.exp(3.0 * np.log(m) + log_density + (m - 3.0) * scipy.special.log_ndtr(x)) @ weights)
    return np.concatenate(parts)
