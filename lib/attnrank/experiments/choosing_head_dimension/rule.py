"""The rule "take the head dimension at which the rank saturates before training", applied to the book's own tasks."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from attnrank import _check
from attnrank.experiments.accuracy.arms import BASES, coupled, only_scores, runs
from attnrank.experiments.accuracy.runs import probe_images, untrained
from attnrank.experiments.does_rank_matter.tasks import Task
from attnrank.experiments.experiment import Experiment, Rounding
from attnrank.experiments.text import runs as text_runs
from attnrank.experiments.text import tables as text_tables
from attnrank.models import Attention, TransformerConfig
from attnrank.probe import recommend_head_dim
from attnrank.sweep import Setting, grid

#: Head dimensions at which the chapters accuracy, text and does_rank_matter have trained models.
CANDIDATES = {"digits": (1, 2, 4, 8, 16, 32), "cifar10": (1, 2, 4, 8, 16, 32, 64), "imdb": (1, 2, 4, 8, 16),
              "permutation": (1, 2, 3, 4, 8, 16), "nearest": (1, 2, 3, 4, 8, 16)}  # fmt: skip
PATCH = {"digits": 2, "cifar10": 8}
#: The series of the chapter text from which the reviews come.
LENGTH = {"imdb": 64}
GAPS = (0.02, 0.05, 0.1)
SEEDS = 8
FAMILIES = ("scores", "coupled")
#: Tokens of the tasks that are drawn.
N = 16


def recommended_heads(task: str, family: str, gap: float, seeds: int) -> Setting:
    """The head dimension that `attnrank.recommend_head_dim` recommends for the models of a task, among those trained.

    ``task``: digits and cifar10, Vision Transformers of the chapter accuracy on their 32 test images; imdb, models of
    the chapter text on its 32 test reviews of 64 words; permutation and nearest, the layer of the chapter
    does_rank_matter with 16 tokens on 32 sequences. ``family``: "scores", d_qk alone; "coupled", d = h d_h, of images.
    ``low`` and ``high``: 95 % of resamples of the seeds lie between. ``share``: rank / n at the recommended head
    dimension, ``largest`` at the largest candidate.
    """
    _check.choice("task", task, CANDIDATES)
    build = builder(task, _check.choice("family", family, FAMILIES))
    found = recommend_head_dim(build, inputs(task), CANDIDATES[task], gap=gap, seeds=seeds)
    share = found.shares.set_index("head_dim")["share"]
    return {"head_dim": found.head_dim, "low": found.low, "high": found.high, "share": float(share[found.head_dim]),
            "largest": float(share.iloc[-1])}  # fmt: skip


def base_of(task: str) -> Setting:
    """The model of a task of images or texts that its chapter compares with its changes."""
    return text_tables.BASE if task in LENGTH else BASES["digits" if task == "digits" else "photographs"]


def builder(task: str, family: str) -> Callable[[int, torch.Generator], nn.Module]:
    """``build(head_dim, generator)``, the untrained models of a task along a family, as `recommend_head_dim` wants."""
    if task in PATCH:
        arms = {"scores": only_scores, "coupled": coupled}[family](base_of(task))
        settings = {arm["qk_dim"]: arm for arm in runs(arms, dataset=task, patch=PATCH[task], epochs=1, seeds=[0])}
        return lambda d, generator: untrained(settings[d] | {"seed": generator.initial_seed()})
    if family != "scores":
        raise ValueError(f"family must be 'scores' for the task {task!r}, got {family!r}")
    if task in LENGTH:
        arms = [base_of(task) | {"qk_dim": d} for d in CANDIDATES[task]]
        texts = {arm["qk_dim"]: arm for arm in text_tables.runs(arms, length=LENGTH[task], epochs=1, seeds=[0])}
        return lambda d, generator: text_runs.untrained(texts[d] | {"seed": generator.initial_seed()})
    width = Task(task, N, N, 0).width

    def layer(head_dim: int, generator: torch.Generator) -> nn.Module:
        return Attention(TransformerConfig(width, 1, head_dim, 1, value_dim=width, init="lecun"), generator)

    return layer


def inputs(task: str) -> Tensor:
    """The test images, reviews or sequences (32, ...) on which ranks are taken."""
    if task in PATCH:
        return probe_images(task)
    if task in LENGTH:
        setting = text_tables.runs([base_of(task)], length=LENGTH[task], epochs=1, seeds=[0])[0]
        names = ("dataset", "tokens", "vocabulary", "length")
        return text_runs.probe_texts(text_runs.source(*(setting[name] for name in names)))
    return Task(task, N, N, 0).test_batch()[0][:32]


EXPERIMENTS = {
    "recommended_heads": Experiment(
        "Which head dimension does rank saturation recommend before training, and how surely?",
        recommended_heads,
        quick=grid(task=["permutation"], family=["scores"], gap=[0.05], seeds=[2]),
        paper=[
            *grid(task=list(CANDIDATES), family=["scores"], gap=list(GAPS), seeds=[SEEDS]),
            *grid(task=list(PATCH), family=["coupled"], gap=list(GAPS), seeds=[SEEDS]),
        ],
        chapter="choosing_head_dimension",
        # In float32 the two best scores of a query may be a rounding apart, so that another processor counts another
        # key: of one of at least 32,768 queries of images or texts. The tasks that are drawn are in float64: there one
        # of 4,096 queries would be seen.
        repeats=Rounding(1e-6, atol=1e-4),
        data="task",
    ),
}
