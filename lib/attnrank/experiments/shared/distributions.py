"""Ten token distributions, heads on them, and rotary positions."""

from __future__ import annotations

import torch
from torch import Tensor

from attnrank import _check
from attnrank.inputs import tokens

#: The token distributions of the sweeps: kind and options of :func:`attnrank.inputs.tokens`.
DISTRIBUTIONS: dict[str, tuple[str, dict[str, float]]] = {
    "orthonormal": ("orthonormal", {}),
    "gaussian": ("gaussian", {}),
    "sphere": ("sphere", {}),
    "uniform_centred": ("uniform", {"low": -1.0, "high": 1.0}),
    "uniform": ("uniform", {"low": 0.0, "high": 1.0}),
    "mixture": ("mixture", {"components": 10, "cosine": 0.5}),
    "autoregressive": ("autoregressive", {"correlation": 0.9}),
    "repeated_vocabulary": ("repeated_vocabulary", {"vocabulary": 50}),
    "heavy_tailed": ("heavy_tailed", {"freedom": 3.0}),
    "anisotropic": ("anisotropic", {"cosine": 0.5}),
}
#: n -> width d of tokens; d = n at least for orthonormal ones.
WIDTHS = {25: 64, 50: 64, 100: 128, 200: 256, 400: 512, 1024: 1024, 4096: 2048}


def projections(distribution: str, n: int, d: int, width: int, generator: torch.Generator) -> Tensor:
    """One sequence of tokens X (n, d) times weights (d, width) with i.i.d. N(0, 1) entries: queries and keys of heads.

    For orthonormal tokens the product has i.i.d. N(0, 1) entries, and is drawn as such. Copies of a token get equal
    rows exactly, where a matrix product might round them differently.
    """
    kind, options = DISTRIBUTIONS[_check.choice("distribution", distribution, DISTRIBUTIONS)]
    if kind == "orthonormal":
        if d < n:
            raise ValueError(f"d must be at least n for orthonormal tokens, got d = {d} and n = {n}")
        return torch.randn(n, width, generator=generator, dtype=torch.float64)
    x = tokens(kind, n, d, generator=generator, **options)
    weights = torch.randn(d, width, generator=generator, dtype=torch.float64)
    if kind != "repeated_vocabulary":
        return x @ weights
    words, word = x.unique(dim=0, return_inverse=True)
    return (words @ weights)[word]


def rotate(x: Tensor, base: float = 10000.0) -> Tensor:
    """Rotary positions: the pair (2f, 2f + 1) of row i of x (..., n, d_h) is turned by the angle i base^(-2f / d_h)."""
    n, d_h = x.shape[-2:]
    if d_h % 2:
        raise ValueError(f"x must have an even head dimension for rotary positions, got {d_h}")
    frequency = base ** (-torch.arange(0, d_h, 2, dtype=torch.float64) / d_h)
    angle = torch.arange(n, dtype=torch.float64)[:, None] * frequency
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = (even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos())
    return torch.stack(turned, -1).flatten(-2)
