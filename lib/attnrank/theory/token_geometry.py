"""The rank of a random head on tokens of which only two numbers are known. A heuristic, not a bound."""

from __future__ import annotations

import math
from numbers import Real

import numpy as np
import scipy
import torch
from numpy.polynomial import chebyshev
from torch import Tensor

from attnrank import _check
from attnrank._quadrature import gauss_legendre
from attnrank.theory.barrier import hit_probability
from attnrank.theory.head_dimension import head_dim_bound, log_density, norm_range

#: Chebyshev nodes in r, from which the log of the chance to win is interpolated.
NODES = 30

#: From here on k counts as infinite: the difference is a millionth, the rounding of what a k has to itself more.
LARGEST_K = 1e7


def token_geometry_rank(n: int, d_h: float, directions: float, common_share: float) -> float:
    """Heuristic: the rank of a random head on n tokens that spread over some directions and share a common one.

    ``n E[1 - (1 - pi(R, C))^n]`` with pi(r, c) = E Phi(sqrt(rho) c + sqrt(1 - rho) r U)^{n-1}. The score of a query for
    key 1, scaled to variance 1, is modelled as sqrt(rho) C + sqrt(1 - rho) R U: C ~ N(0, 1) is the component along the
    mean query, the same for every query; R ~ chi with k degrees of freedom and U, a coordinate of a uniform point on
    the sphere of R^k, are what ``head_dim_bound`` has for head dimension k. Head dimension and
    directions act together through 1/k = 1/d_h + 1/directions. With rho = 0 and infinitely many directions it is
    ``head_dim_bound(n, d_h)``. For real tokens neither Gaussianity nor k is more than a description. The quadrature is
    accurate to 2e-4 (relative) up to n = 4096, to 1e-3 up to the largest n, 1e5 (tested).

    Parameters
    ----------
    n : number of tokens, 2 to 1e5: for more the interpolation in r is too coarse.
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
    n = _check.whole("n", n, minimum=2, maximum=1e5)
    rho = _check.real("common_share", common_share, minimum=0.0, maximum=1.0)
    inverse = 0.0
    for name, value in (("d_h", d_h), ("directions", directions)):
        if not (isinstance(value, Real) and value == np.inf):
            inverse += 1.0 / _check.real(name, value, minimum=1.0)
    common, weights = _normal_rule(5 if rho <= 0.9 else 7)
    spread = math.sqrt(1.0 - rho)
    k = max(1.0 / inverse, 1.0) if inverse > 0.0 else np.inf
    if k > LARGEST_K or rho == 1.0:
        log_win = _log_win_normal(math.sqrt(rho) * common, spread, n)
        return n * float(weights @ hit_probability(np.exp(log_win), n))
    if rho == 0.0:
        return head_dim_bound(n, k)
    radius, radius_weights, log_win = _log_win_on_radii(math.sqrt(rho) * common, spread, n, k)
    return n * float(weights @ hit_probability(np.exp(log_win), n) @ radius_weights)


def _normal_rule(order: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights for a standard normal variable: panels, for a step that may be steep from 0 to 5."""
    edges = np.array([-8.5, -6.0, -4.5, -3.0, -2.0, -1.0, *np.linspace(0.0, 5.0, 26), 6.0, 8.5])
    nodes, weights = gauss_legendre(edges[None], order=order)
    return nodes[0], weights[0] * scipy.stats.norm.pdf(nodes[0])


def _log_win_normal(shift: np.ndarray, spread: float, n: int) -> np.ndarray:
    """log E[Phi(shift + spread Z)^{n-1}] for a vector of shifts, Z standard normal."""
    z, weights = _normal_rule(7)
    return scipy.special.logsumexp((n - 1) * scipy.special.log_ndtr(shift[:, None] + spread * z), b=weights, axis=1)


def _log_win_on_radii(
    shift: np.ndarray, spread: float, n: int, k: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Nodes and weights for R ~ chi with k degrees of freedom, and log E[Phi(shift + spread r U)^{n-1}] at all pairs.

    The nodes r = low + (high - low) x^2 are finer near 0, where the density may rise steeply.
    """
    low, high = norm_range(1e-9 / n, k)
    y = np.cos(math.pi * (np.arange(NODES) + 0.5) / NODES)
    at_nodes = _log_win(shift, spread * (low + (high - low) * ((1.0 + y) / 2.0) ** 2), n, k)
    nodes, weights = gauss_legendre(np.linspace(0.0, 1.0, 33)[None], order=8)
    x, r = nodes[0], low + (high - low) * nodes[0] ** 2
    coefficients = np.linalg.solve(chebyshev.chebvander(y, NODES - 1), at_nodes)
    log_win = (chebyshev.chebvander(2.0 * x - 1.0, NODES - 1) @ coefficients).T
    return r, weights[0] * 2.0 * x * (high - low) * np.exp(log_density(r, k)), np.minimum(log_win, 0.0)


def _log_win(shift: np.ndarray, reach: np.ndarray, n: int, k: float) -> np.ndarray:
    """log E[Phi(shift + reach U)^{n-1}] at all pairs, (reaches, shifts); U is a coordinate of a uniform point on the
    sphere."""
    if k == 1.0:
        sides = [(n - 1) * scipy.special.log_ndtr(shift + sign * reach[:, None]) for sign in (1.0, -1.0)]
        return np.logaddexp(*sides) - math.log(2.0)
    # U = +-cos(t), with density sin(t)^{k-2} on (0, pi/2): t = x^power smooths what is singular at 0 for small k;
    # for large k only the part within ten standard deviations of U = 0 matters
    power = 1.0 / (k - 1.0) if k < 2.0 else 2.0 if k < 6.0 else 1.0
    ends = np.array([math.acos(min(1.0, 10.0 / math.sqrt(k))), math.pi / 2.0]) ** (1.0 / power)
    nodes, weights = gauss_legendre(np.linspace(ends[0], ends[1], 9)[None], order=8)
    t = nodes[0] ** power
    log_density_of_x = (k - 2.0) * np.log(np.sinc(t / math.pi)) + (power * (k - 1.0) - 1.0) * np.log(nodes[0])
    # by torch, three times as fast as scipy's log_ndtr: Phi(x) = erfc(-x / sqrt(2)) / 2, which the log leaves off by
    # 1e-16, and n is at most 1e5 (torch's own ndtr loses the lower tail)
    at, moved = (torch.from_numpy(x / -math.sqrt(2.0)) for x in (shift[:, None], np.cos(t)))
    weight = torch.from_numpy(log_density_of_x - (n - 1) * math.log(2.0))
    sums = torch.from_numpy(weights[0] * power)

    def total(reach: float) -> Tensor:
        """The logs of the integrals for all shifts, in place: what is worked on stays in the caches."""
        sides = torch.stack([at + reach * moved, at - reach * moved])
        sides.erfc_().log_().mul_(n - 1).add_(weight)
        top = sides[0].amax(1)  # the side on which U > 0 is the larger
        return top + (sides.sub_(top[:, None]).exp_().sum(0) @ sums).log()

    return torch.stack([total(r) for r in reach.tolist()]).numpy() - scipy.special.betaln((k - 1.0) / 2.0, 0.5)
