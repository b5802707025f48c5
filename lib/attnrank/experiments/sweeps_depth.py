"""Table of chapter 06 about depth: random encoders, the hardmax rank of every layer and the cosine of its tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from attnrank import _check
from attnrank.experiments.counting import hardmax_rank_on_device
from attnrank.experiments.experiment import Experiment
from attnrank.experiments.sweeps_heads import DISTRIBUTIONS
from attnrank.inputs import tokens
from attnrank.models import Encoder, TransformerConfig
from attnrank.sweep import Setting, grid

DEPTH = 8


def random_encoders(
    distribution: str, n: int, d: int, heads: int, d_h: int, init: str, samples: int, seed: int
) -> Setting:
    """Hardmax rank / n of the heads of each layer of a random encoder of 8 layers, and the mean cosine of its tokens.

    Each of ``samples`` >= 2 repetitions has an encoder and a token sequence of its own, scaled to entries of root mean
    square 1. For each layer: the mean over repetitions of the mean over heads, its standard deviation over repetitions,
    and the mean cosine of two tokens as they enter queries and keys, after LayerNorm.
    """
    kind, options = DISTRIBUTIONS[_check.choice("distribution", distribution, DISTRIBUTIONS)]
    if kind == "repeated_vocabulary":  # copies stay copies only up to rounding, which would be counted
        raise ValueError("distribution must not repeat tokens, got 'repeated_vocabulary'")
    samples = _check.integer("samples", samples, minimum=2)
    generator = torch.Generator().manual_seed(_check.integer("seed", seed, minimum=0))
    config = TransformerConfig(d, heads, d_h, DEPTH, init=init)
    ranks, cosines = [], []
    for _ in range(samples):
        x = tokens(kind, n, d, generator=generator, **options)
        with torch.no_grad():
            layers = _layers(Encoder(config, generator), x / x.square().mean().sqrt())
        ranks.append(torch.stack([rank for rank, _ in layers]))
        cosines.append(torch.stack([cosine for _, cosine in layers]))
    ranks, cosines = torch.stack(ranks), torch.stack(cosines)
    columns = {"rank": ranks.mean(0), "rank_std": ranks.std(0), "cosine": cosines.mean(0)}
    return {f"{name}_{layer + 1}": values[layer].item() for name, values in columns.items() for layer in range(DEPTH)}


def _layers(encoder: Encoder, x: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Mean rank / n over the heads, and mean cosine, of every layer."""
    found = []
    for block in encoder.blocks:
        entering = block.norm1(x)
        rank = hardmax_rank_on_device(*block.attention.queries_keys(entering)).double().mean() / len(x)
        found.append((rank, mean_cosine(entering)))
        x = block(x)
    return found


def mean_cosine(x: Tensor) -> Tensor:
    """Mean over all pairs of different rows of x (..., n, d) of the cosine between them, (...)."""
    n = x.shape[-2]
    return (torch.nn.functional.normalize(x, dim=-1).sum(-2).square().sum(-1) - n) / (n * (n - 1))


def _encoders(distributions: list[str], n: int, head_dims: list[int], inits: list[str]) -> list[Setting]:
    return grid(
        distribution=distributions, n=[n], d=[128], heads=[4], d_h=head_dims, init=inits, samples=[100], seed=[9]
    )  # fmt: skip


_KINDS = ["orthonormal", "gaussian", "mixture", "autoregressive", "heavy_tailed", "anisotropic"]

EXPERIMENTS = {
    "random_encoders": Experiment(
        "How do the rank of a random encoder's heads and the cosine of its tokens change from layer to layer?",
        random_encoders,
        quick=grid(distribution=["gaussian"], n=[25], d=[32], heads=[2], d_h=[8], init=["lecun"], samples=[4], seed=[9]),
        paper=[
            *_encoders(_KINDS, 100, [8, 32], ["lecun"]),
            *_encoders(_KINDS, 100, [32], ["truncated_normal"]),
            *_encoders(["orthonormal"], 100, [32], ["normal", "xavier"]),
            *_encoders(["gaussian"], 400, [32], ["lecun"]),
        ],
    ),
}  # fmt: skip
