"""The published table of trained attention layers."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import torch
from jaxtyping import Bool
from torch import Tensor

from attnrank.experiments.does_rank_matter.layer import Head, Measured, head, measured, sequence_flops
from attnrank.experiments.does_rank_matter.tasks import Task
from attnrank.experiments.experiment import Experiment, Statistical
from attnrank.experiments.shared.runs import epoch_of, path_of, setting_of, train_or_stop
from attnrank.sweep import Setting
from attnrank.training import Recipe, Run

BATCH = 32


def task_heads(
    task: str, n: int, wanted: int, readout: str, heads: int, qk_dim: int, intervention: str, epochs: int, seed: int
) -> Setting:
    """Train one attention layer on a task; what it got right, and its hardmax rank, before and after.

    ``accuracy`` is the share of right answers, ``loss`` the cross-entropy. ``aim`` is the share of tokens whose most
    attended token (mean over heads) is the wanted one. ``needed`` is the mean number of tokens that are wanted,
    ``rank`` the mean hardmax rank of a head, ``ceiling`` the largest aim that heads of these ranks can have if each
    token's answer is the most attended one in some head: see `ceiling_of`. ``aim_if_unattended`` is the aim, after
    training, at wanted tokens that no token attended to before training, and ``aim_if_attended`` at the others; missing
    where there are none. The cost of a run has the names of the table accuracy; ``parameters`` are those that answers
    are computed from, so that a pointer has W_q and W_k with their biases. ``best_accuracy`` is the best of the epochs,
    chosen on the test sequences. A run whose loss was not finite has ``stopped`` set to the reason, and nothing of what
    is measured after training.
    """
    setting = setting_of(locals())
    source = Task(task, n, wanted, seed, readout)
    model = _untrained(source, heads, qk_dim, intervention)
    before = measured(model, source)
    run, stopped = _trained(model, source, setting)
    flops = sequence_flops(model, n)
    return {
        "needed": before.needed, "accuracy_before": run.epochs[0]["test_accuracy"], "accuracy": None,
        "aim_before": _mean(before.aim), "aim": None, "rank_before": before.rank, "rank": None,
        "ceiling_before": before.ceiling, "ceiling": None, "loss_before": run.epochs[0]["test_loss"], "loss": None,
        "aim_if_unattended": None, "aim_if_attended": None,
        "parameters": sum(value.numel() for value in model.used),
        "trained_parameters": sum(value.numel() for value in model.used if value.requires_grad),
        "flops_per_sequence": flops, "training_flops": 3.0 * flops * BATCH * run.steps,
        "best_accuracy": None, "train_accuracy": None,
        "seconds": round(run.seconds, 1), "threads": run.threads or torch.get_num_threads(), "device": run.device,
        "stopped": stopped,
    } | ({} if stopped else _after(model, source, run, before))  # fmt: skip


def _after(model: Head, source: Task, run: Run, before: Measured) -> Setting:
    """What a row says of the layer after training."""
    after = measured(model, source)
    return {
        "accuracy": run.final["test_accuracy"], "aim": _mean(after.aim), "rank": after.rank, "ceiling": after.ceiling,
        "loss": run.final["test_loss"], "aim_if_unattended": _mean(after.aim[~before.attended]),
        "aim_if_attended": _mean(after.aim[before.attended]), "best_accuracy": run.best["test_accuracy"],
        "train_accuracy": run.final["train_accuracy"],
    }  # fmt: skip


def _mean(flags: Bool[Tensor, "*shape"]) -> float | None:
    return flags.double().mean().item() if flags.numel() else None


def task_heads_curves(
    task: str, n: int, wanted: int, readout: str, heads: int, qk_dim: int, intervention: str, epochs: int, seed: int,
    epoch: int,
) -> Setting:  # fmt: skip
    """One epoch of a run of `task_heads`, 0 being the untrained layer: losses, accuracies, step size.

    The run is trained once for all of its epochs, if they are asked for one after another, and not at all if
    `task_heads` kept it in the folder of runs: see `runs_folder`.
    """
    entry = epoch_of(_run(tuple(setting_of(locals(), "epoch").items())), epoch, epochs)
    return {name: entry.get(name) for name in ("rate", "train_loss", "train_accuracy", "test_loss", "test_accuracy")}


@lru_cache(maxsize=2)
def _run(key: tuple) -> Run:
    setting = dict(key)
    source = Task(*(setting[name] for name in ("task", "n", "wanted", "seed", "readout")))
    model = _untrained(source, *(setting[name] for name in ("heads", "qk_dim", "intervention")))
    return _trained(model, source, setting)[0]


def _untrained(source: Task, heads: int, qk_dim: int, intervention: str) -> Head:
    model = head(source, heads, qk_dim, intervention)
    if source.readout == "pointer" and model.config.frozen:
        raise ValueError("readout must be 'layer' with frozen weights: a pointer trains nothing else")
    return model


def recipe(epochs: int) -> Recipe:
    """How every layer is trained; the same for all that are compared."""
    return Recipe(epochs, batch=BATCH, rate=3e-2, decay=0.0, smoothing=0.0)


def _trained(model: Head, source: Task, setting: Setting) -> tuple[Run, str]:
    """Train a layer in place, or take it from the folder of runs if there is one; see `train_or_stop`."""
    checkpoint = path_of(setting)
    return train_or_stop(model, source, recipe(setting["epochs"]), seed=source.seed, checkpoint=checkpoint)


DIMS = (1, 2, 3, 4, 8, 16)
FROZEN = ("frozen", "frozen_tied_qk_norm")
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


def _epochs(settings: list[Setting]) -> list[Setting]:
    return [setting | {"epoch": epoch} for setting in settings for epoch in range(setting["epochs"] + 1)]


QUICK = [
    *_grid(["permutation"], [1, 2], n=8, epochs=1, seeds=1),
    *_grid(["recall"], [2], n=8, wanted=[4], epochs=1, seeds=1),
]
PAPER = [
    *_grid(["permutation", "nearest"], DIMS),
    *_grid(["copy", "previous"], [1, 2, 4]),
    *_grid(["lookup"], [1, 2], wanted=[1, 2, 4, 8]),
    *_grid(["permutation"], [1, 2, 4, 16], readout="layer"),
    *_grid(["copy", "previous"], [2, 16], interventions=["tied", "tied_qk_norm"]),
    *_grid(["permutation"], [1, 2, 4], interventions=["qk_norm"]),
    *_grid(["recall"], [1, 2, 4], wanted=[2, 4, 8]),
    *_grid(["permutation"], [1], heads=[2, 4, 8]),
    *_grid(["copy", "previous"], [2, 16], readout="layer", interventions=FROZEN),
    *_grid(["permutation"], [1, 2, 4], n=32),
    *_grid(["permutation"], [2, 4], heads=[2, 4, 8]),
    *_grid(["recall"], [2], wanted=[2, 4, 8], epochs=16),
    *_grid(["copy"], [2], interventions=["tied"], epochs=16),
    *_grid(["lookup"], [1], wanted=[2], epochs=16),
    *_grid(["permutation"], [1, 2], readout="layer", heads=[2, 4, 8]),
    *_grid(["copy", "previous"], [1], interventions=["tied_qk_norm"]),
    *_grid(["permutation", "nearest"], [1, 2, 4], epochs=16),
    # every task as a layer with values; the same with its scores frozen; one head against many where scores decide
    *_grid(["copy", "previous", "nearest"], [1, 2, 4, 16], readout="layer"),
    *_grid(["lookup"], [1, 2, 4, 16], wanted=[4], readout="layer"),
    *_grid(["recall"], [1, 2, 4, 16], wanted=[8], readout="layer"),
    *_grid(["permutation", "nearest"], [2, 16], readout="layer", interventions=FROZEN),
    *_grid(["lookup"], [2, 16], wanted=[4], readout="layer", interventions=FROZEN),
    *_grid(["recall"], [2, 16], wanted=[8], readout="layer", interventions=FROZEN),
    *_grid(["recall"], [8, 16], wanted=[8]),
    *_grid(["nearest"], [1, 2], heads=[2, 4, 8]),
    *_grid(["recall"], [1, 2], wanted=[8], heads=[2, 4, 8]),
    *_grid(["nearest"], [1, 2], readout="layer", heads=[2, 4, 8]),
    *_grid(["recall"], [1, 2], wanted=[8], readout="layer", heads=[2, 4, 8]),
    *_grid(["nearest"], [8], readout="layer"),
    *_grid(["recall"], [8], wanted=[8], readout="layer"),
]
#: Standard deviations over seeds of what is trained, the larger ones: training turns rounding into other numbers.
ERRORS = {
    "accuracy_before": 0.001, "accuracy": 0.02, "aim_before": 0.001, "aim": 0.02, "rank_before": 0.01, "rank": 0.2,
    "ceiling_before": 0.001, "ceiling": 0.02, "loss_before": 1e-6, "loss": 0.05, "aim_if_unattended": 0.05,
    "aim_if_attended": 0.05, "best_accuracy": 0.02, "train_accuracy": 0.02,
}  # fmt: skip
CURVES = {"train_loss": 0.05, "train_accuracy": 0.02, "test_loss": 0.05, "test_accuracy": 0.02}
#: Before training: in float32, rounding decides between keys that are equally good.
UNTRAINED = {"test_loss": ERRORS["loss_before"], "test_accuracy": ERRORS["accuracy_before"]}
EXPERIMENTS = {
    "task_heads": Experiment(
        "What can one attention layer learn whose rank is limited, and when is rank the limit?",
        task_heads,
        quick=QUICK,
        paper=PAPER,
        chapter="does_rank_matter",
        repeats=Statistical(ERRORS, ignored=("seconds", "threads", "device")),
        version=4,  # without the length of the weights
    ),
    "task_heads_curves": Experiment(
        "How fast does one attention layer learn these tasks: loss and accuracy, epoch by epoch?",
        task_heads_curves,
        quick=_epochs(QUICK),
        paper=_epochs(PAPER),
        chapter="does_rank_matter",
        repeats=Statistical(CURVES, early={"epoch": 0}, early_errors=UNTRAINED),
    ),
}
