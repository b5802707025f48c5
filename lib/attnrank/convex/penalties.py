"""Penalties of the convex programs: sums over tokens of a norm of the token's block, with the dual norm."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

#: One matrix (dimension x outputs) for each token, and for each gate in turn.
Blocks = Float64[Tensor, "tokens d outputs"]


@dataclass(frozen=True)
class Group:
    """Sum over tokens and outputs of the Euclidean norm: one group for each token and output."""

    name = "group"

    def norms(self, z: Blocks) -> Float64[Tensor, "tokens outputs"]:
        return z.norm(dim=1)

    def value(self, z: Blocks) -> float:
        return self.norms(z).sum().item()

    def dual_norm(self, z: Blocks) -> float:
        return self.norms(z).max().item()


@dataclass(frozen=True)
class Nuclear:
    """Sum over tokens of the nuclear norm of the token's matrix."""

    name = "nuclear"

    def norms(self, z: Blocks) -> Float64[Tensor, "tokens values"]:
        """Singular values, the largest first; with one output the Euclidean norm."""
        return z.norm(dim=1) if z.shape[2] == 1 else torch.linalg.svdvals(z)

    def value(self, z: Blocks) -> float:
        return self.norms(z).sum().item()

    def dual_norm(self, z: Blocks) -> float:
        return self.norms(z).max().item()


PENALTIES = {penalty.name: penalty for penalty in (Group(), Nuclear())}
