"""Bounds and limits of chapter 05: one assumption of the barrier is dropped in each. In units of rank unless said."""

from __future__ import annotations

import math

import numpy as np
from scipy import special, stats

from attnrank import _check


def causal_isotropic_bound(n: int) -> float:
    """Bound on the expected rank of causal random heads: (n + 1)/2 + sum_i E|M_i - i| / max(M_i, i), M_i ~ Poisson(i).

    For i.i.d. keys and i.i.d. queries of rotation-invariant laws, at every head dimension. The sum is below 2 sqrt(n).

    Source: chapter 05, the causal theorem for random keys.
    """
    n = _check.integer("n", n, minimum=1)
    excess = 0.0
    for i in range(1, n + 1):
        reach = 12 * math.isqrt(i) + 12
        counts = np.arange(max(0, i - reach), i + reach + 28)
        excess += float(np.sum(stats.poisson.pmf(counts, i) * np.abs(counts - i) / np.maximum(counts, i)))
    return (n + 1) / 2 + excess


def window_limit(n: int, window: int, *, causal: bool) -> float:
    """Expected rank at d_h -> infinity if row i sees the last ``window`` keys, or the keys at distance < ``window``.

    Every row chooses uniformly among the keys that it sees, independently: sum_j 1 - prod_i (1 - 1/m_i), the product
    over the rows i that see key j and m_i the number of keys that row i sees. Away from the ends, with m keys in every
    window, this is 1 - (1 - 1/m)^m a token.

    Source: chapter 05, local attention.
    """
    n, window = _check.integer("n", n, minimum=1), _check.integer("window", window, minimum=1)
    position = np.arange(n)
    first = np.maximum(position - window + 1, 0)
    last = position if causal else np.minimum(position + window - 1, n - 1)
    with np.errstate(divide="ignore"):
        missed = np.log1p(-1.0 / (last - first + 1))
    # Key j is seen by rows j .. j + window - 1, and in the two-sided case also by the window - 1 rows before it.
    return float(sum(-np.expm1(missed[(first <= j) & (j <= last)].sum()) for j in position))


