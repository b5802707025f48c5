"""Random Vision Transformers and the images that enter them."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from attnrank import data
from attnrank.experiments.shared.statistics import seeded
from attnrank.models import TransformerConfig, VisionTransformer

#: Added to a seed where it draws images or texts, so that these do not share their generator with the weights.
IMAGE_SEEDS = 10_000


def random_model(dataset: str, patch: int, config: TransformerConfig, seed: int) -> VisionTransformer:
    """A random Vision Transformer in float64 for the images of a data set, without class token."""
    generator = seeded(seed)
    channels, size, _ = images_of(dataset, 1, 0).shape[1:]
    return VisionTransformer(
        config,
        image_size=size,
        patch_size=patch,
        classes=10,
        channels=channels,
        pool="mean",  # no class token: n is the number of patches
        generator=generator,
        dtype=torch.float64,
    ).requires_grad_(False)


@lru_cache(maxsize=16)
def images_of(dataset: str, count: int, seed: int) -> Tensor:
    """Standardised images (count, channels, side, side), float64, drawn by the seed from the training split."""
    generator = torch.Generator().manual_seed(IMAGE_SEEDS + seed)
    return data.images(dataset, count=count, generator=generator, standardise=True)[0]
