"""One attention layer that is trained on a task, and what its best keys are."""

from __future__ import annotations

import copy

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from attnrank import _check
from attnrank.experiments.does_rank_matter.tasks import Task
from attnrank.experiments.shared.heads import distinct_entries
from attnrank.models import Attention, QueriesKeys, TransformerConfig
from attnrank.ranks import hardmax_rank
from attnrank.training.source import generator_of

INTERVENTIONS: dict[str, dict[str, bool]] = {
    "none": {}, "qk_norm": {"qk_norm": True}, "tied": {"tied": True}, "tied_qk_norm": {"tied": True, "qk_norm": True},
    "frozen": {"frozen": True}, "frozen_tied_qk_norm": {"frozen": True, "tied": True, "qk_norm": True},
}  # fmt: skip

class Head(nn.Module):
    """One attention layer. With the readout ``pointer`` its answer is the attention itself, averaged over heads.

    Logits over tokens are then log((A_1 + ... + A_h) / h) (Vinyals et al. 2015): nothing but W_q and W_k is trained,
    and the answer is the token with most attention. With ``layer`` the values are mixed and a linear map names the
    symbol, as in a Transformer: W_v, W_o and the classifier are trained too.
    """

    def __init__(self, config: TransformerConfig, generator: torch.Generator, *, classes: int, readout: str) -> None:
        super().__init__()
        self.config, self.readout = config, readout
        self.attention = Attention(config, generator)
        self.classifier = config.linear(config.width, classes, generator)
        if readout == "pointer":
            for part in (self.attention.value, self.attention.output, self.classifier):
                part.requires_grad_(False)

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return self.classifier.weight.dtype

    def forward(self, x: Float[Tensor, "count n width"]) -> Float[Tensor, "count n classes"]:
        if self.readout == "layer":
            return self.classifier(self.attention(x))
        q, k = self.attention.scaled_queries_keys(x)
        return (q @ k.mT).log_softmax(-1).logsumexp(1)

    @property
    def used(self) -> list[nn.Parameter]:
        """The parameters that an answer is computed from: a pointer has no values, output or classifier."""
        parts = [self] if self.readout == "layer" else [self.attention.query, self.attention.key]
        return [value for part in filter(None, parts) for value in part.parameters()]

    def queries_keys(self, x: Float[Tensor, "count n width"], *, scaled: bool = False) -> list[QueriesKeys]:
        """Queries and keys of the only layer, as models have them."""
        return [self.attention.scaled_queries_keys(x) if scaled else self.attention.queries_keys(x)]


def head(source: Task, heads: int, qk_dim: int, intervention: str) -> Head:
    """The untrained layer of a setting, in float32; values as wide as the tokens."""
    changes = INTERVENTIONS[_check.choice("intervention", intervention, INTERVENTIONS)]
    config = TransformerConfig(source.width, heads, qk_dim, 1, value_dim=source.width, init="lecun", **changes)
    return Head(config, generator_of(source.seed, 4), classes=source.n, readout=source.readout).float()


def sequence_flops(model: Head, n: int) -> int:
    """Operations of a forward pass over one sequence of n tokens, counted as in :mod:`attnrank.training.flops`."""
    config, readout = model.config, model.readout
    d, wide, own = config.width, config.heads * config.head_dim, model.attention.value.out_features
    scores = 2 * n * wide * ((1 if config.tied else 2) * d + n)
    return scores + (2 * n * (own * (2 * d + n) + d * model.classifier.out_features) if readout == "layer" else 0)


class Measured:
    """What a layer's best keys are on test sequences, computed in float64 from its weights; see `task_heads`.

    ``first`` says of each token which is the first that equals it: their scores tie, and rounding must not decide.
    """

    def __init__(
        self, q: Tensor, k: Tensor, target: Int64[Tensor, "count n"], first: Int64[Tensor, "count n"]
    ) -> None:
        n = target.shape[1]
        first = first[:, None].expand(k.shape[:-1])
        k = k.gather(-2, first[..., None].expand_as(k))
        scores = q @ k.mT
        best = first.gather(-1, scores.argmax(-1))  # (count, heads, n)
        rank = hardmax_rank(q, k)
        self.needed = distinct_entries(target, n).double().mean().item()
        self.rank = rank.double().mean().item()
        self.aim: Bool[Tensor, "count n"] = scores.softmax(-1).mean(1).argmax(-1) == target
        self.ceiling = ceiling_of(target, distinct_entries(best.flatten(1), n)).mean().item()
        flags = torch.zeros(len(target), n, dtype=torch.bool).scatter_(1, best.flatten(1), True)
        self.attended: Bool[Tensor, "count n"] = flags.gather(1, target)


@torch.no_grad()
def measured(model: Head, source: Task) -> Measured:
    """Measure a layer on the test sequences of its task."""
    x, target = source.test_batch()
    q, k = copy.deepcopy(model.attention).double().scaled_queries_keys(x)
    first = (x[:, :, None] == x[:, None]).all(-1).int().argmax(-1)
    return Measured(q, k, target, first)


def ceiling_of(
    target: Int64[Tensor, "count n"], reached: Int64[Tensor, " count"]
) -> Float[Tensor, " count"]:
    """Largest share of tokens that can find the one they want if only so many tokens are ever found.

    For each sequence: the wanted tokens in the order of how often they are wanted, the first ``reached`` of them.
    """
    count, n = target.shape
    often = torch.zeros(count, n, dtype=torch.int64).scatter_add_(1, target, torch.ones_like(target))
    covered = often.sort(1, descending=True).values.cumsum(1)
    return covered.gather(1, reached.clamp(max=n)[:, None] - 1)[:, 0] / n