def two_head_deficit(n: int) -> float:
    """Expected number of cycles of n random edges between n and n vertices: a bound on n - E rank [A_1 A_2].

    Heads choose uniformly and independently (d_h -> infinity, orthonormal tokens). The cycles of 2k edges number
    (n)_k^2 (n)_2k / (2k n^{4k}) on average, (n)_k the falling factorial. About (log n)/4.

    Source: chapter 05, many heads.
    """
    n = _check.integer("n", n, minimum=1)
    k = np.arange(1, n // 2 + 1)
    log_falling = special.gammaln(n + 1) - special.gammaln(n - k + 1)
    log_edges = special.gammaln(n + 1) - special.gammaln(n - 2 * k + 1)
    return float(np.sum(np.exp(2 * log_falling + log_edges - 4 * k * math.log(n)) / (2 * k)))


def tied_bound(n: int, d_h: int) -> float:
    """Lower bound n E[Phi(R)^{n-1}], R ~ chi with d_h degrees of freedom, on the expected rank of hardmax(K K^T).

    It is the expected number of tokens that choose themselves, for n i.i.d. N(0, I) keys.

    Source: chapter 05, tied weights.
    """
    n, d_h = _check.integer("n", n, minimum=1), _check.integer("d_h", d_h, minimum=1)
    r, weight = _grid(stats.chi.ppf(1e-14, d_h), stats.chi.isf(1e-14, d_h), 4000)
    return n * float(np.sum(weight * stats.chi.pdf(r, d_h) * np.exp((n - 1) * special.log_ndtr(r))))


def anisotropic_bound(n: int, cosine: float) -> float:
    """Bound on the expected rank at d_h -> infinity of tokens with pairwise cosine c: n E[1 - (1 - pi(G))^n].

    G ~ N(0,1) is the score of a key with the common part of the queries, and the chance that it wins a query is
    pi(a) = E Phi(sqrt(c) a + sqrt(1-c) B)^{n-1}, B ~ N(0,1).

    Source: chapter 05, anisotropy.
    """
    n, c = _check.integer("n", n, minimum=1), _check.real("cosine", cosine, minimum=0.0, maximum=1.0)
    x, weight = _grid(-9.0, 9.0, 600)
    weight = weight * stats.norm.pdf(x)
    score = math.sqrt(c) * x[:, None] + math.sqrt(1.0 - c) * x[None]
    win = np.minimum(np.exp((n - 1) * special.log_ndtr(score)) @ weight, 1.0)
    with np.errstate(divide="ignore"):
        return n * float(np.sum(weight * -np.expm1(n * np.log1p(-win))))


def anisotropic_exponent(cosine: float) -> float:
    """Power of n with which the rank of tokens of cosine c grows at d_h -> infinity: 2 s / (1 + s), s = sqrt(1 - c).

    An asymptotic heuristic, from the large deviations of Gaussian scores.

    Source: chapter 05, anisotropy.
    """
    s = math.sqrt(1.0 - _check.real("cosine", cosine, minimum=0.0, maximum=1.0))
    return 2.0 * s / (1.0 + s)


def gap_density(n: int) -> float:
    """Density at 0 of the gap between the two largest of n i.i.d. N(0,1) scores, n(n-1) E[phi(G) Phi(G)^{n-2}].

    It is the rate at which soft and hard attention part as the temperature rises from 0, in units of 1 / score.

    Source: chapter 05, the gap between soft and hard attention.
    """
    n = _check.integer("n", n, minimum=2)
    x, weight = _grid(-9.0, 9.0, 4000)
    return n * (n - 1) * float(np.sum(weight * stats.norm.pdf(x) ** 2 * np.exp((n - 2) * special.log_ndtr(x))))


def latent_head_dim(content: int, rotary: int, query_latent: int, key_latent: int, normalise: bool) -> float:
    """Effective head dimension of latent attention: 2 / (relative variance over keys of the variance of a score).

    It is d_h for an ordinary head, whose scores with a key have variance |k|^2, a chi-square of d_h degrees of freedom.
    Here the variance of the content scores is z^T M z, z the latent of the key and M = W_k (W_q^T W_q / q) W_k^T, whose
    normalised traces are those of free Wishart matrices; that of the rotary scores is added. A latent of 0 is none.

    An asymptotic heuristic. Source: chapter 05, latent attention.
    """
    spread_q = content / query_latent if query_latent else 0.0
    spread_k = content / key_latent if key_latent else 0.0
    # content * tr M^2 / (tr M)^2 for free matrices of unit mean with second moments 1 + spread.
    square = (1 + spread_q) + (1 + spread_k) - 1
    relative = 2 * square / content
    if normalise and key_latent:  # z on a sphere instead of Gaussian
        relative = 2 / (key_latent + 2) * (key_latent * square / content - 1)
    rotary_square = 1 + (rotary / query_latent if query_latent else 0.0)
    variance = content**2 * relative + 2 * rotary * rotary_square
    return 2 * (content + rotary) ** 2 / variance


def freezing_temperature(n: int) -> float:
    """sqrt(2 / log n): below it a few logits of standard deviation 1/T decide the squared sum of a row of n.

    Source: chapter 05, stable rank; the freezing of Derrida's random energy model at twice the inverse temperature.
    """
    return math.sqrt(2.0 / math.log(_check.integer("n", n, minimum=2)))


def _grid(low: float, high: float, points: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of a panelled Gauss-Legendre rule on [low, high]."""
    x, w = np.polynomial.legendre.leggauss(20)
    edges = np.linspace(low, high, points // 20 + 1)
    half = np.diff(edges)[:, None] / 2
    return (edges[:-1, None] + half * (x + 1)).ravel(), (half * w).ravel()
