"""Tables from the blocks of Vision Transformers at initialisation, on real images."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnrank import _check
from attnrank.experiments.experiment import Exact, Experiment, Rounding
from attnrank.experiments.shared.gram import mean_cosine
from attnrank.experiments.shared.heads import (
    hardmax_rank_on_device,
)
from attnrank.experiments.shared.images import images_of, random_model
from attnrank.models import TransformerConfig
from attnrank.ranks import singular_values
from attnrank.scores import attention
from attnrank.sweep import Setting, grid

TREATMENTS = ("none", "centred", "whitened")
TOLERANCES = {"tenth": 1e-1, "hundredth": 1e-2, "thousandth": 1e-3}
#: Heads are exchangeable at initialisation; of more than this many, the first ones stand for all where spectra are
#: taken.
SPECTRA_PER_IMAGE = 12
WIDTH = 192
HEAD_DIMS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 192)


def vit_hardmax(
    dataset: str, patch: int, width: int, heads: int, head_dim: int, treatment: str, images: int, seed: int
) -> Setting:
    """Hardmax rank / n of the first block of a random Vision Transformer, averaged over heads and images.

    ``treatment`` is what is done to the tokens that enter the block's queries and keys: "none"; "centred", the mean
    token of each image is subtracted; "whitened", the tokens of each image are made orthonormal, (X X^T)^{-1/2} X.
    """
    images = _check.integer("images", images, minimum=2)
    model = random_model(dataset, patch, TransformerConfig(width, heads, head_dim, depth=1, init="lecun"), seed)
    x = _treat(model.encoder.blocks[0].norm1(model.embed(images_of(dataset, images, seed))), treatment)
    rank = hardmax_rank_on_device(*model.encoder.blocks[0].attention.queries_keys(x)).double() / x.shape[-2]
    return {
        "n": x.shape[-2],
        "rank_fraction": rank.mean().item(),
        "rank_fraction_over_images_std": rank.mean(1).std().item(),
    }


def vit_softmax(
    dataset: str, patch: int, width: int, heads: int, head_dim: int, init: str, images: int, seed: int
) -> Setting:
    """Numerical rank / n of the softmax of the first block at the model's temperature sqrt(d_h), for each tolerance."""
    model = random_model(dataset, patch, TransformerConfig(width, heads, head_dim, depth=1, init=init), seed)
    q, k = model.queries_keys(images_of(dataset, images, seed), layers=[0])[0]
    q, k = q[:, :SPECTRA_PER_IMAGE], k[:, :SPECTRA_PER_IMAGE]
    sigma = singular_values(attention(q, k, temperature=math.sqrt(head_dim)))
    shares = {f"rank_fraction_at_{name}": (sigma >= tol).double().mean().item() for name, tol in TOLERANCES.items()}
    return {"n": q.shape[-2], "score_std": _score_std(q, k) / math.sqrt(head_dim)} | shares


def vit_layers(
    dataset: str,
    patch: int,
    width: int,
    heads: int,
    head_dim: int,
    init: str,
    depth: int,
    layer: int,
    images: int,
    seed: int,
) -> Setting:
    """Hardmax rank / n in one layer (from 1) of a deep random Vision Transformer, and the mean cosine of its tokens."""
    layer = _check.integer("layer", layer, minimum=1)
    if layer > depth:
        raise ValueError(f"layer must be at most the depth {depth}, got {layer}")
    model = random_model(dataset, patch, TransformerConfig(width, heads, head_dim, depth, init=init), seed)
    x = model.embed(images_of(dataset, images, seed))
    for block in model.encoder.blocks[: layer - 1]:
        x = block(x)
    block = model.encoder.blocks[layer - 1]
    x = block.norm1(x)
    rank = hardmax_rank_on_device(*block.attention.queries_keys(x)).double() / x.shape[-2]
    return {"n": x.shape[-2], "rank_fraction": rank.mean().item(), "mean_cosine": mean_cosine(x).mean().item()}


def vit_tokens(dataset: str, patch: int, width: int, treatment: str, images: int, seed: int) -> Setting:
    """Geometry of the tokens that enter the first block: mean cosine of two tokens, and the number of directions.

    The number of directions is the participation ratio (sum of s_i)^2 / sum of s_i^2 of the squared singular values
    s_i of the tokens, their mean subtracted: k for tokens spread evenly over k directions. Both are means over images.
    """
    model = random_model(dataset, patch, TransformerConfig(width, 3, 64, depth=1, init="lecun"), seed)
    x = _treat(model.encoder.blocks[0].norm1(model.embed(images_of(dataset, images, seed))), treatment)
    squares = singular_values(x - x.mean(-2, keepdim=True)).square()
    directions = squares.sum(-1).square() / squares.square().sum(-1)
    return {"n": x.shape[-2], "mean_cosine": mean_cosine(x).mean().item(), "directions": directions.mean().item()}


