"""Geometry of random keys: vertices of Gaussian polytopes, and cells of keys on a sphere."""

from __future__ import annotations

import math

import numpy as np
import scipy

from attnrank import _check
from attnrank._quadrature import gauss_legendre, panel_edges


def polytope_vertices(n: int, d: int) -> float:
    """Expected number of vertices of the convex hull of n standard Gaussian points in R^d.

    Only a vertex of the hull of the keys can win a query, so that this bounds the expected attention rank of Gaussian
    keys of head dimension d, whatever the queries. It is computed from the exact formula as a sum of internal times
    external angles of regular simplices, each a one-dimensional integral; relative accuracy about 1e-9.

    Parameters
    ----------
    n : number of points, 1 to 1e18; tested up to 1e12.
    d : dimension, >= 1.

    Returns
    -------
    float, between 1 and n; n when d >= n - 1.

    Raises
    ------
    ValueError : n or d not an integer >= 1, n > 1e18.

    Examples
    --------
    >>> from attnrank import theory
    >>> round(theory.polytope_vertices(1024, 2), 3)
    11.515

    Source: Affentranger and Schneider (1992); Kabluchko and Zaporozhets (2020), for the angles.
    """
    n, d = _check.whole("n", n, minimum=1, maximum=1e18), _check.whole("d", d, minimum=1)
    if d >= n - 1:
        return float(n)
    total = 0.0
    for stop in range(d, 0, -4096):  # blocks bound the memory
        m = np.arange(stop, max(stop - 4096, 0), -2)
        log_terms = _log_binomial(n, m) + np.log(m) + _log_internal_angle(m) + _log_external_angle(n, m)
        total += float(np.exp(log_terms).sum())
    return min(2.0 * total, float(n))


def _log_binomial(n: int, m: np.ndarray) -> np.ndarray:
    """log C(n, m), without the cancellation of log-gamma functions at large n."""
    i = np.arange(m.max())
    return np.cumsum(np.log(n - i) - np.log1p(i))[m - 1]


def _log_external_angle(n: int, m: np.ndarray) -> np.ndarray:
    """Log of E[Phi(x / sqrt(m))^{n-m}]: the angle of a regular n-vertex simplex at a face of m vertices, (k,)."""
    m = m[:, None].astype(float)

    def log_integrand(t: np.ndarray) -> np.ndarray:  # of t = 20 + x / sqrt(m)
        return (n - m) * scipy.special.log_ndtr(t - 20.0) - m * (t - 20.0) ** 2 / 2.0

    nodes, weights = gauss_legendre(panel_edges(log_integrand, len(m), 40.0))
    log_integral = scipy.special.logsumexp(log_integrand(nodes), b=weights, axis=1)
    return log_integral + np.log(m[:, 0] / (2.0 * math.pi)) / 2.0


def _log_internal_angle(m: np.ndarray) -> np.ndarray:
    """Log of the angle of a regular m-vertex simplex at a vertex, (k,): sqrt(m / 2 pi) times the integral over y of
    exp(z^2/2) (w(-i z / sqrt 2) / 2)^{m-1}, z = c + i y, w the Faddeeva function.

    The formula E[Phi(i x / sqrt m)^{m-1}] integrates along the imaginary axis, c = 0, where the integrand oscillates
    around a result that is exponentially smaller. The integrand is entire: at its saddle c = -sqrt(m - 1) it is nearly
    exp(-y^2), without cancellation, and the trapezoidal rule is exact to rounding.
    """
    step = 0.2
    y = step * np.arange(46)  # beyond, the integrand is below exp(-y^2 / 2) = e^-40
    z = -np.sqrt(m - 1.0)[:, None] + 1j * y
    log_integrand = z**2 / 2.0 + (m[:, None] - 1) * np.log(scipy.special.wofz(-1j * z / math.sqrt(2.0)) / 2.0)
    peak = log_integrand[:, :1].real
    values = np.exp(log_integrand - peak).real
    values[:, 0] /= 2.0  # y = 0; the negative half gives the complex conjugate
    return peak[:, 0] + np.log(2.0 * step * values.sum(axis=1)) + np.log(m / (2.0 * math.pi)) / 2.0


