"""What a random Vision Transformer's rank owes to choices that papers rarely state: pixels, embedding, positions."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import layer_norm

from attnrank import _check, data
from attnrank.experiments.experiment import Experiment, Rounding
from attnrank.experiments.shared.heads import hardmax_rank_on_device
from attnrank.experiments.shared.images import IMAGE_SEEDS
from attnrank.models.vision import patches
from attnrank.models.weights import draw_weight
from attnrank.sweep import Setting, grid

WIDTH, HEADS = 192, 3
#: How pixels enter: mean 0 and variance 1 in each channel of the data set; as stored, in [0, 1]; or in [-1, 1].
PIXELS = ("standardised", "unit", "symmetric")
#: How the patch embedding is drawn: the schemes of attnrank.models; "torch", the default of nn.Linear and nn.Conv2d,
#: uniform weights and biases of variance 1 / (3 fan_in); "normalised", the same between two LayerNorms.
EMBEDDINGS = ("lecun", "truncated_normal", "torch", "normalised")
POSITIONS = (0.0, 0.02, 0.1, 0.3, 1.0)
#: Added to a seed for the weights of the heads.
HEAD_SEEDS = 1000


def vit_choices(
    dataset: str,
    patch: int,
    pixels: str,
    embedding: str,
    positions: float,
    class_token: bool,
    d_h: int,
    samples: int,
    seed: int,
) -> Setting:
    """Hardmax rank of the first block of a random Vision Transformer, and the geometry of its tokens.

    N(0, 1) query and key weights; N(0, positions^2) positions; a class token starts at zero. Tokens that are equal but
    for rounding are one: of patches that differ by a constant, say, between two LayerNorms. ``common_share`` and
    ``directions`` describe the tokens after LayerNorm, see :func:`token_geometry`.
    """
    x = _tokens(dataset, patch, pixels, embedding, positions, bool(class_token), samples, seed)
    generator = torch.Generator().manual_seed(HEAD_SEEDS + _check.integer("seed", seed, minimum=0))
    w_q, w_k = torch.randn(
        2, HEADS, WIDTH, _check.integer("d_h", d_h, minimum=1), generator=generator, dtype=torch.float64
    )
    first = first_equal(x)[:, None, :, None]
    q, k = (y.gather(2, first.expand_as(y)) for y in (x.unsqueeze(1) @ w_q, x.unsqueeze(1) @ w_k))
    rank = hardmax_rank_on_device(q, k).double()
    common_share, directions = token_geometry(x)
    return {"n": x.shape[-2], "rank_mean": rank.mean().item(), "rank_fraction": rank.mean().item() / x.shape[-2],
            "directions": 1 / (1 / directions).mean().item(), "common_share": common_share.mean().item()}  # fmt: skip


def first_equal(x: Float[Tensor, "*batch n d"]) -> Int[Tensor, "*batch n"]:
    """For each token the first of its sequence that is as near as rounding, 1e-9 for entries of order 1."""
    near = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist") < 1e-9
    return near.long().argmax(-1)


def token_geometry(x: Float[Tensor, "*batch n d"]) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
    """Two numbers about the pairs of different tokens of each sequence: orthonormal ones have 0 and (n - 1)^2.

    The common share is the mean inner product of two tokens over their mean squared length. The number of directions
    is 1 over the mean squared inner product of two centred tokens, in units of their mean squared length: k for many
    tokens spread evenly over k directions.
    """
    n = x.shape[-2]
    pairs = n * (n - 1)
    squares = x.square().sum((-1, -2))
    share = (x.sum(-2).square().sum(-1) - squares) / pairs / (squares / n)
    centred = x - x.mean(-2, keepdim=True)
    gram = centred @ centred.mT
    diagonal = gram.diagonal(dim1=-2, dim2=-1)
    squared = (gram.square().sum((-1, -2)) - diagonal.square().sum(-1)) / pairs
    return share, diagonal.mean(-1).square() / squared


@lru_cache(maxsize=1)
def _tokens(
    dataset: str, patch: int, pixels: str, embedding: str, positions: float, class_token: bool, samples: int, seed: int
) -> Float[Tensor, "samples n width"]:
    """The tokens that enter the first block's queries and keys, after its LayerNorm."""
    generator = torch.Generator().manual_seed(_check.integer("seed", seed, minimum=0))
    x = _embedded(patches(_images(dataset, pixels, samples, seed), patch), embedding, generator)
    if class_token:
        x = torch.cat([x.new_zeros(len(x), 1, WIDTH), x], dim=1)
    place = torch.randn(x.shape[1:], generator=generator, dtype=torch.float64)
    return layer_norm(x + _check.real("positions", positions, minimum=0.0) * place, (WIDTH,))


def _embedded(x: Float[Tensor, "batch n p"], embedding: str, generator: torch.Generator) -> Float[Tensor, "batch n d"]:
    fan_in = x.shape[-1]
    if _check.choice("embedding", embedding, EMBEDDINGS) in ("lecun", "truncated_normal"):
        return x @ draw_weight(embedding, WIDTH, fan_in, generator).mT
    weight, bias = (
        (2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1) / math.sqrt(fan_in)
        for shape in ((fan_in, WIDTH), (WIDTH,))
    )
    if embedding == "torch":
        return x @ weight + bias
    return layer_norm(layer_norm(x, (fan_in,)) @ weight + bias, (WIDTH,))


@lru_cache(maxsize=8)
def _images(dataset: str, pixels: str, samples: int, seed: int) -> Float[Tensor, "samples c height width"]:
    generator = torch.Generator().manual_seed(IMAGE_SEEDS + seed)
    standardise = _check.choice("pixels", pixels, PIXELS) == "standardised"
    images = data.images(dataset, count=samples, generator=generator, standardise=standardise)[0].double()
    return 2 * images - 1 if pixels == "symmetric" else images


CHOICES = ("dataset", "patch", "pixels", "embedding", "class_token", "positions", "samples", "seed", "d_h")


def _paper() -> list[Setting]:
    """Digits and CIFAR-10 in 64 patches whole; of the other images, what tells whether the same law holds for them."""
    settings = []
    for dataset, patch in (("digits", 2), ("cifar10", 4)):
        axes = {"samples": [64], "seed": list(range(5)), "d_h": [8, 192]}
        for pixels, class_token, positions in ((PIXELS, False, POSITIONS), (["standardised"], True, [0.02, 1.0])):
            settings += grid(dataset=[dataset], patch=[patch], pixels=list(pixels), embedding=list(EMBEDDINGS),
                             class_token=[class_token], positions=list(positions), **axes)
    for dataset, patch in (("cifar10", 2), ("cifar100", 4), ("svhn", 4)):
        settings += grid(
            dataset=[dataset],
            patch=[patch],
            pixels=["standardised", "unit"],
            embedding=["lecun", "torch"],
            class_token=[False],
            positions=[0.02, 0.3, 1.0],
            samples=[64],
            seed=[0, 1, 2],
            d_h=[8, 192],
        )
    return settings


EXPERIMENTS = {
    "vit_choices": Experiment(
        "How does the rank of a random Vision Transformer depend on pixels, embedding, positions and class token?",
        vit_choices,
        quick=grid(dataset=["digits"], patch=[2], pixels=list(PIXELS), embedding=["lecun"], class_token=[False],
                   positions=[0.02, 1.0], samples=[16], seed=[0], d_h=[8, 192]),
        paper=_paper(),
        chapter="vit_initialisation",
        repeats=Rounding(1e-9),
        data="dataset",
        version=2,
    ),
}  # fmt: skip
