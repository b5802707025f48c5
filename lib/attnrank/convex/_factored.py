"""Newton's method in heads: at fixed ranks the nuclear program is smooth in the factors z_k = sum of u w^T.

Every singular value is a head with a one-hot attention, and its share of the penalty is (|u|^2 + |w|^2) / 2.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from attnrank.convex._arrays import times_own_transpose
from attnrank.convex.penalties import Blocks
from attnrank.convex.problem import Problem

#: No Newton steps with more unknowns than this.
MOST_UNKNOWNS = 4000
#: Heads that are this small beside the largest are none.
NOTHING = 1e-14


@dataclass
class Factors:
    """Heads: token, u and w of each."""

    token: Int64[Tensor, "heads"]
    u: Float64[Tensor, "heads d"]
    w: Float64[Tensor, "heads outputs"]

    def blocks(self, tokens: int) -> Blocks:
        """z; a head that Newton's method has driven to zero, but for rounding, is zero."""
        size = self.u.norm(dim=1) * self.w.norm(dim=1)
        u = torch.where(size > NOTHING * size.max(), 1.0, 0.0)[:, None] * self.u
        z = u.new_zeros(tokens, u.shape[1], self.w.shape[1])
        return z.index_add_(0, self.token, u[:, :, None] * self.w[:, None])


def factors(z: Blocks, tol: float = 1e-12) -> Factors:
    """One head for each singular value above ``tol`` times the largest, balanced: |u| = |w|."""
    left, values, right = torch.linalg.svd(z, full_matrices=False)
    token, place = (values > tol * values.max()).nonzero(as_tuple=True)
    root = values[token, place].sqrt()[:, None]
    return Factors(token, root * left[token, :, place], root * right[token, place])


def polish(problem: Problem, beta: float, z: Blocks, steps: int = 20) -> Blocks:
    """z after damped Newton steps in its factors; z itself where it is zero or has too many unknowns."""
    heads = factors(z)
    if len(heads.token) == 0 or len(heads.token) * (z.shape[1] + z.shape[2]) > MOST_UNKNOWNS:
        return z
    value, damping = _value(problem, beta, heads), 1e-9
    for _ in range(steps):
        gradient, hessian = _derivatives(problem, beta, heads)
        size = hessian.diagonal().mean().item()
        small = gradient.norm().item() <= 1e-14 * size * heads.u.norm().item()
        while not small and damping < 1e6:
            trial = _step(heads, gradient, hessian, damping * size)
            there = float("inf") if trial is None else _value(problem, beta, trial)
            if trial is not None and there <= value * (1.0 + 1e-15):
                break
            damping *= 30.0
        else:
            return heads.blocks(z.shape[0])
        heads, value, damping = trial, there, max(damping / 100.0, 1e-13)
    return heads.blocks(z.shape[0])


def _value(problem: Problem, beta: float, heads: Factors) -> float:
    u = torch.einsum("ihd,hd->ih", problem.a[:, heads.token], heads.u) @ heads.w
    return problem.loss.value(u, problem.y) + 0.5 * beta * (heads.u.square().sum() + heads.w.square().sum()).item()


def _step(heads: Factors, gradient: Tensor, hessian: Tensor, damping: float) -> Factors | None:
    matrix = hessian.clone()
    matrix.diagonal().add_(damping)
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if failed:
        return None
    move = torch.cholesky_solve(gradient[:, None], factor)[:, 0]
    at = heads.u.numel()
    return Factors(heads.token, heads.u - move[:at].view_as(heads.u), heads.w - move[at:].view_as(heads.w))


def _derivatives(problem: Problem, beta: float, heads: Factors) -> tuple[Tensor, Tensor]:
    """Gradient and Hessian with respect to all u, then all w."""
    count, d = heads.u.shape
    a = problem.a[:, heads.token]  # (samples, heads, d)
    scores = torch.einsum("ihd,hd->ih", a, heads.u)
    predicted = scores @ heads.w
    slope = -problem.loss.residual(predicted, problem.y)
    cross = torch.einsum("ihd,il->hdl", a, slope)
    gradient = torch.cat(
        [
            (torch.einsum("hdl,hl->hd", cross, heads.w) + beta * heads.u).flatten(),
            (scores.mT @ slope + beta * heads.w).flatten(),
        ]
    )
    weights = problem.loss.curvature(predicted)
    uu, uw, ww = _gauss_newton(a, scores, heads.w, weights)
    each = torch.arange(count, device=a.device)
    uw[each, :, each] += cross
    uu, uw, ww = (block.reshape(block.shape[0] * block.shape[1], -1) for block in (uu, uw, ww))
    hessian = torch.cat([torch.cat([uu, uw], 1), torch.cat([uw.mT, ww], 1)])
    hessian.diagonal().add_(beta)
    return gradient, hessian


def _gauss_newton(a: Tensor, scores: Tensor, w: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Second derivatives of the loss through the predictions: (heads, d, heads, d), (heads, d, heads, c), (heads, c,
    heads, c)."""
    samples, count, d = a.shape
    outputs = w.shape[1]
    flat = a.flatten(1)
    if weights is None:
        gram = times_own_transpose(flat.mT.contiguous()).view(count, d, count, d)
        uu = gram * (w @ w.mT)[:, None, :, None]
        uw = (flat.mT @ scores).view(count, d, count, 1) * w[:, None, None, :]
        ww = (scores.mT @ scores)[:, None, :, None] * torch.eye(outputs, dtype=a.dtype, device=a.device)[:, None]
        return uu, uw, ww
    turned = torch.einsum("ilm,hm->ihl", weights, w)  # H w
    pairs = turned @ w.mT  # w_h^T H w_g for each sample
    uu = torch.stack([(a[:, h].mT @ (a * pairs[:, h, :, None]).flatten(1)).view(d, count, d) for h in range(count)])
    spread = (scores[:, :, None, None] * turned[:, None]).permute(0, 2, 1, 3)  # samples, h (of u), h' (of w), outputs
    uw = torch.stack([(a[:, h].mT @ spread[:, h].flatten(1)).view(d, count, outputs) for h in range(count)])
    ww = torch.einsum("ih,ig,ilm->hlgm", scores, scores, weights)
    return uu, uw, ww
