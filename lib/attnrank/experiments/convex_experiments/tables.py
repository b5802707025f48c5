"""The published tables of the chapter convex_experiments: which runs are finished, which are wanted."""

from __future__ import annotations

from attnrank.experiments.convex_experiments.modular import (
    POINTS,
    SHOWN,
    modular_curves,
    modular_runs,
    seconds_to_train,
)
from attnrank.experiments.convex_experiments.program import modular_program
from attnrank.experiments.convex_experiments.series import SERIES, runs
from attnrank.experiments.experiment import Experiment, Rounding, Statistical
from attnrank.sweep import Setting

CHAPTER = "convex_experiments"
#: How many of the runs of a series, from the first, are finished and published.
FINISHED = {"p = 17": 6}


def finished() -> list[Setting]:
    """The runs that the tables hold."""
    return [setting for name, series in SERIES.items() for setting in series[: FINISHED.get(name, 0)]]


def progress() -> dict[str, tuple[int, int]]:
    """For each series, how many of its runs are published, and how many are wanted."""
    return {name: (FINISHED.get(name, 0), len(series)) for name, series in SERIES.items()}


def _points(settings: list[Setting]) -> list[Setting]:
    return [setting | {"point": point} for setting in settings for point in range(POINTS + 1)]


def _programs(
    orders: list[int], gates: list[int], shares: list[float], *, penalties: tuple[str, ...] = ("group",),
    tables: tuple[str, ...] = ("division", "clipped"), seeds: int = 3,
) -> list[Setting]:
    return [
        {"p": p, "table": table, "penalty": penalty, "gates": count, "share": share, "fraction": 0.5, "seed": seed}
        for p in orders for table in tables for penalty in penalties for count in gates for share in shares
        for seed in range(seeds)
    ]  # fmt: skip


_TINY = [one | {"width": 8} for one in runs(5, attentions=("softmax", "convex"), steps=100, seeds=[0])]
_STEPS = ("done", "fitted_at", "rising_at", "generalised_at")
_RANKS = tuple(name for name in SHOWN if name.endswith(("_1", "_2")))
_OF_RUNS = {
    **dict.fromkeys(_STEPS, 500.0), **dict.fromkeys(("fit_accuracy", "test_accuracy", "best_accuracy"), 0.05),
    **{f"{name}_{when}": 0.3 for name in _RANKS for when in ("before", "after", "share")},
}  # fmt: skip
_OF_CURVES = {
    "step": 500.0, "fit_loss": 1.0, "test_loss": 1.0, "fit_accuracy": 0.3, "test_accuracy": 0.3,
    **dict.fromkeys(_RANKS, 0.3),
}  # fmt: skip

EXPERIMENTS = {
    "modular_runs": Experiment(
        "When does a network fit division modulo p, when does it generalise, and does the rank of its attention move "
        "then?",
        modular_runs,
        quick=_TINY,
        paper=finished(),
        chapter=CHAPTER,
        repeats=Statistical(_OF_RUNS, ignored=("seconds", "threads", "device")),
        seconds_again=seconds_to_train,
        checkpoint=True,
    ),
    "modular_curves": Experiment(
        "How do loss, accuracy and the ranks of attention go while a network learns division modulo p?",
        modular_curves,
        quick=_points(_TINY)[::20],
        paper=_points(finished()),
        chapter=CHAPTER,
        repeats=Statistical(_OF_CURVES),
        seconds_again=seconds_to_train,
    ),
    "modular_program": Experiment(
        "What do the convex programs on fixed one-hot tokens predict for the cells of a table that they have not seen?",
        modular_program,
        quick=_programs([5], [0, 4], [0.3], seeds=1),
        paper=[
            *_programs([11, 17], [0], [0.5, 0.1, 0.01], penalties=("group", "nuclear")),
            *_programs([31], [0], [0.5, 0.1]),
            *_programs([11], [16], [0.5, 0.1, 0.01]),
            *_programs([11], [64], [0.1]),
        ],
        chapter=CHAPTER,
        repeats=Rounding(1e-3, 1e-2),
    ),
}  # fmt: skip
