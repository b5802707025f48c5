"""The two attention layers that a student trains: softmax attention (3), and the heads of program (8)."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnrank import convex


class SoftmaxLayer(nn.Module):
    """Problem (3) with one output, the mean over the rows of a sequence of the layer's output::

        f(X) = sum_j mean over rows of softmax(X W_qj W_kj^T X^T) X w_2j w_3j

    Scores start with variance 1 on tokens of length sqrt(d). All four weights of a head are decayed.
    """

    def __init__(self, d: int, heads: int, qk_dim: int, generator: torch.Generator) -> None:
        super().__init__()

        def draw(*shape: int, std: float) -> nn.Parameter:
            return nn.Parameter(std * torch.randn(*shape, generator=generator))

        std = d**-0.5 * qk_dim**-0.25
        self.query, self.key = draw(heads, d, qk_dim, std=std), draw(heads, d, qk_dim, std=std)
        self.value, self.output = draw(heads, d, std=d**-0.5), draw(heads, std=heads**-0.5)

    def matrices(self, x: Float[Tensor, "batch n d"]) -> Float[Tensor, "batch h n n"]:
        q, k = (torch.einsum("bnd,hde->bhne", x, w) for w in (self.query, self.key))
        return (q @ k.mT).softmax(-1)

    def weights(self, x: Float[Tensor, "batch n d"]) -> Float[Tensor, "batch h n"]:
        """How much each position is attended to: the mean over rows of each head's matrix."""
        return self.matrices(x).mean(-2)

    def predict(self, x: Float[Tensor, "batch n d"], weights: Tensor) -> Float[Tensor, " batch"]:
        """Predictions with such weights, of each input or (h, n) the same for all."""
        return ((weights * torch.einsum("bnd,hd->bhn", x, self.value)).sum(-1) * self.output).sum(-1)

    def forward(self, x: Float[Tensor, "batch n d"]) -> Float[Tensor, " batch"]:
        return self.predict(x, self.weights(x))

    def decayed(self) -> list[nn.Parameter]:
        return [self.query, self.key, self.value, self.output]

    @staticmethod
    def forward_flops(texts: int, n: int, d: int, heads: int, qk_dim: int) -> float:
        """Operations of matrix products of a forward pass: queries and keys, scores, values."""
        return texts * heads * (4.0 * n * d * qk_dim + 2.0 * n * n * qk_dim + 2.0 * n * d)


class FreeLayer(nn.Module):
    """Program (8): f(X) = sum_j w_1j^T X w_2j w_3j with w_1j = softmax(logits_j), which is not decayed."""

    def __init__(self, n: int, d: int, heads: int, generator: torch.Generator) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.randn(heads, n, generator=generator))
        self.value = nn.Parameter(d**-0.5 * torch.randn(heads, d, generator=generator))
        self.output = nn.Parameter(heads**-0.5 * torch.randn(heads, generator=generator))

    def weights(self, x: Float[Tensor, "batch n d"]) -> Float[Tensor, "h n"]:
        return self.logits.softmax(-1)

    def forward(self, x: Float[Tensor, "batch n d"]) -> Float[Tensor, " batch"]:
        z = torch.einsum("hn,hd,h->nd", self.weights(x), self.value, self.output)
        return x.flatten(1) @ z.flatten()

    def decayed(self) -> list[nn.Parameter]:
        return [self.value, self.output]

    def heads(self) -> convex.Heads:
        """The heads in float64."""
        return convex.Heads(
            self.logits.detach().double().softmax(-1), self.value.detach().double(), self.output.detach().double()
        )

    @staticmethod
    def forward_flops(texts: int, n: int, d: int, heads: int, steps: int) -> float:
        """Operations of matrix products: Z once a step, and its product with each text."""
        return steps * 2.0 * heads * n * d + texts * 2.0 * n * d


def attended(weights: Tensor) -> float:
    """Mean number of positions that weights (..., n) attend to, exp of their entropy."""
    entropy = -torch.special.xlogy(weights, weights).sum(-1)
    return math.fsum(entropy.double().exp().flatten().tolist()) / entropy.numel()
