"""The other side of the barrier resolved by head dimension: a lower bound on the rank of a random head."""

from __future__ import annotations

import math

import numpy as np
import scipy
from numpy.polynomial import chebyshev

from attnrank import _check
from attnrank._quadrature import gauss_legendre, panel_edges
from attnrank.theory.barrier import hit_probability
from attnrank.theory.head_dimension import LARGEST, win_probability_rule

#: Norms at which second moments are computed.
NODES = 18


def head_dim_lower_bound(n: int, d_h: int) -> float:
    """A lower bound on the expected attention rank under the hypotheses of ``head_dim_bound``, from second moments.

    Given its norm r, let a key win a query with probability p: E[p | r] = pi(r), and s(r) = E[p^2 | r] is the
    probability that it wins two. The function phi(p) = 1 - (1 - p)^n has a positive third derivative and phi(0) = 0, so
    that the parabola through 0 that touches it at s/pi lies below it:

        E D = n E[phi(p)] >= n E_R[ (pi^2 / s) phi(s / pi) ].

    s is a three-dimensional integral: of Phi_2(r U, r U'; rho)^{n-1} over two independent directions, with Phi_2 the
    bivariate normal distribution function. Relative accuracy about 1e-4 from d_h = 12 on, below it 2e-3, for n <= 5
    at d_h = 2 5e-3; a few tenths of a second.

    Parameters
    ----------
    n : number of tokens, 1 to 1e150.
    d_h : head dimension, >= 1; up to 1e6.

    Returns
    -------
    float, in units of rank; at most ``head_dim_bound(n, d_h)``. For d_h = 1 the expectation itself, 2 - 2^{1 - n}.

    Raises
    ------
    ValueError : n or d_h not an integer >= 1, n > 1e150, d_h > 1e6.

    Examples
    --------
    >>> from attnrank import theory
    >>> round(theory.head_dim_lower_bound(2048, 64), 3)
    1014.604

    Source: chapter head_dimension, the two-sided bound.
    """
    n, d_h = _checked(n, d_h)
    if n == 1:
        return 1.0
    if n == 2:  # both cells are half-spaces
        return 1.5
    if d_h == 1:  # the largest key wins the positive queries, the smallest the negative ones
        return 2.0 - 2.0 ** (1 - n)
    weights, win, ratio = _moments(n, d_h)
    return max(1.0, n * float(np.sum(weights * hit_probability(ratio * win, n) / ratio)))


def cell_second_moment(n: int, d_h: int) -> float:
    """``n^2 E[p^2]`` for the probability p that a given key wins a query: how unequal the cells of random keys are.

    It is 1 when all keys win equally, about exp(a_n^4 / (2 d_h)) where that is not large, never above n/2 for n >= 2.
    It is also n times the probability that two queries choose the same key. Relative accuracy about 2e-3 for n <= 1e6,
    1e-2 for n <= 5 at d_h = 2.

    Parameters
    ----------
    n : number of keys, i.i.d. N(0, I), 1 to 1e150.
    d_h : head dimension, >= 1; up to 1e6.

    Returns
    -------
    float >= 1.

    Raises
    ------
    ValueError : n or d_h not an integer >= 1, n > 1e150, d_h > 1e6.

    Examples
    --------
    >>> from attnrank import theory
    >>> round(theory.cell_second_moment(1024, 64), 3)
    1.839

    Source: chapter barrier, where it bounds what unequal cells add to the fluctuations of the rank.
    """
    n, d_h = _checked(n, d_h)
    if n <= 2 or d_h == 1:  # p is 1; 1/2; or 1/2 for two keys and 0 for the others
        return max(1.0, n / 2.0)
    weights, win, ratio = _moments(n, d_h)
    return max(1.0, float(np.sum(weights * ratio * (n * win) ** 2)))


def _checked(n: int, d_h: int) -> tuple[int, int]:
    """The two numbers, n so small that the square of a number of cells is a float."""
    return _check.whole("n", n, minimum=1, maximum=1e150), _check.whole("d_h", d_h, minimum=1, maximum=LARGEST)


