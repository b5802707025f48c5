"""Transformers whose width, head count and head dimension vary independently, to be read beside their equations.

Notation: X holds n tokens of width d as rows; h heads, each with queries and keys of dimension d_h and values of
dimension d_v; temperature T. Nothing ties d to h d_h. There is no dropout: train() and eval() compute the same.
Weights are drawn on the CPU in float64 from an explicit generator; cast or move a model with ``.to``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import skip_init

from attnrank import _check

INITIALISATIONS = ("normal", "truncated_normal", "xavier", "lecun")
POOLS = ("class", "mean")
POSITIONS = ("learned", "sinusoidal", "none")
QueriesKeys = tuple[Float[Tensor, "*batch h n d_h"], Float[Tensor, "*batch h n d_h"]]


def draw_weight(init: str, fan_out: int, fan_in: int, generator: torch.Generator) -> Float[Tensor, "fan_out fan_in"]:
    """Draw the float64 weight W of a linear map y = W x, with independent entries.

    - ``normal``: N(0, 1), the query and key weights of the rank theorem.
    - ``truncated_normal``: N(0, 0.02^2) conditioned on [-0.04, 0.04], as in BERT and most Vision Transformers; the
      truncation leaves a standard deviation of 0.0176.
    - ``xavier``: uniform on [-a, a] with a^2 = 6 / (fan_in + fan_out), variance 2 / (fan_in + fan_out) (Glorot and
      Bengio 2010). torch.nn.MultiheadAttention stacks W_q, W_k, W_v first, so that its own a^2 is 6 / (d + 3 d).
    - ``lecun``: N(0, 1 / fan_in), which keeps the variance of the input (LeCun et al. 1998).

    Raises ValueError for an unknown ``init``, a fan below 1 or a generator that is not on the CPU.
    """
    _check.choice("init", init, INITIALISATIONS)
    shape = (_check.integer("fan_out", fan_out, minimum=1), _check.integer("fan_in", fan_in, minimum=1))
    _check.generator("generator", generator)
    if init in ("normal", "lecun"):
        normal = torch.randn(shape, generator=generator, dtype=torch.float64)
        return normal if init == "normal" else normal / math.sqrt(fan_in)
    uniform = 2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1
    if init == "xavier":
        return uniform * math.sqrt(6 / (fan_in + fan_out))
    # P(-2 < Z < 2) = erf(sqrt 2), and Z = sqrt(2) erfinv(U) is standard normal for U uniform on [-1, 1].
    return 0.02 * math.sqrt(2) * torch.erfinv(uniform * math.erf(math.sqrt(2)))


@dataclass(frozen=True)
class TransformerConfig:
    """Shape and initialisation of a Transformer encoder; every field varies independently of the others.

    Parameters
    ----------
    width, heads, head_dim, depth : d, h, d_h and the number of blocks, each at least 1.
    mlp_width : hidden width of each MLP; None means 4 d.
    value_dim : d_v; None means d_h.
    temperature : T > 0, the divisor of the query-key products; None means sqrt(d_h).
    init : scheme of ``draw_weight`` for every linear map. With ``normal`` it applies to W_q and W_k only, and the other
        maps are drawn by ``lecun``. Under every scheme biases start at 0, LayerNorm gains at 1, and class token and
        learned positions are drawn by ``truncated_normal``.

    Raises ValueError for a field out of range.
    """

    width: int
    heads: int
    head_dim: int
    depth: int
    mlp_width: int | None = None
    value_dim: int | None = None
    temperature: float | None = None
    init: str = "truncated_normal"

    def __post_init__(self) -> None:
        for name in ("width", "heads", "head_dim", "depth"):
            _check.integer(name, getattr(self, name), minimum=1)
        for name in ("mlp_width", "value_dim"):
            if getattr(self, name) is not None:
                _check.integer(name, getattr(self, name), minimum=1)
        if self.temperature is not None:
            _check.real("temperature", self.temperature, above=0)
        _check.choice("init", self.init, INITIALISATIONS)

    def linear(self, fan_in: int, fan_out: int, generator: torch.Generator, *, query_key: bool = False) -> nn.Linear:
        """Return the map x -> W x + b with W drawn by the scheme and b = 0."""
        init = "lecun" if self.init == "normal" and not query_key else self.init
        layer = skip_init(nn.Linear, fan_in, fan_out, dtype=torch.float64)  # leaves torch's global generator alone
        with torch.no_grad():
            layer.weight.copy_(draw_weight(init, fan_out, fan_in, generator))
            layer.bias.zero_()
        return layer


class Attention(nn.Module):
    """Multi-head attention, heads i = 1..h, with the softmax over each row::

        Q_i = X W_q,i + b_q,i    K_i = X W_k,i + b_k,i    V_i = X W_v,i + b_v,i
        A_i = softmax(Q_i K_i^T / T)
        output = [A_1 V_1, ..., A_h V_h] W_o + b_o

    b_k adds the same number to every score of a row, so it changes no A_i and its gradient is 0; it is kept because
    common checkpoints have it. Tokens have shape (*batch, n, d).
    """

    def __init__(self, config: TransformerConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.width, self.heads = config.width, config.heads
        self.temperature = math.sqrt(config.head_dim) if config.temperature is None else float(config.temperature)
        value_dim = config.head_dim if config.value_dim is None else config.value_dim
        self.query = config.linear(self.width, self.heads * config.head_dim, generator, query_key=True)
        self.key = config.linear(self.width, self.heads * config.head_dim, generator, query_key=True)
        self.value = config.linear(self.width, self.heads * value_dim, generator)
        self.output = config.linear(self.heads * value_dim, self.width, generator)

    def queries_keys(self, x: Float[Tensor, "*batch n d"]) -> QueriesKeys:
        """Return the queries and the keys of every head."""
        _check_tokens(x, self.width)
        return self._split(self.query(x)), self._split(self.key(x))

    def values(self, x: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch h n d_v"]:
        """Return the values of every head."""
        _check_tokens(x, self.width)
        return self._split(self.value(x))

    def forward(self, x: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        q, k = self.queries_keys(x)
        mixed = F.scaled_dot_product_attention(q, k, self.values(x), scale=1 / self.temperature)
        return self.output(mixed.transpose(-3, -2).flatten(-2))

    def _split(self, y: Float[Tensor, "*batch n hd"]) -> Float[Tensor, "*batch h n d_h"]:
        return y.unflatten(-1, (self.heads, -1)).transpose(-3, -2)


class Block(nn.Module):
    """Pre-LayerNorm block (Xiong et al. 2020), LayerNorm with eps 1e-5, GELU(u) = u P(Z < u) for standard normal Z::

        Y = X + Attention(LayerNorm(X))
        output = Y + MLP(LayerNorm(Y))    MLP(y) = W_2 GELU(W_1 y + b_1) + b_2
    """

    def __init__(self, config: TransformerConfig, generator: torch.Generator) -> None:
        super().__init__()
        width = config.width
        mlp_width = 4 * width if config.mlp_width is None else config.mlp_width
        self.norm1 = nn.LayerNorm(width, dtype=torch.float64)
        self.attention = Attention(config, generator)
        self.norm2 = nn.LayerNorm(width, dtype=torch.float64)
        hidden, output = config.linear(width, mlp_width, generator), config.linear(mlp_width, width, generator)
        self.mlp = nn.Sequential(hidden, nn.GELU(), output)

    def forward(self, x: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Encoder(nn.Module):
    """Transformer encoder: X_l = Block_l(X_{l-1}) for l = 1..depth; output = LayerNorm(X_depth)."""

    def __init__(self, config: TransformerConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.width = config.width
        self.blocks = nn.ModuleList(Block(config, generator) for _ in range(config.depth))
        self.norm = nn.LayerNorm(config.width, dtype=torch.float64)

    def forward(self, x: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        _check_tokens(x, self.width)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def queries_keys(self, x: Float[Tensor, "*batch n d"], layers: Iterable[int] | None = None) -> list[QueriesKeys]:
        """Return (queries, keys) of the layers asked for, counted from 0, in the order asked; None means all.

        Blocks before the deepest of these layers run as in the forward pass; that layer gives its queries and keys
        without attending, and nothing after it runs. Raises ValueError if ``layers`` is empty or names a layer that
        does not exist.
        """
        _check_tokens(x, self.width)
        every = range(len(self.blocks))
        wanted = list(every) if layers is None else list(layers) if isinstance(layers, Iterable) else None
        if not wanted or not set(wanted) <= set(every):
            raise ValueError(f"layers must list some of 0..{len(self.blocks) - 1}, got {layers!r}")
        found = {}
        for layer, block in enumerate(self.blocks[: max(wanted) + 1]):
            if layer in wanted:
                found[layer] = block.attention.queries_keys(block.norm1(x))
            if layer < max(wanted):
                x = block(x)
        return [found[layer] for layer in wanted]


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
    t = torch.arange(_check.integer("n", n, minimum=1), dtype=torch.float64)[:, None]
    column = torch.arange(_check.integer("width", width, minimum=1))
    angle = t / 10000 ** ((column - column % 2).double() / width)
    return torch.where(column % 2 == 0, angle.sin(), angle.cos())


class VisionTransformer(nn.Module):
    """Vision Transformer (Dosovitskiy et al. 2021) on square images::

        X_0 = [token; E patch_1 + b; ...; E patch_N + b] + P    N = (image_size / patch_size)^2
        logits = W z + b,  z = first row of Encoder(X_0) (pool ``class``) or the mean of its rows (pool ``mean``)

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
            fixed = sinusoids(self.tokens, config.width) if positions == "sinusoidal" else torch.zeros(1, 1)
            self.register_buffer("position", fixed, persistent=False)
        self.encoder = Encoder(config, generator)
        self.classifier = config.linear(config.width, classes, generator)
        self.to(dtype)

    def embed(self, images: Float[Tensor, "batch c height width"]) -> Float[Tensor, "batch n d"]:
        """Return X_0. Images of any floating-point dtype are cast to the model's; NaN and infinity raise ValueError."""
        _check.matrices("images", images)
        if images.shape[1:] != self.image_shape:
            raise ValueError(f"images must have shape (batch, {self.image_shape}), got {tuple(images.shape)}")
        _check.finite("images", images)
        x = self.embedding(patches(images.to(self.embedding.weight.dtype), self.patch_size))
        if self.pool == "class":
            x = torch.cat([self.class_token.expand(len(x), 1, -1), x], dim=1)
        return x + self.position

    def forward(self, images: Float[Tensor, "batch c height width"]) -> Float[Tensor, "batch classes"]:
        x = self.encoder(self.embed(images))
        return self.classifier(x[:, 0] if self.pool == "class" else x.mean(dim=1))

    def queries_keys(
        self, images: Float[Tensor, "batch c height width"], layers: Iterable[int] | None = None
    ) -> list[QueriesKeys]:
        """Return (queries, keys) of the layers asked for; see ``Encoder.queries_keys``."""
        return self.encoder.queries_keys(self.embed(images), layers)


def _check_tokens(x: Tensor, width: int) -> None:
    _check.matrices("x", x)
    if x.shape[-1] != width:
        raise ValueError(f"x must have shape (..., n, {width}), got {tuple(x.shape)}")
