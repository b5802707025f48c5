"""Losses of the convex programs: value, residual, curvature and conjugate, summed over samples and outputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

Outputs = Float64[Tensor, "samples outputs"]

#: The curvature of a saturated prediction is taken to be this at least, so that a Newton step stays finite.
LEAST_CURVATURE = 1e-9


@dataclass(frozen=True)
class Squared:
    """Half the squared error, sum (u - y)^2 / 2."""

    name = "squared"

    def value(self, u: Outputs, y: Outputs) -> float:
        return 0.5 * (u - y).square().sum().item()

    def residual(self, u: Outputs, y: Outputs) -> Outputs:
        """Minus the gradient at the predictions u: the dual point that belongs to them, before it is scaled."""
        return y - u

    def curvature(self, u: Outputs) -> None:
        """None stands for the identity."""

    def dual(self, v: Outputs, y: Outputs) -> float:
        """Minus the conjugate at -v: a lower bound of the optimum wherever v is feasible."""
        return (y * v - 0.5 * v.square()).sum().item()

    def best_scale(self, v: Outputs, y: Outputs, largest: float) -> float:
        """The s in [0, largest] with the largest ``dual(s v)``."""
        square = v.square().sum().item()
        return min(max((y * v).sum().item() / square, 0.0), largest) if square > 0 else 0.0


@dataclass(frozen=True)
class CrossEntropy:
    """Cross-entropy: of a softmax over outputs, or with one output of the logistic function of its only score."""

    name = "cross_entropy"

    def value(self, u: Outputs, y: Outputs) -> float:
        if u.shape[1] == 1:
            return (torch.nn.functional.softplus(u, threshold=40.0) - y * u).sum().item()
        return (torch.logsumexp(u, 1) - (y * u).sum(1)).sum().item()

    def residual(self, u: Outputs, y: Outputs) -> Outputs:
        return y - self.probabilities(u)

    def curvature(self, u: Outputs) -> Tensor:
        """Hessian for each sample: (samples,) with one output, (samples, outputs, outputs) with several."""
        p = self.probabilities(u)
        if u.shape[1] == 1:
            return (p * (1.0 - p)).clamp_min(LEAST_CURVATURE)[:, 0]
        return torch.diag_embed(p) - p[:, :, None] * p[:, None]

    def dual(self, v: Outputs, y: Outputs) -> float:
        q = y - v
        other = torch.special.entr((1.0 - q).clamp_min(0.0)).sum().item() if v.shape[1] == 1 else 0.0
        return torch.special.entr(q.clamp_min(0.0)).sum().item() + other

    def best_scale(self, v: Outputs, y: Outputs, largest: float) -> float:
        """The largest feasible scale up to 1: the dual value grows up to there, or nearly so close to the optimum."""
        return min(1.0, largest)

    @staticmethod
    def probabilities(u: Outputs) -> Outputs:
        return torch.sigmoid(u) if u.shape[1] == 1 else torch.softmax(u, 1)


LOSSES = {loss.name: loss for loss in (Squared(), CrossEntropy())}
