"""The encoder: multi-head attention, blocks, and the queries and keys of every layer."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Integral

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from attnrank import _check
from attnrank.models.weights import TransformerConfig

QueriesKeys = tuple[Float[Tensor, "*batch h n d_h"], Float[Tensor, "*batch h n d_h"]]


class Attention(nn.Module):
    """Multi-head attention, heads i = 1..h, with the softmax over each row::

        Q_i = X W_q,i + b_q,i    K_i = X W_k,i + b_k,i    V_i = X W_v,i + b_v,i
        A_i = softmax(Q_i K_i^T / T_i)
        output = [A_1 V_1, ..., A_h V_h] W_o + b_o

    b_k adds the same number to every score of a row, so it changes no A_i and its gradient is 0; it is kept because
    common checkpoints have it. With ``qk_norm`` the rows of Q_i and K_i are scaled to length sqrt(d_h) first, those
    shorter than 1e-6 by sqrt(d_h) / 1e-6: a row of zeros stays, and its gradient is that many times what reaches it.
    With ``tied`` K_i = Q_i, and with ``learn_temperature`` log T_i is a parameter. Tokens have shape (*batch, n, d);
    where ``keys`` (*batch, n) is False a token is no key: padding.
    """

    def __init__(self, config: TransformerConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.width, self.heads, self.qk_norm = config.width, config.heads, config.qk_norm
        self.temperature = math.sqrt(config.head_dim) if config.temperature is None else float(config.temperature)
        value_dim = config.head_dim if config.value_dim is None else config.value_dim
        self.query = config.linear(self.width, self.heads * config.head_dim, generator, query_key=True)
        key = config.linear(self.width, self.heads * config.head_dim, generator, query_key=True)
        self.key = None if config.tied else key  # drawn in any case: the weights after it are the same
        self.value = config.linear(self.width, self.heads * value_dim, generator)
        self.output = config.linear(self.heads * value_dim, self.width, generator)
        self.log_temperature = None
        if config.learn_temperature:
            start = torch.full((self.heads,), math.log(self.temperature), dtype=torch.float64, device="cpu")
            self.log_temperature = nn.Parameter(start)
        if config.frozen:
            for layer in filter(None, (self.query, self.key)):
                layer.requires_grad_(False)

    def queries_keys(self, x: Float[Tensor, "*batch n d"]) -> QueriesKeys:
        """Return the queries and the keys of every head, as they are multiplied."""
        _check_tokens(x, self.width)
        q = self._unit(self._split(self.query(x)))
        return q, q if self.key is None else self._unit(self._split(self.key(x)))

    def values(self, x: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch h n d_v"]:
        """Return the values of every head."""
        _check_tokens(x, self.width)
        return self._split(self.value(x))

    def scaled_queries_keys(self, x: Float[Tensor, "*batch n d"]) -> QueriesKeys:
        """Return the queries divided by the temperature of their head, and the keys: A_i is their softmax."""
        q, k = self.queries_keys(x)
        if self.log_temperature is None:
            return q / self.temperature, k
        return q * (-self.log_temperature).exp()[:, None, None], k

    def forward(
        self, x: Float[Tensor, "*batch n d"], keys: Bool[Tensor, "*batch n"] | None = None
    ) -> Float[Tensor, "*batch n d"]:
        _check_keys(keys, x)
        learned = self.log_temperature is not None
        q, k = self.scaled_queries_keys(x) if learned else self.queries_keys(x)
        scale = 1.0 if learned else 1 / self.temperature
        v = self.values(x)
        if keys is None and q.shape[-1] != v.shape[-1] and q.device.type == "cpu" and q.dtype.itemsize >= 4:
            # There torch's fast attention needs equal dimensions, and its other one, exacter in half, is slower.
            mixed = torch.softmax(q * scale @ k.mT, -1) @ v
        else:
            mask = None if keys is None else keys[..., None, None, :]  # the same for every head and query
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
        return self.output(mixed.transpose(-3, -2).flatten(-2))

    def _split(self, y: Float[Tensor, "*batch n hd"]) -> Float[Tensor, "*batch h n d_h"]:
        return y.unflatten(-1, (self.heads, -1)).transpose(-3, -2)

    def _unit(self, y: Float[Tensor, "*batch h n d_h"]) -> Float[Tensor, "*batch h n d_h"]:
        return F.normalize(y, dim=-1, eps=1e-6) * math.sqrt(y.shape[-1]) if self.qk_norm else y


class Block(nn.Module):
    """Pre-LayerNorm block (Xiong et al. 2020), LayerNorm with eps 1e-5, GELU(u) = u P(Z < u) for standard normal Z::

        Y = X + Attention(LayerNorm(X))
        output = Y + MLP(LayerNorm(Y))    MLP(y) = W_2 GELU(W_1 y + b_1) + b_2
    """

    def __init__(self, config: TransformerConfig, generator: torch.Generator) -> None:
        super().__init__()
        width = config.width
        mlp_width = 4 * width if config.mlp_width is None else config.mlp_width
        self.norm1 = nn.LayerNorm(width, dtype=torch.float64, device="cpu")
        self.attention = Attention(config, generator)
        self.norm2 = nn.LayerNorm(width, dtype=torch.float64, device="cpu")
        hidden, output = config.linear(width, mlp_width, generator), config.linear(mlp_width, width, generator)
        self.mlp = nn.Sequential(hidden, nn.GELU(), output)

    def forward(
        self, x: Float[Tensor, "*batch n d"], keys: Bool[Tensor, "*batch n"] | None = None
    ) -> Float[Tensor, "*batch n d"]:
        x = x + self.attention(self.norm1(x), keys)
        return x + self.mlp(self.norm2(x))


class Encoder(nn.Module):
    """Transformer encoder: X_l = Block_l(X_{l-1}) for l = 1..depth; output = LayerNorm(X_depth).

    ``keys`` says which tokens are attended to, in every layer; None means all.
    """

    blocks: list[Block]  # to type checkers; a ModuleList

    def __init__(self, config: TransformerConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.width = config.width
        self.blocks = nn.ModuleList(Block(config, generator) for _ in range(config.depth))  # type: ignore[assignment]
        self.norm = nn.LayerNorm(config.width, dtype=torch.float64, device="cpu")

    def forward(
        self, x: Float[Tensor, "*batch n d"], keys: Bool[Tensor, "*batch n"] | None = None
    ) -> Float[Tensor, "*batch n d"]:
        _check_tokens(x, self.width)
        _check_keys(keys, x)
        for block in self.blocks:
            x = block(x, keys)
        return self.norm(x)

    def queries_keys(
        self,
        x: Float[Tensor, "*batch n d"],
        layers: Iterable[int] | None = None,
        *,
        scaled: bool = False,
        keys: Bool[Tensor, "*batch n"] | None = None,
    ) -> list[QueriesKeys]:
        """Return (queries, keys) of the layers asked for, counted from 0, in the order asked; None means all.

        With ``scaled`` the queries are divided by the temperature of their head. Blocks before the deepest of these
        layers run as in the forward pass; that layer gives its queries and keys without attending, and nothing after it
        runs. Raises ValueError if ``layers`` is empty or names a layer that does not exist.
        """
        _check_tokens(x, self.width)
        _check_keys(keys, x)
        every = range(len(self.blocks))
        listed = isinstance(layers, Iterable) and not isinstance(layers, Tensor)
        wanted = list(every) if layers is None else list(layers) if listed else []
        numbers = [layer for layer in wanted if isinstance(layer, Integral) and not isinstance(layer, bool)]
        if not wanted or numbers != wanted or not set(wanted) <= set(every):
            raise ValueError(f"layers must list some of 0..{len(self.blocks) - 1}, got {layers!r}")
        found = {}
        for layer, block in enumerate(self.blocks[: max(wanted) + 1]):
            if layer in wanted:
                attention = block.attention
                found[layer] = (attention.scaled_queries_keys if scaled else attention.queries_keys)(block.norm1(x))
            if layer < max(wanted):
                x = block(x, keys)
        return [found[layer] for layer in wanted]


def _check_keys(keys: Tensor | None, x: Tensor) -> None:
    if keys is None:
        return
    if getattr(keys, "dtype", None) != torch.bool:
        kind = getattr(keys, "dtype", type(keys).__name__)
        raise ValueError(f"keys must be of torch.bool, True for what is attended to, got {kind}")
    if keys.shape != x.shape[:-1]:
        raise ValueError(f"keys must have the shape {tuple(x.shape[:-1])} of the tokens, got {tuple(keys.shape)}")


def _check_tokens(x: Tensor, width: int) -> None:
    _check.matrices("x", x)
    if x.shape[-1] != width:
        raise ValueError(f"x must have shape (..., n, {width}), got {tuple(x.shape)}")
