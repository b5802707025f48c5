"""The published tables of trained Vision Transformers: which runs are finished, which are wanted."""

from __future__ import annotations

from functools import partial
from typing import Any

from attnrank.experiments.accuracy.arms import (
    BASES,
    all_arms,
    completing,
    core,
    deciding,
    fixed_heads,
    judging,
    lines,
    only_scores,
    runs,
    same_parameters,
)
from attnrank.experiments.accuracy.runs import (
    accuracy,
    accuracy_curves,
    accuracy_ranks,
    seconds_to_train,
)
from attnrank.experiments.experiment import Experiment, Statistical
from attnrank.experiments.shared.runs import RANKS
from attnrank.sweep import Setting

DIGITS, PHOTOGRAPHS = BASES["digits"], BASES["photographs"]
LARGE, WIDE = BASES["large photographs"], BASES["wide photographs"]


def _once(*parts: list[Setting]) -> list[Setting]:
    """The settings of all parts, each where it is named first."""
    return [dict(key) for key in dict.fromkeys(tuple(setting.items()) for part in parts for setting in part)]


def _digits() -> list[Setting]:
    """Every arm once; those that decide at three seeds, the fewest of them at five; the other arms likewise."""
    of = partial(runs, dataset="digits", patch=2, epochs=12)
    every = all_arms(DIGITS)
    few, some = core(DIGITS), deciding(DIGITS)
    return _once(
        of(every, seeds=[0]), of([*few, *some], seeds=[1, 2], by="arm"), of(few, seeds=[3, 4], by="arm"),
        of([*completing(DIGITS), *every], seeds=[1, 2], by="arm"), of(only_scores(DIGITS), seeds=[3, 4], by="arm"),
        of(same_parameters(DIGITS, "value_dim"), seeds=[0, 1, 2], by="arm"), of(every, seeds=[3, 4]),
    )  # fmt: skip


def _pixels(epochs: int) -> list[Setting]:
    """A token for each pixel: does attention matter with more tokens?"""
    arms: list[Setting] = [DIGITS, DIGITS | {"intervention": "uniform"}]
    return runs(arms, dataset="digits", patch=1, epochs=epochs, seeds=range(3))


def _cifar10(patch: int, epochs: int) -> list[Setting]:
    """Every arm at three seeds: those of the predictions, then those that decide, then the others."""
    arms = [*judging(PHOTOGRAPHS), *deciding(PHOTOGRAPHS), *completing(PHOTOGRAPHS), *_all_photographs()]
    return _once(runs(arms, dataset="cifar10", patch=patch, epochs=epochs, seeds=range(3), by="arm"))


def _cifar10_by_lines(patch: int, epochs: int) -> list[Setting]:
    """The same arms: those of the predictions, d_v = 1 of the same size before the last three; one of each kind that
    tells rank from parameters; then line by line, heads of d_h = 1 last of them: they take four times as long."""
    judged, values = judging(PHOTOGRAPHS), same_parameters(PHOTOGRAPHS, "value_dim")
    arms = [*judged[:11], values[0], *judged[11:], fixed_heads(PHOTOGRAPHS)[0], same_parameters(PHOTOGRAPHS)[0]]
    arms += [*lines(PHOTOGRAPHS), *_all_photographs()]
    return _once(runs(arms, dataset="cifar10", patch=patch, epochs=epochs, seeds=range(3), by="arm"))


def _all_photographs() -> list[Setting]:
    return [*all_arms(PHOTOGRAPHS), *same_parameters(PHOTOGRAPHS, "value_dim")]


def _core(base: Setting, *, dataset: str, patch: int, epochs: int) -> list[Setting]:
    """The fewest arms that decide: whether attention, its scores and its values matter at all, then rank moved."""
    arms = core(base)
    first = [arms[at] for at in (0, 1, 2, 6, 3, 4, 5)]
    return runs(first, dataset=dataset, patch=patch, epochs=epochs, seeds=range(3), by="arm")


def _wide(epochs: int) -> list[Setting]:
    """The longest runs, a GPU's work: the control, d_qk alone with its parameters and without, normalised scores of
    dimension 1."""
    one = WIDE | {"qk_dim": 1}
    arms: list[Setting] = [WIDE, one, WIDE | {"intervention": "uniform"}, same_parameters(WIDE)[0]]
    arms.append(one | {"intervention": "qk_norm"})
    return runs(arms, dataset="cifar10", patch=4, epochs=epochs, seeds=range(3), by="arm")


