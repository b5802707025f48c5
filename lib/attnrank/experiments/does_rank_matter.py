"""Tables from one attention layer on tasks that say which token each token wants: what rank they need, what is learned."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from attnrank import _check
from attnrank.experiments.experiment import Experiment, Statistical
from attnrank.models import Attention, QueriesKeys, TransformerConfig
from attnrank.ranks import hardmax_rank
from attnrank.sweep import Setting
from attnrank.training import Recipe, train
from attnrank.training.source import generator_of

TASKS = ("copy", "previous", "permutation", "lookup", "recall", "nearest")
READOUTS = ("pointer", "layer")
INTERVENTIONS: dict[str, dict[str, bool]] = {
    "none": {}, "qk_norm": {"qk_norm": True}, "tied": {"tied": True}, "tied_qk_norm": {"tied": True, "qk_norm": True},
    "frozen": {"frozen": True}, "frozen_tied_qk_norm": {"frozen": True, "tied": True, "qk_norm": True},
}  # fmt: skip
POINTS_DIM = 8  # of the sphere in the task "nearest"
STEPS, TEST_SEQUENCES = 100, 200


class Task:
    """Sequences of n tokens drawn anew, and for each token the one that it wants; a `training.Source`.

    - ``copy``, ``previous``, ``permutation`` (drawn once from ``seed``), ``lookup`` (token i wants token i mod wanted):
      a token is a one-hot position and a random one-hot symbol, which is noise.
    - ``recall``: the first ``wanted`` tokens have distinct symbols and want themselves; each of the others has the
      symbol of one of them, which it wants. A token is a one-hot symbol (of n) and a one-hot kind.
    - ``nearest``: a token is a query and a key, two independent points of a sphere in 8 dimensions; it wants the token
      whose key is nearest to its query (Amsel, Yehudai and Bruna 2024).

    Tokens are scaled to entries of mean square 1, as LayerNorm does. The rank that a task needs is the number of
    tokens that are wanted: ``wanted`` of recall and lookup, n of the first three, about 0.63 n of nearest.
    """

    def __init__(self, name: str, n: int, wanted: int, seed: int, readout: str = "pointer") -> None:
        self.name, self.n = _check.choice("task", name, TASKS), _check.integer("n", n, minimum=2)
        self.wanted, self.seed = _check.integer("wanted", wanted, minimum=1), _check.integer("seed", seed, minimum=0)
        self.readout = _check.choice("readout", readout, READOUTS)
        if wanted > n or (name not in ("lookup", "recall") and wanted != n):
            raise ValueError(f"wanted must be at most n, and n for the task {name!r}, got {wanted}")
        if readout == "layer" and name in ("recall", "nearest"):
            raise ValueError(f"readout must be 'pointer' for the task {name!r}, which has no symbols to give")
        index = torch.arange(n)
        fixed = {"copy": index, "previous": (index - 1) % n, "lookup": index % wanted}
        self.fixed = fixed.get(name, torch.randperm(n, generator=generator_of(seed, 1)))

    @property
    def width(self) -> int:
        """Width of a token."""
        return {"recall": self.n + 2, "nearest": 2 * POINTS_DIM}.get(self.name, 2 * self.n)

    def draw(self, count: int, generator: torch.Generator) -> tuple[Float[Tensor, "count n width"], Int64[Tensor, "count n"]]:
        """Tokens in float64, and the index of the token that each one wants."""
        n = self.n
        if self.name == "nearest":
            points = torch.randn(count, n, 2, POINTS_DIM, generator=generator, dtype=torch.float64)
            points = points / points.norm(dim=-1, keepdim=True)
            return points.flatten(2) * POINTS_DIM**0.5, (points[:, :, 0] @ points[:, :, 1].mT).argmax(-1)
        if self.name == "recall":
            asked = torch.randint(self.wanted, (count, n - self.wanted), generator=generator)
            target = torch.cat([torch.arange(self.wanted).expand(count, -1), asked], 1)
            symbols = torch.rand(count, n, generator=generator).argsort(-1).gather(1, target)
            first, second = symbols, (torch.arange(n) >= self.wanted).long().expand(count, -1)
        else:
            first, target = torch.arange(n).expand(count, -1), self.fixed.expand(count, -1)
            second = self._symbols(count, generator)
        sizes = (n, self.width - n)
        x = torch.cat([nn.functional.one_hot(part, size) for part, size in zip((first, second), sizes)], -1)
        return x.double() * (self.width / 2) ** 0.5, target

    def _symbols(self, count: int, generator: torch.Generator) -> Int64[Tensor, "count n"]:
        return torch.rand(count, self.n, generator=generator).argsort(-1)  # distinct within a sequence

    def answers(self, x: Tensor, target: Int64[Tensor, "count n"]) -> Int64[Tensor, "count n"]:
        """What the model must say: the token that is wanted, or with the readout ``layer`` that token's symbol."""
        if self.readout == "pointer":
            return target
        return x[..., self.n :].argmax(-1).gather(1, target)

    # As a Source of training batches
    def to(self, device: torch.device) -> Task:
        """Nothing is kept on a device: the runs are small."""
        return self

    def describe(self) -> dict[str, object]:
        """What decides the batches."""
        return {"task": self.name, "n": self.n, "wanted": self.wanted, "seed": self.seed, "readout": self.readout}

    def steps(self, batch: int) -> int:
        """An epoch is 100 batches, whatever their size."""
        return STEPS

    def batch(self, seed: int, epoch: int, step: int, batch: int) -> tuple[Tensor, Tensor]:
        """Tokens that no other step has, and the answers."""
        x, target = self.draw(batch, generator_of(seed, 2, epoch, step))
        return x.float(), self.answers(x, target)

    def test_batch(self) -> tuple[Tensor, Tensor]:
        """The sequences that models are tested on, the same for every model of one task and seed."""
        return self.draw(TEST_SEQUENCES, generator_of(self.seed, 3))

    @torch.no_grad()
    def test(self, model: Head) -> dict[str, float]:
        """Share of right answers on the test sequences, and their mean cross-entropy."""
        x, target = self.test_batch()
        logits, answers = model(x.to(model.dtype)).double(), self.answers(x, target)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), answers.flatten())
        return {"test_loss": loss.item(), "test_accuracy": (logits.argmax(-1) == answers).double().mean().item()}


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

    def queries_keys(self, x: Float[Tensor, "count n width"], *, scaled: bool = False) -> list[QueriesKeys]:
        """Queries and keys of the only layer, as models have them."""
        return [self.attention.scaled_queries_keys(x) if scaled else self.attention.queries_keys(x)]