def _moments(n: int, d_h: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights of a rule for the norm R of a key, and at its nodes pi(R) = E[p | R] and E[p^2 | R] / pi(R)^2."""
    r, weights, log_win = win_probability_rule(n, d_h)
    win = np.exp(log_win)
    first, second = weights * hit_probability(win, n), weights * win**2
    matters = (first > 1e-7 * first.max()) | (second > 1e-7 * second.max())
    r, weights, win = r[matters], weights[matters], win[matters]

    # The logarithm of the ratio is smooth in r: interpolated from Chebyshev nodes.
    middle, half = (r[0] + r[-1]) / 2.0, (r[-1] - r[0]) / 2.0
    y = np.cos(math.pi * (np.arange(NODES) + 0.5) / NODES)
    log_ratio = np.array([log_moment_ratio(middle + half * node, n, d_h) for node in y])
    log_ratio = chebyshev.chebval((r - middle) / half, chebyshev.chebfit(y, log_ratio, NODES - 1))
    return weights, win, np.exp(np.maximum(log_ratio, 0.0))


def log_moment_ratio(r: float, n: int, d_h: int) -> float:
    """log of E[p^2] / (E p)^2, p the probability that a key of norm r wins a query, given the n - 1 other keys."""

    def log_integrand(t: np.ndarray) -> np.ndarray:  # the angle between the key and a query
        return scipy.special.xlogy(d_h - 2.0, np.sin(t)) + (n - 1) * scipy.special.log_ndtr(r * np.cos(t))

    edges = panel_edges(log_integrand, 1, math.pi)[:, 1:-1]
    angle, weights = gauss_legendre(edges, order=16 if d_h == 2 else 4)  # a kink at equal angles for d_h = 2
    angle, weights = angle[0], weights[0]
    log_single = log_integrand(angle)
    peak = log_single.max()
    mean = float(np.sum(weights * np.exp(log_single - peak)))

    i, j = np.triu_indices(len(angle))
    pairs = weights[i] * weights[j] * np.where(i == j, 1.0, 2.0)
    u, v = np.cos(angle[i])[:, None], np.cos(angle[j])[:, None]
    cosine, share = _sphere_coordinate_rule(d_h - 1)
    rho = u * v + np.sqrt((1.0 - u**2) * (1.0 - v**2)) * cosine
    with np.errstate(divide="ignore"):
        log_both = (n - 1) * np.log1p(-_either_exceeds(r * u, r * v, rho))
    log_both += scipy.special.xlogy(d_h - 2.0, np.sin(angle[i]) * np.sin(angle[j]))[:, None]
    highest = log_both.max()
    square = float(np.sum(pairs[:, None] * share * np.exp(log_both - highest)))
    return math.log(square / mean**2) + highest - 2.0 * peak


def _sphere_coordinate_rule(d: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights (k,) for a coordinate of a uniform point on the unit sphere of R^d."""
    if d == 1:
        return np.array([-1.0, 1.0]), np.array([0.5, 0.5])
    nodes, weights = scipy.special.roots_jacobi(20 if d < 7 else 12, (d - 3) / 2.0, (d - 3) / 2.0)
    return nodes, weights / weights.sum()


def _either_exceeds(h: np.ndarray, k: np.ndarray, rho: np.ndarray) -> np.ndarray:
    """P(X > h or Y > k) for standard normal X and Y of correlation rho, from Owen's T: accurate in the tail."""
    above_h, above_k = scipy.special.ndtr(-h), scipy.special.ndtr(-k)
    spread = np.sqrt(np.maximum(1.0 - rho**2, 1e-30))
    both = (above_h + above_k) / 2.0 - np.where(h * k < 0.0, 0.5, 0.0)
    both = both - scipy.special.owens_t(h, (k - rho * h) / (h * spread))
    both = both - scipy.special.owens_t(k, (h - rho * k) / (k * spread))
    return np.minimum(above_h + above_k - both, 1.0)
