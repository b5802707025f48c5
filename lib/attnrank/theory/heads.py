"""Many heads: the tokens that at least one of them attends to."""

from __future__ import annotations

import math

import numpy as np

from attnrank import _check
from attnrank.theory.barrier import occupancy_bound
from attnrank.theory.head_dimension import LARGEST, head_dim_bound
from attnrank.theory.pruning import examined_fraction


def multihead_limit(n: int, heads: int, d_h: float | None = None) -> float:
    """Expected number of distinct tokens that ``heads`` independent heads attend to: ``n (1 - (1 - 1/n)^{H n})``.

    With uniform choices (d_h -> infinity) this is the expectation. It bounds the expectation at every d_h when the
    heads are independent and each key wins with the same expected probability, 1/n: orthonormal tokens under Gaussian
    weights, for instance. Heads with keys of their own choosing can exceed it. With ``d_h`` it is the bound resolved
    by head dimension, ``n (1 - (1 - B/n)^H)`` with B = ``head_dim_bound(n, d_h)``.

    Parameters
    ----------
    n : number of tokens, >= 1.
    heads : number of heads H, >= 1.
    d_h : head dimension, >= 1, or None for the limit.

    Returns
    -------
    float, in units of rank.

    Raises
    ------
    ValueError : n or heads not an integer >= 1, d_h not a finite number >= 1.

    Examples
    --------
    >>> from attnrank import theory
    >>> round(theory.multihead_limit(1024, 8), 3)
    1023.658

    Source: chapter heads_and_weights, several heads.
    """
    n, heads = _check.whole("n", n, minimum=1), _check.whole("heads", heads, minimum=1)
    if d_h is None:
        return occupancy_bound(n * heads, keys=n)
    d_h = _check.real("d_h", d_h, minimum=1.0)
    if n == 1:
        return 1.0
    return -n * math.expm1(heads * math.log1p(-head_dim_bound(n, d_h) / n))


def two_head_deficit(n: int) -> float:
    """Expected number of cycles of n random edges between n and n vertices: a bound on n - E rank [A_1 A_2].

    Heads choose uniformly and independently (d_h -> infinity, orthonormal tokens). The cycles of 2k edges number
    (n)_k^2 (n)_2k / (2k n^{4k}) on average, (n)_k the falling factorial. About (log n)/4; n at most 1e10.

    Examples
    --------
    >>> from attnrank import theory
    >>> round(theory.two_head_deficit(1024), 3)
    1.616

    Source: chapter heads_and_weights, several heads.
    """
    n = _check.whole("n", n, minimum=1, maximum=1e10)
    k = np.arange(1, min(n // 2, 8 * math.isqrt(n) + 8) + 1)  # further terms are below exp(-3 k^2 / n) < e^-192
    log_falling = np.cumsum(np.log1p(-np.arange(2 * len(k)) / n))  # of (n)_1 / n, (n)_2 / n^2, ...
    return float(np.sum(np.exp(2 * log_falling[k - 1] + log_falling[2 * k - 1]) / (2 * k)))


def tied_bound(n: int, d_h: int) -> float:
    """Lower bound n E[Phi(R)^{n-1}], R ~ chi with d_h degrees of freedom, on the expected rank of hardmax(K K^T).

    It is the expected number of tokens that choose themselves, for n i.i.d. N(0, I) keys; d_h at most 1e6.

    Examples
    --------
    >>> from attnrank import theory
    >>> round(theory.tied_bound(1024, 64), 3)
    1024.0

    Source: chapter heads_and_weights, tied weights.
    """
    n, d_h = _check.whole("n", n, minimum=1), _check.whole("d_h", d_h, minimum=1, maximum=LARGEST)
    return n * examined_fraction(n, d_h)
