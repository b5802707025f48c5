"""A small Vision Transformer, images that it can learn, and a recipe, for the tests of training."""

from __future__ import annotations

import torch

from attnrank.models import TransformerConfig, VisionTransformer
from attnrank.training import Images, Recipe

CONFIG = TransformerConfig(width=8, heads=2, head_dim=3, depth=2, mlp_width=12, value_dim=5, init="lecun")
RECIPE = Recipe(epochs=3, batch=16, rate=3e-3)


def images(count=50, **options):
    generator = torch.Generator().manual_seed(3)

    def drawn(rows):
        labels = torch.randint(3, (rows,), generator=generator)
        noise = torch.randint(120, (rows, 2, 8, 8), generator=generator)
        return (noise + 40 * labels[:, None, None, None]).to(torch.uint8), labels

    return Images(
        drawn(count), drawn(30), **{"mean": (90.0, 90.0), "std": (50.0, 50.0), "pad": 1, "flip": True} | options
    )


def model(config=CONFIG, dtype=torch.float64, seed=0, **options):
    generator = torch.Generator().manual_seed(seed)
    options = {
        "image_size": 8,
        "patch_size": 2,
        "classes": 3,
        "channels": 2,
        "pool": "sequence",
        "dtype": dtype,
    } | options
    return VisionTransformer(config, generator=generator, **options)


def double(source):
    """The same source with inputs in float64."""
    plain = source.standardised
    source.standardised = lambda x: plain(x).double()
    return source


def stopping(source, at):
    """The same source, at whose batch of that number, from 0, the run is interrupted."""
    plain, taken = source.batch, []

    def batch(*arguments):
        if len(taken) == at:
            raise KeyboardInterrupt
        taken.append(arguments)
        return plain(*arguments)

    source.batch = batch
    return source


def weights(of):
    return {name: value.clone() for name, value in of.state_dict().items()}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