def task_heads(
    task: str, n: int, wanted: int, readout: str, heads: int, qk_dim: int, intervention: str, epochs: int, seed: int
) -> Setting:
    """Train one attention layer on a task; what it got right, and its hardmax rank, before and after.

    ``accuracy`` is the share of right answers. ``aim`` is the share of tokens whose most attended token (mean over
    heads) is the wanted one. ``needed`` is the mean number of tokens that are wanted, ``rank`` the mean hardmax rank of
    a head, ``ceiling`` the largest aim that heads of these ranks can have if each token's answer is the most attended
    one in some head: see `ceiling_of`. ``aim_if_unattended`` is the aim, after training, at wanted tokens that no
    token attended to before training, and ``aim_if_attended`` at the others; missing where there are none.
    """
    source = Task(task, n, wanted, seed, readout)
    model = head(source, heads, qk_dim, intervention)
    frozen = readout == "pointer" and INTERVENTIONS[intervention].get("frozen", False)
    if frozen:
        raise ValueError("readout must be 'layer' with frozen weights: a pointer trains nothing else")
    before = measured(model, source)
    run = train(model, source, Recipe(epochs, batch=32, rate=3e-2, decay=0.0, smoothing=0.0), seed=seed)
    after = measured(model, source)
    missed = ~before.attended
    return {
        "needed": before.needed, "accuracy_before": run.epochs[0]["test_accuracy"],
        "accuracy": run.final["test_accuracy"], "aim_before": before.aim.double().mean().item(),
        "aim": after.aim.double().mean().item(), "rank_before": before.rank, "rank": after.rank,
        "ceiling_before": before.ceiling, "ceiling": after.ceiling, "loss": run.final["test_loss"],
        "aim_if_unattended": after.aim[missed].double().mean().item() if missed.any() else None,
        "aim_if_attended": after.aim[~missed].double().mean().item() if (~missed).any() else None,
        "weights_length": (model.attention.query.weight.norm()).item(),
    }  # fmt: skip


def head(source: Task, heads: int, qk_dim: int, intervention: str) -> Head:
    """The untrained layer of a setting, in float32; values as wide as the tokens."""
    changes = INTERVENTIONS[_check.choice("intervention", intervention, INTERVENTIONS)]
    config = TransformerConfig(source.width, heads, qk_dim, 1, value_dim=source.width, init="lecun", **changes)
    return Head(config, generator_of(source.seed, 4), classes=source.n, readout=source.readout).float()


class Measured:
    """What a layer's best keys are on test sequences, computed in float64 from its weights; see `task_heads`."""

    def __init__(self, q: Tensor, k: Tensor, target: Int64[Tensor, "count n"]) -> None:
        n = target.shape[1]
        scores = q @ k.mT
        best = scores.argmax(-1)  # (count, heads, n)
        rank = hardmax_rank(q, k)
        self.needed = _distinct(target, n).double().mean().item()
        self.rank = rank.double().mean().item()
        self.aim: Bool[Tensor, "count n"] = scores.softmax(-1).mean(1).argmax(-1) == target
        reached = _distinct(best.flatten(1), n)
        self.ceiling = ceiling_of(target, reached).mean().item()
        self.margins = ceiling_of(target, reached) - self.aim.double().mean(1)
        flags = torch.zeros(len(target), n, dtype=torch.bool).scatter_(1, best.flatten(1), True)
        self.attended: Bool[Tensor, "count n"] = flags.gather(1, target)


