"""Solve a convex attention program to a certified gap, for one weight of the penalty or along a path of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from attnrank import _check
from attnrank.convex._group import solve_group
from attnrank.convex._nuclear import solve_nuclear
from attnrank.convex.certificate import Certified, feasible
from attnrank.convex.penalties import Blocks
from attnrank.convex.problem import Problem, checked_array, positive, problem

#: Relative duality gaps at which the solver stops unless told otherwise.
TOLERANCES = {"group": 1e-9, "nuclear": 1e-7}


@dataclass(frozen=True, kw_only=True)
class Solution(Certified):
    """A point with its certificate.

    z : float64 (gates, n, d, outputs), without the axes that the program does not have.
    active : int64, sorted: positions of the tokens at which z is not zero (for any gate and output).
    iterations : Newton steps, and chunks of gradient steps.
    primal, dual, gap, dual_point, beta : as in ``Certified``.
    """

    z: Tensor
    active: Tensor


class NotConvergedError(ValueError):
    """The gap asked for was not reached; ``solution`` is the best point, with its gap."""

    def __init__(self, solution: Certified, tol: float):
        super().__init__(
            f"tol = {tol:g} was not reached: the relative duality gap is {solution.relative_gap:.3g} after "
            f"{solution.iterations} steps (the point is in the error's solution)"
        )
        self.solution = solution


def solve(
    x: Tensor,
    y: Tensor,
    beta: float,
    *,
    loss: str = "squared",
    penalty: str = "group",
    gates: Tensor | None = None,
    tol: float | None = None,
    max_iterations: int = 500,
    start: Tensor | None = None,
) -> Solution:
    """Minimise sum_i loss(sum_k <z_k, x_ik>, y_i) + beta sum_k |z_k| over z, to a certified relative duality gap.

    Ergen, Neyshabur and Mehta (2022), program (9) and those for several outputs, (12), and gates, (14). All
    computations are in float64 on the device of x, without gradients.

    Parameters
    ----------
    x : floating point (N, n, d), N sequences of n tokens.
    y : floating point (N,) for one output or (N, c) for several. For ``cross_entropy`` probabilities: rows that sum
        to 1 with several outputs, probabilities of the first of two classes with one.
    beta : weight of the penalty, > 0.
    loss : "squared", half the squared error, or "cross_entropy".
    penalty : "group", the norm of each token's vector, one for each output; or "nuclear", the nuclear norm of each
        token's matrix (d, c).
    gates : floating point (N, G); the prediction is then the sum over gates of gates[i, j] times that of z[j].
    tol : relative duality gap to reach; default 1e-9 for the group penalty, 1e-7 for the nuclear one.
    max_iterations : steps at most.
    start : floating point, a point of z's shape to start from.

    Returns
    -------
    Solution; z is exactly zero on inactive tokens, and everywhere if beta >= :func:`beta_max`.

    Raises
    ------
    ValueError : an argument of the wrong type, shape or range, or with NaN; the message names it.
    NotConvergedError : a ValueError that carries the best point, where the gap was not reached.

    Examples
    --------
    >>> import torch
    >>> from attnrank import convex
    >>> generator = torch.Generator().manual_seed(0)
    >>> x = torch.randn(20, 6, 4, generator=generator, dtype=torch.float64)    # samples, tokens, width
    >>> y = x[:, 2] @ torch.ones(4, dtype=torch.float64)    # only token 2 matters
    >>> solution = convex.solve(x, y, beta=2.0)
    >>> solution.active.tolist(), solution.gap <= 1e-9
    ([2], True)
    """
    checked = problem(x, y, loss, penalty, gates)
    tol = _tolerance(tol, penalty)
    max_iterations = _check.integer("max_iterations", max_iterations, minimum=1)
    if start is not None and (not isinstance(start, Tensor) or tuple(start.shape) != checked.shape):
        raise ValueError(f"start must be a tensor of z's shape {checked.shape}, got {getattr(start, 'shape', start)}")
    if start is not None:
        start = checked_array("start", start, len(checked.shape), str(checked.shape))
    blocks = _zeros(checked) if start is None else checked.blocks(start.to(checked.a))
    return _solve(checked, positive("beta", beta), blocks, tol, max_iterations)


def path(
    x: Tensor,
    y: Tensor,
    betas: Iterable[float],
    *,
    loss: str = "squared",
    penalty: str = "group",
    gates: Tensor | None = None,
    tol: float | None = None,
    max_iterations: int = 500,
) -> list[Solution]:
    """Solutions for several betas, in their order, each started from the one before; parameters as for ``solve``.

    Largest first is fastest. What does not depend on beta is computed once. Raises what ``solve`` raises, and
    ValueError if ``betas`` is empty or no collection.

    Examples
    --------
    >>> import torch
    >>> from attnrank import convex
    >>> generator = torch.Generator().manual_seed(0)
    >>> x = torch.randn(20, 6, 4, generator=generator, dtype=torch.float64)    # samples, tokens, width
    >>> y = x[:, 2] @ torch.ones(4, dtype=torch.float64)    # only token 2 matters
    >>> largest = convex.beta_max(x, y)
    >>> [len(solution.active) for solution in convex.path(x, y, [1.1 * largest, 0.5 * largest])]
    [0, 1]
    """
    checked = problem(x, y, loss, penalty, gates)
    tol = _tolerance(tol, penalty)
    max_iterations = _check.integer("max_iterations", max_iterations, minimum=1)
    try:
        several = iter(betas)
    except TypeError:  # an array without axes is an Iterable and cannot be iterated over
        raise ValueError(f"betas must be several numbers, got {betas!r}") from None
    solutions, blocks = [], _zeros(checked)
    for beta in several:
        solutions.append(_solve(checked, positive("betas", beta), blocks, tol, max_iterations))
        blocks = checked.blocks(solutions[-1].z)
    if not solutions:
        raise ValueError("betas must not be empty")
    return solutions


def beta_max(
    x: Tensor, y: Tensor, *, loss: str = "squared", penalty: str = "group", gates: Tensor | None = None
) -> float:
    """The smallest beta for which z = 0 is optimal: the dual norm of the correlations at z = 0.

    Parameters, and the ValueError for bad ones, as for ``solve``.

    Examples
    --------
    >>> import torch
    >>> from attnrank import convex
    >>> generator = torch.Generator().manual_seed(0)
    >>> x = torch.randn(20, 6, 4, generator=generator, dtype=torch.float64)    # samples, tokens, width
    >>> y = x[:, 2] @ torch.ones(4, dtype=torch.float64)    # only token 2 matters
    >>> bool((convex.solve(x, y, 1.01 * convex.beta_max(x, y)).z == 0).all())
    True
    """
    return problem(x, y, loss, penalty, gates).beta_max()


def predict(x: Tensor, z: Tensor, *, gates: Tensor | None = None) -> Tensor:
    """Predictions (N,) or (N, c) of z on tokens x (N, n, d), with gates (N, G) where z has an axis of gates; as z.

    Raises
    ------
    ValueError : not tensors, or shapes that do not fit.

    Examples
    --------
    >>> import torch
    >>> from attnrank import convex
    >>> generator = torch.Generator().manual_seed(0)
    >>> x = torch.randn(20, 6, 4, generator=generator, dtype=torch.float64)    # samples, tokens, width
    >>> y = x[:, 2] @ torch.ones(4, dtype=torch.float64)    # only token 2 matters
    >>> convex.predict(x, torch.zeros(6, 4, dtype=torch.float64)).shape
    torch.Size([20])
    """
    for name, value in (("x", x), ("z", z)) if gates is None else (("x", x), ("z", z), ("gates", gates)):
        _check.matrices(name, value)
    if x.ndim != 3:
        raise ValueError(f"x must have shape (samples, tokens, dimension), got {tuple(x.shape)}")
    if gates is not None and (gates.ndim != 2 or len(gates) != len(x)):
        raise ValueError(f"gates must have shape (samples, gates), with the {len(x)} of x, got {tuple(gates.shape)}")
    shape = (*(() if gates is None else gates.shape[1:]), *x.shape[1:])
    if z.shape[: len(shape)] != shape or z.ndim > len(shape) + 1:
        outputs = f"({', '.join(map(str, shape))}, outputs)"
        raise ValueError(f"z must have shape {shape} or {outputs} for this x, got {tuple(z.shape)}")
    if gates is None:
        return torch.einsum("ikd,kd...->i...", x.to(z.dtype), z)
    return torch.einsum("ig,ikd,gkd...->i...", gates.to(z.dtype), x.to(z.dtype), z)


def _solve(checked: Problem, beta: float, start: Blocks, tol: float, max_iterations: int) -> Solution:
    if beta >= checked.beta_max():
        return _certified(checked, beta, _zeros(checked), 0)
    scalar = checked.y.shape[1] == 1
    method = solve_group if checked.penalty.name == "group" or scalar else solve_nuclear
    z, v, steps = method(checked, beta, start.clone(), tol, max_iterations)  # z may be start itself
    solution = _certified(checked, beta, z, steps, v, tol)
    if not solution.relative_gap <= tol:
        raise NotConvergedError(solution, tol)
    return solution


def _certified(
    checked: Problem, beta: float, z: Blocks, steps: int, found: Tensor | None = None, tol: float = 0.0
) -> Solution:
    """The certificate is computed anew: by the residual of z, or, where that misses ``tol``, by the dual point found.

    They differ by rounding in z, which matters where large terms cancel in the predictions.
    """
    u = checked.predict(z)
    primal = checked.loss.value(u, checked.y) + beta * checked.penalty.value(z)
    residual = checked.loss.residual(u, checked.y)
    v, dual = feasible(checked, beta, residual, checked.correlate(residual))
    if found is not None and primal - dual > tol * primal:
        v, dual = max((v, dual), feasible(checked, beta, found, checked.correlate(found)), key=lambda pair: pair[1])
    active = z.ne(0).flatten(1).any(1).view(-1, checked.tokens).any(0).nonzero()[:, 0]
    return Solution(
        z=z.view(checked.shape),
        primal=primal,
        dual=dual,
        gap=primal - dual,
        active=active,
        iterations=steps,
        dual_point=v[:, 0] if checked.scalar else v,
        beta=beta,
    )


def _zeros(checked: Problem) -> Blocks:
    return checked.a.new_zeros(*checked.a.shape[1:], checked.y.shape[1])


def _tolerance(tol: float | None, penalty: str) -> float:
    return TOLERANCES[penalty] if tol is None else _check.real("tol", tol, minimum=0.0)
