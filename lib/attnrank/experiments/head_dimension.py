"""Tables of the chapter head_dimension: rank by head dimension, its increments and its bounds; the lines of figures."""

from __future__ import annotations

import torch

from attnrank import _check, theory
from attnrank.experiments.experiment import Exact, Experiment, Rounding
from attnrank.experiments.shared.heads import (
    gaussian_heads,
    hardmax_rank_on_device,
    random_heads,
)
from attnrank.experiments.shared.lines import formula_lines, line_points
from attnrank.experiments.shared.statistics import summary
from attnrank.sweep import Setting, grid


def rank_increments(n: int, d_h: int, samples: int, seed: int) -> Setting:
    """Hardmax rank of random heads at ``d_h`` and what one more head dimension adds to it, on the same heads.

    The heads of dimension d_h are those of dimension d_h + 1 without their last coordinate, so that the increment has
    a far smaller variance than the two ranks. ``samples`` >= 2 heads; units of rank.
    """
    d_h = _check.integer("d_h", d_h, minimum=1)
    before, after = [], []
    for q, k in gaussian_heads(n, d_h + 1, samples, seed):
        before.append(hardmax_rank_on_device(q[..., :-1], k[..., :-1]))
        after.append(hardmax_rank_on_device(q, k))
    rank, increment = torch.cat(before).double(), (torch.cat(after) - torch.cat(before)).double()
    return summary("rank", rank) | summary("increment", increment)


def head_dimension_bounds(n: int, d_h: int) -> Setting:
    """What is known about the mean rank of random heads: barrier, upper and lower bound, polytope bound; units of
    rank."""
    return {
        "barrier": theory.occupancy_bound(n),
        "upper": theory.head_dim_bound(n, d_h),
        "lower": theory.head_dim_lower_bound(n, d_h),
        "vertices": theory.polytope_vertices(n, d_h),
    }


def _samples(n: int, d_h: int) -> int:
    """So many heads that the standard error of rank / n is below 5e-4.

    The standard deviation of rank / sqrt(n) is 0.32 for wide heads; where the keys are most unequal it reaches 0.35 for
    short sequences and 0.46 for long ones.
    """
    if n == 4096 and d_h > 64:
        return 620_000 // n
    if d_h >= 512 or (d_h > 64 and n <= 64):
        return 420_000 // n
    if d_h > 64:
        return (620_000 if (n, d_h) == (2048, 128) else 520_000) // n
    return (600_000 if n <= 64 else 1_000_000 if n >= 1024 and d_h >= 8 else 700_000) // n


_LENGTHS = [2**octave for octave in range(4, 13)]
#: At n = 65,536 a row has two heads only, so that a sweep can be interrupted; a chapter pools the rows of all seeds.
_LONG = [
    {"n": 65536, "d_h": d_h, "samples": 2, "seed": 3 + k}
    for d_h, rows in ((2, 8), (16, 4), (64, 4))
    for k in range(rows)
]


def _wide() -> list[Setting]:
    fine = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
    coarse = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
    head_dims: dict[int, tuple[int, ...]] = {n: fine for n in (16, 32, 64)} | {n: coarse for n in (256, 1024, 4096)}
    head_dims |= {128: (1, 2, 3, 4, 8, 16, 24, 32, 48, 64), 512: (8, 32, 48, 64, 96), 2048: (8, 48, 64, 96, 128, 192)}
    head_dims[256] += (24, 48)
    head_dims[1024] += (48, 96)
    head_dims[4096] += (96, 192)
    cells = [(n, d_h) for n in _LENGTHS for d_h in head_dims[n]]
    cells += [(n, d_h) for n in (16, 64, 256, 1024, 4096) for d_h in (1024, 4096)] + [(n, 512) for n in (16, 32, 64)]
    return [{"n": n, "d_h": d_h, "samples": _samples(n, d_h), "seed": 3} for n, d_h in cells]


def _increments() -> list[Setting]:
    """Enough heads that the standard error of an increment / n is about 5e-4 (1e-3 for n > 800)."""
    queries = {n: 400_000 for n in (16, 32, 50, 64, 100, 128, 200, 256, 400, 512, 800)}
    queries |= {1024: 200_000, 2048: 150_000, 4096: 100_000}
    head_dims = (1, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20)
    return [
        {"n": n, "d_h": d_h, "samples": total // n, "seed": 4} for n, total in queries.items() for d_h in head_dims
    ]


_CURVE = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256,
          320, 384, 448, 512, 640, 768, 1024, 1280, 1536, 2048, 2560, 3072, 4096)  # fmt: skip


EXPERIMENTS = {
    "head_dimension": Experiment(
        "How close is the rank of random heads to its bounds, over nine octaves of length and twelve of head "
        "dimension?",
        random_heads,
        quick=grid(n=[16, 64, 256], d_h=[1, 2, 4, 8, 16, 32, 64], samples=[200], seed=[3]),
        paper=_wide() + _LONG,
        chapter="head_dimension",
        repeats=Exact(),
    ),
    "rank_increments": Experiment(
        "How much rank does one more head dimension add?",
        rank_increments,
        quick=grid(n=[16, 64], d_h=[1, 2, 4, 8, 16], samples=[400], seed=[4]),
        paper=_increments(),
        chapter="head_dimension",
        repeats=Exact(),
    ),
    "head_dimension_bounds": Experiment(
        "Between which bounds does the mean rank of random heads lie?",
        head_dimension_bounds,
        quick=grid(n=[16, 64], d_h=[1, 2, 4, 8, 16, 32, 64]),
        paper=grid(n=[*_LENGTHS, 2**16, 10**6], d_h=list(_CURVE)),
        chapter="head_dimension",
        repeats=Rounding(1e-9),
    ),
    "formula_lines": Experiment(
        "Which lines do the figures draw beside what is measured?",
        formula_lines,
        quick=[{"curve": "collapse", "n": 0, "x": x} for x in (0.1, 1.0)],
        paper=line_points(),
        chapter="head_dimension",
        repeats=Rounding(1e-9),
        version=2,
    ),
}  # fmt: skip
