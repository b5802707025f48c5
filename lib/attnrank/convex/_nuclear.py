"""Solving the program with the token-wise nuclear norm: accelerated gradient steps find the ranks, Newton's method the
rest."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attnrank.convex._factored import polish
from attnrank.convex.certificate import feasible
from attnrank.convex.penalties import Blocks
from attnrank.convex.problem import Problem

#: Gradient steps between two looks at the ranks: at first, and at most, after Newton's method at settled ranks failed.
FIRST_CHUNK, LAST_CHUNK = 10, 50


def solve_nuclear(
    problem: Problem, beta: float, start: Blocks, tol: float, max_steps: int
) -> tuple[Blocks, Tensor, int]:
    """z and its residual, with a relative duality gap of at most ``tol`` if ``max_steps`` chunks of steps are enough.

    The third is the number of chunks.

    Works on the tokens that are active and those that violate optimality most, and adds others as they come to violate.
    """
    z, steps = start, 0
    while True:
        primal, dual, c = _bounds(problem, beta, z)
        if primal - dual <= tol * primal or steps >= max_steps:
            return z, problem.loss.residual(problem.predict(z), problem.y), steps
        tokens = _working_set(z, problem.penalty.norms(c)[:, 0], beta)
        part = replace(problem, a=problem.a[:, tokens].contiguous(), caches={})
        inner = max(0.3 * tol, min(0.03, 0.03 * (primal - dual) / primal))
        solved, taken = _restricted(part, beta, z[tokens], inner, max_steps - steps)
        z = torch.zeros_like(z)
        z[tokens] = solved
        steps += taken


def _bounds(problem: Problem, beta: float, z: Blocks) -> tuple[float, float, Blocks]:
    """Objective, dual value and correlations that belong to z."""
    u = problem.predict(z)
    v = problem.loss.residual(u, problem.y)
    c = problem.correlate(v)
    value = problem.loss.value(u, problem.y) + beta * problem.penalty.value(z)
    return value, feasible(problem, beta, v, c)[1], c


def _working_set(z: Blocks, sizes: Tensor, beta: float) -> Tensor:
    active = z.ne(0).flatten(1).any(1)
    outside = torch.where(active, 0.0, sizes)
    most = max(8, int(active.sum()))
    worst = outside.argsort(descending=True)[:most]
    active[worst[outside[worst] > beta]] = True
    return active.nonzero()[:, 0]


def _restricted(problem: Problem, beta: float, z: Blocks, tol: float, max_steps: int) -> tuple[Blocks, int]:
    """Solve for the tokens of the working set: chunks of gradient steps, Newton whenever the ranks have settled."""
    gradient = _Gradient(problem)
    ranks, steps, momentum, chunk = None, 0, _Momentum(z, z, 1.0), FIRST_CHUNK
    while True:
        momentum = _accelerate(problem, gradient, beta, momentum, chunk)
        z, steps = momentum.z, steps + 1
        seen = problem.penalty.norms(z).gt(0).sum(1) if z.ndim == 3 else None
        primal, dual, _ = _bounds(problem, beta, z)
        if primal - dual <= tol * primal or steps >= max_steps:
            return z, steps
        if seen is not None and ranks is not None and torch.equal(seen, ranks):
            better = polish(problem, beta, z)
            value, dual, _ = _bounds(problem, beta, better)
            if value - dual <= tol * value:
                return better, steps
            if value < primal:
                momentum = _Momentum(better, better, 1.0)
            chunk = min(2 * chunk, LAST_CHUNK)
        ranks = seen


@dataclass
class _Momentum:
    z: Blocks
    ahead: Blocks
    t: float


class _Gradient:
    """Gradients of the loss, from the Gram matrix where that is the smaller one; and a bound of their slope."""

    def __init__(self, problem: Problem):
        self.problem = problem
        flat = problem.a.flatten(1)
        self.gram: Tensor | None = None
        if problem.loss.name == "squared" and flat.shape[1] <= flat.shape[0]:
            self.gram, self.linear = flat.mT @ flat, flat.mT @ problem.y
        self.slope = 1.01 * _largest_square(flat if self.gram is None else self.gram, self.gram is not None)
        if problem.loss.name == "cross_entropy":
            self.slope *= 0.5  # the largest eigenvalue of diag(p) - p p^T, at most

    def __call__(self, z: Blocks) -> Blocks:
        if self.gram is None:
            residual = self.problem.loss.residual(self.problem.predict(z), self.problem.y)
            return -self.problem.correlate(residual)
        return (self.gram @ z.flatten(0, 1) - self.linear).view(z.shape)


def _largest_square(matrix: Tensor, square: bool) -> float:
    """The largest eigenvalue of a Gram matrix, or the largest squared singular value.

    Of a small Gram matrix exactly, else by 60 steps of the power method.
    """
    if square and len(matrix) <= 64:
        return torch.linalg.eigvalsh(matrix)[-1].item() or 1.0
    v = torch.ones(matrix.shape[1], dtype=matrix.dtype, device=matrix.device)
    v += 1e-3 * torch.arange(len(v), dtype=v.dtype, device=v.device).sin()
    size = 0.0
    for _ in range(60):
        v = matrix @ v if square else matrix.mT @ (matrix @ v)
        size = v.norm().item()
        if size == 0.0:
            return 1.0
        v /= size
    return size


def _accelerate(problem: Problem, gradient: _Gradient, beta: float, state: _Momentum, steps: int) -> _Momentum:
    """FISTA with restart (O'Donoghue and Candes 2015)."""
    z, ahead, t = state.z, state.ahead, state.t
    for _ in range(steps):
        slope = gradient(ahead)
        new = shrink(ahead - slope / gradient.slope, beta / gradient.slope)
        if ((ahead - new) * (new - z)).sum() > 0:
            ahead, t = z, 1.0
            new = shrink(ahead - gradient(ahead) / gradient.slope, beta / gradient.slope)
        later = 0.5 * (1.0 + (1.0 + 4.0 * t * t) ** 0.5)
        z, ahead, t = new, new + (t - 1.0) / later * (new - z), later
    return _Momentum(z, ahead, t)


def shrink(z: Blocks, threshold: float) -> Blocks:
    """Singular values lowered by a threshold, the proximal map of the nuclear norm, for each token."""
    if z.shape[1] < z.shape[2]:
        return shrink(z.mT, threshold).mT
    squares, vectors = torch.linalg.eigh(z.mT @ z)
    kept = squares.clamp_min_(1e-300).rsqrt_().mul_(-threshold).add_(1.0).clamp_min_(0.0)
    return (z @ vectors).mul_(kept[:, None]) @ vectors.mT
