"""The encoder: multi-head attention, blocks, and the queries and keys of every layer."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from attnrank import _check
from attnrank.models.weights import TransformerConfig

QueriesKeys = tuple[Float[Tensor, "*batch h n d_h"], Float[Tensor, "*batch h n d_h"]]


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


def _check_tokens(x: Tensor, width: int) -> None:
    _check.matrices("x", x)
    if x.shape[-1] != width:
        raise ValueError(f"x must have shape (..., n, {width}), got {tuple(x.shape)}")
