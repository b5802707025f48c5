"""Tokens that are not orthonormal: what the size of their cosines allows the mean rank to be, whatever the keys."""

from __future__ import annotations

import math

import numpy as np
import scipy

from attnrank import _check
from attnrank.theory.barrier import occupancy_bound


def perturbation_bound(n: int, d_h: int, frobenius: float, rho: float = 0.0) -> float:
    """Barrier for almost orthonormal tokens: ``occupancy_bound(n) + (n/2) sqrt(d_h) |E|_F / (1 - rho)``, at most n.

    Tokens with Gram matrix ``(1 - rho) I + rho 1 1^T + E`` (rows of any norm, normalised for this), Gaussian query
    weights and any keys that do not depend on these weights. The form that the total variation distance of the queries
    from independent ones gives; it follows from :func:`effective_queries_bound` with the smallest eigenvalue
    ``1 - |E|_F / (1 - rho)``, whose excess over the barrier is at most ``0.478 n |E|_F / (1 - rho)``.

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

    Examples
    --------
    >>> from attnrank import theory
    >>> round(theory.perturbation_bound(1024, 64, 0.01), 3)
    688.435

    Source: chapter almost_orthonormal, the remark on total variation.
    """
    n, d_h = _check.whole("n", n, minimum=1), _check.whole("d_h", d_h, minimum=1)
    frobenius = _check.real("frobenius", frobenius, minimum=0.0)
    rho = _check.real("rho", rho, minimum=0.0, maximum=math.nextafter(1.0, 0.0))
    return min(float(n), occupancy_bound(n) + n / 2 * math.sqrt(d_h) * frobenius / (1.0 - rho))


def small_cosine_bound(n: int, largest: float, total: float | None = None) -> float:
    """Bound on E D for tokens whose cosines are small, whatever their signs: no eigenvalue, no d, no d_h; at most n.

    For Gaussian query weights and any keys, as many as tokens. With S the sum of |cosine| over pairs of tokens, which
    is at most n (n - 1) ``largest`` / 2, it is ``occupancy_bound(n) + B + S / (4 n)``, where B is the maximum over p in
    (0, 1] of min((1 - p)^n, 6 S log n I(p)^{2 / (1 + largest)}) / p and I is the Gaussian isoperimetric function. For
    cosines of order 1/n the excess is of order (log n)^3.

    Parameters
    ----------
    n : number of tokens, >= 2.
    largest : largest |cosine| of two tokens, in [0, 1/2].
    total : S, >= 0; n (n - 1) ``largest`` / 2 when None.

    Raises
    ------
    ValueError : an argument out of its range.

    Examples
    --------
    >>> from attnrank import theory
    >>> round(theory.small_cosine_bound(1024, 0.01), 3)
    1024.0

    Source: chapter almost_orthonormal, the theorem of small cosines.
    """
    n = _check.whole("n", n, minimum=2, maximum=1e150)
    largest = _check.real("largest", largest, minimum=0.0, maximum=0.5)
    most = n * (n - 1) * largest / 2
    total = most if total is None else _check.real("total", total, minimum=0.0, maximum=most * (1 + 1e-12))
    p = np.geomspace(1e-9 / n**2, 1.0, 20001)
    with np.errstate(divide="ignore"):
        missed = np.exp(n * np.log1p(-p))
    isoperimetric = scipy.stats.norm.pdf(scipy.stats.norm.isf(p))
    pairs = 6.0 * total * math.log(n) * isoperimetric ** (2.0 / (1.0 + largest))
    # Between two nodes the first entry and 1/p are at most their values on the left.
    excess = np.minimum(missed[:-1], np.maximum(pairs[:-1], pairs[1:])) / p[:-1]
    return min(float(n), occupancy_bound(n) + float(excess.max()) + total / (4.0 * n))


def simplex_first_order(n: int) -> float:
    """First-order gain of rank, in tokens, of the regular simplex of n tokens with orthonormal keys.

    It is n a^2 / (2 (n - 1)) (1 - 1/n)^{n - 2}, a the mean of the largest of n standard normal numbers;
    n at most 1e15.

    Examples
    --------
    >>> from attnrank import theory
    >>> round(theory.simplex_first_order(1024), 3)
    1.946

    Source: chapter almost_orthonormal, the proposition on first order.
    """
    n = _check.whole("n", n, minimum=2, maximum=1e15)

    def integrand(x: float) -> float:
        return x * n * scipy.stats.norm.pdf(x) * math.exp((n - 1) * scipy.special.log_ndtr(x))

    largest = scipy.integrate.quad(integrand, -8, 10)[0]
    return largest**2 * n / (2.0 * (n - 1)) * math.exp((n - 2) * math.log1p(-1.0 / n))
