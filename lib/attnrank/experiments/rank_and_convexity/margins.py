"""Attention as a support vector machine: the matrix of least norm that separates each optimal token from the others.

Tarzanagh, Li, Thrampoulidis and Oymak (2023): training the combined matrix W goes in the direction of the least
Frobenius norm, training keys and queries, W = K Q^T, in that of the least nuclear norm.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import scipy
import torch
from jaxtyping import Float64
from torch import Tensor

from attnrank import _check, numerical_rank
from attnrank.experiments.shared.statistics import seeded
from attnrank.sweep import Setting

SAMPLES, TOKENS, DIMENSION = 4, 5, 6
PARAMETERS = ("W", "K and Q")
LOOKS = (100, 1000, 10_000)
#: Added to a seed for the weights that training starts from.
START_SEEDS = 10_000
#: Length of a step: the gradient is normalised.
RATE = 0.02
#: Singular values below this share of the largest are not counted.
RANK_TOL = 0.01


def task(seed: int) -> tuple[Float64[Tensor, "samples others d"], Float64[Tensor, "samples d"]]:
    """Differences between the optimal token, the first, and the others, and queries; all tokens are Gaussian."""
    g = seeded(seed)
    x = torch.randn(SAMPLES, TOKENS, DIMENSION, generator=g, dtype=torch.float64)
    return x[:, :1] - x[:, 1:], torch.randn(SAMPLES, DIMENSION, generator=g, dtype=torch.float64)


def least_frobenius(differences: Tensor, queries: Tensor) -> Tensor:
    """W (d, d) of least Frobenius norm with difference^T W query >= 1 for all; Lawson and Hanson's reduction to
    nonnegative least squares."""
    rows = torch.einsum("ita,ib->itab", differences, queries).flatten(0, 1).flatten(1).numpy()
    matrix = np.vstack([rows.T, np.ones(len(rows))])
    goal = np.append(np.zeros(rows.shape[1]), 1.0)
    weights, _ = scipy.optimize.nnls(matrix, goal, maxiter=10_000)
    rest = matrix @ weights - goal
    d = differences.shape[2]
    return torch.from_numpy(-rest[:-1] / rest[-1]).view(d, d)


def least_nuclear(differences: Tensor, queries: Tensor) -> Tensor:
    """W (d, d) of least nuclear norm with the same constraints, by CVXPY."""
    import cvxpy as cp

    d = differences.shape[2]
    w = cp.Variable((d, d))
    rows = [differences[i].numpy() @ w @ queries[i].numpy() >= 1 for i in range(len(queries))]
    cp.Problem(cp.Minimize(cp.normNuc(w)), rows).solve(
        solver=cp.CLARABEL, tol_gap_abs=1e-9, tol_gap_rel=1e-9, tol_feas=1e-9
    )
    return torch.from_numpy(w.value)


def margin(w: Tensor, differences: Tensor, queries: Tensor) -> float:
    """The least difference^T W query."""
    return torch.einsum("ita,ab,ib->it", differences, w, queries).min().item()


def attention_svm(parameters: str, steps: int, seeds: int) -> Setting:
    """Norms of the trained W at margin 1 over the least ones, less 1, and ranks; medians over seeds.

    The loss is logistic in the weight of the optimal token; normalised gradient steps from small Gaussian values.
    """
    if steps not in LOOKS:
        raise ValueError(f"steps must be one of {LOOKS}, got {steps}")
    frobenius, nuclear, ranks, unseparated = [], [], [], 0
    for seed in range(_check.integer("seeds", seeds, minimum=1)):
        differences, queries = task(seed)
        w = _trained(parameters, seeds)[steps][seed]
        scale = margin(w, differences, queries)
        if scale <= 0:
            unseparated += 1
            continue
        least = _least(seed)
        frobenius.append((w / scale).norm().item() / least[0].norm().item() - 1.0)
        nuclear.append(_nuclear(w / scale) / _nuclear(least[1]) - 1.0)
        ranks.append([int(numerical_rank(of, RANK_TOL, relative=True)) for of in (w, *least)])
    middle = np.median(np.array(ranks), axis=0)
    return {
        "frobenius_excess": float(np.median(frobenius)),
        "nuclear_excess": float(np.median(nuclear)),
        "rank": float(middle[0]),
        "rank_frobenius": float(middle[1]),
        "rank_nuclear": float(middle[2]),
        "rank_most": int(np.array(ranks).max()),
        "not_separated": unseparated,
    }


def _nuclear(w: Tensor) -> float:
    return torch.linalg.matrix_norm(w, "nuc").item()


@lru_cache(maxsize=64)
def _least(seed: int) -> tuple[Tensor, Tensor]:
    return least_frobenius(*task(seed)), least_nuclear(*task(seed))


@lru_cache(maxsize=8)
def _trained(parameters: str, seeds: int) -> dict[int, Tensor]:
    """W (seeds, d, d) after the steps of ``LOOKS``; all seeds take each step together."""
    differences, queries = (torch.stack(parts) for parts in zip(*map(task, range(seeds))))
    joint = _check.choice("parameters", parameters, PARAMETERS) == "W"
    k, q = torch.stack([_start(seed) for seed in range(seeds)]).unbind(1)
    w, looks = (k if joint else k @ q.mT), {}
    for step in range(1, max(LOOKS) + 1):
        slope = _slope(w, differences, queries)
        if joint:
            w = w - RATE * slope / slope.norm(dim=(1, 2), keepdim=True)
        else:
            of_k, of_q = slope @ q, slope.mT @ k
            length = (of_k.square() + of_q.square()).sum((1, 2), keepdim=True).sqrt()
            k, q = k - RATE * of_k / length, q - RATE * of_q / length
            w = k @ q.mT
        if step in LOOKS:
            looks[step] = w
    return looks


def _start(seed: int) -> Tensor:
    """K and Q (2, d, d) before the first step; W begins as K where it is trained itself."""
    g = torch.Generator().manual_seed(START_SEEDS + seed)
    return 0.01 * torch.stack([torch.randn(DIMENSION, DIMENSION, generator=g, dtype=torch.float64) for _ in range(2)])


def _slope(w: Tensor, differences: Tensor, queries: Tensor) -> Tensor:
    """The gradient of sum log(1 + exp(-p)), p the softmax weight of the optimal token, but for positive factors.

    Weights are kept as logarithms, as they fall below the smallest number soon.
    """
    scores = -torch.einsum("sita,sab,sib->sit", differences, w, queries)  # of the others, over the optimal token's
    total = torch.logsumexp(torch.cat([torch.zeros_like(scores[:, :, :1]), scores], 2), 2, keepdim=True)
    logs = scores - 2.0 * total + torch.nn.functional.logsigmoid(-torch.exp(-total))
    return -torch.einsum("sit,sita,sib->sab", torch.exp(logs - logs.amax((1, 2), keepdim=True)), differences, queries)
