"""The set that attention comes from picks the norm: token sparsity on the simplex, low rank on the Euclidean ball."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy
import torch
from jaxtyping import Float64
from torch import Tensor

from attnrank import _check, convex, numerical_rank
from attnrank.convex.losses import Squared
from attnrank.experiments.shared.statistics import seeded, summary
from attnrank.sweep import Setting

TARGETS = ("two tokens", "rank one")
CONSTRAINTS = ("simplex", "ball")
#: (samples, tokens, dimension) of the regression, and the weight of the penalty over its largest useful value.
SAMPLES, TOKENS, DIMENSION, SHARE = 60, 12, 8, 0.1
#: Singular values below this share of the largest are taken for zero.
RANK_TOL = 1e-5


@dataclass(frozen=True)
class Certified:
    """z with its objective and a lower bound of the optimum."""

    z: Tensor
    primal: float
    dual: float


def nuclear_norm_program(
    design: Float64[Tensor, "rows features"],
    y: Float64[Tensor, "rows outputs"],
    beta: float,
    shape: tuple[int, int],
    *,
    tol: float = 1e-10,
    max_steps: int = 100_000,
) -> Certified:
    """min |design z - y|^2 / 2 + beta times the nuclear norm of z (features, outputs), read as a matrix of ``shape``.

    Accelerated gradient steps with restart, until the relative duality gap is at most ``tol``. Raises ValueError where
    ``max_steps`` are not enough.
    """
    gram, linear = design.mT @ design, design.mT @ y
    slope = torch.linalg.eigvalsh(gram)[-1].item()
    z = ahead = torch.zeros_like(linear)
    t = 1.0
    for step in range(max_steps):
        if step % 20 == 0:
            found = _certified(design, y, beta, shape, z)
            if found.primal - found.dual <= tol * found.primal:
                return found
        moved = (ahead - (gram @ ahead - linear) / slope).view(shape)
        left, values, right = torch.linalg.svd(moved, full_matrices=False)
        new = ((left * (values - beta / slope).clamp_min(0.0)) @ right).view_as(z)
        if ((ahead - new) * (new - z)).sum() > 0:
            t = 1.0
        later = 0.5 * (1.0 + (1.0 + 4.0 * t * t) ** 0.5)
        ahead, z, t = new + (t - 1.0) / later * (new - z), new, later
    raise ValueError(f"tol = {tol:g} was not reached in {max_steps} steps")


def _certified(design: Tensor, y: Tensor, beta: float, shape: tuple[int, int], z: Tensor) -> Certified:
    loss, v = Squared(), y - design @ z
    largest = torch.linalg.matrix_norm((design.mT @ v).view(shape), 2).item()
    scale = loss.best_scale(v, y, beta / max(largest, 1e-300))
    primal = 0.5 * v.square().sum().item() + beta * torch.linalg.matrix_norm(z.view(shape), "nuc").item()
    return Certified(z, primal, loss.dual(scale * v, y))


def regression(target: str, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Gaussian tokens x, targets y with a tenth of noise, and the truth (tokens, dimension): two rows, or rank one."""
    g = seeded(seed)
    draw = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64)  # noqa: E731
    x = draw(SAMPLES, TOKENS, DIMENSION)
    truth = torch.zeros(TOKENS, DIMENSION, dtype=torch.float64)
    if _check.choice("target", target, TARGETS) == "two tokens":
        truth[torch.randperm(TOKENS, generator=g)[:2]] = draw(2, DIMENSION)
    else:
        truth = draw(TOKENS, 1) @ draw(1, DIMENSION)
    y = convex.predict(x, truth)
    return x, y + 0.1 * y.std() * draw(SAMPLES), truth


def fitted(target: str, constraint: str, seed: int, share: float = SHARE) -> tuple[Tensor, Tensor]:
    """The optimum at ``share`` of the largest useful weight, by the norm that belongs to the constraint; the truth."""
    x, y, truth = regression(target, seed)
    if _check.choice("constraint", constraint, CONSTRAINTS) == "simplex":
        return convex.solve(x, y, share * convex.beta_max(x, y), tol=1e-10).z, truth
    flat = x.flatten(1)
    largest = torch.linalg.matrix_norm((flat.mT @ y).view(truth.shape), 2).item()
    return nuclear_norm_program(flat, y[:, None], share * largest, (TOKENS, DIMENSION)).z.view_as(truth), truth


