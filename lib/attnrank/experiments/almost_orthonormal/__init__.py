"""Tables of the chapter almost_orthonormal: tokens that break the barrier, perturbed ones, and an adversary's."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from attnrank import _check, theory
from attnrank.experiments.almost_orthonormal.grams import adversarial_gram, leveled_gram
from attnrank.experiments.experiment import Exact, Experiment, Rounding, Statistical
from attnrank.experiments.shared.gram import STRUCTURES, geometry, perturbed_gram, ranks_of_gram
from attnrank.experiments.shared.heads import LARGE, distinct, distinct_entries
from attnrank.experiments.shared.statistics import batches, seeded, summary
from attnrank.sweep import Setting, grid


def perturbed_tokens(structure: str, n: int, d_h: int, epsilon: float, samples: int, seed: int) -> Setting:
    """Mean rank under a controlled perturbation, and its excess over orthonormal tokens with the same weights."""
    generator = seeded(seed)
    gram = perturbed_gram(structure, n, epsilon, generator=generator)
    return geometry(gram) | _beside_orthonormal(*ranks_of_gram(gram, d_h, samples, generator=generator))


KEYS = ("orthonormal", "circle", "uneven", "own")
#: Head dimension where the keys are the tokens' own.
OWN_HEAD_DIM = 8


def token_ranks(tokens: str, level: float, n: int, keys: str, samples: int, seed: int) -> Setting:
    """Mean rank of ``samples`` Gaussian heads on tokens that may break the barrier, for keys that may reach it.

    The tokens are those of :func:`leveled_gram`. ``keys``: "orthonormal", the unit vectors of R^n; "circle", n evenly
    spaced in the plane; "uneven", n fixed Gaussian vectors of R^3 times factors from 1/3 to 3; "own", x W_k
    with ``OWN_HEAD_DIM`` dimensions.
    """
    _check.choice("keys", keys, KEYS)
    gram, generator = leveled_gram(tokens, level, n), seeded(seed)
    values, vectors = torch.linalg.eigh(gram)
    values = values.where(values > 1e-10, 0.0)  # rounding errors of a zero differ from machine to machine
    root = (vectors * values.sqrt()) @ vectors.T
    angle = 2.0 * math.pi * torch.arange(n, dtype=torch.float64) / n
    fixed = {
        "orthonormal": torch.eye(n, dtype=torch.float64),
        "circle": torch.stack([angle.cos(), angle.sin()], -1),
        "uneven": torch.randn(n, 3, generator=seeded(0), dtype=torch.float64)
        * 3.0 ** torch.linspace(-1, 1, n, dtype=torch.float64)[:, None],
        "own": torch.zeros(n, OWN_HEAD_DIM, dtype=torch.float64),
    }[keys]
    ranks = []
    for batch in batches(samples, n * max(n, fixed.shape[1]), LARGE):
        k = fixed
        if keys == "own":
            k = root @ torch.randn(batch, *fixed.shape, generator=generator, dtype=torch.float64)
        q = root @ torch.randn(batch, *fixed.shape, generator=generator, dtype=torch.float64)
        chosen = q.argmax(-1) if keys == "orthonormal" else (q @ k.mT).argmax(-1)
        ranks.append(distinct_entries(chosen, n))
    return {"smallest_eigenvalue": values[0].item()} | summary("rank", torch.cat(ranks))


#: Added to a seed for the weights on which the tokens that an ascent has found are measured.
FRESH_WEIGHTS = 1000


def adversarial_tokens(n: int, d_h: int, epsilon: float, start: str, steps: int, samples: int, seed: int) -> Setting:
    """The perturbation that :func:`adversarial_gram` finds, measured on fresh weights."""
    gram = adversarial_gram(n, d_h, epsilon, start=start, steps=steps, seed=seed)
    generator = torch.Generator().manual_seed(FRESH_WEIGHTS + seed)
    return geometry(gram) | _beside_orthonormal(*ranks_of_gram(gram, d_h, samples, generator=generator))


def simplex_tokens(n: int, samples: int, seed: int) -> Setting:
    """Mean rank of n queries at the corners of a regular simplex, for orthonormal keys: the limit of a large head.

    Scores of orthonormal tokens are then an (n, n) matrix of i.i.d. N(0, 1); a simplex subtracts the mean query.
    """
    n, samples = _check.integer("n", n, minimum=2), _check.integer("samples", samples, minimum=2)
    generator = seeded(seed)
    counts = []
    for batch in batches(samples, n**2, LARGE):
        scores = torch.randn(batch, n, n, generator=generator, dtype=torch.float64)
        counts.append([distinct(s) for s in (scores - scores.mean(-2, keepdim=True), scores)])
    return _beside_orthonormal(*(torch.cat(ranks).double() for ranks in zip(*counts, strict=True)))


def _beside_orthonormal(rank: Tensor, orthonormal: Tensor) -> dict[str, float]:
    """Mean rank and mean paired difference from orthonormal tokens, with standard errors."""
    return summary("rank", rank) | summary("excess", rank - orthonormal)


def _perturbations(n: int, d_h: int, samples: int) -> list[Setting]:
    largest = {"random": 0.8 / math.sqrt(n), "simplex": 1.0 / (n - 1)}  # beyond these I + E is not semi-definite
    return [
        setting
        for structure in STRUCTURES
        for epsilon in (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 0.9)
        for setting in grid(structure=[structure], n=[n], d_h=[d_h], epsilon=[epsilon], samples=[samples], seed=[0])
        if epsilon <= largest.get(structure, 1.0)
    ] + grid(structure=["simplex"], n=[n], d_h=[d_h], epsilon=[1.0 / (n - 1)], samples=[samples], seed=[0])


def eigenvalue_bounds(n: int, smallest: float) -> Setting:
    """The barrier and the bounds that know the smallest eigenvalue of the Gram matrix; units of rank."""
    return {
        "barrier": theory.occupancy_bound(n),
        "noise_stability": theory.smallest_eigenvalue_bound(n, smallest),
        "effective_queries": theory.effective_queries_bound(n, smallest),
    }


def token_conditions(n: int, d: int, d_h: int) -> Setting:
    """Scales of the largest cosine that the theorems of the chapter admit, and that of n random directions in R^d.

    "paper" n^{-3/2} / (d + d_h), "total_variation" n^{-2} d_h^{-1/2}, "effective_queries" n^{-2}, "noise_stability"
    1 / (n log n), all for a remainder O(1); "vanishing" 1 / n for o(n), "small_cosines" 1 / (n (log n)^3);
    "random_directions" 2 sqrt(log n / d), above the largest cosine for long sequences. "ratio" is that of the second to
    the first.
    """
    n, d, d_h = (_check.integer(name, value, minimum=1) for name, value in (("n", n), ("d", d), ("d_h", d_h)))
    log_n = math.log(_check.integer("n", n, minimum=2))
    paper, total_variation = n**-1.5 / (d + d_h), n**-2.0 * d_h**-0.5
    return {
        "paper": paper,
        "total_variation": total_variation,
        "ratio": total_variation / paper,
        "effective_queries": n**-2.0,
        "small_cosines": 1.0 / (n * log_n**3),
        "noise_stability": 1.0 / (n * log_n),
        "vanishing": 1.0 / n,
        "random_directions": 2.0 * math.sqrt(log_n / d),
    }


def _violations(n: int, samples: int) -> list[Setting]:
    kinds = {"simplex": [0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0], "pairs": [0.5, 1.0], "common": [0.1, 0.5, 0.9],
             "autoregressive": [0.1, 0.3, 0.6, 0.9], "circle": [1.0], "circles": [1.0]}  # fmt: skip
    return [
        setting
        for kind, levels in kinds.items()
        for setting in grid(tokens=[kind], level=levels, n=[n], keys=list(KEYS), samples=[samples], seed=[0])
    ]


_LENGTHS = [16, 64, 256, 1024, 4096, 16384, 65536]
_HEAD_DIMS = [1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 512, 1024]


EXPERIMENTS = {
    "token_ranks": Experiment(
        "Which tokens break the barrier, by the smallest eigenvalue of their Gram matrix?",
        token_ranks,
        quick=_violations(4, 500),
        paper=[*_violations(4, 40000), *_violations(16, 20000), *_violations(64, 4000)],
        chapter="almost_orthonormal",
        repeats=Rounding(1e-9),
        version=2,  # the lengths of the uneven keys in float64
    ),
    "perturbed_tokens": Experiment(
        "How does the mean rank change when orthonormal tokens are perturbed by a set amount?",
        perturbed_tokens,
        quick=_perturbations(16, 8, 500),
        paper=[
            *(s for n in (16, 64) for d_h in (8, 64) for s in _perturbations(n, d_h, 4000)),
            *_perturbations(256, 64, 1000),
        ],
        chapter="almost_orthonormal",
        repeats=Rounding(1e-9),
    ),
    "adversarial_tokens": Experiment(
        "How much rank can an adversary gain who may move the tokens by a set amount?",
        adversarial_tokens,
        quick=grid(n=[8], d_h=[8], epsilon=[0.05, 1.0], start=["orthonormal"], steps=[30], samples=[500], seed=[0]),
        paper=[
            *grid(
                n=[16, 64], d_h=[8, 64], epsilon=[0.003, 0.01, 0.03, 0.1, 0.3, 0.9], start=["orthonormal"],
                steps=[300], samples=[4000], seed=[0],
            ),
            *grid(n=[16, 64], d_h=[8, 64], epsilon=[1.0], start=["circle"], steps=[300], samples=[4000], seed=[0]),
        ],
        chapter="almost_orthonormal",
        # The ascent ends near the same tokens, on which the same fresh weights are measured.
        repeats=Statistical({"rank_mean": "rank_standard_error", "excess_mean": "excess_standard_error"}, rtol=1e-3),
    ),
    "simplex_tokens": Experiment(
        "How far does a simplex of tokens exceed the barrier, by sequence length?",
        simplex_tokens,
        quick=grid(n=[4, 16, 64], samples=[500], seed=[0]),
        paper=[
            *grid(n=[4, 8, 16, 32, 64, 128], samples=[20000], seed=[0]),
            *grid(n=[256, 512, 1024], samples=[400], seed=[0, 1, 2, 3, 4]),
        ],
        chapter="almost_orthonormal",
        repeats=Exact(),
    ),
    "eigenvalue_bounds": Experiment(
        "What does the smallest eigenvalue of the Gram matrix allow the mean rank to be, by sequence length?",
        eigenvalue_bounds,
        quick=grid(n=[16, 256], smallest=[0.1, 0.9]),
        paper=grid(
            n=sorted({int(n) for n in np.geomspace(16, 1e12, 60).round()}), smallest=[0.1, 0.3, 0.6, 0.9, 0.99]
        ),
        chapter="almost_orthonormal",
        repeats=Rounding(1e-9),
        version=2,
    ),
    "token_conditions": Experiment(
        "How large may the cosines of tokens be, by which theorem, and how large are those of random directions?",
        token_conditions,
        quick=grid(n=[16, 256], d=[256], d_h=[8, 64]),
        paper=[
            *(
                {"n": n, "d": width * n, "d_h": d_h}
                for n in _LENGTHS for width in (1, 2, 4, 16, 64) for d_h in _HEAD_DIMS
            ),
            *({"n": n, "d": d, "d_h": 64} for n, d in ((16, 192), (64, 192), (256, 192), (4096, 64))),
        ],
        chapter="almost_orthonormal",
        repeats=Rounding(1e-9),
    ),
}  # fmt: skip
