"""The barrier resolved by head dimension: an upper bound on the rank of a random head, by quadrature."""

from __future__ import annotations

import math

import numpy as np
import scipy
from numpy.polynomial import chebyshev

from attnrank import _check
from attnrank._quadrature import gauss_legendre, panel_edges, relevant_range
from attnrank.theory.barrier import hit_probability, occupancy_bound

#: Head dimension up to which the quadrature is trusted: the terms of the density's logarithm, of size d_h, cancel.
LARGEST = 1e6


def head_dim_bound(n: int, d_h: float) -> float:
    """The barrier resolved by head dimension: ``n E[1 - (1 - pi(R))^n]``, R ~ chi with d_h degrees of freedom.

    An upper bound on the expected attention rank of n orthonormal tokens under Gaussian query and key weights, where
    pi(r) = E[Phi(r U)^{n-1}] is the chance that a key of norm r wins a query and U is a coordinate of a uniform point
    on the sphere of R^{d_h}. Both integrals are panelled Gauss-Legendre rules on the region that matters; the result
    is accurate to 1e-6 relative for 2 <= n <= 1e12 and 1 <= d_h <= 1e5 (tested against mpmath). Beyond d_h = 1e6 what
    is missing to the barrier, of order 1 / d_h, is continued from there.

    Parameters
    ----------
    n : number of tokens, >= 1.
    d_h : head dimension, >= 1; need not be an integer.

    Returns
    -------
    float, in units of rank; at most ``occupancy_bound(n)``.

    Raises
    ------
    ValueError : n not an integer >= 1, d_h not a finite number >= 1.

    Examples
    --------
    >>> from attnrank import theory
    >>> round(theory.head_dim_bound(2048, 64), 3)
    1016.02

    Source: chapter head_dimension, the bound resolved by head dimension (the first paper has no such bound).
    """
    n = _check.whole("n", n, minimum=1)
    d_h = _check.real("d_h", d_h, minimum=1.0)
    if n == 1:
        return 1.0
    if d_h > LARGEST:
        barrier = occupancy_bound(n)
        return barrier - max(barrier - head_dim_bound(n, LARGEST), 0.0) * (LARGEST / d_h)

    r, weights, log_win = win_probability_rule(n, d_h)
    return n * float(np.sum(weights * hit_probability(np.exp(log_win), n)))


def win_probability_rule(n: int, d_h: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Nodes and weights of a rule for the law of R, on the part that matters to the bound, and log pi at the nodes.

    log pi is smooth in r: it is computed at 40 Chebyshev nodes and interpolated. The nodes of the rule are
    r = low + (high - low) x^2, which removes the singularity of the density at 0 and is finer where pi is steep.
    """
    low, high = relevant_range(
        lambda r: log_density(r, d_h) + np.log(hit_probability(np.exp(log_win_probability(r, n, d_h)), n) + 1e-300),
        *norm_range(1e-9 / n, d_h),
    )
    y = np.cos(math.pi * (np.arange(40) + 0.5) / 40)
    log_win = log_win_probability(low + (high - low) * ((1.0 + y) / 2.0) ** 2, n, d_h)
    coefficients = chebyshev.chebfit(y, log_win, 39)
    nodes, weights = gauss_legendre(np.linspace(0.0, 1.0, 97)[None], order=8)
    x, weights = nodes[0], weights[0]
    r = low + (high - low) * x**2
    weights = weights * 2.0 * x * (high - low) * np.exp(log_density(r, d_h))
    return r, weights, np.minimum(chebyshev.chebval(2.0 * x - 1.0, coefficients), 0.0)


def norm_range(share: float, d_h: float) -> tuple[float, float]:
    """Norms of Gaussian vectors: a share is below the first, and one above the second.

    As ``scipy.stats.chi`` has them, whose import takes most of a second.
    """
    at = [inverse(d_h / 2.0, share) for inverse in (scipy.special.gammaincinv, scipy.special.gammainccinv)]
    return math.sqrt(2.0 * at[0]), math.sqrt(2.0 * at[1])


def log_density(r: np.ndarray, d_h: float) -> np.ndarray:
    """Log of the density of the chi distribution with d_h degrees of freedom."""
    power = scipy.special.xlogy(d_h - 1.0, r)
    return power - r**2 / 2.0 - (d_h / 2.0 - 1.0) * math.log(2.0) - scipy.special.gammaln(d_h / 2.0)


def log_win_probability(r: np.ndarray, n: int, d_h: float) -> np.ndarray:
    """log pi(r) = log E[Phi(r U)^{n-1}] for a vector of norms r."""
    if d_h == 1.0:
        return np.logaddexp((n - 1) * scipy.special.log_ndtr(r), (n - 1) * scipy.special.log_ndtr(-r)) - math.log(2.0)
    # U = +-cos(t) with density sin(t)^{d_h - 2} on (0, pi/2), which is singular or not smooth at 0 for small d_h unless
    # d_h is an integer: t = x^power removes that. The constant is 1/B((d_h - 1)/2, 1/2) for the two signs together.
    power = 1.0 / (d_h - 1.0) if d_h < 2.0 else 2.0 if d_h < 6.0 and d_h != round(d_h) else 1.0

    def log_integrand(x: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            t = x**power
            if d_h < 2.0:
                log_weight = (d_h - 2.0) * np.log(np.sinc(t / math.pi))
            else:
                log_weight = (d_h - 2.0) * np.log(np.sin(t)) + (power - 1.0) * np.log(x)
            s = r[:, None] * np.cos(t)
            win = (n - 1) * scipy.special.log_ndtr(s)
            if n <= 128:  # the opposite sign adds less than 2^{1 - n} otherwise
                win = np.logaddexp(win, (n - 1) * scipy.special.log_ndtr(-s))
        return log_weight + win + math.log(power)

    end = (math.pi / 2) ** (1.0 / power)
    edges = panel_edges(log_integrand, len(r), end)
    if d_h < 2.0:  # t spans many scales
        scales = np.broadcast_to((math.pi / 2 * 4.0 ** -np.arange(5.0)) ** (1.0 / power), (len(r), 5))
        edges = np.sort(np.concatenate([np.zeros((len(r), 1)), edges, scales], axis=1), axis=1)
    nodes, weights = gauss_legendre(edges)
    with np.errstate(divide="ignore"):
        log_integral = scipy.special.logsumexp(log_integrand(nodes), b=weights, axis=1)
    return log_integral - scipy.special.betaln((d_h - 1.0) / 2.0, 0.5)
