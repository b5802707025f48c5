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
        """A sum of terms that are not negative: where the loss nearly vanishes, no digit is lost."""
        if u.shape[1] == 1:
            above, below = (torch.nn.functional.softplus(side, threshold=40.0) for side in (u, -u))
            return (y * below + (1.0 - y) * above).sum().item()
        top, at = u.max(1, keepdim=True)
        rest = torch.exp(u - top).scatter(1, at, 0.0).sum(1)
        return (torch.log1p(rest) + (y * (top - u)).sum(1)).sum().item()

    def residual(self, u: Outputs, y: Outputs) -> Outputs:
        """y minus the probabilities, exact to rounding where these are near 1 too."""
        return y * self.probabilities(u, others=True) - (1.0 - y) * self.probabilities(u)

    def curvature(self, u: Outputs) -> Tensor:
        """Hessian for each sample: (samples,) with one output, (samples, outputs, outputs) with several."""
        p = self.probabilities(u)
        if u.shape[1] == 1:
            return (p * (1.0 - p)).clamp_min(LEAST_CURVATURE)[:, 0]
        return torch.diag_embed(p) - p[:, :, None] * p[:, None]

    def dual(self, v: Outputs, y: Outputs) -> float:
        q, rest = y - v, (1.0 - y) + v  # rest = 1 - q, to its own last digit
        other = _entropy(rest, q).sum().item() if v.shape[1] == 1 else 0.0
        return _entropy(q, rest).sum().item() + other

    def best_scale(self, v: Outputs, y: Outputs, largest: float) -> float:
        """The largest feasible scale up to 1: the dual value grows up to there, or nearly so close to the optimum."""
        return min(1.0, largest)

    @staticmethod
    def probabilities(u: Outputs, others: bool = False) -> Outputs:
        """Of every output; or of the ``others`` together, 1 minus it, to its own last digit."""
        if u.shape[1] == 1:
            return torch.sigmoid(-u if others else u)
        p = torch.softmax(u, 1)
        if not others:
            return p
        at = p.argmax(1, keepdim=True)
        return (1.0 - p).scatter(1, at, p.scatter(1, at, 0.0).sum(1, keepdim=True))


def _entropy(q: Tensor, rest: Tensor) -> Tensor:
    """-q log q, q taken for 0 where it is negative; ``rest`` is 1 - q, which says more of a q near 1."""
    return torch.where(q > 0.5, -q * torch.log1p(-rest), torch.special.entr(q.clamp_min(0.0)))


LOSSES = {loss.name: loss for loss in (Squared(), CrossEntropy())}
