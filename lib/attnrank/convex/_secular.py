"""Newton's method on the secular equations of the group program: at the optimum |a_g^T v| = beta on active groups.

As functions of the sizes, 1 / |a_g^T v| are nearly linear (exactly, for a single group with orthogonal columns), so
that a Newton step on 1 / |a_g^T v| = 1 / beta goes nearly all the way, from zero as well as from nearby. Inactive
groups make it a small quadratic program with nonnegative variables, which also says which groups are active. Where such
a step would go uphill, which correlated tokens can bring about, Newton's step for the program itself is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from attnrank.convex._bounded import by_pivoting
from attnrank.convex._quadratic import Point, Quadratic, Sizes

#: Added to the unit diagonal of the Newton matrix: equal tokens make it singular.
RIDGE = 1e-12

#: Values that differ by less than this, relatively, may differ by rounding only.
FLAT = 1e-11


def violation(point: Point, sizes: Sizes, beta: float) -> float:
    """How far the optimality conditions are from holding: max of ||a^T v| / beta - 1|, only if > 0 for inactive
    groups."""
    excess = point.g / beta - 1.0
    return torch.where(sizes > 0, excess.abs(), excess.clamp_min(0.0)).max().item()


def newton(
    quadratic: Quadratic,
    sizes: Sizes,
    beta: float,
    done: Callable[[Point, Sizes], bool],
    max_steps: int,
    costly: Callable[[Sizes], bool] = lambda sizes: False,
) -> tuple[Sizes, Point, int]:
    """From ``sizes`` until ``done``, until no step helps, or ``max_steps``; sizes, what belongs to them, steps made.

    Where a step leads to sizes that are too ``costly`` to evaluate, these are returned, with the point before.
    """
    point = quadratic.evaluate(sizes, beta)
    for step in range(max_steps):
        if done(point, sizes):
            return sizes, point, step
        found = None
        for target in _targets(quadratic, point, sizes, beta):
            if costly(target):
                return target, point, step
            found = _search(quadratic, point, sizes, target, beta)
            if found is not None:
                break
        if found is None:
            return sizes, point, step
        sizes, point = found
    return sizes, point, max_steps


def _targets(quadratic: Quadratic, point: Point, sizes: Sizes, beta: float) -> Iterator[Sizes]:
    """Where a Newton step goes: first for the secular equations, then for the program itself, which always descends."""
    groups = ((sizes > 0) | (point.g > beta)).nonzero()[:, 0]
    h = quadratic.curvature(point, groups) / beta**2
    diagonal = h.diagonal()
    usable = diagonal > 1e-300
    groups, h, scale = groups[usable], h[usable][:, usable], diagonal[usable].rsqrt()
    h = h * scale[:, None] * scale
    h.diagonal().add_(RIDGE)
    now, g = sizes[groups] / scale, point.g[groups]
    for gradient in ((g / beta).square() * (beta - g), (beta**2 - g.square()) / (2.0 * beta)):
        f = h @ now - gradient * scale
        x = by_pivoting(h.cpu().numpy(), f.cpu().numpy(), ((now > 0) | (f > 0)).cpu().numpy())
        target = torch.zeros_like(sizes)
        target[groups] = torch.from_numpy(x).to(scale) * scale
        yield target


def _search(quadratic: Quadratic, point: Point, sizes: Sizes, target: Sizes, beta: float) -> tuple[Sizes, Point] | None:
    """The step, halved until the value falls as it should; where it is flat, until the violation halves; or None."""
    slope = ((beta**2 - point.g.square()) * (target - sizes)).sum().item() / (2.0 * beta)
    before = violation(point, sizes, beta)
    for halvings in range(30 if slope < 0 else 1):
        t = 0.5**halvings
        trial = target if halvings == 0 else sizes + t * (target - sizes)
        there = quadratic.evaluate(trial, beta)
        if slope < 0 and there.value <= point.value + 1e-4 * t * slope:
            return trial, there
        if there.value <= point.value + FLAT * abs(point.value) and violation(there, trial, beta) < 0.5 * before:
            return trial, there
    return None
