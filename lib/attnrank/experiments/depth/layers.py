"""Pure attention and random encoders, layer by layer."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnrank import _check, theory
from attnrank.experiments.experiment import Experiment, Rounding, Statistical
from attnrank.experiments.shared.distributions import DISTRIBUTIONS
from attnrank.experiments.shared.gram import mean_cosine
from attnrank.experiments.shared.heads import distinct, hardmax_rank_on_device
from attnrank.experiments.shared.statistics import seeded
from attnrank.inputs import tokens
from attnrank.models import Encoder, TransformerConfig
from attnrank.ranks import singular_values
from attnrank.scores import attention
from attnrank.sweep import Setting, grid


def depth_ranks(
    n: int, d: int, d_h: int, skip: bool, temperature: float, layers: int, samples: int, seed: int
) -> Setting:
    """Tokens and attention matrices through layers X <- [X +] A X W_v of single heads, means over ``samples`` stacks.

    Gaussian X and W_v (entries of variance 1/d), Gaussian query and key weights, the temperature T sqrt(d_h). Queries
    and keys see the tokens at root mean square 1 (RMSNorm). In layer l: ``residual_l``, the share |X - 1 x^T|_F / |X|_F
    (x the mean token) of the tokens that enter, at least 1e-9; ``hardmax_l``, the hardmax rank / n of its matrix,
    missing where the tokens are equal up to rounding; ``numerical_l``, the share of its singular values above 1/10.
    """
    generator = seeded(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(samples, *shape, generator=generator, dtype=torch.float64)

    x = normal(n, d)
    result: dict[str, float | None] = {}
    for layer in range(1, layers + 1):
        y = x / x.square().mean(-1, keepdim=True).sqrt()
        q, k = y @ normal(d, d_h) / math.sqrt(d), y @ normal(d, d_h) / math.sqrt(d)
        a = attention(q, k, temperature=temperature * math.sqrt(d_h))
        centred = x - x.mean(-2, keepdim=True)
        residual = centred.square().sum((-2, -1)).sqrt() / x.square().sum((-2, -1)).sqrt()
        result[f"residual_{layer}"] = residual.clamp(min=1e-9).log().mean().exp().item()
        clear = residual.min() > 1e-9  # else the order of the scores is that of rounding errors
        result[f"hardmax_{layer}"] = distinct(q @ k.mT).double().mean().item() / n if clear else None
        result[f"numerical_{layer}"] = (singular_values(a) >= 0.1).double().mean().item()
        update = a @ x @ normal(d, d) / math.sqrt(d)
        x = x + update if skip else update
    return result


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
    generator = seeded(seed)
    config = TransformerConfig(d, heads, d_h, DEPTH, init=init)
    ranks, cosines = [], []
    for _ in range(samples):
        x = tokens(kind, n, d, generator=generator, **options)
        with torch.no_grad():
            layers = _layers(Encoder(config, generator), x / x.square().mean().sqrt())
        ranks.append(torch.stack([rank for rank, _ in layers]))
        cosines.append(torch.stack([cosine for _, cosine in layers]))
    return by_layer(torch.stack(ranks), torch.stack(cosines))


def by_layer(ranks: Tensor, cosines: Tensor) -> Setting:
    """Columns of a row from ranks and cosines (samples, layers): their means, and the deviation of the ranks."""
    columns = {"rank": ranks.mean(0), "rank_std": ranks.std(0), "cosine": cosines.mean(0)}
    return {f"{name}_{layer}": x.item() for name, xs in columns.items() for layer, x in enumerate(xs, start=1)}


def _layers(encoder: Encoder, x: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Mean rank / n over the heads, and mean cosine, of every layer."""
    found = []
    for block in encoder.blocks:
        entering = block.norm1(x)
        rank = hardmax_rank_on_device(*block.attention.queries_keys(entering)).double().mean() / len(x)
        found.append((rank, mean_cosine(entering)))
        x = block(x)
    return found


def _encoders(distributions: list[str], n: int, head_dims: list[int], inits: list[str]) -> list[Setting]:
    return grid(
        distribution=distributions, n=[n], d=[128], heads=[4], d_h=head_dims, init=inits, samples=[100], seed=[9]
    )  # fmt: skip


_KINDS = ["orthonormal", "gaussian", "mixture", "autoregressive", "heavy_tailed", "anisotropic"]


#: Standard error of the mean over 40 stacks of the hardmax rank / n of a random head on 64 tokens.
_HARDMAX_ERROR = math.sqrt(theory.occupancy_variance(64) / 40) / 64

EXPERIMENTS = {
    "depth_ranks": Experiment(
        "Through the layers of pure attention, what becomes of the tokens and of the attention matrices?",
        depth_ranks,
        quick=grid(n=[32], d=[32], d_h=[8], skip=[True, False], temperature=[1.0], layers=[6], samples=[8], seed=[0]),
        paper=grid(
            n=[64], d=[128], d_h=[32], skip=[True, False], temperature=[0.01, 0.1, 1.0], layers=[6], samples=[40],
            seed=[0],
        ),
        chapter="depth",
        # Tokens that attend to the same token become equal up to rounding, which then decides between them as keys.
        # What does not follow the argmax repeats up to rounding: the residual falls to 1e-8 of the tokens' size.
        repeats=Statistical({f"hardmax_{layer}": _HARDMAX_ERROR for layer in range(2, 7)}, rtol=1e-7),
    ),
    "random_encoders": Experiment(
        "How do the rank of a random encoder's heads and the cosine of its tokens change from layer to layer?",
        random_encoders,
        quick=grid(distribution=["gaussian"], n=[25], d=[32], heads=[2], d_h=[8], init=["lecun"], samples=[4],
        seed=[9]),
        paper=[
            *_encoders(_KINDS, 100, [8, 32], ["lecun"]),
            *_encoders(_KINDS, 100, [32], ["truncated_normal"]),
            *_encoders(["orthonormal"], 100, [32], ["normal", "xavier"]),
            *_encoders(["gaussian"], 400, [32], ["lecun"]),
        ],
        chapter="depth",
        repeats=Rounding(1e-9),
    ),
}  # fmt: skip
