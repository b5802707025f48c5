"""Tables of the chapter synthetic_sweeps: ten token distributions, random heads, averages over heads, increments."""

from __future__ import annotations

import torch

from attnrank import _check
from attnrank.experiments.experiment import Exact, Experiment
from attnrank.experiments.shared.distributions import DISTRIBUTIONS, WIDTHS, projections
from attnrank.experiments.shared.heads import (
    SMALL,
    hardmax_rank_on_device,
)
from attnrank.experiments.shared.statistics import batches, seeded, summary
from attnrank.sweep import Setting, grid


def synthetic_heads(distribution: str, n: int, d: int, d_h: int, samples: int, seed: int) -> Setting:
    """Hardmax rank / n of a random head: mean, standard deviation and standard error over ``samples`` repetitions.

    Each repetition has a token sequence and weights of its own; ``samples`` >= 2.
    """
    d_h, samples = _check.integer("d_h", d_h, minimum=1), _check.integer("samples", samples, minimum=2)
    generator = seeded(seed)
    ranks = []
    for batch in batches(samples, n * max(n, d_h), SMALL):
        y = torch.stack([projections(distribution, n, d, 2 * d_h, generator) for _ in range(batch)])
        ranks.append(hardmax_rank_on_device(y[..., :d_h], y[..., d_h:]).double())
    return summary("rank", torch.cat(ranks) / n, std=True)


def synthetic_increments(distribution: str, n: int, d: int, d_h: int, samples: int, seed: int) -> Setting:
    """Hardmax rank / n at ``d_h`` and what one more head dimension adds to it, on the same tokens and weights.

    The heads of dimension d_h are those of dimension d_h + 1 without their last coordinate. ``samples`` >= 2.
    """
    d_h, samples = _check.integer("d_h", d_h, minimum=1), _check.integer("samples", samples, minimum=2)
    generator = seeded(seed)
    before, after = [], []
    for batch in batches(samples, n * max(n, d_h + 1), SMALL):
        y = torch.stack([projections(distribution, n, d, 2 * d_h + 2, generator) for _ in range(batch)])
        q, k = y.split(d_h + 1, -1)
        before.append(hardmax_rank_on_device(q[..., :-1], k[..., :-1]).double())
        after.append(hardmax_rank_on_device(q, k).double())
    ranks, more = torch.cat(before) / n, torch.cat(after) / n
    return summary("rank", ranks, std=True) | summary("increment", more - ranks, std=True)


def layer_averages(distribution: str, n: int, d: int, d_h: int, heads: int, samples: int, seed: int) -> Setting:
    """Hardmax rank / n averaged over the heads of a layer, which share their tokens: spread and intraclass correlation.

    ``rank_std`` is the standard deviation over repetitions of the mean over heads. ``head_variance`` and
    ``correlation`` are the variance of a single head and the correlation of two heads of one layer, by analysis of
    variance (Fisher 1925); None for one head. ``samples`` >= 2 repetitions.
    """
    d_h, heads = _check.integer("d_h", d_h, minimum=1), _check.integer("heads", heads, minimum=1)
    samples = _check.integer("samples", samples, minimum=2)
    generator = seeded(seed)
    layers = []
    for _ in range(samples):
        y = projections(distribution, n, d, 2 * heads * d_h, generator)
        q, k = y.reshape(n, 2, heads, d_h).permute(1, 2, 0, 3)
        layers.append(hardmax_rank_on_device(q.contiguous(), k.contiguous()).double() / n)
    rank = torch.stack(layers)
    result = summary("rank", rank.mean(-1), std=True) | {"head_variance": None, "correlation": None}
    if heads > 1:
        within = rank.var(-1).mean().item()  # given the tokens
        between = rank.mean(-1).var().item() - within / heads  # of the conditional mean; unbiased, may be negative
        result |= {"head_variance": between + within, "correlation": between / (between + within)}
    return result


_SAMPLES = {25: 200, 50: 200, 100: 200, 200: 100, 400: 100, 1024: 20, 4096: 6}
_INCREMENT_SAMPLES = {25: 1000, 50: 600, 100: 400, 200: 200, 400: 100, 1024: 16, 4096: 6}
_FINE = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512)
_COARSE = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


def _width(distribution: str, n: int) -> int:
    return max(n, WIDTHS[n]) if distribution == "orthonormal" else WIDTHS[n]


def _lengths(distribution: str) -> list[Setting]:
    return [
        {"distribution": distribution, "n": n, "d": _width(distribution, n), "d_h": d_h, "samples": samples, "seed": 6}
        for n, samples in _SAMPLES.items()
        for d_h in (_FINE if n <= 400 else _COARSE)
    ]


def _widths(distribution: str) -> list[Setting]:
    """The same at other widths of the tokens."""
    return [
        setting
        for n, head_dims in ((100, [8, 64]), (400, [64]))
        for setting in grid(
            distribution=[distribution], n=[n], d=[16, 32, 64, 128, 256, 512, 1024, 2048], d_h=head_dims,
            samples=[100 if n == 400 else 200], seed=[6],
        )
        if setting["d"] != WIDTHS[n]
    ]


_INDEPENDENT = [name for name in DISTRIBUTIONS if name != "orthonormal"]


EXPERIMENTS = {
    "synthetic_heads": Experiment(
        "How does the rank of a random head depend on the tokens' distribution, number and width, and on head "
        "dimension?",
        synthetic_heads,
        quick=grid(distribution=list(DISTRIBUTIONS), n=[25], d=[64], d_h=[1, 4, 16, 64], samples=[20], seed=[6]),
        paper=[s for name in DISTRIBUTIONS for s in _lengths(name)] + [s for name in _INDEPENDENT
        for s in _widths(name)],
        chapter="synthetic_sweeps",
        repeats=Exact(),
    ),
    "synthetic_increments": Experiment(
        "How much rank does one more head dimension add, by distribution of the tokens?",
        synthetic_increments,
        quick=grid(distribution=["gaussian"], n=[25], d=[64], d_h=[3, 7, 13], samples=[40], seed=[7]),
        paper=[
            {"distribution": name, "n": n, "d": _width(name, n), "d_h": d_h, "samples": samples, "seed": 7}
            for name in DISTRIBUTIONS
            for n, samples in _INCREMENT_SAMPLES.items()
            for d_h in ((3, 5, 7, 9, 10, 11, 12, 13, 14, 16, 18, 20, 24, 28) if n <= 1024 else (7, 11, 16, 20, 24))
        ],
        chapter="synthetic_sweeps",
        repeats=Exact(),
    ),
    "layer_averages": Experiment(
        "What does averaging over the heads of a layer do to the spread of the rank?",
        layer_averages,
        quick=grid(distribution=["orthonormal", "mixture"], n=[25], d=[64], d_h=[8], heads=[1, 4], samples=[40],
        seed=[8]),
        paper=[
            setting
            for heads in (1, 2, 4, 8, 16)  # another seed for each, so that the rows are independent
            for setting in grid(
                distribution=list(DISTRIBUTIONS), n=[100], d=[128], d_h=[8, 64] if heads == 16 else [64],
                heads=[heads], samples=[200],
                seed=[100 + heads],
            )
        ],
        chapter="synthetic_sweeps",
        repeats=Exact(),
    ),
}  # fmt: skip
