"""Closed forms and quadratures: what bounds the rank of an attention matrix. numpy and scipy only.

Every bound is in units of rank (tokens), not divided by the number of tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy import special, stats

from attnrank import _check


def occupancy_bound(n: int, keys: int | None = None) -> float:
    """The barrier ``m (1 - (1 - 1/m)^n)``: the most that n i.i.d. queries attend to, on average, among m keys.

    It is the expected number of occupied cells when n balls fall uniformly into m cells; for m = n it lies between
    (1 - 1/e) n and (1 - 1/e) n + 1/e.

    Parameters
    ----------
    n : number of queries, >= 1; up to 1e12 and beyond.
    keys : number of keys m, >= 1; n when None.

    Returns
    -------
    float, in units of rank.

    Raises
    ------
    ValueError : n or keys not an integer >= 1.

    Source: chapter 02, the barrier theorem; for m = n the first paper's Theorem 1 and Lemma 2.
    """
    n = _check.integer("n", n, minimum=1)
    m = n if keys is None else _check.integer("keys", keys, minimum=1)
    return m * float(_hit_probability(1.0 / m, n))


def occupancy_margin(n: int, probability: float, samples: int = 1) -> float:
    """What the mean rank of ``samples`` independent draws exceeds its expectation by with at most ``probability``.

    McDiarmid's inequality: given the keys the rank is a function of n independent choices, each of which changes it by
    at most 1, so P(mean >= expectation + t) <= exp(-2 samples t^2 / n). It holds for every n, not only asymptotically,
    also when each sample has keys of its own and expectation is replaced by a common bound on it.

    Parameters
    ----------
    n : number of queries, >= 1.
    probability : in (0, 1).
    samples : number of independent draws of the queries, >= 1.

    Returns
    -------
    float t, in units of rank.

    Raises
    ------
    ValueError : an argument out of its range.

    Source: McDiarmid (1989); chapter 02, the high-probability version.
    """
    n = _check.integer("n", n, minimum=1)
    samples = _check.integer("samples", samples, minimum=1)
    probability = _check.real("probability", probability, above=0.0, maximum=math.nextafter(1.0, 0.0))
    return math.sqrt(n * math.log(1.0 / probability) / (2.0 * samples))


def occupancy_variance(n: int) -> float:
    """Variance of the number of occupied cells when n balls fall uniformly into n cells; about 0.0972 n.

    It is the variance of the attention rank where every key is equally likely to win: random keys at d_h -> infinity.
    The exact value n(n-1)(1-2/n)^n + n(1-1/n)^n - n^2 (1-1/n)^{2n} cancels badly; it is summed here in a stable form.

    Parameters
    ----------
    n : number of queries and keys, >= 1.

    Returns
    -------
    float, in units of rank squared.

    Raises
    ------
    ValueError : n not an integer >= 1.

    Source: Kolchin, Sevast'yanov and Chistyakov (1978), chapter 1; limit n (1/e - 2/e^2).
    """
    n = _check.integer("n", n, minimum=1)
    if n == 1:
        return 0.0
    empty = math.exp(n * math.log1p(-1.0 / n))  # P(a cell is empty)
    # P(two cells are empty) / empty^2 = (1 - 1/(n-1)^2)^n: the covariance is small and must not come from a difference.
    covariance = empty**2 * math.expm1(n * math.log1p(-1.0 / (n - 1.0) ** 2)) if n > 2 else -(empty**2)
    return n * empty * (1.0 - empty) + n * (n - 1.0) * covariance


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

    edges = _refined_grid(
        lambda r: _log_occupied_density(r, n, d_h), stats.chi.ppf(1e-9 / n, d_h), stats.chi.isf(1e-9 / n, d_h)
    )
    nodes, weights = _gauss_legendre(edges[None], order=8)
    return n * float(np.sum(weights * np.exp(_log_occupied_density(nodes, n, d_h))))


def _refined_grid(log_integrand: Callable[[np.ndarray], np.ndarray], low: float, high: float) -> np.ndarray:
    """Panel edges (k,) that cover where the integrand is within e^-40 of its maximum, halved where it is steep."""
    grid = np.linspace(low, high, 32)
    values = log_integrand(grid)
    for _ in range(7):
        relevant = np.maximum(values[1:], values[:-1]) > values.max() - 40.0
        steep = np.abs(np.diff(np.maximum(values, values.max() - 60.0))) > 2.0
        steep = np.convolve(steep, [1, 1, 1], mode="same") > 0  # and their neighbours, where a corner can hide
        cells = np.flatnonzero(relevant & steep)
        if cells.size == 0:
            break
        middle = (grid[cells] + grid[cells + 1]) / 2.0
        values = np.insert(values, cells + 1, log_integrand(middle))
        grid = np.insert(grid, cells + 1, middle)
    inside = np.flatnonzero(values > values.max() - 40.0)
    return grid[max(inside[0] - 1, 0) : inside[-1] + 2]


def _hit_probability(p: np.ndarray | float, n: int) -> np.ndarray:
    """1 - (1 - p)^n, without cancellation."""
    with np.errstate(divide="ignore"):
        return -np.expm1(n * np.log1p(-np.minimum(p, 1.0)))


def _log_occupied_density(r: np.ndarray, n: int, d_h: float) -> np.ndarray:
    """Log of the density of R at r times the bound on the chance that a key of norm r is attended, any shape."""
    hit = _hit_probability(np.exp(_log_win_probability(r.ravel(), n, d_h)), n).reshape(r.shape)
    with np.errstate(divide="ignore"):
        return stats.chi.logpdf(r, d_h) + np.log(hit)


def _log_win_probability(r: np.ndarray, n: int, d_h: float) -> np.ndarray:
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
    nodes, weights = _gauss_legendre(_panel_edges(log_integrand, len(r), end))
    log_values = log_integrand(nodes)
    with np.errstate(divide="ignore"):
        return special.logsumexp(log_values, b=weights, axis=1) - special.betaln((d_h - 1.0) / 2.0, 0.5)


def _panel_edges(log_integrand, rows: int, end: float) -> np.ndarray:
    """Edges (rows, 9) of panels on (0, end), at the mode of a unimodal integrand and where its log is 1, 6, 16 and 40
    below: each panel then holds a smooth piece, however sharp the integrand is."""
    low, high = np.zeros((rows, 1)), np.full((rows, 1), end)
    for _ in range(24):
        third = (high - low) / 3.0
        rising = log_integrand(low + third) < log_integrand(high - third)
        low, high = np.where(rising, low + third, low), np.where(rising, high, high - third)
    mode = (low + high) / 2.0
    target = log_integrand(mode) - np.array([1.0, 6.0, 16.0, 40.0])
    left = _crossing(log_integrand, target, mode, 0.0)
    right = _crossing(log_integrand, target, mode, end)
    return np.concatenate([left[:, ::-1], mode, right], axis=1)


def _crossing(log_integrand, target: np.ndarray, inside: np.ndarray, outside: float) -> np.ndarray:
    """Where log_integrand falls to ``target`` (rows, levels) between the mode and an end; the end if it never does."""
    near, far = np.broadcast_to(inside, target.shape), np.full(target.shape, outside)
    for _ in range(16):
        middle = (near + far) / 2.0
        above = log_integrand(middle) > target
        near, far = np.where(above, middle, near), np.where(above, far, middle)
    return far


def _gauss_legendre(edges: np.ndarray, order: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights (rows, panels * order) of a Gauss-Legendre rule on every panel between ``edges`` (rows, k)."""
    x, w = np.polynomial.legendre.leggauss(order)
    half = np.diff(edges, axis=1)[:, :, None] / 2.0
    nodes = edges[:, :-1, None] + half * (x + 1.0)
    return nodes.reshape(len(edges), -1), (half * w).reshape(len(edges), -1)
