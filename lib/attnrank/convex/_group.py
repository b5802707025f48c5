"""Solving the group program: squared loss one output at a time, cross-entropy by a sequence of quadratic models."""

from __future__ import annotations

import torch
from torch import Tensor

from attnrank.convex._approach import approach, costly, relative_gap
from attnrank.convex._quadratic import Point, Quadratic, Sizes
from attnrank.convex._secular import newton, violation
from attnrank.convex.certificate import feasible
from attnrank.convex.penalties import Blocks
from attnrank.convex.problem import Problem


def solve_group(problem: Problem, beta: float, start: Blocks, tol: float, max_steps: int) -> tuple[Blocks, Tensor, int]:
    """z and v with a relative duality gap of at most ``tol``, if ``max_steps`` Newton steps are enough; their number.

    v is not yet scaled to be feasible. It is the residual of z, but for rounding in z.
    """
    solve = _squared if problem.loss.name == "squared" else _cross_entropy
    return solve(problem, beta, start, tol, max_steps)


def _squared(problem: Problem, beta: float, start: Blocks, tol: float, max_steps: int) -> tuple[Blocks, Tensor, int]:
    z, v, steps = torch.zeros_like(start), torch.zeros_like(problem.y), 0
    for output in range(problem.y.shape[1]):
        y = problem.y[:, output : output + 1]
        key = ("quadratic", output)
        if key not in problem.caches:
            linear = problem.at_zero()[:, :, output].contiguous()
            problem.caches[key] = Quadratic(problem, y, constant=0.5 * y.square().sum().item(), linear=linear)
        quadratic = problem.caches[key]
        found, vector, taken = _one_output(quadratic, y, beta, start[:, :, output], tol, max_steps)
        z[:, :, output], v[:, output] = found, vector
        steps += taken
    return z, v, steps


def _one_output(
    quadratic: Quadratic, y: Tensor, beta: float, z: Tensor, tol: float, max_steps: int
) -> tuple[Tensor, Tensor, int]:
    """Newton steps; where they become costly, gradient steps first, which may do."""

    def done(point: Point, sizes: Sizes) -> bool:
        primal = 0.5 * point.v.square().sum().item() + beta * point.z.norm(dim=1).sum().item()
        return relative_gap(primal, point.v, point.g, y, beta) <= 0.5 * tol

    def spread(point: Point) -> Tensor:
        return torch.zeros_like(z).index_copy_(0, point.active, point.z)

    sizes, steps = z.norm(dim=1), 0
    if not costly(quadratic.a, sizes):
        sizes, point, steps = newton(quadratic, sizes, beta, done, max_steps, lambda to: costly(quadratic.a, to))
        z = spread(point)
        if not costly(quadratic.a, sizes):
            return z, point.v[:, 0], steps
    z, residual, reached, taken = approach(quadratic.a, y[:, 0], beta, z, 0.5 * tol, max_steps - steps)
    steps += taken
    if reached or steps >= max_steps:
        return z, residual, steps
    _, point, taken = newton(quadratic, z.norm(dim=1), beta, done, max_steps - steps)
    return spread(point), point.v[:, 0], steps + taken


def _cross_entropy(
    problem: Problem, beta: float, start: Blocks, tol: float, max_steps: int
) -> tuple[Blocks, Tensor, int]:
    """Proximal Newton: minimise the quadratic model of the loss with the penalty itself, then search along the line."""
    z, steps = start, 0
    u = problem.predict(z)
    primal = problem.loss.value(u, problem.y) + beta * problem.penalty.value(z)
    while True:
        v = problem.loss.residual(u, problem.y)
        c = problem.correlate(v)
        gap = primal - feasible(problem, beta, v, c)[1]
        if gap <= tol * primal or steps >= max_steps:
            return z, v, steps
        weights = problem.loss.curvature(u)
        assert weights is not None  # as they are for the squared loss
        target = v + (weights[:, None] * u if weights.ndim == 1 else (weights @ u[:, :, None])[:, :, 0])
        quadratic = Quadratic(problem, target, weights)
        precision = max(1e-13, min(1e-2, 1e-2 * gap / primal))
        sizes, point, taken = newton(
            quadratic,
            z.norm(dim=1).flatten(),
            beta,
            lambda point, sizes: violation(point, sizes, beta) <= precision,
            max_steps,
        )
        steps += max(taken, 1)
        model = torch.zeros(z.shape[0] * z.shape[2], z.shape[1], dtype=z.dtype, device=z.device)
        model[point.active] = point.z
        model = model.view(z.shape[0], z.shape[2], z.shape[1]).mT
        found = _line(problem, beta, z, u, primal, model, problem.predict(model))
        if found is None:
            return z, v, steps
        z, u, primal = found


def _line(
    problem: Problem, beta: float, z: Blocks, u: Tensor, primal: float, model: Blocks, predicted: Tensor
) -> tuple[Blocks, Tensor, float] | None:
    """The first of the steps 1, 1/2, 1/4, ... to the model's minimiser that lowers the objective; None without any."""
    for halvings in range(30):
        t = 0.5**halvings
        there, prediction = (model, predicted) if t == 1 else (z + t * (model - z), u + t * (predicted - u))
        value = problem.loss.value(prediction, problem.y) + beta * problem.penalty.value(there)
        if value < primal or (t == 1 and value <= primal * (1 + 1e-14)):
            return there, prediction, value
    return None