def qk_norm_limit(d_h: int) -> float:
    """Limit of rank / n for n -> infinity with normalised keys (QK-norm): ``E[1 - exp(-V)]``, V a Voronoi cell.

    Keys uniform on the sphere have spherical Voronoi cells, which look from near like the cells of a Poisson process in
    R^{d_h - 1}; V is the volume of the typical one over its mean. For d_h = 2 it has the Gamma law of shape 2, and
    the limit is exactly 5/9. For d_h >= 3 no closed form is known: the variance of V is computed exactly (to 1e-8) and
    V is *approximated* by the Gamma law of mean 1 and this variance; simulations show no error of it above 0.001. At
    finite n the rank is below the limit, more so in high dimension, where cells are wide: at n = 2048 by 0.002 for
    d_h = 8 and 12. For d_h = 1 the keys are two points, the rank is at most 2 and the limit is 0.

    Parameters
    ----------
    d_h : head dimension, >= 1.

    Returns
    -------
    float, a fraction of n; tends to 1 - 1/e as d_h grows.

    Raises
    ------
    ValueError : d_h not an integer >= 1.

    Examples
    --------
    >>> from attnrank import theory
    >>> round(theory.qk_norm_limit(8), 3)
    0.625

    Source: chapter normalised_keys; Gilbert (1962) for the second moment.
    """
    d_h = _check.whole("d_h", d_h, minimum=1)
    if d_h == 1:
        return 0.0
    variance = poisson_voronoi_variance(d_h - 1)
    return -math.expm1(-math.log1p(variance) / variance) if variance > 0.0 else 1.0 - 1.0 / math.e  # underflow


def poisson_voronoi_variance(dimension: int) -> float:
    """Variance of the volume of the typical Poisson-Voronoi cell, in units of its squared mean.

    Two points x, y lie in the cell of the origin when no other point is nearer to one of them: with probability
    exp(-u), u the volume of the union of the balls around x and y through the origin. E V^2 is the integral of this
    over x and y, and (E V)^2 the same with the sum of the two volumes for u; scaling removes one integral and rotations
    all but two.

    Parameters
    ----------
    dimension : dimension of the space, >= 1.

    Returns
    -------
    float: 1/2 on the line, 0.2802 in the plane, 0.1790 in space.

    Raises
    ------
    ValueError : dimension not an integer >= 1.

    Examples
    --------
    >>> from attnrank import theory
    >>> round(theory.poisson_voronoi_variance(2), 3)
    0.28

    Source: Gilbert (1962), Random subdivisions of space into crystals.
    """
    d = _check.whole("dimension", dimension, minimum=1)
    if d == 1:
        return 0.5
    # |y| / |x| = t <= 1 by symmetry; psi is the angle between x and y; the corner at t = 1, psi = 0 is not smooth.
    x, w = gauss_legendre(np.linspace(0.0, 1.0, 9)[None], order=10)
    x, w = x[0] ** 3, w[0] * 3.0 * x[0] ** 2
    t, weight_t = (1.0 - x)[:, None], w[:, None]
    psi, weight_psi = math.pi * x, math.pi * w
    alpha = np.arctan2(t * np.sin(psi), 1.0 - t * np.cos(psi))  # angles at the centres x and y of the triangle x, y, 0
    beta = math.pi - psi - alpha
    apart = 1.0 + t**d  # the two balls, in units of the unit ball; |x| = 1
    overlap = _cap(alpha, d) + t**d * _cap(beta, d)
    excess = overlap * (2.0 * apart - overlap) / (apart * (apart - overlap)) ** 2  # over independence, apart^-2
    gammaln = scipy.special.gammaln
    log_area = math.log(d - 1) + gammaln(d / 2 + 1) - gammaln((d + 1) / 2) - math.log(math.pi) / 2
    integrand = t ** (d - 1) * np.exp(log_area + (d - 2) * np.log(np.sin(psi))) * excess
    return 2.0 * float((weight_t * weight_psi * integrand).sum())


def _cap(angle: np.ndarray, d: int) -> np.ndarray:
    """Share of the ball of R^d that lies beyond the hyperplane through its points at ``angle`` from the axis."""
    half = scipy.special.betainc((d + 1) / 2.0, 0.5, np.sin(angle) ** 2) / 2.0
    return np.where(angle <= math.pi / 2, half, 1.0 - half)
