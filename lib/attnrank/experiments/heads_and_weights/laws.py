"""Laws of the weights of a head: with independent entries, heavy-tailed ones, orthogonal columns, or low rank."""

from __future__ import annotations

import torch
from torch import Tensor

from attnrank import _check
from attnrank.inputs import tokens

LAWS = ("gaussian", "rademacher", "uniform", "student", "cauchy", "orthogonal", "low_rank")


def draw_weights(law: str, d: int, d_h: int, generator: torch.Generator) -> Tensor:
    """Weights (d, d_h) of one of ``LAWS``: Student's t has 3 degrees of freedom, orthogonal weights are a Haar frame,
    and low-rank ones are the product of Gaussian factors of rank 4 (or d_h, if that is less)."""
    _check.choice("law", law, LAWS)
    normal = torch.randn(d, d_h, generator=generator, dtype=torch.float64)
    if law == "rademacher":
        return normal.sign()
    if law == "uniform":
        return 2 * torch.rand(d, d_h, generator=generator, dtype=torch.float64) - 1
    if law == "student":
        return normal / torch.randn(d, d_h, 3, generator=generator, dtype=torch.float64).norm(dim=-1)
    if law == "cauchy":
        return normal / torch.randn(d, d_h, generator=generator, dtype=torch.float64)
    if law == "orthogonal":
        return tokens("orthonormal", d_h, d, generator=generator).T
    if law == "low_rank":
        rank = min(4, d_h)
        left = torch.randn(d, rank, generator=generator, dtype=torch.float64)
        return left @ torch.randn(rank, d_h, generator=generator, dtype=torch.float64)
    return normal
