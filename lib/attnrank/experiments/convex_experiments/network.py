"""The network of the equations: a Transformer whose attention is softmax, a free matrix of problem (4), or uniform."""

from __future__ import annotations

import copy
from typing import Any

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn

from attnrank import _check
from attnrank.experiments.convex_experiments.equations import LENGTH
from attnrank.heads import hardmax_rank_of
from attnrank.models import TransformerConfig
from attnrank.models.encoder import Attention, Block
from attnrank.models.weights import draw_weight
from attnrank.ranks import singular_values

#: softmax(Q K^T / T); one row-stochastic matrix a head, the same for every input, learned; and the matrix 1/n, fixed.
ATTENTIONS = ("softmax", "convex", "uniform")


class Mixing(Attention):
    """`attnrank.models.encoder.Attention` whose matrices can be had, and which can be asked for its last row only.

    With ``kind`` "convex" the matrices are softmax(L_i) with logits L_i (n, n) that are parameters: shared by all
    inputs, row-stochastic, and without weight decay (which spares what has one axis). They start at 1/n. "uniform"
    keeps them there. Queries and keys are then not made.
    """

    def __init__(self, config: TransformerConfig, kind: str, n: int, generator: torch.Generator) -> None:
        super().__init__(config, generator)
        self.kind, self.n = _check.choice("kind", kind, ATTENTIONS), n
        if kind != "softmax":
            del self.query, self.key
            self.logits = nn.Parameter(torch.zeros(self.heads * n * n), requires_grad=kind == "convex")

    def matrices(self, x: Float[Tensor, "*batch n d"], last: bool = False) -> Float[Tensor, "*batch h rows n"]:
        """Attention matrices of every head, or their last rows."""
        if self.kind != "softmax":
            a = self.logits.view(self.heads, self.n, self.n).softmax(-1)
            return (a[:, -1:] if last else a).expand(*x.shape[:-2], -1, -1, -1)
        assert self.key is not None  # heads are not tied here
        q = self._split(self.query(x[..., -1:, :] if last else x))
        return (q @ self._split(self.key(x)).mT / self.temperature).softmax(-1)

    def forward(  # type: ignore[override]  # it has no keys of its own to be given
        self, x: Float[Tensor, "*batch n d"], keys: Tensor | None = None, *, last: bool = False
    ) -> Float[Tensor, "*batch rows d"]:
        """Mixed values; every token is a key, and there is nothing to say about ``keys``."""
        mixed = self.matrices(x, last) @ self.values(x)
        return self.output(mixed.transpose(-3, -2).flatten(-2))


class EquationNetwork(nn.Module):
    """Tokens and positions embedded, blocks of the book's encoder, and the answer read at the last position::

        X_0 = E[tokens] + P,   X_l = Block_l(X_{l-1}),   logits = W LayerNorm(last row of X_depth) + b

    Every token sees every other (no causal mask). Only the last row of the last block is computed, as nothing else
    reaches the answer. Entries of E and P have standard deviation d^-1/2, linear maps fan_in^-1/2.
    """

    def __init__(self, p: int, config: TransformerConfig, kind: str, generator: torch.Generator) -> None:
        super().__init__()
        self.config, self.kind = config, kind
        self.embedding = nn.Embedding.from_pretrained(
            draw_weight("lecun", p + 2, config.width, generator), freeze=False
        )
        self.position = nn.Parameter(draw_weight("lecun", LENGTH, config.width, generator))
        self.blocks = nn.ModuleList(Block(config, generator) for _ in range(config.depth))
        for block in self.blocks:
            block.attention = Mixing(config, kind, LENGTH, generator)
        self.norm = nn.LayerNorm(config.width, dtype=torch.float64)
        self.classifier = config.linear(config.width, p, generator)
        self.float()

    def forward(self, tokens: Int64[Tensor, "batch 4"]) -> Float[Tensor, "batch p"]:
        x = self.embedding(tokens) + self.position
        blocks: list[Any] = list(self.blocks)
        for block in blocks[:-1]:
            x = block(x)
        last = blocks[-1]
        x = x[:, -1:] + last.attention(last.norm1(x), last=True)
        x = x + last.mlp(last.norm2(x))
        return self.classifier(self.norm(x[:, 0]))

    @torch.no_grad()
    def attention(self, tokens: Int64[Tensor, "batch 4"]) -> list[Float64[Tensor, "batch h 4 4"]]:
        """Attention matrices of every layer, in float64."""
        exact: Any = copy.deepcopy(self).double()
        x, found = exact.embedding(tokens) + exact.position, []
        for block in exact.blocks:
            found.append(block.attention.matrices(block.norm1(x)))
            x = block(x)
        return found

    def looked(self, tokens: Int64[Tensor, "batch 4"]) -> dict[str, float]:
        """For each layer the mean over inputs and heads of hardmax, numerical and stable rank of the matrices, the
        number of tokens that the last row attends to, exp of its entropy, and the largest weight in it."""
        found: dict[str, float] = {}
        for layer, a in enumerate(self.attention(tokens), start=1):
            sigma, row = singular_values(a), a[..., -1, :]
            entropy = -torch.special.xlogy(row, row).sum(-1)
            values = {
                "hardmax": hardmax_rank_of(a).double(), "rank_at_tenth": (sigma >= 0.1).double().sum(-1),
                "stable": (sigma / sigma[..., :1]).square().sum(-1), "attended": entropy.exp(), "largest": row.amax(-1),
            }  # fmt: skip
            found |= {f"{name}_{layer}": value.mean().item() for name, value in values.items()}
        return found
