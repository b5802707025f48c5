"""The rank of a random head on tokens of which only two numbers are known. A heuristic, not a bound."""

from __future__ import annotations

import numpy as np
from scipy import special, stats

from attnrank import _check
from attnrank.theory.barrier import hit_probability

NODES = 48


def token_geometry_rank(n: int, d_h: float, directions: float, common_share: float) -> float:
    """Heuristic: the rank of a random head on n tokens that spread over some directions and share a common one.

    ``n E[1 - (1 - pi(R, C))^n]`` with pi(r, c) = E Phi(sqrt(rho) c + sqrt(1 - rho) r U)^{n-1}. The score of a query for
    key 1, scaled to variance 1, is modelled as sqrt(rho) C + sqrt(1 - rho) R U: C ~ N(0, 1) is the component along the
    mean query, the same for every query; R ~ chi with k degrees of freedom and U, a coordinate of a uniform point on
    the sphere of R^k, are what ``head_dim_bound`` has for head dimension k. Head dimension and
    directions act together through 1/k = 1/d_h + 1/directions. With rho = 0 and infinitely many directions it is
    ``head_dim_bound(n, d_h)``. For real tokens neither Gaussianity nor k is more than a description. The quadrature is
    accurate to 2e-4 (relative) up to n = 4096.

    Parameters
    ----------
    n : number of tokens, >= 2.
    d_h : head dimension, >= 1; may be infinite.
    directions : directions that the centred tokens occupy, for instance the participation ratio of their squared
        singular values, >= 1; may be infinite. A k below 1 counts as 1.
    common_share : rho, the share of the tokens' squared length that lies in their mean, in [0, 1].

    Returns
    -------
    float, in units of rank.

    Raises
    ------
    ValueError : an argument out of range.

    Examples
    --------
    >>> from attnrank import theory
    >>> round(theory.token_geometry_rank(1024, 64, 100, 0.1), 3)
    380.625

    Source: chapter vit_initialisation.
    """
    n = _check.whole("n", n, minimum=2)
    rho = _check.real("common_share", common_share, minimum=0.0, maximum=1.0)
    inverse = 0.0
    for name, value in (("d_h", d_h), ("directions", directions)):
        if value != np.inf:
            inverse += 1.0 / _check.real(name, value, minimum=1.0)
    share, share_weight = _normal_rule()
    radial, radial_weight, along, along_weight = _directional_rule(inverse)
    score = np.sqrt(rho) * share[:, None, None] + np.sqrt(1.0 - rho) * radial[:, None] * along
    win = np.exp((n - 1) * special.log_ndtr(score)) @ along_weight
    return n * float(share_weight @ hit_probability(np.minimum(win, 1.0), n) @ radial_weight)


def _normal_rule() -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights for a standard normal variable: Gauss-Legendre, as the integrand is a step at some height."""
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    x = 8.0 * nodes
    return x, 8.0 * weights * stats.norm.pdf(x)


def _directional_rule(inverse: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Nodes and weights for R and for U, k = 1 / inverse; R U is normal for k = infinity, then R is 1."""
    if inverse == 0.0:
        x, weight = _normal_rule()
        return np.ones(1), np.ones(1), x, weight
    k = max(1.0 / inverse, 1.0)
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    low, high = stats.chi.ppf(1e-12, k), stats.chi.isf(1e-12, k)
    radius = low + (high - low) * ((1.0 + nodes) / 2.0) ** 2  # finer near 0, where the density may rise steeply
    radius_weight = weights / 2.0 * (1.0 + nodes) * (high - low) * stats.chi.pdf(radius, k)
    if k == 1.0:
        return radius, radius_weight, np.array([-1.0, 1.0]), np.array([0.5, 0.5])
    along, along_weight = special.roots_jacobi(NODES, (k - 3.0) / 2.0, (k - 3.0) / 2.0)
    return radius, radius_weight / radius_weight.sum(), along, along_weight / along_weight.sum()
