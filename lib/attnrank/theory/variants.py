"""Where the barrier moves: many heads, tokens that are only nearly orthonormal."""

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


def perturbation_bound(n: int, d_h: int, frobenius: float, rho: float = 0.0) -> float:
    """Barrier for almost orthonormal tokens: ``occupancy_bound(n) + (n/2) sqrt(d_h) |E|_F / (1 - rho)``, at most n.

    Tokens with Gram matrix ``(1 - rho) I + rho 1 1^T + E`` (rows of any norm, normalised for this), Gaussian query
    weights and any keys that do not depend on these weights. The hypothesis is that no eigenvalue of E is below
    ``-(1 - rho) / 2``, for which ``|E|_F <= (1 - rho) / 2`` suffices: for d_h >= 3 a larger |E|_F makes the bound n, so
    that it holds for every E.

    Parameters
    ----------
    n : number of tokens, >= 1.
    d_h : head dimension, >= 1.
    frobenius : Frobenius norm of E, >= 0.
    rho : common inner product of the tokens around which E is measured, in [0, 1).

    Returns
    -------
    float, in units of rank.

    Raises
    ------
    ValueError : an argument out of its range.

    Source: chapter 04, the total-variation theorem; Pinsker's inequality.
    """
    n, d_h = _check.integer("n", n, minimum=1), _check.integer("d_h", d_h, minimum=1)
    frobenius = _check.real("frobenius", frobenius, minimum=0.0)
    rho = _check.real("rho", rho, minimum=0.0, maximum=math.nextafter(1.0, 0.0))
    return min(float(n), occupancy_bound(n) + n / 2 * math.sqrt(d_h) * frobenius / (1.0 - rho))
