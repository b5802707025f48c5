"""Tables of the chapter random_tokens: Gaussian and spherical tokens, and tokens with a common direction."""

from __future__ import annotations

import math

import torch
from torch.nn.functional import normalize

from attnrank import _check, inputs
from attnrank.experiments.experiment import Exact, Experiment, Rounding
from attnrank.experiments.shared.gram import geometry, ranks_of_gram
from attnrank.experiments.shared.heads import MEDIUM, gaussian_heads, hardmax_rank_on_device
from attnrank.experiments.shared.statistics import seeded, summary
from attnrank.sweep import Setting, grid


def random_tokens(kind: str, n: int, d: int, d_h: int, draws: int, heads: int, seed: int) -> Setting:
    """Mean rank and geometry of ``draws`` sequences of a kind of :mod:`attnrank.inputs`, with ``heads`` heads each."""
    generator = seeded(seed)
    grams, means = [], []
    for _ in range(draws):
        x = inputs.tokens(kind, n, d, generator=generator)
        unit = normalize(x, dim=-1)
        grams.append(unit @ unit.T)
        rank, _ = ranks_of_gram(grams[-1], d_h, heads, generator=generator, lengths=x.norm(dim=-1))
        means.append(rank.mean())
    return geometry(torch.stack(grams)) | summary("rank", torch.stack(means))


def _ratios(n: int, d_h: int, draws: int, heads: int, ratios=(0.1, 0.2, 0.5, 1, 2, 5, 10, 20)) -> list[Setting]:
    widths = [round(ratio * n) for ratio in ratios]
    return grid(kind=["gaussian", "sphere"], n=[n], d=widths, d_h=[d_h], draws=[draws], heads=[heads], seed=[0])


#: Added to a seed for the common part of queries and keys.
COMMON_DIRECTION = 1_000_000


def anisotropic_heads(n: int, d_h: int, cosine: float, samples: int, seed: int) -> Setting:
    """Hardmax rank of random heads on tokens with Gram matrix (1 - c) I + c 1 1^T.

    Under Gaussian weights queries and keys are sqrt(c) g_0 + sqrt(1 - c) g_i, and so they are drawn.
    """
    c = _check.real("cosine", cosine, minimum=0.0, maximum=1.0)
    common = torch.Generator().manual_seed(COMMON_DIRECTION + seed)
    ranks = []
    for pair in gaussian_heads(n, d_h, samples, seed, MEDIUM):
        q, k = (
            math.sqrt(c) * torch.randn(len(own), 1, d_h, generator=common, dtype=torch.float64) + math.sqrt(1 - c) * own
            for own in pair
        )
        ranks.append(hardmax_rank_on_device(q, k))
    return summary("rank", torch.cat(ranks))


def anisotropic_limit(n: int, cosine: float, samples: int, seed: int) -> Setting:
    """The same at d_h -> infinity: row i chooses the largest of sqrt(c) a_j + sqrt(1 - c) b_ij, all N(0,1)."""
    c = _check.real("cosine", cosine, minimum=0.0, maximum=1.0)
    generator = seeded(seed)
    ranks = []
    for _ in range(samples):
        a = torch.randn(n, generator=generator, dtype=torch.float64)
        chosen = torch.zeros(n, dtype=torch.bool)
        for start in range(0, n, 512):
            b = torch.randn(min(512, n - start), n, generator=generator, dtype=torch.float64)
            chosen[(math.sqrt(c) * a + math.sqrt(1 - c) * b).argmax(-1)] = True
        ranks.append(chosen.sum())
    return summary("rank", torch.stack(ranks))


_COSINES = [0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95]


EXPERIMENTS = {
    "random_tokens": Experiment(
        "What is the mean rank on Gaussian and spherical tokens, by their width?",
        random_tokens,
        quick=_ratios(16, 8, 20, 20),
        paper=[
            *(s for d_h in (2, 8, 64) for s in _ratios(64, d_h, 40, 50)),
            *(s for d_h in (8, 64) for s in _ratios(256, d_h, 20, 10)),
        ],
        chapter="random_tokens",
        repeats=Rounding(1e-9),
    ),
    "anisotropic_heads": Experiment(
        "What does a common direction of the tokens do to the rank of a random head?",
        anisotropic_heads,
        quick=grid(n=[64], d_h=[16], cosine=[0.0, 0.5, 0.9], samples=[50], seed=[0]),
        paper=grid(n=[256], d_h=[8, 64, 512], cosine=_COSINES, samples=[100], seed=[0]),
        chapter="random_tokens",
        repeats=Exact(),
    ),
    "anisotropic_limit": Experiment(
        "The same at unlimited head dimension: how does the rank grow with the sequence?",
        anisotropic_limit,
        quick=grid(n=[64], cosine=[0.0, 0.5, 0.9], samples=[50], seed=[0]),
        paper=[
            s
            for n, samples, seeds in ((64, 800, 1), (256, 200, 1), (1024, 40, 1), (4096, 8, 5))
            for s in grid(n=[n], cosine=[0.0, 0.1, 0.25, 0.5, 0.75, 0.9], samples=[samples], seed=list(range(seeds)))
        ],
        chapter="random_tokens",
        repeats=Exact(),
    ),
}  # fmt: skip
