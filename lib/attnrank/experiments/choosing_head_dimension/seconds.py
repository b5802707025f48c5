"""What the head dimension of the scores costs in time: a forward pass of the models on which the rule is judged."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attnrank import _check
from attnrank.benchmarks import compare, interleaved, machine, processor
from attnrank.data import SOURCES
from attnrank.experiments.choosing_head_dimension import rule
from attnrank.experiments.choosing_head_dimension.rule import CANDIDATES, LENGTH, PATCH, builder
from attnrank.experiments.experiment import Experiment, Measured
from attnrank.experiments.measuring_speed.cases import PROCESSORS, on
from attnrank.experiments.measuring_speed.speed import TURN, at_hand, threads_set
from attnrank.sweep import Setting

BATCH = 32


def head_dim_seconds(task: str, head_dim: int, rounds: int, processor: str) -> Setting:
    """Seconds of a forward pass over 32 inputs of a task, d_qk alone being changed; medians of ``rounds`` turns.

    One thread, float32, random weights and inputs of the right shape: neither matters to the time. ``ratio`` is the
    time over that of the largest candidate in the same rounds, ``low`` and ``high`` the least and the largest of them.
    """
    at_hand(processor)
    build = builder(_check.choice("task", task, CANDIDATES), "scores")
    models = [build(d, torch.Generator().manual_seed(0)).float().eval() for d in (head_dim, max(CANDIDATES[task]))]
    x = inputs(task)
    with threads_set(1), torch.no_grad():
        found = compare(*interleaved([_pass(model, x) for model in models], rounds, turn=TURN))
    return {"seconds": found.seconds, "ratio": 1 / found.ratio, "low": 1 / found.high, "high": 1 / found.low,
            "machine": machine()}  # fmt: skip


def inputs(task: str) -> Tensor:
    """Random inputs (32, ...) of the shape of a task's; no data set is needed."""
    generator = torch.Generator().manual_seed(0)
    if task in LENGTH:
        return torch.randint(2, 100, (BATCH, LENGTH[task]), generator=generator)
    if task in PATCH:
        shape = SOURCES[task].shape
        assert shape is not None  # these are images
        return torch.randn(BATCH, *shape, generator=generator)
    return rule.inputs(task).float()


def _pass(model: nn.Module, x: Tensor):
    return lambda: model(x)


EXPERIMENTS = {
    "head_dim_seconds": Experiment(
        "How long does a forward pass take by head dimension, for the models on which the rule is judged?",
        head_dim_seconds,
        quick=on([processor()], [{"task": "permutation", "head_dim": 4, "rounds": 1}]),
        paper=on(PROCESSORS, [{"task": task, "head_dim": d, "rounds": 15} for task, dims in CANDIDATES.items()
                              for d in dims]),
        chapter="choosing_head_dimension",
        repeats=Measured(),
    ),
}  # fmt: skip
