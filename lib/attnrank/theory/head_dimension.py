"""The barrier resolved by head dimension: an upper bound on the rank of a random head, by quadrature."""

from __future__ import annotations

import math

import numpy as np
from scipy import special, stats

from attnrank import _check
from attnrank._quadrature import gauss_legendre, panel_edges, refined_grid
from attnrank.theory.barrier import hit_probability


def head_dim_bound(n: int, d_h: float) -> float:
    """The barrier resolved by head dimension: ``n E[1 - (1 - pi(R))^n]``, R ~ chi with d_h degrees of freedom.

    An upper bound on the expected attention rank of n orthonormal tokens under Gaussian query and key weights, where
    pi(r) = E[Phi(r U)^{n-1}] is the chance that a key of norm r wins a query and U is a coordinate of a uniform point
    on the sphere of R^{d_h}. Both integrals are panelled Gauss-Legendre rules on the region that matters; the result
    is accurate to 1e-6 relative for 2 <= n <= 1e12 and 1 <= d_h <= 1e5 (tested against mpmath).

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

    Source: chapter 02, the bound resolved by head dimension (the first paper has no such bound).
    """
    n = _check.integer("n", n, minimum=1)
    d_h = _check.real("d_h", d_h, minimum=1.0)
    if n == 1:
        return 1.0

    edges = refined_grid(
        lambda r: log_occupied_density(r, n, d_h), stats.chi.ppf(1e-9 / n, d_h), stats.chi.isf(1e-9 / n, d_h)
    )
    nodes, weights = gauss_legendre(edges[None], order=8)
    return n * float(np.sum(weights * np.exp(log_occupied_density(nodes, n, d_h))))


def log_occupied_density(r: np.ndarray, n: int, d_h: float) -> np.ndarray:
    """Log of the density of R at r times the bound on the chance that a key of norm r is attended, any shape."""
    hit = hit_probability(np.exp(log_win_probability(r.ravel(), n, d_h)), n).reshape(r.shape)
    with np.errstate(divide="ignore"):
        return stats.chi.logpdf(r, d_h) + np.log(hit)


def log_win_probability(r: np.ndarray, n: int, d_h: float) -> np.ndarray:
    """log pi(r) = log E[Phi(r U)^{n-1}] for a vector of norms r."""
    if d_h == 1.0:
        return np.logaddexp((n - 1) * special.log_ndtr(r), (n - 1) * special.log_ndtr(-r)) - math.log(2.0)
    # U = +-cos(t) with density sin(t)^{d_h - 2} on (0, pi/2). Below d_h = 2 that is singular at 0, and
    # t = x^{1/(d_h - 1)} removes the singularity. The constant is 1/B((d_h - 1)/2, 1/2) for the two signs together.
    power = min(d_h - 1.0, 1.0)

    def log_integrand(x: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            t = x ** (1.0 / power)
            log_weight = (d_h - 2.0) * np.log(np.sin(t) if power == 1.0 else np.sinc(t / math.pi))
            s = r[:, None] * np.cos(t)
            win = (n - 1) * special.log_ndtr(s)
            if n <= 128:  # the opposite sign adds less than 2^{1 - n} otherwise
                win = np.logaddexp(win, (n - 1) * special.log_ndtr(-s))
        return log_weight + win - math.log(power)

    end = (math.pi / 2) ** power
    nodes, weights = gauss_legendre(panel_edges(log_integrand, len(r), end))
    log_values = log_integrand(nodes)
    with np.errstate(divide="ignore"):
        return special.logsumexp(log_values, b=weights, axis=1) - special.betaln((d_h - 1.0) / 2.0, 0.5)
