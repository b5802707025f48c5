"""Certificates: how far a point can be from the optimum, by a dual point. Nothing here knows of the solver."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from attnrank import _check
from attnrank.convex.problem import Problem, checked_array, matching, positive, problem

#: Dual points are scaled so that rounding leaves them feasible.
ROUNDING = 1e-14


@dataclass(frozen=True, kw_only=True)
class Certified:
    """What every solution carries.

    primal, dual : the objective at the point, and a lower bound of its optimum, the dual value of ``dual_point``.
    gap : primal - dual, so that the objective is at most this far above the optimum.
    iterations : steps made. dual_point : float64 of y's shape. beta : weight of the penalty.
    """

    primal: float
    dual: float
    gap: float
    iterations: int
    dual_point: Tensor
    beta: float

    @property
    def relative_gap(self) -> float:
        """gap / primal, and 0 where both are 0."""
        return 0.0 if self.gap <= 0 else self.gap / self.primal


def check(
    x: Tensor, y: Tensor, beta: float, z: Tensor, v: Tensor, *, loss: str = "squared", penalty: str = "group"
) -> tuple[float, float, float]:
    """Objective at z, dual value at v, and by what v is feasible: a few lines to read, with no use of the solver.

    The optimum lies between the second and the first number, whatever z and v are, provided that the third, the dual
    norm of sum_i x_i v_i over beta, is at most 1, up to rounding. The dual value is minus infinity where the conjugate
    of the cross-entropy is infinite: where y - v are not probabilities. Rows that sum to 1 to 1e-9 are divided by
    their sums first, and v is changed accordingly.

    Parameters
    ----------
    x, y, beta, loss, penalty : as for :func:`attnrank.convex.solve`; with gates pass ``gated(x, gates)`` as x and
        ``z.flatten(0, 1)`` as z.
    z : (n, d) where y is (samples,), else (n, d, outputs); v : of the shape of y.

    Raises
    ------
    ValueError : bad argument, by name.

    Examples
    --------
    >>> import torch
    >>> from attnrank import convex
    >>> generator = torch.Generator().manual_seed(0)
    >>> x = torch.randn(20, 6, 4, generator=generator, dtype=torch.float64)    # samples, tokens, width
    >>> y = x[:, 2] @ torch.ones(4, dtype=torch.float64)    # only token 2 matters
    >>> solution = convex.solve(x, y, beta=2.0)
    >>> primal, dual, _ = convex.check(x, y, 2.0, solution.z, solution.dual_point)
    >>> abs(primal - dual) < 1e-6
    True
    """
    given, beta = problem(x, y, loss, penalty, None), positive("beta", beta)
    z, v = _shaped("z", z, given.shape), _shaped("v", v, tuple(y.shape))
    x, y, v, z = given.a, given.y, v.reshape(given.y.shape), given.blocks(z)
    q = y - v
    if loss == "cross_entropy" and y.shape[1] > 1 and (q.sum(1) - 1).abs().max() <= 1e-9:
        q = q / q.sum(1, keepdim=True)
        v = y - q
    u, c = torch.einsum("ikd,kdl->il", x, z), torch.einsum("ikd,il->kdl", x, v)
    size = torch.linalg.svdvals if penalty == "nuclear" else lambda blocks: blocks.norm(dim=1)
    entropy = torch.special.entr
    if loss == "squared":
        value, dual = (u - y).square().sum() / 2, (y * v - v.square() / 2).sum()
    elif y.shape[1] == 1:
        value, dual = (torch.logaddexp(u, 0 * u) - y * u).sum(), (entropy(q) + entropy(1 - q)).sum()
    else:
        value, dual = torch.logsumexp(u, 1).sum() - (y * u).sum(), entropy(q).sum()
        dual = dual if (q.sum(1) - 1).abs().max() <= 1e-9 else dual.new_tensor(-math.inf)
    return (value + beta * size(z).sum()).item(), dual.item(), (size(c).max() / beta).item()


def _shaped(name: str, value: Tensor, shape: tuple[int, ...]) -> Tensor:
    value = checked_array(name, value, len(shape), str(shape))
    if value.shape != shape:
        raise ValueError(f"{name} must have shape {shape} for this x and y, got {tuple(value.shape)}")
    return value


def gated(x: Tensor, gates: Tensor) -> Tensor:
    """Tokens float64 (samples, gates n, d): for each gate in turn, every token times the sample's gate.

    ``x`` (samples, n, d), ``gates`` (samples, gates).

    Raises
    ------
    ValueError : not tensors of floating-point numbers, or shapes that do not fit.

    Examples
    --------
    >>> import torch
    >>> from attnrank import convex
    >>> convex.gated(torch.ones(2, 3, 4, dtype=torch.float64), torch.ones(2, 5, dtype=torch.float64)).shape
    torch.Size([2, 15, 4])
    """
    x = checked_array("x", x, 3, "(samples, tokens, dimension)")
    gates = checked_array("gates", gates, 2, "(samples, gates)")
    matching("gates", gates, x)
    return _check.finite("gates times x", (gates[:, :, None, None] * x[:, None]).flatten(1, 2))


def feasible(problem: Problem, beta: float, v: Tensor, c: Tensor) -> tuple[Tensor, float]:
    """A feasible multiple s v, s >= 0, and its dual value: of the squared loss the largest, of the cross-entropy that
    of the largest feasible s up to 1, which need not be the largest far from the optimum.

    ``c`` is ``problem.correlate(v)``. Feasible means that the dual norm of ``s c`` is at most beta. Where outputs have
    nothing to do with each other, squared loss and group penalty, each has its own s.
    """
    if problem.loss.name == "squared" and problem.penalty.name == "group":
        limits = [_largest(size, beta) for size in problem.penalty.norms(c).amax(0).tolist()]
        parts = [
            problem.loss.best_scale(v[:, j : j + 1], problem.y[:, j : j + 1], limit) for j, limit in enumerate(limits)
        ]
        v = torch.stack([s * column for s, column in zip(parts, v.unbind(1), strict=True)], 1)
    else:
        v = problem.loss.best_scale(v, problem.y, _largest(problem.penalty.dual_norm(c), beta)) * v
    return v, problem.loss.dual(v, problem.y)


def _largest(size: float, beta: float) -> float:
    if not math.isfinite(size):
        return 0.0
    return (1.0 - ROUNDING) * beta / size if size > 0 else float("inf")
