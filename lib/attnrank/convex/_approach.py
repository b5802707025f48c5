"""Gradient steps for large programs with many active tokens, where a single Newton step costs as much as hundreds.

Accelerated, with restart (O'Donoghue and Candes 2015). The products are in single precision, of moves from a centre
whose residual and correlations are in double precision, so that rounding does not limit the gap: it is certified at
every new centre. Where the gap does not fall fast enough, the caller goes on with Newton steps.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float64
from torch import Tensor

from attnrank import _check
from attnrank.convex.losses import Squared

Vectors = Float64[Tensor, "tokens d"]

#: Gradient steps between two centres.
CHUNK = 20
#: Multiplications for the matrix of a Newton step, up to which it is no obstacle.
SMALL = 5e8


def costly(a: Float64[Tensor, "samples tokens d"], sizes: Float64[Tensor, "tokens"]) -> bool:
    """Does a Newton step to these sizes make a large matrix of samples, and are gradient steps likely to be fewer?

    With many more active columns than samples they are too many.
    """
    samples, _, d = a.shape
    columns = int((sizes > 0).sum()) * d
    return samples < columns <= 3 * samples and columns * samples**2 > SMALL


def approach(
    a: Float64[Tensor, "samples tokens d"],
    y: Float64[Tensor, "samples"],
    beta: float,
    z: Vectors,
    tol: float,
    max_chunks: int,
) -> tuple[Vectors, Float64[Tensor, "samples"], bool, int]:
    """z nearer to the optimum of the squared loss, its residual, whether its relative gap is below ``tol``, and the
    number of chunks of steps."""
    run, chunks, before = _Run(a, beta, z), 0, float("inf")
    while True:
        residual = y - run.flat @ z.flatten()
        c = (run.flat.mT @ residual).view_as(z)
        primal = 0.5 * residual.square().sum().item() + beta * z.norm(dim=1).sum().item()
        gap = relative_gap(primal, residual, c.norm(dim=1), y, beta)
        if gap <= tol:
            return z, residual, True, chunks
        fall = gap / before
        left = CHUNK * math.log(max(tol, 1e-300) / gap) / min(math.log(fall), -1e-9) if fall > 0 else 0.0
        if chunks >= max_chunks or chunks > 2 and (fall >= 1.0 or left > _steps_worth(a, z)):
            return z, residual, False, chunks
        moved = run.chunk(z, c)
        if not _check.all_finite(moved):  # beyond single precision
            return z, residual, False, chunks
        z, before, chunks = moved, gap, chunks + 1


def _steps_worth(a: Tensor, z: Vectors) -> float:
    """So many gradient steps cost as much as the Newton steps from here: about three of them."""
    active = int(z.ne(0).any(1).sum())
    return 0.6 * a.shape[0] * active / a.shape[1]


def relative_gap(primal: float, v: Tensor, sizes: Tensor, y: Tensor, beta: float) -> float:
    """Of an objective and the dual point that is a multiple of v, whose correlations have these sizes."""
    loss = Squared()
    scale = loss.best_scale(v, y, beta / max(sizes.max().item(), 1e-300))
    gap = primal - loss.dual(scale * v, y)
    return 0.0 if gap <= 0 else gap / primal


class _Run:
    """What gradient steps carry from one centre to the next: slope, momentum, and x in single precision."""

    def __init__(self, a: Tensor, beta: float, z: Vectors):
        self.flat = a.flatten(1)
        self.single = self.flat.float()
        self.beta, self.t, self.momentum = beta, 1.0, torch.zeros_like(z)
        v = torch.ones_like(self.single[0])
        v += 0.5 * torch.arange(len(v), dtype=v.dtype, device=v.device).sin()
        for _ in range(6):
            v = self.single.mT @ (self.single @ (v / v.norm()))
        self.slope = 1.1 * v.norm().item()

    def chunk(self, centre: Vectors, c: Vectors) -> Vectors:
        """z after some steps from a centre with correlations c; its predictions are followed as the steps go."""
        z, moved = centre, self.single.new_zeros(len(self.single))  # moved: predictions of z - centre
        ahead, there = z + self.momentum, self._predict(self.momentum)
        for _ in range(CHUNK):
            gradient = c - (self.single.mT @ there).view_as(c)
            while True:
                step = ahead + gradient / self.slope
                new = step * (1.0 - self.beta / self.slope / step.norm(dim=1, keepdim=True)).clamp_min(0.0)
                predicted = self._predict(new - centre)
                size, image = (new - ahead).square().sum().item(), (predicted - there).square().sum().item()
                if not image > 1.01 * self.slope * size:  # NaN, too, ends it
                    break
                self.slope = 1.1 * image / size
            if ((ahead - new) * (new - z)).sum() > 0:
                self.t = 1.0
            later = 0.5 * (1.0 + (1.0 + 4.0 * self.t**2) ** 0.5)
            weight = (self.t - 1.0) / later
            self.momentum = weight * (new - z)
            ahead, there = new + self.momentum, predicted + weight * (predicted - moved)
            z, moved, self.t = new, predicted, later
        return z

    def _predict(self, z: Vectors) -> Tensor:
        return self.single @ z.flatten().float()
