"""Normalised keys: how unequal the cells of random keys on a sphere are, and the rank that they leave at least."""

from __future__ import annotations

import math

import numpy as np
import scipy

from attnrank import _check
from attnrank._quadrature import gauss_legendre
from attnrank.theory.barrier import hit_probability
from attnrank.theory.head_dimension import LARGEST


def normalised_second_moment(n: int, d_h: int) -> float:
    """``n^2 E[p^2]`` for the probability p that a given one of n normalised keys wins a query, or a little more.

    The keys are independent and uniform on the unit sphere of R^{d_h}, the queries have uniform directions. It is n
    times the probability that two queries choose the same key, 1 when all cells are equal, and tends to E[V^2], V the
    normalised typical Poisson-Voronoi cell of R^{d_h - 1}, as n grows.

    Two queries choose key 1 when no other key lies in one of the two caps around them that have key 1 on their
    boundary. With u >= v the shares of the sphere in the caps and psi the angle between the queries as key 1 sees them,

        n^2 E[p^2] = 2 n^2 int_0^1 du int_0^u dv E_psi[ (1 - |union of the caps|)^{n-1} ].

    Caps larger than a half-sphere are not integrated but replaced by their largest contribution, n 2^{1-n}: for
    d_h >= 3 the value is that much too large at most, 0.75 at n = 3, 0.006 at n = 12, below 1e-7 from n = 32 on. But
    for this the relative accuracy is 1e-4 for d_h <= 4096; under a tenth of a second.

    Parameters
    ----------
    n : number of keys, >= 2.
    d_h : head dimension, >= 2; up to 1e6. For d_h = 2 and n >= 3 it is 3 n / (2 (n + 1)), exactly.

    Returns
    -------
    float >= 1.

    Raises
    ------
    ValueError : n or d_h not an integer >= 2, d_h > 1e6.

    Examples
    --------
    >>> from attnrank import theory
    >>> round(theory.normalised_second_moment(1024, 8), 3)
    1.055

    Source: chapter normalised_keys, normalised keys; Gilbert (1962) for the limit.
    """
    n, d_h = _check.whole("n", n, minimum=2, maximum=1e150), _check.whole("d_h", d_h, minimum=2, maximum=LARGEST)
    if n == 2:  # both cells are half-spheres
        return 1.0
    if d_h == 2:
        return 1.5 * n / (n + 1.0)
    edges = np.minimum(np.array([[0.0, 1, 3, 8, 18, 40]]) / n, 0.5)  # beyond 40/n less than e^-40
    u, weight_u = (values[0][:, None, None] for values in gauss_legendre(edges, order=12))
    # The union has a corner where the queries coincide, at ratio v/u = 1 and angle psi = 0: powers smooth it.
    x, weight = gauss_legendre(np.linspace(0.0, 1.0, 5)[None], order=8)
    x, weight = x[0] ** 3, 3.0 * x[0] ** 2 * weight[0]
    ratio, weight_ratio = 1.0 - x[None, :, None], weight[None, :, None]
    psi, weight_psi = _angle_rule(d_h, x, weight)
    weights = weight_u * u * weight_ratio * weight_psi
    missed = np.exp((n - 1) * np.log1p(-_union(u, ratio * u, psi, d_h)))
    return max(1.0, 2.0 * n**2 * float((weights * missed).sum()) + n * 2.0 ** (1 - n))


def normalised_lower_bound(n: int, d_h: int) -> float:
    """A lower bound on the expected attention rank of n normalised random keys, ``n (1 - (1 - s/n)^n) / s``.

    s is :func:`normalised_second_moment`. Together with ``occupancy_bound(n)`` it brackets the mean rank at every n.

    Parameters
    ----------
    n : number of tokens, >= 2.
    d_h : head dimension, >= 2; up to 1e6.

    Returns
    -------
    float, in units of rank; tends to ``occupancy_bound(n)`` as d_h grows.

    Raises
    ------
    ValueError : n or d_h not an integer >= 2, d_h > 1e6.

    Examples
    --------
    >>> from attnrank import theory
    >>> round(theory.normalised_lower_bound(1024, 8), 3)
    632.818

    Source: chapter normalised_keys, the bound from below.
    """
    n = _check.whole("n", n, minimum=2)
    second = normalised_second_moment(n, d_h)
    return n / second * float(hit_probability(second / n, n))


def _angle_rule(d_h: int, x: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights for the angle between two uniform directions of R^{d_h - 1}, fine at 0 where that matters."""
    if d_h < 12:
        psi = math.pi * x
        log_density = (d_h - 3) * np.log(np.sin(psi)) - scipy.special.betaln((d_h - 2) / 2.0, 0.5)
        return psi, math.pi * weight * np.exp(log_density)
    cosine, share = scipy.special.roots_jacobi(32, (d_h - 4) / 2.0, (d_h - 4) / 2.0)
    return np.arccos(cosine), share / share.sum()


def _union(u: np.ndarray, v: np.ndarray, psi: np.ndarray, d_h: int) -> np.ndarray:
    """Share of the sphere in two caps of shares u and v whose centres a point of both boundaries sees at angle psi.

    The great sphere through that point and the other points of both boundaries cuts a piece off each cap, and the caps
    overlap in these two pieces. The angle at each centre is that of the spherical triangle of the centres and the
    point.
    """
    alpha, beta = _radius(u, d_h), _radius(v, d_h)
    at_u = np.arctan2(np.sin(psi), np.sin(alpha) / np.tan(beta) - np.cos(alpha) * np.cos(psi))
    at_v = np.arctan2(np.sin(psi), np.sin(beta) / np.tan(alpha) - np.cos(beta) * np.cos(psi))
    return u + v - u * _cut_off(at_u, alpha, d_h) - v * _cut_off(at_v, beta, d_h)


def _radius(share: np.ndarray, d_h: int) -> np.ndarray:
    """Angular radius of the cap with a given share <= 1/2 of the sphere of R^{d_h}."""
    return np.arcsin(np.sqrt(scipy.special.betaincinv((d_h - 1) / 2.0, 0.5, 2.0 * share)))


def _cut_off(angle: np.ndarray, radius: np.ndarray, d_h: int) -> np.ndarray:
    """Share of a cap beyond the great sphere that meets its boundary at ``angle`` from the axis on which it cuts."""
    nodes, weights = (values[0] for values in gauss_legendre(np.array([[0.0, 1.0]]), order=24))
    slope = np.tan(radius) ** 2

    def integral(end: np.ndarray) -> np.ndarray:
        total = np.zeros(np.broadcast_shapes(end.shape, radius.shape))
        for node, weight in zip(nodes, weights, strict=True):
            sine = np.sin(end * node)
            total += weight * _power(sine, int(d_h) - 1) / (1.0 + slope * (1.0 - sine * sine))
        return end * total

    half = integral(np.minimum(angle, math.pi - angle)) / (2.0 * integral(np.array(math.pi / 2.0)))
    return np.where(angle <= math.pi / 2.0, half, 1.0 - half)


def _power(base: np.ndarray, exponent: int) -> np.ndarray:
    """``base ** exponent`` for an exponent >= 1, by squares: numpy's takes a logarithm of each number."""
    result = base if exponent & 1 else np.ones_like(base)
    while exponent := exponent >> 1:
        base = base * base
        if exponent & 1:
            result = result * base
    return result
