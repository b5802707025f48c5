"""Vertices of the attention simplex: how slowly a softmax comes near them, and the ranks of what is learned there."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from attnrank import _check, convex, hardmax_rank_of, numerical_rank
from attnrank.experiments.convex_attention.training import data, gradients, to_simplex
from attnrank.experiments.shared.statistics import seeded, summary
from attnrank.sweep import Setting

LOOKS = (100, 300, 1000, 3000, 10_000, 30_000, 100_000)
KINDS = ("noise", "permutation", "two blocks", "mean")


def softmax_vertices(attention: str, rate: float, seeds: int, steps: int) -> Setting:
    """Gradient descent from near the optimum of the toy, each head on its token: what is left after ``steps``.

    The toy without the token whose optimal row is so short that descent loses it.

    ``attention``: "softmax" of logits, or "projected" to the simplex. The gap is (objective - optimum) / optimum;
    ``missing`` the largest weight that a head gives to other tokens than its own, ``logit_gap`` the smallest
    difference of the logits of its token and another, 0 where weights are projected. Medians over seeds.
    """
    _check.choice("attention", attention, ("softmax", "projected"))
    x, y, beta, optimum = _large_rows_only()
    heads = convex.to_heads(optimum.z)
    own = heads.attention.argmax(1)
    draws = [seeded(seed) for seed in range(_check.integer("seeds", seeds, minimum=1))]
    logits = torch.stack([torch.randn(*heads.attention.shape, generator=g, dtype=torch.float64) for g in draws])
    logits += 3.0 * heads.attention
    weights = torch.softmax(logits, -1)
    value, output = heads.value.expand(seeds, -1, -1).clone(), heads.output.expand(seeds, -1).clone()
    design = x.flatten(1)
    for _ in range(_check.integer("steps", steps, minimum=1)):
        of_weights, of_value, of_output = gradients(design, y, beta, weights, value, output)
        value, output = value - rate * of_value, output - rate * of_output
        if attention == "softmax":
            logits = logits - rate * weights * (of_weights - (of_weights * weights).sum(-1, keepdim=True))
            weights = torch.softmax(logits, -1)
        else:
            weights = to_simplex(weights - rate * of_weights)
    z = torch.einsum("shn,shd,sh->snd", weights, value, output)
    loss = 0.5 * (z.flatten(1) @ design.mT - y).square().sum(1)
    cost = loss + 0.5 * beta * (value.square().sum((1, 2)) + output.square().sum(1))
    index = own.expand(seeds, -1)[..., None]
    missing = 1.0 - weights.gather(-1, index)[..., 0]
    others = logits.scatter(-1, index, -torch.inf).amax(-1)
    margin = (logits.gather(-1, index)[..., 0] - others).amin(1) if attention == "softmax" else torch.zeros(seeds)
    return {
        "gap": float(np.median(cost / optimum.primal - 1.0)),
        "missing": float(np.median(missing.amax(1))),
        "logit_gap": float(np.median(margin)),
    }


def _large_rows_only() -> tuple[Tensor, Tensor, float, convex.Solution]:
    """The toy without active tokens whose rows are shorter than a tenth of the longest, and its optimum."""
    x, y, beta = data("toy")
    sizes = convex.solve(x, y, beta, tol=1e-12).z.norm(dim=1)
    x = x[:, (sizes == 0) | (sizes > 0.1 * sizes.max())]
    return x, y, beta, convex.solve(x, y, beta, tol=1e-12)


def sequence_targets(kind: str, samples: int, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Gaussian sequences (samples, n, 1) and targets (samples, n): by a known matrix with noise, or noise alone."""
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    x = draw(samples, n, 1)
    if _check.choice("kind", kind, KINDS) == "noise":
        return x, draw(samples, n)
    eye = torch.eye(n, dtype=torch.float64)
    w = {
        "permutation": eye[torch.randperm(n, generator=generator)],
        "two blocks": torch.block_diag(*[torch.full((n // 2, n // 2), 2 / n, dtype=torch.float64)] * 2),
        "mean": torch.full((n, n), 1 / n, dtype=torch.float64),
    }[kind]
    return x, (w @ x)[..., 0] + 0.3 * draw(samples, n)


def trained_selections(kind: str, n: int, samples: int, share: float, seeds: int) -> Setting:
    """Hardmax rank over n, and numerical rank at 1/2, of the matrices of attention that the sequence program learns.

    At beta = share times the largest useful one; of each run the matrix with the larger row sum counts.
    """
    hard, numerical = [], []
    for seed in range(_check.integer("seeds", seeds, minimum=2)):
        x, y = sequence_targets(kind, samples, n, seeded(seed))
        found = convex.solve_sequence(x, y, share * sequence_beta_max(x, y), tol=1e-6)
        side = found.plus if found.t_plus.item() >= found.t_minus.item() else found.minus
        learned = side[0, 0] / side[0, 0].sum(1, keepdim=True)
        hard.append(int(hardmax_rank_of(learned)) / n)
        numerical.append(int(numerical_rank(learned, 0.5)))
    return summary("hardmax_share", torch.tensor(hard)) | summary("rank", torch.tensor(numerical, dtype=torch.float64))


def sequence_beta_max(x: Float64[Tensor, "samples n d"], y: Float64[Tensor, "samples n"]) -> float:
    """The smallest beta for which no attention at all is optimal: the best hard selection's correlation."""
    correlations = torch.einsum("ir,isq->qrs", y, x)
    return max(side.amax(-1).sum(-1).max().item() for side in (correlations, -correlations))
