"""Vision Transformers."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnrank import _check
from attnrank.models.encoder import Encoder, QueriesKeys
from attnrank.models.weights import TransformerConfig, draw_weight

POOLS = ("class", "mean", "sequence")
POSITIONS = ("learned", "sinusoidal", "none")


def patches(images: Float[Tensor, "batch c height width"], size: int) -> Float[Tensor, "batch n c*{size}**2"]:
    """Cut images into non-overlapping square patches, row by row, each flattened as (channel, row, column).

    Raises ValueError if ``images`` is not four-dimensional and floating point or ``size`` does not divide its sides.
    """
    if _check.matrices("images", images).ndim != 4:
        raise ValueError(f"images must have shape (batch, channels, height, width), got {tuple(images.shape)}")
    _check.integer("size", size, minimum=1)
    if images.shape[2] % size or images.shape[3] % size:
        raise ValueError(f"size must divide the sides of images of shape {tuple(images.shape)}, got {size}")
    # batch, channel, grid row, row, grid column, column
    grid = images.unflatten(3, (-1, size)).unflatten(2, (-1, size))
    return grid.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


def sinusoids(n: int, width: int) -> Float[Tensor, "n width"]:
    """Return float64 positions P[t, 2i] = sin(t / 10000^(2i / d)), P[t, 2i+1] = cos(same) (Vaswani et al. 2017)."""
    t = torch.arange(_check.integer("n", n, minimum=1), dtype=torch.float64, device="cpu")[:, None]
    column = torch.arange(_check.integer("width", width, minimum=1), device="cpu")
    angle = t / 10000 ** ((column - column % 2).double() / width)
    return torch.where(column % 2 == 0, angle.sin(), angle.cos())


class VisionTransformer(nn.Module):
    """Vision Transformer (Dosovitskiy et al. 2021) on square images::

        X_0 = [token; E patch_1 + b; ...; E patch_N + b] + P    N = (image_size / patch_size)^2
        logits = W z + b,  z = first row of Y = Encoder(X_0) (pool ``class``), the mean of its rows (pool ``mean``),
                           or softmax(w^T Y^T) Y (pool ``sequence``; Hassani et al. 2021)

    The class token, hence the first row of X_0, exists only with pool ``class``. P is ``learned``, ``sinusoidal`` or
    ``none``. Weights are drawn in the order of the equations, the blocks from first to last: with one seed, models
    that differ in depth only agree up to the last block of the shallower. Raises ValueError for bad input.
    """

    def __init__(
        self,
        config: TransformerConfig,
        *,
        image_size: int,
        patch_size: int,
        classes: int,
        generator: torch.Generator,
        channels: int = 3,
        pool: str = "class",
        positions: str = "learned",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        _check.integer("image_size", image_size, minimum=1)
        _check.integer("classes", classes, minimum=1)
        _check.integer("channels", channels, minimum=1)
        if image_size % _check.integer("patch_size", patch_size, minimum=1):
            raise ValueError(f"patch_size must divide image_size {image_size}, got {patch_size}")
        _check.choice("positions", positions, POSITIONS)
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise ValueError(f"dtype must be a floating-point torch.dtype, got {dtype!r}")
        self.config, self.patch_size = config, patch_size
        self.pool = _check.choice("pool", pool, POOLS)
        self.image_shape = (channels, image_size, image_size)
        self.tokens = (image_size // patch_size) ** 2 + (pool == "class")

        self.embedding = config.linear(channels * patch_size**2, config.width, generator)
        if pool == "class":
            self.class_token = nn.Parameter(draw_weight("truncated_normal", 1, config.width, generator))
        if positions == "learned":
            self.position = nn.Parameter(draw_weight("truncated_normal", self.tokens, config.width, generator))
        else:
            none = torch.zeros(1, 1, device="cpu")
            fixed = sinusoids(self.tokens, config.width) if positions == "sinusoidal" else none
            self.register_buffer("position", fixed, persistent=False)
        self.encoder = Encoder(config, generator)
        self.classifier = config.linear(config.width, classes, generator)
        if pool == "sequence":
            self.pooling = config.linear(config.width, 1, generator)
            self.pooling.register_parameter("bias", None)  # it would add the same number to every score of the softmax
        self.to(dtype)

    def embed(self, images: Float[Tensor, "batch c height width"]) -> Float[Tensor, "batch n d"]:
        """Return X_0. Images of any floating-point dtype are cast to the model's; NaN and infinity raise ValueError."""
        _check.matrices("images", images)
        if images.shape[1:] != self.image_shape:
            wanted = ", ".join(map(str, self.image_shape))
            raise ValueError(f"images must have shape (batch, {wanted}), got {tuple(images.shape)}")
        images = _check.finite("images", images.to(self.embedding.weight.dtype))
        x = self.embedding(patches(images, self.patch_size))
        if self.pool == "class":
            x = torch.cat([self.class_token.expand(len(x), 1, -1), x], dim=1)
        return x + self.position

    def forward(self, images: Float[Tensor, "batch c height width"]) -> Float[Tensor, "batch classes"]:
        return self.classifier(self._pool(self.encoder(self.embed(images))))

    def _pool(self, y: Float[Tensor, "batch n d"]) -> Float[Tensor, "batch d"]:
        if self.pool == "sequence":
            return (self.pooling(y).softmax(dim=1) * y).sum(dim=1)
        return y[:, 0] if self.pool == "class" else y.mean(dim=1)

    def queries_keys(
        self,
        images: Float[Tensor, "batch c height width"],
        layers: Iterable[int] | None = None,
        *,
        scaled: bool = False,
    ) -> list[QueriesKeys]:
        """Return (queries, keys) of the layers asked for; see ``Encoder.queries_keys``."""
        return self.encoder.queries_keys(self.embed(images), layers, scaled=scaled)