@torch.no_grad()
def measured(model: Head, source: Task) -> Measured:
    """Measure a layer on the test sequences of its task."""
    x, target = source.test_batch()
    q, k = copy.deepcopy(model.attention).double().scaled_queries_keys(x)
    return Measured(q, k, target)


def ceiling_of(target: Int64[Tensor, "count n"], reached: Int64[Tensor, "count"]) -> Float[Tensor, "count"]:
    """Largest share of tokens that can find the one they want if only so many tokens are ever found.

    For each sequence: the wanted tokens in the order of how often they are wanted, the first ``reached`` of them.
    """
    count, n = target.shape
    often = torch.zeros(count, n, dtype=torch.int64).scatter_add_(1, target, torch.ones_like(target))
    covered = often.sort(1, descending=True).values.cumsum(1)
    return covered.gather(1, reached.clamp(max=n)[:, None] - 1)[:, 0] / n


def _distinct(chosen: Int64[Tensor, "count many"], n: int) -> Int64[Tensor, "count"]:
    return torch.zeros(len(chosen), n, dtype=torch.int64).scatter_(1, chosen, 1).sum(1)


def circle_head(n: int, target: Int64[Tensor, "n"], length: float) -> tuple[Float[Tensor, "n 2"], Float[Tensor, "n 2"]]:
    """Queries and keys of dimension 2 whose hardmax sends token i to target[i], whatever the targets are.

    Key j stands at the angle 2 pi j / n of a circle of radius ``length``, query i where its target's key stands.
    """
    angle = 2 * torch.pi * torch.arange(_check.integer("n", n, minimum=1), dtype=torch.float64) / n
    k = _check.real("length", length, above=0) * torch.stack([angle.cos(), angle.sin()], -1)
    return k[target], k


# The grid ---------------------------------------------------------------------------------------------------------------

DIMS = (1, 2, 3, 4, 8, 16)
N = 16


def _grid(
    tasks: Iterable[str], dims: Iterable[int], *, n: int = N, wanted: Iterable[int] = (), readout: str = "pointer",
    heads: Iterable[int] = (1,), interventions: Iterable[str] = ("none",), epochs: int = 4, seeds: int = 3,
) -> list[Setting]:
    return [
        {"task": task, "n": n, "wanted": k, "readout": readout, "heads": h, "qk_dim": d, "intervention": name,
         "epochs": epochs, "seed": seed}
        for task in tasks for k in (tuple(wanted) or (n,)) for h in heads for name in interventions for d in dims
        for seed in range(seeds)
    ]  # fmt: skip


#: Standard deviations over seeds of what is trained, the larger ones of the table: training turns rounding into numbers.
ERRORS = {
    "accuracy_before": 0.001, "accuracy": 0.02, "aim_before": 0.001, "aim": 0.02, "rank_before": 0.01, "rank": 0.2,
    "ceiling_before": 0.001, "ceiling": 0.02, "loss": 0.05, "aim_if_unattended": 0.05, "aim_if_attended": 0.05,
    "weights_length": 1.0,
}  # fmt: skip
EXPERIMENTS = {
    "task_heads": Experiment(
        "What can one attention layer learn whose rank is limited, and when is rank the limit?",
        task_heads,
        quick=_grid(["permutation"], [1, 2], n=8, epochs=1, seeds=1) + _grid(["recall"], [2], n=8, wanted=[4], epochs=1, seeds=1),
        paper=[
            *_grid(["permutation", "nearest"], DIMS),
            *_grid(["copy", "previous"], [1, 2, 4]),
            *_grid(["lookup"], [1, 2], wanted=[1, 2, 4, 8]),
            *_grid(["permutation"], [1, 2, 4, 16], readout="layer"),
            *_grid(["copy", "previous"], [2, 16], interventions=["tied", "tied_qk_norm"]),
            *_grid(["permutation"], [1, 2, 4], interventions=["qk_norm"]),
            *_grid(["recall"], [1, 2, 4], wanted=[2, 4, 8]),
            *_grid(["permutation"], [1], heads=[2, 4, 8]),
            *_grid(["copy", "previous"], [2, 16], readout="layer", interventions=["frozen", "frozen_tied_qk_norm"]),
            *_grid(["permutation"], [1, 2, 4], n=32),
        ],
        chapter="does_rank_matter",
        repeats=Statistical(ERRORS),
    ),
}
