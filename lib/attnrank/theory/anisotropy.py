"""Tokens with a common direction: Gram matrix (1 - c) I + c 1 1^T, at unlimited head dimension."""

from __future__ import annotations

import math

import numpy as np
import scipy

from attnrank import _check
from attnrank._quadrature import gauss_legendre, panels, reach


def anisotropic_bound(n: int, cosine: float) -> float:
    """Bound on the expected rank at d_h -> infinity of tokens with pairwise cosine c: n E[1 - (1 - pi(G))^n].

    G ~ N(0,1) is the score of a key with the common part of the queries, and the chance that it wins a query is
    pi(a) = E Phi(sqrt(c) a + sqrt(1-c) B)^{n-1}, B ~ N(0,1). n is at most 1e20.

    Examples
    --------
    >>> from attnrank import theory
    >>> round(theory.anisotropic_bound(1024, 0.5), 3)
    164.285

    Source: chapter random_tokens, a common direction.
    """
    n, c = _check.whole("n", n, minimum=1, maximum=1e20), _check.real("cosine", cosine, minimum=0.0, maximum=1.0)
    end = reach(n)
    x, weight = panels(-9.0, end, 600)
    weight = weight * scipy.stats.norm.pdf(x)

    def win(common: np.ndarray) -> np.ndarray:
        score = math.sqrt(c) * common[:, None] + math.sqrt(1.0 - c) * x[None]
        return np.minimum(np.exp((n - 1) * scipy.special.log_ndtr(score)) @ weight, 1.0)

    # Where n pi rises through 1 the integrand is steep if c is near 1 and n large: panels shrink towards that place.
    low, high = -9.0, end
    for _ in range(30):
        middle = (low + high) / 2.0
        low, high = (middle, high) if n * win(np.array([middle]))[0] < 1.0 else (low, middle)
    near = np.geomspace(1e-4, 1.0, 14)
    edges = np.concatenate([np.linspace(-9.0, end, 31), low - near, [low], low + near])
    nodes, weights = gauss_legendre(np.unique(np.clip(edges, -9.0, end))[None], 20)
    a, weights = nodes[0], weights[0] * scipy.stats.norm.pdf(nodes[0])
    with np.errstate(divide="ignore"):
        return n * float(np.sum(weights * -np.expm1(n * np.log1p(-win(a)))))


def anisotropic_exponent(cosine: float) -> float:
    """Power of n with which the rank of tokens of cosine c grows at d_h -> infinity: 2 s / (1 + s), s = sqrt(1 - c).

    An asymptotic heuristic, from the large deviations of Gaussian scores.

    Examples
    --------
    >>> from attnrank import theory
    >>> round(theory.anisotropic_exponent(0.5), 3)
    0.828

    Source: chapter random_tokens, a common direction.
    """
    s = math.sqrt(1.0 - _check.real("cosine", cosine, minimum=0.0, maximum=1.0))
    return 2.0 * s / (1.0 + s)
