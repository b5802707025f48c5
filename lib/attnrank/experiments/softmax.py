"""Tables of the chapter softmax: rank by length, temperature and tolerance, exact rank, gap to hardmax, stable rank."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from attnrank._optional import optional
from attnrank.experiments.experiment import Experiment, Rounding
from attnrank.experiments.shared.heads import (
    MEDIUM,
    distinct,
    gaussian_heads,
)
from attnrank.experiments.shared.statistics import summary
from attnrank.ranks import singular_values, stable_rank
from attnrank.scores import attention
from attnrank.sweep import Setting, grid

if TYPE_CHECKING:
    import mpmath
else:
    mpmath = optional("mpmath", "book")


LENGTH_TOLERANCES = (0.05, 0.1, 0.2, 0.4)
#: Far above rounding: of a singular value as near to the tolerance as that, a processor decides on which side it is.
TOLERANCES = (1e-6, 1e-4, 1e-3, 1e-2, 3e-2, 1e-1, 3e-1, 0.5, 0.7)


def softmax_phase(n: int, d_h: int, temperature: float, samples: int, seed: int) -> Setting:
    """Numerical rank / n of softmax heads at temperature T sqrt(d_h), for every tolerance, and their hardmax rank / n.

    One singular value decomposition a head serves all tolerances. i.i.d. N(0,1) queries and keys.
    """
    found, hard = [], []
    for q, k in gaussian_heads(n, d_h, samples, seed, MEDIUM):
        found.append(singular_values(attention(q, k, temperature=temperature * math.sqrt(d_h))))
        hard.append(distinct(q @ k.mT))
    sigma = torch.cat(found)
    shares = {rank_column(tol): (sigma >= tol).double().mean().item() for tol in TOLERANCES}
    return shares | {"hardmax_fraction": torch.cat(hard).double().mean().item() / n}


def softmax_lengths(n: int, d_h: int, temperature: float, samples: int, seed: int) -> Setting:
    """Numerical rank at ``LENGTH_TOLERANCES`` and stable rank of softmax heads at temperature T sqrt(d_h).

    The singular values are roots of the eigenvalues of A^T A, good to 1e-8: far below the tolerances.
    """
    found = []
    for q, k in gaussian_heads(n, d_h, samples, seed, MEDIUM):
        a = attention(q, k, temperature=temperature * math.sqrt(d_h))
        found.append(torch.linalg.eigvalsh(a.mT @ a))
    squares = torch.cat(found)
    ranks = {tol: (squares >= tol**2).sum(-1) for tol in LENGTH_TOLERANCES}
    columns = [summary(f"rank_at_{tol:g}".replace(".", "_"), rank) for tol, rank in ranks.items()]
    return {key: value for column in columns for key, value in column.items()} | summary(
        "stable", squares.sum(-1) / squares[:, -1]
    )


def rank_column(tol: float) -> str:
    """Column of :func:`softmax_phase` for a tolerance: rank_fraction_at_0_01 for 0.01."""
    return f"rank_fraction_at_{tol:g}".replace(".", "_").replace("-", "_")


def exact_rank(n: int, d_h: int, temperature: float, digits: int, seed: int) -> Setting:
    """Rank of one softmax head in exact arithmetic and in float64, at temperature T sqrt(d_h).

    The exact rank is n where Gaussian elimination in so many digits ends with every pivot above 10^(-digits/2) of the
    largest: ``log10_pivot`` is the smallest. The rank in float64 is at numpy's default tolerance, n eps sigma_1, from
    which the singular values of the published heads differ by more than rounding.
    """
    q, k = next(gaussian_heads(n, d_h, 2, seed, MEDIUM))
    q, k = q[0], k[0]
    scale = temperature * math.sqrt(d_h)
    with mpmath.workdps(digits):
        # Exact products of the float64 entries; scaling rows changes no rank, so the softmax is not normalised.
        scores = [[mpmath.fdot(zip(a, b)) / scale for b in k.tolist()] for a in q.tolist()]
        matrix = mpmath.matrix([[mpmath.exp(s - max(row)) for s in row] for row in scores])
        pivots = _pivots(matrix)
        smallest = float(mpmath.log10(min(pivots) / max(pivots))) if min(pivots) > 0 else -float(digits)
        exact = sum(p > max(pivots) * mpmath.mpf(10) ** (-digits // 2) for p in pivots)
    double = attention(q, k, temperature=scale).numpy()
    return {
        "exact": exact,
        "float64": int(np.linalg.matrix_rank(double)),
        "hardmax": int(distinct(q @ k.T)),
        "log10_pivot": smallest,
    }


def _pivots(matrix: mpmath.matrix) -> list:
    """Absolute pivots of Gaussian elimination with complete pivoting."""
    rows = [list(matrix[i, :]) for i in range(matrix.rows)]
    pivots = []
    while rows:
        size = range(len(rows))
        i, j = max(((i, j) for i in size for j in size), key=lambda at: abs(rows[at[0]][at[1]]))
        pivot_row = rows.pop(i)
        pivots.append(abs(pivot_row[j]))
        if pivots[-1] == 0:
            return pivots + [mpmath.mpf(0)] * len(rows)
        for row in rows:
            factor = row[j] / pivot_row[j]
            for c, value in enumerate(pivot_row):
                row[c] -= factor * value
            del row[j]
    return pivots


def softmax_gap(n: int, d_h: int, temperature: float, samples: int, seed: int) -> Setting:
    """How far softmax heads at temperature T sqrt(d_h) are from their hardmax, and the bounds on it.

    ``variation``, ``lower``, ``upper``: mean over rows of the total variation distance to the one-hot row, and its
    bounds x/(1 + x), x = exp(-gap/T) and x = (n - 1) exp(-gap/T), gap the difference of the two largest scores.
    ``violations``: rows outside the bounds. ``rank_change``: mean |rank(A, 1/2) - D| / n, and ``rank_change_bound``
    its bound 8 sum_i variation_i^2 / n, both with the tolerance 1/2.
    """
    found: dict[str, list[Tensor]] = {name: [] for name in ("variation", "lower", "upper", "square", "change")}
    for q, k in gaussian_heads(n, d_h, samples, seed, MEDIUM):
        scale = temperature * math.sqrt(d_h)
        scores = q @ k.mT
        best = scores.topk(2).values
        ratio = (-(best[..., 0] - best[..., 1]) / scale).exp()
        # 1 - p_max without cancellation.
        others = (scores - best[..., :1]).div(scale).exp().scatter(-1, scores.argmax(-1, keepdim=True), 0.0).sum(-1)
        variation = others / (1 + others)
        found["variation"].append(variation.flatten())
        found["lower"].append((ratio / (1 + ratio)).flatten())
        found["upper"].append(((n - 1) * ratio / (1 + (n - 1) * ratio)).flatten())
        found["square"].append(variation.square().mean(-1))
        rank = (singular_values(attention(q, k, temperature=scale)) >= 0.5).sum(-1)
        found["change"].append((rank - distinct(scores)).abs() / n)
    rows = {name: torch.cat(values).double() for name, values in found.items()}
    outside = (rows["variation"] < rows["lower"] * (1 - 1e-12)) | (rows["variation"] > rows["upper"] * (1 + 1e-12))
    return {
        "variation": rows["variation"].mean().item(),
        "lower": rows["lower"].mean().item(),
        "upper": rows["upper"].mean().item(),
        "violations": int(outside.sum()),
        "rank_change": rows["change"].mean().item(),
        "rank_change_bound": 8 * rows["square"].mean().item(),
        "rank_bound_violations": int((rows["change"] > 8 * rows["square"] * (1 + 1e-12)).sum()),
    }


def stable_heads(n: int, d_h: int, temperature: float, samples: int, seed: int) -> Setting:
    """Stable rank of heads at temperature T sqrt(d_h) (hardmax for T = 0), and the hardmax rank of the same heads."""
    stable, hard = [], []
    for q, k in gaussian_heads(n, d_h, samples, seed, MEDIUM):
        scores = q @ k.mT
        hard.append(distinct(scores))
        if temperature > 0:
            stable.append(stable_rank((scores / (temperature * math.sqrt(d_h))).softmax(-1)))
        else:
            best = scores.argmax(-1)
            counts = torch.zeros(best.shape, dtype=torch.float64).scatter_add_(-1, best, torch.ones_like(best).double())
            stable.append(n / counts.amax(-1))
    return summary("stable", torch.cat(stable)) | {"hardmax_mean": torch.cat(hard).double().mean().item()}


_TEMPERATURES = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0]


EXPERIMENTS = {
    "softmax_lengths": Experiment(
        "What becomes of the numerical and the stable rank of a softmax at a fixed temperature as the sequence grows?",
        softmax_lengths,
        quick=grid(n=[32, 64], d_h=[2, 8], temperature=[1.0], samples=[4], seed=[0]),
        paper=[
            s
            for n, samples in ((50, 20), (100, 20), (200, 20), (400, 12), (800, 6), (1600, 4), (3200, 2))
            for temperature, dims in ((1.0, [1, 2, 4, 8, 16, 64, 192]), (2.0, [4, 8, 64]))
            for s in grid(n=[n], d_h=dims, temperature=[temperature], samples=[samples], seed=[0])
        ],
        chapter="softmax",
        repeats=Rounding(1e-9),
    ),
    "softmax_phase": Experiment(
        "What is the numerical rank of a random softmax head, for each temperature, tolerance and head dimension?",
        softmax_phase,
        quick=grid(n=[32], d_h=[1, 8, 64], temperature=[0.01, 0.1, 1.0], samples=[8], seed=[0]),
        paper=[
            s
            for n, samples in ((100, 20), (256, 8))
            for s in grid(
                n=[n], d_h=[1, 2, 4, 8, 16, 32, 64, 192], temperature=_TEMPERATURES, samples=[samples], seed=[0]
            )
        ],
        chapter="softmax",
        repeats=Rounding(1e-9),
        version=2,  # without tolerances of the order of rounding, 1e-12 and n eps sigma_1
    ),
    "exact_rank": Experiment(
        "What is the rank of a softmax head in exact arithmetic, and what does floating point make of it?",
        exact_rank,
        quick=grid(n=[8], d_h=[1, 2], temperature=[0.1, 1.0], digits=[100], seed=[0]),
        paper=grid(n=[24], d_h=[1, 2, 4, 8, 16, 64], temperature=[0.01, 0.1, 1.0, 10.0], digits=[400], seed=[0, 1, 2]),
        chapter="softmax",
        repeats=Rounding(1e-9),
        version=2,  # without the rank in float32, which singular values within rounding of the tolerance decide
    ),
    "softmax_gap": Experiment(
        "How far is a softmax head from its hardmax?",
        softmax_gap,
        quick=grid(n=[32], d_h=[8, 64], temperature=[0.01, 0.1], samples=[8], seed=[0]),
        paper=grid(
            n=[100], d_h=[4, 64, 512], temperature=[0.0001, 0.0003, *_TEMPERATURES[:7]], samples=[40], seed=[0]
        ),
        chapter="softmax",
        repeats=Rounding(1e-9),
    ),
    "stable_heads": Experiment(
        "What is the stable rank of a random head, soft and hard?",
        stable_heads,
        quick=grid(n=[64], d_h=[8, 64], temperature=[0.0, 1.0], samples=[20], seed=[0]),
        paper=[
            *(
                s
                for n, samples in ((100, 20), (400, 8), (1024, 3))
                for s in grid(
                    n=[n], d_h=[2048], temperature=[0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0, 1.4, 2.0, 4.0],
                    samples=[samples], seed=[0],
                )
            ),
            *grid(
                n=[256], d_h=[1, 2, 4, 8, 16, 32, 64, 128, 256, 512], temperature=[0.0, 0.1, 1.0], samples=[50],
                seed=[0],
            ),
        ],
        chapter="softmax",
        repeats=Rounding(1e-9),
    ),
}  # fmt: skip
