"""Gram matrices of unit tokens that may break the barrier: set at a level, and found by gradient ascent."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import normalize

from attnrank import _check
from attnrank.experiments.shared.statistics import seeded

TOKENS = ("simplex", "pairs", "common", "autoregressive", "circle", "circles")


def leveled_gram(tokens: str, level: float, n: int) -> Tensor:
    """Gram matrix (n, n) of unit tokens, orthonormal at level 0, float64.

    "simplex": cosines -level / (n - 1); "pairs": tokens 2i and 2i + 1 at cosine -level; "common": cosines level;
    "autoregressive": level^|i-j|; "circle" and "circles": evenly spaced in a plane, or half of them in each of two
    orthogonal planes (level 1 only).
    """
    _check.choice("tokens", tokens, TOKENS)
    level, n = _check.real("level", level, minimum=0.0, maximum=1.0), _check.integer("n", n, minimum=2)
    position, one = torch.arange(n), torch.eye(n, dtype=torch.float64)
    if tokens in ("circle", "circles"):
        if level != 1.0 or n % 2:
            raise ValueError(f"level must be 1 and n even for {tokens}, got {level!r} and {n}")
        many = 1 if tokens == "circle" else 2
        angle = 2.0 * math.pi * many * torch.arange(n // many, dtype=torch.float64) / n
        return torch.block_diag(*[(angle[:, None] - angle).cos()] * many)
    if tokens == "autoregressive":
        return torch.tensor(level, dtype=torch.float64) ** (position[:, None] - position).abs()
    partner = position[:, None] // 2 == position // 2
    pairs = -level * partner.double()
    cosine: dict[str, float | Tensor] = {"simplex": -level / (n - 1), "common": level, "pairs": pairs}
    return one + (1.0 - one) * cosine[tokens]


def adversarial_gram(n: int, d_h: int, epsilon: float, *, start: str, steps: int, seed: int) -> Tensor:
    """Gram matrix with |E_ij| <= epsilon that gradient ascent finds for the mean rank, float64 (n, n).

    The rank is replaced by sum_j 1 - prod_i (1 - A_ij), A the softmax at temperature 0.1 sqrt(d_h): the mean number of
    keys that are hit if each query samples one. Adam on the tokens, fresh weights at every step; after it the tokens
    are normalised and the entries of E clipped. ``start``: "orthonormal", or "circle", evenly spaced in the plane.
    """
    n, d_h = _check.integer("n", n, minimum=2), _check.integer("d_h", d_h, minimum=1)
    epsilon = _check.real("epsilon", epsilon, above=0.0, maximum=1.0)
    _check.choice("start", start, ("orthonormal", "circle"))
    steps = _check.integer("steps", steps, minimum=0)
    generator = seeded(seed)
    x = torch.eye(n, dtype=torch.float64)
    if start == "circle":
        angle = 2.0 * math.pi * torch.arange(n, dtype=torch.float64) / n
        x = torch.zeros(n, n, dtype=torch.float64)
        x[:, 0], x[:, 1] = angle.cos(), angle.sin()
    x = x + 0.05 / math.sqrt(n) * torch.randn(n, n, generator=generator, dtype=torch.float64)
    x = _admissible(x, epsilon).requires_grad_(True)
    optimiser = torch.optim.Adam([x])
    for step in range(steps):
        optimiser.param_groups[0]["lr"] = 0.1 / n * (1.0 - step / steps)
        q, k = torch.randn(2, 32, n, d_h, generator=generator, dtype=torch.float64)
        attention = (10.0 / math.sqrt(d_h) * (x @ q) @ (x @ k).mT).softmax(-1)
        missed = torch.log1p(-attention.clamp(max=1.0 - 1e-12)).sum(-2).exp()
        optimiser.zero_grad()
        missed.sum(-1).mean().backward()
        optimiser.step()
        with torch.no_grad():
            x.copy_(_admissible(x, epsilon))
    gram = (x @ x.T).detach().fill_diagonal_(0.0)
    shrink = min(1.0, epsilon / gram.abs().max().item())  # a last step inside: I + E stays positive semi-definite
    return (shrink * gram).fill_diagonal_(1.0)


def _admissible(x: Tensor, epsilon: float) -> Tensor:
    """Unit tokens near ``x`` whose inner products exceed ``epsilon`` by little: clip, then make semi-definite again."""
    x = normalize(x.detach(), dim=-1)
    error = (x @ x.T).fill_diagonal_(0.0)
    if error.abs().max() <= epsilon:
        return x
    values, vectors = torch.linalg.eigh(error.clamp(-epsilon, epsilon).fill_diagonal_(1.0))
    return normalize((vectors * values.clamp(min=1e-9).sqrt()) @ vectors.T, dim=-1)
