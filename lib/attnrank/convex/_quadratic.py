"""Group-penalised least squares in the sizes of its groups: one evaluation, and the matrix of a Newton step.

The program min over z of <H u, u> / 2 - <b, u> + beta sum_g |z_g|, where u = <a, z> are the predictions and a group g
is a token with an output, gets one nonnegative size s_g for each group: |z_g| = min over s_g of (|z_g|^2 / s_g + s_g) /
2. For given sizes the best z solves linear equations, of dimension min(samples, active groups x d).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from attnrank.convex._arrays import columns, token_products
from attnrank.convex._gram import Gram, Kernels
from attnrank.convex.problem import Problem

Sizes = Float64[Tensor, "groups"]

#: Where the diagonal of a Cholesky factor varies by more than this, a solution is refined once.
ILL_CONDITIONED = 1e2


@dataclass
class Point:
    """What belongs to sizes s: z on the active groups, v = b - H u, c = a^T v and g = |c| of every group."""

    active: Int64[Tensor, "active"]
    z: Float64[Tensor, "active d"]
    v: Float64[Tensor, "samples outputs"]
    c: Float64[Tensor, "groups d"]
    g: Sizes
    value: float  # of the program with the sizes as they are, no smaller than with z alone
    factor: Tensor | None = None  # Cholesky factor: of I + sum s K / beta by samples, of I + R G R by tokens
    root: Tensor | None = None  # R, the diagonal (s / beta)^(1/2), where the factor is by tokens


class Quadratic:
    """One such program: weights H None (the identity), (samples,), or (samples, outputs, outputs); b (samples,
    outputs).

    ``constant`` is added to every value. ``linear`` is ``correlate(b)``, where that is known already. Groups are
    numbered token by token, each with all its outputs.
    """

    def __init__(
        self,
        problem: Problem,
        b: Tensor,
        weights: Tensor | None = None,
        constant: float = 0.0,
        linear: Tensor | None = None,
    ):
        self.a, self.b, self.weights, self.constant = problem.a, b, weights, constant
        self.outputs = b.shape[1]
        self.kernels = problem.caches.setdefault("kernels", Kernels(self.a))
        if weights is None:  # the Gram matrix is the same for every output and every beta
            self.gram = problem.caches.setdefault("gram", Gram(self.a, None, 1))
        else:
            self.gram = Gram(self.a, weights, self.outputs)
        self.linear = self.correlate(b) if linear is None else linear
        self._copied: tuple[Tensor, Tensor] | None = None

    def correlate(self, v: Float64[Tensor, "samples outputs"]) -> Float64[Tensor, "groups d"]:
        """a^T v for every group."""
        c = (self.a.flatten(1).mT @ v).view(*self.a.shape[1:], self.outputs)
        return c.mT.reshape(-1, self.a.shape[2])

    def predict(self, active: Int64[Tensor, "active"], z: Float64[Tensor, "active d"]) -> Tensor:
        """u (samples, outputs) of z on the active groups."""
        u = torch.zeros_like(self.b)
        for output, of in self._by_output(active):
            u[:, output] = self._columns(active[of] // self.outputs) @ z[of].flatten()
        return u

    def _columns(self, tokens: Tensor) -> Tensor:
        """As ``columns``; the last copy is kept, for the same tokens are often asked for again."""
        if self._copied is None or not torch.equal(self._copied[0], tokens):
            self._copied = tokens, columns(self.a, tokens)
        return self._copied[1]

    def weigh(self, u: Float64[Tensor, "samples outputs"]) -> Float64[Tensor, "samples outputs"]:
        """H u."""
        if self.weights is None:
            return u
        return self.weights[:, None] * u if self.outputs == 1 else (self.weights @ u[:, :, None])[:, :, 0]

    def evaluate(self, sizes: Sizes, beta: float) -> Point:
        """The best z for these sizes, by one Cholesky factorisation."""
        active = sizes.nonzero()[:, 0]
        if len(active) == 0:
            return Point(active, self.linear[:0], self.b, self.linear, self.linear.norm(dim=1), self.constant)
        few = self.outputs == 1 and len(active) * self.a.shape[2] > self.a.shape[0]
        point = self._by_samples(sizes, active, beta) if few else self._by_tokens(sizes, active, beta)
        fit = (self.linear[active] * point.z).sum().item()
        point.value = self.constant - 0.5 * fit + 0.5 * beta * sizes.sum().item()
        return point

    def _by_samples(self, sizes: Sizes, active: Tensor, beta: float) -> Point:
        matrix = self.kernels.sum(active, sizes[active] / beta)
        root = None if self.weights is None else self.weights.sqrt()
        if root is not None:
            matrix.mul_(root[:, None]).mul_(root)
        matrix.diagonal().add_(1.0)
        factor = torch.linalg.cholesky(matrix)
        scaled = torch.ones_like(self.b) if root is None else root[:, None]
        v = torch.cholesky_solve(self.b / scaled, factor) * scaled
        c = self.correlate(v)
        z = sizes[active, None] / beta * c[active]
        if (factor.diagonal().max() / factor.diagonal().min()).item() > ILL_CONDITIONED:  # one step of refinement
            residual = self.b - v - self.weigh(self.predict(active, z))
            v = v + torch.cholesky_solve(residual / scaled, factor) * scaled
            c = self.correlate(v)
            z = sizes[active, None] / beta * c[active]
        return Point(active, z, v, c, c.norm(dim=1), 0.0, factor)

    def _by_tokens(self, sizes: Sizes, active: Tensor, beta: float) -> Point:
        root = (sizes[active] / beta).sqrt().repeat_interleave(self.a.shape[2])
        matrix = self.gram.of(active)
        matrix.mul_(root[:, None]).mul_(root)
        matrix.diagonal().add_(1.0)
        factor = torch.linalg.cholesky(matrix)
        z = root * torch.cholesky_solve((root * self.linear[active].flatten())[:, None], factor)[:, 0]
        z = z.view(len(active), -1)
        v = self.b - self.weigh(self.predict(active, z))
        c = self.correlate(v)
        return Point(active, z, v, c, c.norm(dim=1), 0.0, factor, root)

    def curvature(self, point: Point, groups: Int64[Tensor, "some"]) -> Float64[Tensor, "some some"]:
        """c_g^T a_g^T (H^-1 + sum s K / beta)^-1 a_h c_h for pairs (g, h): minus the derivative of g^2 / 2, over
        beta."""
        e = token_products(self.a, groups // self.outputs, point.c[groups])
        if point.root is None and self.outputs == 1:  # by samples, or nothing is active yet
            e = e if self.weights is None else e * self.weights.sqrt()[:, None]
            e = e if point.factor is None else torch.linalg.solve_triangular(point.factor, e, upper=False)
            return e.mT @ e
        square = e.new_empty(len(groups), len(groups))
        mixed = e.new_empty(len(point.active), self.a.shape[2], len(groups))
        actives = dict(self._by_output(point.active))
        for output, of in self._by_output(groups, every=True):
            weighted = self._weighted(e, groups, output)
            square[of] = e[:, of].mT @ weighted
            if output in actives:
                some = actives[output]
                a = self._columns(point.active[some] // self.outputs)
                mixed[some] = (a.mT @ weighted).view(-1, self.a.shape[2], len(groups))
        if point.root is None:
            return square
        t = torch.linalg.solve_triangular(point.factor, point.root[:, None] * mixed.flatten(0, 1), upper=False)
        return square - t.mT @ t

    def _weighted(self, e: Tensor, groups: Tensor, output: int) -> Tensor:
        """Row ``output`` of H times the predictions e of single groups."""
        if self.weights is None:
            return e
        return e * (self.weights[:, None] if self.outputs == 1 else self.weights[:, output, groups % self.outputs])

    def _by_output(self, groups: Tensor, *, every: bool = False) -> list[tuple[int, Tensor]]:
        """Positions of the groups of each output that has any (or of every output)."""
        if self.outputs == 1:
            return [(0, torch.arange(len(groups), device=groups.device))]
        of = [(groups % self.outputs == output).nonzero()[:, 0] for output in range(self.outputs)]
        return [(output, some) for output, some in enumerate(of) if every or len(some)]
