"""Tables of chapter 06 from single layers: ten token distributions, random heads, averages over heads, increments."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnrank import _check
from attnrank.experiments.counting import hardmax_rank_on_device
from attnrank.experiments.experiment import Experiment
from attnrank.inputs import tokens
from attnrank.sweep import Setting, grid

#: The token distributions of the chapter: kind and options of :func:`attnrank.inputs.tokens`.
DISTRIBUTIONS: dict[str, tuple[str, dict[str, float]]] = {
    "orthonormal": ("orthonormal", {}),
    "gaussian": ("gaussian", {}),
    "sphere": ("sphere", {}),
    "uniform_centred": ("uniform", {"low": -1.0, "high": 1.0}),
    "uniform": ("uniform", {"low": 0.0, "high": 1.0}),
    "mixture": ("mixture", {"components": 10, "cosine": 0.5}),
    "autoregressive": ("autoregressive", {"correlation": 0.9}),
    "repeated_vocabulary": ("repeated_vocabulary", {"vocabulary": 50}),
    "heavy_tailed": ("heavy_tailed", {"freedom": 3.0}),
    "anisotropic": ("anisotropic", {"cosine": 0.5}),
}


def projections(distribution: str, n: int, d: int, width: int, generator: torch.Generator) -> Tensor:
    """One sequence of tokens X (n, d) times weights (d, width) with i.i.d. N(0, 1) entries: queries and keys of heads.

    For orthonormal tokens the product has i.i.d. N(0, 1) entries, and is drawn as such. Copies of a token get equal
    rows exactly, where a matrix product might round them differently.
    """
    kind, options = DISTRIBUTIONS[_check.choice("distribution", distribution, DISTRIBUTIONS)]
    if kind == "orthonormal":
        if d < n:
            raise ValueError(f"d must be at least n for orthonormal tokens, got d = {d} and n = {n}")
        return torch.randn(n, width, generator=generator, dtype=torch.float64)
    x = tokens(kind, n, d, generator=generator, **options)
    weights = torch.randn(d, width, generator=generator, dtype=torch.float64)
    if kind != "repeated_vocabulary":
        return x @ weights
    words, word = x.unique(dim=0, return_inverse=True)
    return (words @ weights)[word]


def effective_head_dim(d_h: float, d: float, length_variance: float) -> float:
    """Head dimension that the tokens' width leaves: 1 / (1/d_h + 1/d + length_variance / 2), a heuristic of chapter 06.

    ``length_variance`` is the variance of |x|^2 over its squared mean: 0 on the sphere, 2/d for Gaussian tokens. The
    result is 2 over the relative variance, over keys, of the variance of a score, to first order.
    """
    d_h, d = _check.real("d_h", d_h, minimum=1.0), _check.real("d", d, minimum=1.0)
    return 1.0 / (1.0 / d_h + 1.0 / d + _check.real("length_variance", length_variance, minimum=0.0) / 2.0)


def synthetic_heads(distribution: str, n: int, d: int, d_h: int, samples: int, seed: int) -> Setting:
    """Hardmax rank / n of a random head: mean, standard deviation and standard error over ``samples`` repetitions.

    Each repetition has a token sequence and weights of its own; ``samples`` >= 2.
    """
    d_h, samples = _check.integer("d_h", d_h, minimum=1), _check.integer("samples", samples, minimum=2)
    generator = torch.Generator().manual_seed(_check.integer("seed", seed, minimum=0))
    ranks = []
    for batch in _batches(samples, n, d_h):
        y = torch.stack([projections(distribution, n, d, 2 * d_h, generator) for _ in range(batch)])
        ranks.append(hardmax_rank_on_device(y[..., :d_h], y[..., d_h:]).double())
    return _summary("rank", torch.cat(ranks) / n)


def synthetic_increments(distribution: str, n: int, d: int, d_h: int, samples: int, seed: int) -> Setting:
    """Hardmax rank / n at ``d_h`` and what one more head dimension adds to it, on the same tokens and weights.

    The heads of dimension d_h are those of dimension d_h + 1 without their last coordinate. ``samples`` >= 2.
    """
    d_h, samples = _check.integer("d_h", d_h, minimum=1), _check.integer("samples", samples, minimum=2)
    generator = torch.Generator().manual_seed(_check.integer("seed", seed, minimum=0))
    before, after = [], []
    for batch in _batches(samples, n, d_h + 1):
        y = torch.stack([projections(distribution, n, d, 2 * d_h + 2, generator) for _ in range(batch)])
        q, k = y.split(d_h + 1, -1)
        before.append(hardmax_rank_on_device(q[..., :-1], k[..., :-1]).double())
        after.append(hardmax_rank_on_device(q, k).double())
    before, after = torch.cat(before) / n, torch.cat(after) / n
    return _summary("rank", before) | _summary("increment", after - before)


def layer_averages(distribution: str, n: int, d: int, d_h: int, heads: int, samples: int, seed: int) -> Setting:
    """Hardmax rank / n averaged over the heads of a layer, which share their tokens: spread and intraclass correlation.

    ``rank_std`` is the standard deviation over repetitions of the mean over heads. ``head_variance`` and
    ``correlation`` are the variance of a single head and the correlation of two heads of one layer, by analysis of
    variance (Fisher 1925); None for one head. ``samples`` >= 2 repetitions.
    """
    d_h, heads = _check.integer("d_h", d_h, minimum=1), _check.integer("heads", heads, minimum=1)
    samples = _check.integer("samples", samples, minimum=2)
    generator = torch.Generator().manual_seed(_check.integer("seed", seed, minimum=0))
    layers = []
    for _ in range(samples):
        y = projections(distribution, n, d, 2 * heads * d_h, generator)
        q, k = y.reshape(n, 2, heads, d_h).permute(1, 2, 0, 3)
        layers.append(hardmax_rank_on_device(q.contiguous(), k.contiguous()).double() / n)
    rank = torch.stack(layers)
    result = _summary("rank", rank.mean(-1)) | {"head_variance": None, "correlation": None}
    if heads > 1:
        within = rank.var(-1).mean().item()  # given the tokens
        between = rank.mean(-1).var().item() - within / heads  # of the conditional mean; unbiased, may be negative
        result |= {"head_variance": between + within, "correlation": between / (between + within)}
    return result


def _summary(name: str, values: Tensor) -> Setting:
    return {
        f"{name}_mean": values.mean().item(),
        f"{name}_std": values.std().item(),
        f"{name}_standard_error": values.std().item() / math.sqrt(len(values)),
    }


def _batches(samples: int, n: int, d_h: int) -> list[int]:
    """Numbers of sequences, adding up to ``samples``, whose scores or queries fill at most 8 MiB."""
    together = max(1, 2**20 // (n * max(n, d_h)))
    return [min(together, samples - start) for start in range(0, samples, together)]


#: n -> width d, and repetitions of the rank, of increments. d = n at least, as the theorem asks, where n <= 1024.
WIDTHS = {25: 64, 50: 64, 100: 128, 200: 256, 400: 512, 1024: 1024, 4096: 2048}
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
        "How does the rank of a random head depend on the tokens' distribution, number and width, and on head dimension?",
        synthetic_heads,
        quick=grid(distribution=list(DISTRIBUTIONS), n=[25], d=[64], d_h=[1, 4, 16, 64], samples=[20], seed=[6]),
        paper=[s for name in DISTRIBUTIONS for s in _lengths(name)] + [s for name in _INDEPENDENT for s in _widths(name)],
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
    ),
    "layer_averages": Experiment(
        "What does averaging over the heads of a layer do to the spread of the rank?",
        layer_averages,
        quick=grid(distribution=["orthonormal", "mixture"], n=[25], d=[64], d_h=[8], heads=[1, 4], samples=[40], seed=[8]),
        paper=[
            setting
            for heads in (1, 2, 4, 8, 16)  # another seed for each, so that the rows are independent
            for setting in grid(
                distribution=list(DISTRIBUTIONS), n=[100], d=[128], d_h=[8, 64] if heads == 16 else [64], heads=[heads], samples=[200],
                seed=[100 + heads],
            )
        ],
    ),
}  # fmt: skip
