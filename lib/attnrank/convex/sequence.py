"""The program with a whole sequence as output: attention matrices (n, n) with rows that sum to 1, shared by all
samples.

Program (30) of Ergen, Neyshabur and Mehta (2022): predictions sum_j W_j x w2_j w3_j^T with weight decay on |w2|_1 and
|w3|_1 is sum over features q and outputs l of C_ql x[:, q], where C_ql = C+ - C- are differences of multiples of
row-stochastic matrices, C+ 1 = t+ 1, and the penalty is the sum of all t+ and t-.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from attnrank import _check
from attnrank.convex._bounded import by_descent
from attnrank.convex.certificate import Certified
from attnrank.convex.losses import LOSSES, CrossEntropy, Squared
from attnrank.convex.problem import checked_array, in_range, matching, positive, probabilities
from attnrank.convex.solver import NotConvergedError

#: "stochastic": t is the common row sum of C. "max_row_sum": the largest row sum of |C|, strictly weaker.
READINGS = ("stochastic", "max_row_sum")
RIDGE = 1e-12


@dataclass(frozen=True, kw_only=True)
class SequenceSolution(Certified):
    """A point with its certificate.

    plus, minus : float64 (d, outputs, n, n), the matrices C+ and C-. t_plus, t_minus : float64 (d, outputs), their row
    sums. With the reading "max_row_sum" ``plus`` holds C itself, ``minus`` is zero, and ``t_plus`` is the largest row
    sum of |C|. primal, dual, gap, iterations, dual_point, beta : as in ``Certified``.
    """

    plus: Tensor
    minus: Tensor
    t_plus: Tensor
    t_minus: Tensor

    def predict(self, x: Float64[Tensor, "samples n d"]) -> Float64[Tensor, "samples n outputs"]:
        """Predictions for tokens x; raises ValueError for a shape that does not fit."""
        d, _, n, _ = self.plus.shape
        if _check.matrices("x", x).ndim != 3 or x.shape[1:] != (n, d):  # an axis of length 1 would be broadcast
            raise ValueError(f"x must have shape (samples, {n}, {d}) for this solution, got {tuple(x.shape)}")
        return torch.einsum("qlrs,isq->irl", self.plus - self.minus, x.to(self.plus.dtype))


@dataclass
class _Selections:
    """Hard selections found so far: each row r of selection j takes token choice[j, r] with sign[j, r]."""

    feature: Int64[Tensor, "count"]
    output: Int64[Tensor, "count"]
    choice: Int64[Tensor, "count n"]
    sign: Float64[Tensor, "count n"]
    columns: Float64[Tensor, "count predictions"]

    def joined(self, other: _Selections) -> _Selections:
        return _Selections(*(torch.cat([getattr(self, f), getattr(other, f)]) for f in self.__dataclass_fields__))

    def kept(self, mask: Tensor) -> _Selections:
        return _Selections(*(getattr(self, f)[mask] for f in self.__dataclass_fields__))


def solve_sequence(
    x: Tensor,
    y: Tensor,
    beta: float,
    *,
    loss: str = "squared",
    reading: str = "stochastic",
    tol: float = 1e-9,
    max_iterations: int = 2000,
) -> SequenceSolution:
    """Minimise the loss of sum_ql C_ql x[:, q] against sequences y plus beta times the sum of all t, to a certified
    gap.

    Each C+ is a sum of hard selections, matrices with a single 1 in each row. The solver starts from none, adds those
    that violate optimality most, and weighs all of them anew, until the duality gap closes. For small n, d and c.

    Parameters
    ----------
    x : floating point (N, n, d). y : floating point (N, n) for one output for each token, or (N, n, c).
    beta : weight of the penalty, > 0. loss : "squared" (half) or "cross_entropy", as in ``solve``, for each token.
    reading : "stochastic", the exact program, or "max_row_sum", the loose one. tol : relative duality gap to reach.
    max_iterations : rounds of adding selections at most.

    Returns
    -------
    SequenceSolution; the matrix of attention of feature q and output l is ``plus[q, l] / t_plus[q, l]``, and likewise
    for minus, where t is not zero.

    Raises
    ------
    ValueError : an argument of the wrong type, shape or range, or with NaN; the message names it.
    NotConvergedError : a ValueError that carries the best point, where the gap was not reached.

    Examples
    --------
    >>> import torch
    >>> from attnrank import convex
    >>> x = torch.ones(1, 2, 1, dtype=torch.float64)    # one sequence of two equal tokens
    >>> solution = convex.solve_sequence(x, torch.tensor([[1.0, 0.0]], dtype=torch.float64), beta=0.1)
    >>> round(solution.primal, 6), round(solution.t_plus.item(), 6)
    (0.2975, 0.45)
    """
    given = y
    x, y, loss_of = _checked(x, y, loss)
    _check.choice("reading", reading, READINGS)
    beta, tol = positive("beta", beta), _check.real("tol", tol, minimum=0.0)
    limit = _check.integer("max_iterations", max_iterations, minimum=1)
    targets = y.reshape(-1, y.shape[2])
    found, weights = None, x.new_zeros(0)
    unused = weights
    for iteration in range(limit + 1):
        u = torch.zeros_like(targets) if found is None else (weights @ found.columns).view_as(targets)
        v = loss_of.residual(u, targets)
        correlations = torch.einsum("irl,isq->qlrs", v.view_as(y), x)
        best, sizes = _best_selections(correlations, reading)
        primal = loss_of.value(u, targets) + beta * weights.sum().item()
        largest = sizes.max().item()
        scale = loss_of.best_scale(v, targets, beta / largest if largest > 0 else float("inf"))
        dual = loss_of.dual(scale * v, targets)
        if primal - dual <= tol * primal or iteration == limit:
            break
        new = _selections(x, y, best, sizes > beta)
        if found is None:
            found = new
        else:
            unused = torch.where(weights > 0, 0, unused + 1)
            keep = unused < 20
            found, weights, unused = found.kept(keep).joined(new), weights[keep], unused[keep]
        added = len(found.feature) - len(weights)
        weights = torch.cat([weights, weights.new_zeros(added)])
        unused = torch.cat([unused, unused.new_zeros(added)])
        weights = _weigh(loss_of, found.columns, targets, beta, weights)
    solution = _solution(x, y, found, weights, reading, primal, dual, iteration, (scale * v).view(given.shape), beta)
    if not primal - dual <= tol * primal:
        raise NotConvergedError(solution, tol)
    return solution


def _checked(x: Tensor, y: Tensor, loss: str) -> tuple[Tensor, Tensor, Squared | CrossEntropy]:
    x = checked_array("x", x, 3, "(samples, tokens, dimension)")
    y = checked_array("y", y, (2, 3), "(samples, tokens) or (samples, tokens, outputs)")
    matching("y", y, x)
    if y.shape[1] != x.shape[1]:
        raise ValueError(f"y must have one row for each of the {x.shape[1]} tokens of x, got {y.shape[1]}")
    in_range("x", x)
    in_range("y", y)
    if _check.choice("loss", loss, LOSSES) == "cross_entropy":
        y = probabilities(y, last=y.ndim == 3)
    return x, y[..., None] if y.ndim == 2 else y, LOSSES[loss]


def _best_selections(correlations: Tensor, reading: str) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """For each (feature, output) and side the selection that correlates most, as (choice, sign), and by how much."""
    if reading == "max_row_sum":
        best, choice = correlations.abs().max(-1)
        sign = correlations.gather(-1, choice[..., None])[..., 0].sign()
        return (choice[None], torch.where(sign == 0, 1.0, sign)[None]), best.sum(-1)[None]
    both = torch.stack([correlations, -correlations])
    best, choice = both.max(-1)
    side = torch.tensor([1.0, -1.0], dtype=best.dtype, device=best.device)
    return (choice, side[:, None, None, None].expand_as(best)), best.sum(-1)


def _selections(x: Tensor, y: Tensor, best: tuple[Tensor, Tensor], chosen: Tensor) -> _Selections:
    _, feature, output = chosen.nonzero(as_tuple=True)
    choice, sign = best[0][chosen], best[1][chosen]
    values = x.permute(2, 1, 0)[feature[:, None], choice] * sign[..., None]  # (count, rows, samples)
    columns = x.new_zeros(len(feature), *y.shape)
    columns[torch.arange(len(feature), device=x.device), :, :, output] = values.mT
    return _Selections(feature, output, choice, sign, columns.flatten(1))


def _weigh(loss: Squared | CrossEntropy, columns: Tensor, y: Tensor, beta: float, weights: Tensor) -> Tensor:
    """Nonnegative weights of given selections: one quadratic program, or one for each Newton step of the
    cross-entropy."""
    primal = float("inf")
    for _ in range(1 if loss.name == "squared" else 50):
        u = (weights @ columns).view_as(y)
        slope = columns @ loss.residual(u, y).flatten() - beta
        curvature = loss.curvature(u)
        h = columns @ _apply(curvature, columns, y).mT
        size = h.diagonal().sqrt().clamp_min(1e-150)
        h = h / size[:, None] / size
        h.diagonal().add_(RIDGE)
        f = h @ (weights * size) + slope / size
        descended = by_descent(h.cpu().numpy(), f.cpu().numpy(), (weights * size).cpu().numpy())
        target = torch.from_numpy(descended).to(weights) / size
        if loss.name == "squared":
            return target
        for halvings in range(30):
            trial = weights + 0.5**halvings * (target - weights)
            value = loss.value((trial @ columns).view_as(y), y) + beta * trial.sum().item()
            if value < primal:
                break
        if value >= primal * (1.0 - 1e-15):
            return weights
        weights, primal = trial, value
    return weights


def _apply(curvature: Tensor | None, columns: Tensor, y: Tensor) -> Tensor:
    """Weights H of the loss times each selection's predictions."""
    if curvature is None:
        return columns
    shaped = columns.view(-1, *y.shape)
    weighted = shaped * curvature[:, None] if curvature.ndim == 1 else torch.einsum("ilm,jim->jil", curvature, shaped)
    return weighted.flatten(1)


def _solution(
    x: Tensor,
    y: Tensor,
    found: _Selections | None,
    weights: Tensor,
    reading: str,
    primal: float,
    dual: float,
    iterations: int,
    v: Tensor,
    beta: float,
) -> SequenceSolution:
    n, d, outputs = x.shape[1], x.shape[2], y.shape[2]
    sides = x.new_zeros(2, d, outputs, n, n)
    sums = x.new_zeros(2, d, outputs)
    if found is not None:
        side = (found.sign[:, 0] < 0).long() if reading == "stochastic" else torch.zeros_like(found.feature)
        values = weights[:, None] * (found.sign.abs() if reading == "stochastic" else found.sign)
        rows = torch.arange(n, device=x.device)
        where = (side[:, None], found.feature[:, None], found.output[:, None], rows, found.choice)
        sides.index_put_(where, values, accumulate=True)
        sums.index_put_((side, found.feature, found.output), weights, accumulate=True)
    return SequenceSolution(
        plus=sides[0],
        minus=sides[1],
        t_plus=sums[0],
        t_minus=sums[1],
        primal=primal,
        dual=dual,
        gap=primal - dual,
        iterations=iterations,
        dual_point=v,
        beta=beta,
    )
