"""Floating-point operations of a Transformer, counted from its shape: a multiplication and an addition are two.

Only matrix products are counted, as PyTorch's own counter does; softmax, LayerNorm and GELU are not.
"""

from __future__ import annotations

from attnrank import _check
from attnrank.models import TextTransformer, TransformerConfig, VisionTransformer


def forward_flops(config: TransformerConfig, n: int) -> int:
    """Operations of the encoder's forward pass over one sequence of n tokens.

    For each block 2 n d h (2 d_qk + 2 d_v) for queries, keys, values and output (W_k is left out when tied),
    2 n^2 h (d_qk + d_v) for scores and mixtures, and 4 n d m for the MLP of hidden width m.
    """
    n, d, h, d_qk = _check.integer("n", n, minimum=1), config.width, config.heads, config.head_dim
    d_v = d_qk if config.value_dim is None else config.value_dim
    hidden = 4 * d if config.mlp_width is None else config.mlp_width
    projections = 2 * n * d * h * ((1 if config.tied else 2) * d_qk + 2 * d_v)
    return config.depth * (projections + 2 * n * n * h * (d_qk + d_v) + 4 * n * d * hidden)


def training_flops(model: VisionTransformer, images: int) -> int:
    """Operations of forward and backward passes over so many images: three times the forward pass, by convention.

    A backward pass has two products for each of the forward; those that frozen weights or the pixels would make
    unnecessary are counted all the same.
    """
    return 3 * _check.integer("images", images, minimum=0) * image_flops(model)


def image_flops(model: VisionTransformer) -> int:
    """Operations of a Vision Transformer's forward pass over one image."""
    shape, classes = model.image_shape, model.classifier.out_features
    return flops_by_shape(model.config, shape, model.patch_size, classes=classes, pool=model.pool)


def flops_by_shape(
    config: TransformerConfig, image_shape: tuple[int, int, int], patch_size: int, *, classes: int, pool: str
) -> int:
    """`image_flops` of a model that need not be there; ``pool`` is that of `VisionTransformer`.

    Images are of the shape (channels, side, side), and patches divide them.
    """
    channels, side, _ = image_shape
    grid = (side // patch_size) ** 2
    embedding, pooling = 2 * grid * channels * patch_size**2, 2 * grid if pool == "sequence" else 0
    return (embedding + pooling + 2 * classes) * config.width + forward_flops(config, grid + (pool == "class"))


def text_flops(model: TextTransformer, n: int) -> int:
    """Operations of a text Transformer's forward pass over one text of n tokens; looking up an embedding is none."""
    return forward_flops(model.config, n) + 2 * model.config.width * model.classifier.out_features
