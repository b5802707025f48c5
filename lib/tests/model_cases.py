"""A small configuration, seeded draws and a Vision Transformer, as the tests of the models use them."""

from __future__ import annotations

import torch

from attnrank.models import TransformerConfig, VisionTransformer

CONFIG = TransformerConfig(width=12, heads=3, head_dim=4, depth=3)
IMAGE = {"image_size": 8, "patch_size": 2, "classes": 5, "channels": 2}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=seeded(seed), dtype=torch.float64)


def vision(config: TransformerConfig = CONFIG, seed: int = 0, **options) -> VisionTransformer:
    return VisionTransformer(config, **{**IMAGE, "dtype": torch.float64, "generator": seeded(seed), **options})