#: The runs that are wanted, by data, patch and epochs: in this order, so that what decides the verdict comes first.
SERIES: dict[str, list[Setting]] = {
    "digits, brief": runs(  # seconds a run: the tests train them again
        [DIGITS, only_scores(DIGITS)[0], DIGITS | {"intervention": "uniform"}], dataset="digits", patch=2, epochs=2,
        seeds=range(3),
    ),
    "digits": _digits(),
    "digits, pixels": _pixels(epochs=40),
    "digits, pixels, brief": _pixels(epochs=12),
    "cifar10, short": _cifar10(patch=8, epochs=5),
    "cifar10, 16 tokens, long": _core(PHOTOGRAPHS, dataset="cifar10", patch=8, epochs=20),
    "cifar10, 16 tokens, large": _core(LARGE, dataset="cifar10", patch=8, epochs=5),
    "cifar100, 16 tokens": _core(PHOTOGRAPHS, dataset="cifar100", patch=8, epochs=20),
    "cifar10": _cifar10_by_lines(patch=4, epochs=15),
    "cifar10, wide": _wide(epochs=100),
    "cifar100": _core(PHOTOGRAPHS, dataset="cifar100", patch=4, epochs=15),
}
#: How many of them, from the first, are finished and published. To go on, see `book/reading.md`.
FINISHED = {
    "digits, brief": 9, "digits": 222, "digits, pixels": 6, "digits, pixels, brief": 6, "cifar10, short": 156,
    "cifar10, 16 tokens, long": 21, "cifar10, 16 tokens, large": 21, "cifar100, 16 tokens": 21,
    # the chapter `accuracy` says which runs had zeros after queries, keys or values: the same up to rounding
    "cifar10": 156,
    "cifar10, wide": 15, "cifar100": 21,
}  # fmt: skip


def finished() -> list[Setting]:
    """The runs that the tables hold."""
    return [setting for name, count in FINISHED.items() for setting in SERIES[name][:count]]


def _epochs(settings: list[Setting]) -> list[Setting]:
    return [setting | {"epoch": epoch} for setting in settings for epoch in range(setting["epochs"] + 1)]


def _layers(settings: list[Setting]) -> list[Setting]:
    return [entry | {"layer": layer} for entry in _epochs(settings) for layer in range(1, entry["depth"] + 1)]


_TINY = runs(
    [{"width": 8, "depth": 1, "heads": 2, "qk_dim": 2, "value_dim": 4, "mlp_width": 8}], dataset="digits", patch=4,
    epochs=1, seeds=[0],
)  # fmt: skip
#: Standard deviations over seeds, rounded up; wall time, device and threads are facts of one run.
_ACCURACY = {"accuracy": 0.02, "best_accuracy": 0.02, "test_loss": 0.05, "train_accuracy": 0.02, "rank_after": 0.05,
             "rank_after_all": 0.05}  # fmt: skip
_CURVES = {"train_loss": 0.05, "train_accuracy": 0.02, "test_loss": 0.1, "test_accuracy": 0.03}
#: Before training rounding moves the loss a little, and images whose two best classes are nearly equal.
_UNTRAINED = {"test_loss": 1e-6, "test_accuracy": 0.001}
_RANKS = dict.fromkeys((*RANKS, "hardmax_least", "hardmax_most"), 0.05)
_OF_RUNS: dict[str, Any] = {"chapter": "accuracy", "data": "dataset", "seconds_again": seconds_to_train}

EXPERIMENTS = {
    "accuracy": Experiment(
        "What accuracy does a Vision Transformer reach, by the dimensions of its heads and what is done to its scores?",
        accuracy,
        quick=_TINY,
        paper=finished(),
        repeats=Statistical(_ACCURACY, ignored=("seconds", "threads", "device")),
        checkpoint=True,
        **_OF_RUNS,
    ),
    "accuracy_curves": Experiment(
        "How do loss and accuracy of these runs go, epoch by epoch?",
        accuracy_curves,
        quick=_epochs(_TINY),
        paper=_epochs(finished()),
        repeats=Statistical(_CURVES, early={"epoch": 0}, early_errors=_UNTRAINED),
        **_OF_RUNS,
    ),
    "accuracy_ranks": Experiment(
        "Where do the ranks of these runs go while they train, layer by layer?",
        accuracy_ranks,
        quick=_layers(_TINY),
        paper=_layers(finished()),
        repeats=Statistical(_RANKS, before={"epoch": 0}),  # measured in float64 from the weights as drawn
        version=2,
        **_OF_RUNS,
    ),
}


def progress() -> dict[str, tuple[int, int]]:
    """For each series, how many of its runs are published, and how many are wanted."""
    return {name: (FINISHED[name], len(series)) for name, series in SERIES.items()}
