"""What the smallest eigenvalue of the tokens' Gram matrix allows the mean rank to be, whatever the keys."""

from __future__ import annotations

import math

import numpy as np
import scipy
from numpy.typing import ArrayLike

from attnrank import _check
from attnrank._quadrature import gauss_legendre


def half_space_exponent(p: ArrayLike, mu: float) -> np.ndarray:
    """E[-log(1 - P)], P the conditional probability of a half-space of Gaussian measure p given a share mu of its
    point.

    For a standard Gaussian q = sqrt(1 - mu) g + h with independent h of covariance mu I, P = P(q in C | h), and of all
    sets C with P(q in C) = p the half-spaces make the expectation of every convex function of P largest. With
    t = Phi^{-1}(p) and Z standard normal P = Phi((t + sqrt(mu) Z) / sqrt(1 - mu)). It is -log(1 - p) at mu = 0, never
    less, and at most -log(1 - p) / (1 - mu).

    Parameters
    ----------
    p : probabilities in (0, 1), any shape; accurate to 1e-6, relative, for p >= 1e-30.
    mu : in [0, 1).

    Returns
    -------
    float64 array, the shape of p; a number for a number.

    Raises
    ------
    ValueError : p or mu out of range.

    Examples
    --------
    >>> from attnrank import theory
    >>> theory.half_space_exponent([0.1, 0.5], 0.0).round(3).tolist()
    [0.105, 0.693]

    Source: chapter almost_orthonormal, the lemma of half-spaces.
    """
    p = _probabilities(p)
    mu = _check.real("mu", mu, minimum=0.0, maximum=math.nextafter(1.0, 0.0))
    if not p.size:
        return p
    t = scipy.special.ndtri(p)[..., None]
    width = math.sqrt((1.0 - mu) / max(mu, 1e-3))
    corner = np.clip(-t / math.sqrt(max(mu, 1e-3)) + width * np.array([-8, -4, -2, -1, 0, 1, 2, 4, 8]), -14.0, 14.0)
    even = np.broadcast_to(np.linspace(-14.0, 14.0, 36), (*p.shape, 36))
    edges = np.sort(np.concatenate([even, corner], axis=-1), axis=-1)
    z, weight = (x.reshape(*p.shape, -1) for x in gauss_legendre(edges.reshape(p.size, -1), 16))
    weight = weight * np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    u = (t + math.sqrt(mu) * z) / math.sqrt(1.0 - mu)
    part = scipy.special.ndtr(u)
    small = part**2 * (0.5 + part * (1 / 3 + part * (0.25 + part * 0.2)))  # -log(1 - P) - P, without cancellation
    return p + (np.where(part < 1e-3, small, -scipy.special.log_ndtr(-u) - part) * weight).sum(-1)


def _probabilities(p: ArrayLike) -> np.ndarray:
    try:
        found = np.asarray(p)
        if found.size and found.dtype.kind not in "iufO":  # words, truth values and complex numbers would be converted
            raise TypeError
        found = found.astype(float)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # torch's, for a tensor that requires a gradient
        found = np.array(np.nan)
    if not ((found > 0) & (found < 1)).all():
        raise ValueError(f"p must lie in (0, 1), got {p!r}")
    return found


def smallest_eigenvalue_bound(n: int, smallest: float) -> float:
    """Bound on E D from the smallest eigenvalue alone, for Gaussian query weights and any keys, as many as tokens.

    With mu = 1 - smallest and G(p) = 1 - exp(-n half_space_exponent(p, mu)), the least of s + n max_p (G(p) - s p) over
    s >= 0: no choice of n probabilities p_j that add up to 1 makes the sum of G(p_j) larger. It is the barrier for
    smallest = 1, n for 0, and in every case computed n G(1/n): equal cells are the worst ones. The excess over
    (1 - 1/e) n is at most 4 / (1 - mu) n^{2 mu / (1 + mu)}.

    Parameters
    ----------
    n : number of tokens, >= 1; up to 1e12.
    smallest : smallest eigenvalue of the normalised Gram matrix, in [0, 1].

    Returns
    -------
    float, in units of rank.

    Raises
    ------
    ValueError : an argument out of its range.

    Examples
    --------
    >>> from attnrank import theory
    >>> round(theory.smallest_eigenvalue_bound(1024, 0.5), 3)
    658.817

    Source: chapter almost_orthonormal, the theorem of the smallest eigenvalue.
    """
    n = _check.whole("n", n, minimum=1)
    mu = 1.0 - _check.real("smallest", smallest, minimum=0.0, maximum=1.0)
    if n == 1 or mu == 1.0:
        return float(n)

    def hit(log_p: ArrayLike) -> np.ndarray:
        return -np.expm1(-n * half_space_exponent(np.exp(log_p), mu))

    equal, step = -math.log(n), 1e-4
    slope = float(hit(equal + step) - hit(equal - step)) / (2 * step) * n  # of G at 1/n: any s >= 0 gives a bound
    grid = np.linspace(equal - 25.0, -1e-12, 200)
    at = int(np.argmax(hit(grid) - slope * np.exp(grid)))
    nearby = grid[max(at - 1, 0)], grid[min(at + 1, len(grid) - 1)]
    best = scipy.optimize.minimize_scalar(
        lambda x: slope * math.exp(x) - float(hit(x)), bounds=nearby, method="bounded", options={"xatol": 1e-10}
    )
    return min(float(n), slope + n * max(0.0, -float(best.fun)))


def effective_queries_bound(n: int, smallest: float) -> float:
    """The barrier for n / smallest orthonormal queries: ``n (1 - (1 - 1/n)^{n / smallest})``, at most n.

    For Gaussian query weights and any keys, as many as tokens: n tokens whose normalised Gram matrix has the smallest
    eigenvalue ``smallest`` attend to no more keys than n / smallest orthonormal ones may. A closed form, weaker than
    :func:`smallest_eigenvalue_bound`. In units of rank; the barrier itself for ``smallest`` = 1, and n for 0.

    Parameters
    ----------
    n : number of tokens, >= 1.
    smallest : smallest eigenvalue of the normalised Gram matrix, in [0, 1].

    Raises
    ------
    ValueError : an argument out of its range.

    Examples
    --------
    >>> from attnrank import theory
    >>> round(theory.effective_queries_bound(1024, 0.5), 3)
    885.552

    Source: chapter almost_orthonormal, the theorem of effective queries; reverse Hoelder inequality of Chen, Dafnis and
    Paouris (2015).
    """
    n = _check.whole("n", n, minimum=1)
    smallest = _check.real("smallest", smallest, minimum=0.0, maximum=1.0)
    if n == 1 or smallest == 0.0:
        return float(n)
    return n * -math.expm1(n / smallest * math.log1p(-1.0 / n))