def error(target: str, constraint: str, seed: int, share: float = SHARE) -> float:
    """Of the optimum that :func:`fitted` finds, relative to the truth."""
    z, truth = fitted(target, constraint, seed, share)
    return ((z - truth).norm() / truth.norm()).item()


def constraint_norms(target: str, constraint: str, seeds: int) -> Setting:
    """Relative error, active tokens and rank of the optimum, over seeds."""
    errors, tokens, ranks = [], [], []
    for seed in range(_check.integer("seeds", seeds, minimum=2)):
        z, truth = fitted(target, constraint, seed)
        errors.append(((z - truth).norm() / truth.norm()).item())
        tokens.append(int(z.norm(dim=1).gt(RANK_TOL * z.norm()).sum()))
        ranks.append(int(numerical_rank(z, RANK_TOL, relative=True)))
    found = summary("error", torch.tensor(errors))
    for name, counts in (("tokens", tokens), ("rank", ranks)):
        found |= {f"{name}_least": min(counts), f"{name}_mean": float(np.mean(counts)), f"{name}_most": max(counts)}
    return found


# Linear self-attention (Sahiner et al. 2022, Theorem 3.1): heads X Q_j X^T X V_j, decay of Q_j and V_j.


def linear_design(x: Float64[Tensor, "samples n d"]) -> Float64[Tensor, "rows features"]:
    """Features x_ta G_kl of output row t, G = x^T x: (samples n, d^3), for z as a matrix (d^2, d outputs)."""
    g = x.mT @ x
    return torch.einsum("ita,ikl->itakl", x, g).flatten(0, 1).flatten(1)


def linear_task(seed: int, heads: int = 2) -> tuple[Tensor, Tensor]:
    """20 sequences x of 4 tokens in 3 dimensions, and what linear self-attention with ``heads`` makes of them, with
    noise: (20, 4, 2)."""
    g = seeded(seed)
    draw = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64)  # noqa: E731
    x = draw(20, 4, 3)
    y = linear_attention(x, draw(heads, 3, 3), draw(heads, 3, 2))
    return x, y + 0.1 * y.std() * draw(*y.shape)


def linear_attention(x: Tensor, q: Float64[Tensor, "heads d d"], v: Float64[Tensor, "heads d outputs"]) -> Tensor:
    """sum_j x Q_j x^T x V_j: (samples, n, outputs)."""
    return torch.einsum("ita,hak,ikl,hlo->ito", x, q, x.mT @ x, v)


@lru_cache(maxsize=8)
def linear_optimum(seed: int, share: float) -> tuple[Certified, float]:
    """The convex program's certified optimum, and beta."""
    x, y = linear_task(seed)
    design, flat = linear_design(x), y.flatten(0, 1)
    shape = (9, 6)
    beta = share * torch.linalg.matrix_norm((design.mT @ flat).view(shape), 2).item()
    return nuclear_norm_program(design, flat, beta, shape), beta


def linear_heads(seed: int, share: float, heads: int, starts: int) -> Setting:
    """Rank of the convex optimum, and the best objective of trained heads over that optimum, less 1, of some starts."""
    optimum, beta = linear_optimum(seed, share)
    x, y = linear_task(seed)
    design, flat = linear_design(x), y.flatten(0, 1)

    def objective(point: np.ndarray) -> tuple[float, np.ndarray]:
        q, v = torch.from_numpy(point[: 9 * heads]).view(heads, 9), torch.from_numpy(point[9 * heads :]).view(heads, 6)
        residual = design @ (q.mT @ v).reshape(-1, 2) - flat
        slope = (design.mT @ residual).view(9, 6)
        gradient = torch.cat([(v @ slope.mT + beta * q).flatten(), (q @ slope + beta * v).flatten()])
        value = 0.5 * residual.square().sum().item() + 0.5 * beta * float(point @ point)
        return value / optimum.primal, gradient.numpy() / optimum.primal

    r = np.random.default_rng([seed, heads])
    minimize = scipy.optimize.minimize
    options = {"maxiter": 5000, "maxfun": 10_000, "ftol": 1e-15, "gtol": 1e-10}
    runs = [
        minimize(objective, 0.5 * r.standard_normal(15 * heads), jac=True, method="L-BFGS-B", options=options).fun
        for _ in range(_check.integer("starts", starts, minimum=1))
    ]
    rank = int(numerical_rank(optimum.z.view(9, 6), RANK_TOL, relative=True))
    return {"rank": rank, "excess": min(runs) - 1.0, "worst_excess": max(runs) - 1.0}
