"""Tokens that are not orthonormal: what the Gram matrix alone allows the mean rank to be, whatever the keys."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy import integrate, stats

from attnrank import _check
from attnrank.theory.barrier import occupancy_bound


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


def smallest_eigenvalue_bound(n: int, smallest: float) -> float:
    """Bound on E D from the smallest eigenvalue alone, for Gaussian query weights and any keys, as many as tokens.

    With mu = 1 - smallest, (1 - 1/e) n + n^{2 mu / (1 + mu)} L^a / 2, where a = (1 - mu) / (1 + mu) and
    L = max(1, log(2 n^a)). In units of rank; not less than 1 - 1/e of n, and trivial (about 1.13 n) for mu = 1.

    Parameters
    ----------
    n : number of tokens, >= 1.
    smallest : smallest eigenvalue of the normalised Gram matrix, in [0, 1].

    Raises
    ------
    ValueError : an argument out of its range.

    Source: chapter 04, the smallest-eigenvalue theorem.
    """
    n = _check.integer("n", n, minimum=1)
    mu = 1.0 - _check.real("smallest", smallest, minimum=0.0, maximum=1.0)
    power = (1.0 - mu) / (1.0 + mu)
    logarithm = max(1.0, math.log(2.0) + power * math.log(n))
    return (1.0 - math.exp(-1.0)) * n + 0.5 * n ** (1.0 - power) * logarithm**power


def effective_queries_bound(n: int, smallest: float) -> float:
    """The barrier for n / smallest orthonormal queries: ``n (1 - (1 - 1/n)^{n / smallest})``, at most n.

    For Gaussian query weights and any keys, as many as tokens: n tokens whose normalised Gram matrix has the smallest
    eigenvalue ``smallest`` attend to no more keys than n / smallest orthonormal ones may. In units of rank; the barrier
    itself for ``smallest`` = 1, and n for 0.

    Parameters
    ----------
    n : number of tokens, >= 1.
    smallest : smallest eigenvalue of the normalised Gram matrix, in [0, 1].

    Raises
    ------
    ValueError : an argument out of its range.

    Source: chapter 04, the theorem of effective queries; reverse Hoelder inequality of Chen, Dafnis and Paouris (2015).
    """
    n = _check.integer("n", n, minimum=1)
    smallest = _check.real("smallest", smallest, minimum=0.0, maximum=1.0)
    if n == 1 or smallest == 0.0:
        return float(n)
    return n * -math.expm1(n / smallest * math.log1p(-1.0 / n))


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

    Source: chapter 04, the theorem of small cosines.
    """
    n = _check.integer("n", n, minimum=2)
    largest = _check.real("largest", largest, minimum=0.0, maximum=0.5)
    most = n * (n - 1) * largest / 2
    total = most if total is None else _check.real("total", total, minimum=0.0, maximum=most * (1 + 1e-12))
    p = np.geomspace(1e-9 / n**2, 1.0, 20001)
    with np.errstate(divide="ignore"):
        missed = np.exp(n * np.log1p(-p))
    isoperimetric = stats.norm.pdf(stats.norm.isf(p))
    pairs = 6.0 * total * math.log(n) * isoperimetric ** (2.0 / (1.0 + largest))
    # Between two nodes the first entry and 1/p are at most their values on the left.
    excess = np.minimum(missed[:-1], np.maximum(pairs[:-1], pairs[1:])) / p[:-1]
    return min(float(n), occupancy_bound(n) + float(excess.max()) + total / (4.0 * n))


def hellinger_excess(eigenvalues: ArrayLike, n: int, d_h: int) -> float:
    """(n - 1) sqrt(1 - B^2): how much E D can differ from that of orthonormal tokens, by the Hellinger affinity B.

    ``eigenvalues`` > -1 are those of E; B^2 = prod (1 + x^2 / (4 (1 + x)))^{-d_h / 2}. In units of rank.

    Raises
    ------
    ValueError : an eigenvalue <= -1 or not finite, n < 1 or d_h < 1.

    Source: chapter 04, the total-variation theorem.
    """
    x = np.asarray(eigenvalues, dtype=float)
    if x.size == 0 or not np.isfinite(x).all() or (x <= -1).any():
        raise ValueError(f"eigenvalues must be finite and greater than -1, got {eigenvalues!r}")
    n, d_h = _check.integer("n", n, minimum=1), _check.integer("d_h", d_h, minimum=1)
    log_affinity = -0.5 * d_h * np.log1p(x**2 / (4.0 * (1.0 + x))).sum()
    return (n - 1) * math.sqrt(-math.expm1(log_affinity))


def simplex_first_order(n: int) -> float:
    """First-order gain of rank of the regular simplex of n tokens with orthonormal keys, c n of chapter 04, in tokens.

    c = a^2 / (2 (n - 1)) (1 - 1/n)^{n - 2}, a the mean of the largest of n standard normal numbers.
    """
    n = _check.integer("n", n, minimum=2)
    largest = integrate.quad(lambda x: x * n * stats.norm.pdf(x) * stats.norm.cdf(x) ** (n - 1), -8, 10)[0]
    return largest**2 * n / (2.0 * (n - 1)) * (1.0 - 1.0 / n) ** (n - 2)
