"""Which part of a random block lowers the rank of the layers after it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attnrank import _check
from attnrank.experiments.depth.layers import DEPTH, by_layer
from attnrank.experiments.experiment import Experiment, Rounding
from attnrank.experiments.shared.gram import mean_cosine
from attnrank.experiments.shared.heads import hardmax_rank_on_device
from attnrank.experiments.shared.images import images_of, random_model
from attnrank.experiments.shared.statistics import seeded
from attnrank.inputs import tokens
from attnrank.models import Encoder, TransformerConfig
from attnrank.models.encoder import Block
from attnrank.sweep import Setting, grid

PARTS = ("both", "attention", "mlp")
ACTIVATIONS = {"gelu": nn.GELU, "tanh": nn.Tanh}
VIT_WIDTH = 192
VIT_LAYERS = (1, 2, 3, 4, 6, 8, 12)


def depth_causes(
    part: str, activation: str, init: str, scale: float, n: int, d: int, heads: int, d_h: int, samples: int, seed: int
) -> Setting:
    """Hardmax rank / n of each layer of random encoders that have one part of every block only, and the mean cosine.

    ``part`` is what the blocks add to their tokens: "attention", "mlp" or "both". Tokens are orthonormal, scaled to
    entries of root mean square ``scale`` > 0. The weights are those of the whole encoder, whatever part is used, and
    the tokens those of every other setting of the same shape and seed. For each of 8 layers the mean over ``samples``
    >= 2 encoders of the mean over heads, its standard deviation over encoders, and the mean cosine of two tokens as
    they enter queries and keys.
    """
    scale, samples = _check.real("scale", scale, above=0.0), _check.integer("samples", samples, minimum=2)
    generator = seeded(seed)
    config = TransformerConfig(d, heads, d_h, DEPTH, init=init)
    ranks, cosines = [], []
    for _ in range(samples):
        x = tokens("orthonormal", n, d, generator=generator)
        blocks = Encoder(config, generator).requires_grad_(False).blocks
        found = _through(blocks, scale * x / x.square().mean().sqrt(), part, activation)
        ranks.append(torch.stack([rank for rank, _ in found]))
        cosines.append(torch.stack([cosine for _, cosine in found]))
    return by_layer(torch.stack(ranks), torch.stack(cosines))


def vit_causes(dataset: str, patch: int, part: str, activation: str, init: str, images: int, seed: int) -> Setting:
    """The same in a random Vision Transformer of 12 layers (d = 192, h = 3, d_h = 64) on real images.

    Rank / n and mean cosine in the layers ``VIT_LAYERS``, means over images, and the root mean square of the entries of
    the tokens that enter the first block (``scale``). All parts of one seed have the same weights and images.
    """
    model = random_model(dataset, patch, TransformerConfig(VIT_WIDTH, 3, 64, max(VIT_LAYERS), init=init), seed)
    x = model.embed(images_of(dataset, images, seed))
    result = {"scale": x.square().mean().sqrt().item()}
    for layer, (rank, cosine) in enumerate(_through(model.encoder.blocks, x, part, activation), start=1):
        if layer in VIT_LAYERS:
            result |= {f"rank_{layer}": rank.mean().item(), f"cosine_{layer}": cosine.mean().item()}
    return result


def _through(blocks: list[Block], x: Tensor, part: str, activation: str) -> list[tuple[Tensor, Tensor]]:
    """Rank / n, averaged over heads, and mean cosine of the tokens x (..., n, d) as they enter each block."""
    _check.choice("part", part, PARTS)
    _check.choice("activation", activation, ACTIVATIONS)
    found = []
    for block in blocks:
        entering = block.norm1(x)
        rank = hardmax_rank_on_device(*block.attention.queries_keys(entering)).double().mean(-1) / x.shape[-2]
        found.append((rank, mean_cosine(entering)))
        if part != "mlp":
            x = x + block.attention(entering)
        if part != "attention":
            block.mlp[1] = ACTIVATIONS[activation]()
            x = x + block.mlp(block.norm2(x))
    return found


def _causes(part: list[str], activation: list[str], init: list[str], scale: list[float]) -> list[Setting]:
    return grid(
        part=part, activation=activation, init=init, scale=scale, n=[100], d=[128], heads=[4], d_h=[32], samples=[100],
        seed=[9],
    )  # fmt: skip


_SCALES = [0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0]

EXPERIMENTS = {
    "depth_causes": Experiment(
        "Which part of a random block makes tokens alike: attention, or the MLP with its activation?",
        depth_causes,
        quick=grid(part=list(PARTS), activation=["gelu"], init=["lecun"], scale=[1.0], n=[25], d=[32], heads=[2],
        d_h=[8],
                   samples=[4], seed=[9]),
        paper=[
            *_causes(list(PARTS), ["gelu"], ["lecun", "normal"], [1.0]),
            *_causes(["both", "mlp"], ["tanh"], ["lecun"], [1.0]),
            *_causes(["both"], ["gelu"], ["truncated_normal"], _SCALES),
        ],
        chapter="depth",
        repeats=Rounding(1e-9),
    ),
    "vit_causes": Experiment(
        "Which part of a block makes tokens alike in a deep random Vision Transformer on real images?",
        vit_causes,
        quick=grid(dataset=["digits"], patch=[2], part=["both"], activation=["gelu"], init=["lecun"], images=[16],
        seed=[0]),
        paper=[
            s
            for part, activation in (("both", "gelu"), ("attention", "gelu"), ("mlp", "gelu"), ("mlp", "tanh"))
            for s in grid(dataset=["cifar10"], patch=[4], part=[part], activation=[activation],
                          init=["lecun", "truncated_normal"], images=[64], seed=list(range(10)))
        ],
        chapter="depth",
        repeats=Rounding(1e-9),
        data="dataset",
    ),
}  # fmt: skip
