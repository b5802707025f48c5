"""Many heads: the tokens that at least one of them attends to."""

from __future__ import annotations

import math

from attnrank import _check
from attnrank.theory.barrier import occupancy_bound
from attnrank.theory.head_dimension import head_dim_bound


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

    Source: chapter 05, many heads.
    """
    n, heads = _check.integer("n", n, minimum=1), _check.integer("heads", heads, minimum=1)
    if n == 1:
        return 1.0
    if d_h is None:
        return occupancy_bound(n * heads, keys=n)
    return -n * math.expm1(heads * math.log1p(-head_dim_bound(n, d_h) / n))