def _treat(x: Tensor, treatment: str) -> Tensor:
    if _check.choice("treatment", treatment, TREATMENTS) == "none":
        return x
    if treatment == "centred":
        return x - x.mean(-2, keepdim=True)
    left, sigma, right = torch.linalg.svd(x, full_matrices=False)
    if x.shape[-2] > x.shape[-1] or (sigma[..., -1] <= 1e-9 * sigma[..., 0]).any():
        raise ValueError("treatment 'whitened' needs linearly independent tokens, so no more tokens than the width")
    return left @ right


def _score_std(q: Tensor, k: Tensor) -> float:
    """Standard deviation within a row of q k^T, root mean square over rows: what a softmax can see of the scores."""
    return (q @ k.mT).var(-1, correction=0).mean().sqrt().item()


def _fixed_heads(width: int, heads: int, **axes: list) -> list[Setting]:
    return grid(**axes, width=[width], heads=[heads], head_dim=list(HEAD_DIMS))


def _both_rules(width: int, fixed_heads: int, **axes: list) -> list[Setting]:
    """Settings under both parametrisations: d = h d_h (heads follow head dimension), and a fixed number of heads."""
    tied = [s for d_h in HEAD_DIMS for s in grid(**axes, width=[width], heads=[width // d_h], head_dim=[d_h])]
    fixed = _fixed_heads(width, fixed_heads, **axes)
    return tied + [setting for setting in fixed if setting not in tied]


def _hardmax_axes(dataset: str, patch: int, treatment: str = "none") -> dict[str, list]:
    return {"dataset": [dataset], "patch": [patch], "treatment": [treatment], "images": [256], "seed": list(range(10))}


_LAYERS = {
    "patch": [4],
    "width": [WIDTH],
    "heads": [3],
    "head_dim": [8, 64],
    "depth": [12],
    "layer": [1, 2, 3, 4, 6, 8, 12],
}


EXPERIMENTS = {
    "vit_hardmax": Experiment(
        "What is the hardmax rank of the first block of a random Vision Transformer, by head dimension?",
        vit_hardmax,
        quick=_both_rules(WIDTH, 3, dataset=["digits"], patch=[2], treatment=["none"], images=[64], seed=[0, 1, 2]),
        paper=[
            *_both_rules(WIDTH, 3, **_hardmax_axes("digits", 2)),
            *_both_rules(WIDTH, 3, **_hardmax_axes("cifar10", 4)),
            *_fixed_heads(WIDTH, 3, **_hardmax_axes("cifar10", 4, "centred")),
            *_fixed_heads(WIDTH, 3, **_hardmax_axes("cifar10", 4, "whitened")),
            *_fixed_heads(WIDTH, 3, **_hardmax_axes("cifar10", 2)),
            *_both_rules(WIDTH, 3, **_hardmax_axes("cifar100", 4)),
            *_both_rules(WIDTH, 3, **_hardmax_axes("svhn", 4)),
        ],
        data="dataset",
        chapter="vit_initialisation",
        repeats=Exact(),
    ),
    "vit_softmax": Experiment(
        "What is the numerical rank of the softmax of the first block, by tolerance and initialisation?",
        vit_softmax,
        quick=_both_rules(WIDTH, 3, dataset=["digits"], patch=[2], init=["lecun"], images=[16], seed=[0]),
        paper=[
            s
            for dataset, patch in (("digits", 2), ("cifar10", 4))
            for init in ("normal", "lecun", "truncated_normal")
            for s in _both_rules(
                WIDTH, 3, dataset=[dataset], patch=[patch], init=[init], images=[256], seed=list(range(10))
            )
        ],
        data="dataset",
        chapter="vit_initialisation",
        repeats=Rounding(1e-9),
    ),
    "vit_tokens": Experiment(
        "How are the tokens arranged that enter the first block of a random Vision Transformer?",
        vit_tokens,
        quick=grid(dataset=["digits"], patch=[2], width=[WIDTH], treatment=["none"], images=[64], seed=[0]),
        paper=[
            setting
            for dataset, patch in (("digits", 2), ("cifar10", 4), ("cifar10", 2), ("cifar100", 4), ("svhn", 4))
            for setting in grid(
                dataset=[dataset], patch=[patch], width=[WIDTH], treatment=["none"], images=[256], seed=list(range(10))
            )
        ],
        data="dataset",
        chapter="vit_initialisation",
        repeats=Rounding(1e-9),
    ),
    "vit_layers": Experiment(
        "How does the hardmax rank change through the layers of a deep random Vision Transformer?",
        vit_layers,
        quick=grid(dataset=["digits"], init=["lecun"], images=[16], seed=[0], **(_LAYERS | {"patch": [2]})),
        paper=grid(dataset=["cifar10"], init=["lecun", "truncated_normal"], images=[64], seed=list(range(10)),
        **_LAYERS),
        data="dataset",
        chapter="vit_initialisation",
        repeats=Rounding(1e-9),
    ),
}  # fmt: skip
