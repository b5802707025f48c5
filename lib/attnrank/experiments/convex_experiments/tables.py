"""The published tables of the chapter convex_experiments: which runs are finished, which are wanted."""

from __future__ import annotations

from collections.abc import Iterable

from attnrank.experiments.convex_experiments.modular import (
    POINTS,
    SHOWN,
    modular_curves,
    modular_runs,
    seconds_to_train,
)
from attnrank.experiments.convex_experiments.program import modular_program
from attnrank.experiments.convex_experiments.series import SERIES, runs
from attnrank.experiments.convex_experiments.student import LOOKS, student_maps, student_runs, student_traces
from attnrank.experiments.convex_experiments.teacher import teacher_accuracy
from attnrank.experiments.experiment import Experiment, Rounding, Statistical
from attnrank.sweep import Setting

CHAPTER = "convex_experiments"
#: How many of the runs of a series, from the first, are finished and published.
FINISHED = {
    "p = 17": 9, "p = 31": 6, "p = 97": 6, "p = 11": 6, "p = 17, decay": 18, "p = 53": 6, "p = 31, fractions": 12,
    "p = 97, fractions": 12, "p = 97, decay": 18,
}  # fmt: skip


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


#: Texts to train on and to test on, and what each method is given: heads, passes, step size.
TEXTS = {"count": 500, "tested": 2000}
METHODS = {
    "softmax": {"heads": 4, "passes": 40, "rate": 0.01}, "heads": {"heads": 64, "passes": 300, "rate": 0.01},
    "program": {"heads": 64, "passes": 1, "rate": 0.0},
}  # fmt: skip
SHARES = (0.1, 0.03, 0.01, 0.003, 0.001, 0.0003, 0.0001)
#: Shares whose looks in between are published, and that of the maps; other step sizes, with the share and the seeds at
#: which they are tried.
TRACED, MAPPED = (0.1, 0.03, 0.01, 0.003, 0.001), 0.01
RATES, AT, FEW = (0.03, 0.003), 0.001, range(2)
SEEDS = range(5)


def _students(
    seeds: Iterable[int], *, teacher: str = "imdb", shares: Iterable[float] = SHARES, **changes: float
) -> list[Setting]:
    return [
        {"teacher": teacher, "method": method, "share": share, "heads": given["heads"], **TEXTS,
         "passes": given["passes"], "rate": given["rate"], "seed": seed} | changes
        for seed in seeds for share in shares for method, given in METHODS.items()
    ]  # fmt: skip


_TINY_STUDENTS = _students([0], teacher="docstrings", shares=[0.1], count=40, tested=40, passes=4, heads=4)
_TINY = [one | {"width": 8} for one in runs(5, attentions=("softmax", "convex"), steps=100, seeds=[0])]
_STEPS = ("done", "fitted_at", "rising_at", "half_at", "generalised_at")
_RANKS = tuple(name for name in SHOWN if name.endswith(("_1", "_2")))
#: Rounding decides when a run generalises, and whether: modulo 17, convex, decay 3, seed 0 does at 1750 steps, and not
#: in 5000 with MKL_CBWR=COMPATIBLE. What is said of the end of a run is therefore not compared; a run that generalises
#: on one processor only does not fail. The loss after 50 steps is: 16 runs with MKL_CBWR=COMPATIBLE and 9 with
#: ATEN_CPU_CAPABILITY=default differ from the published ones by 1.4e-7 at most. Modulo 11, a step size that is
#: wrong by 1 %, a temperature by 2 % or a decay by 10 % changes it by 1e-3 or more; a wrong seed does in every run.
_OF_RUNS = {"early_loss": 1e-5}
_OF_THE_END = (
    *_STEPS, "fit_accuracy", "test_accuracy", "best_accuracy",
    *(f"{name}_{when}" for name in _RANKS for when in ("before", "after", "share")),
)  # fmt: skip
#: After ``_EARLY``, margins about as wide as what they bound: a run that generalises on one processor only keeps them,
#: and a fault does as well. Up to it, before rounding has grown (it had by step 450 or 500), those runs differ by
#: 3e-5 in losses, 4e-6 in stable_1 and 2e-4 in attended_2 at most, and not in what is counted.
_OF_CURVES = {
    "step": 500.0, "fit_loss": 1.0, "test_loss": 1.0, "fit_accuracy": 0.3, "test_accuracy": 0.3,
    **dict.fromkeys(_RANKS, 0.3),
}  # fmt: skip
_EARLY = {"step": 200.0}
_OF_EARLY_CURVES = {
    "fit_loss": 1e-4, "test_loss": 1e-4, "stable_1": 1e-4, "attended_2": 3e-4, "fit_accuracy": 0.02,
    "test_accuracy": 0.02, "hardmax_1": 0.1, "rank_at_tenth_1": 0.1,
}  # fmt: skip

#: A teacher that is trained again is another one: the largest standard deviations over seeds, rounded up.
_OF_STUDENTS = {
    "valid_error": 0.005, "test_error": 0.005, "fixed_error": 0.01, "agreement": 0.01, "accuracy": 0.01, "beta": 6.0,
    "objective": 1.5, "excess": 2.5, "certificate": 9.0, "active": 2.0, "attended": 5.0, "operations": 2e8,
}  # fmt: skip
#: Root mean squares, over positions, of what changed when the teacher was trained again with MKL_CBWR=COMPATIBLE. With
#: the same teacher students differ by 1e-8. Beyond these margins are a wrong seed at 3 to 10 of the 64 positions of
#: heads and program (softmax: none), and scores of softmax that are divided by 4 at 9. Not beyond them
#: are heads with a temperature of 2, which learn nearly the same map.
_OF_MAPS = {"mean": {"softmax": 1.8e-5, "heads": 1.5e-3, "program": 1.4e-3}, "over_texts": {"softmax": 2.7e-5}}
#: By look: students begin far apart. A wrong seed, whose student is as near to its teacher, is seen in the maps only.
_OF_TRACES = {
    "operations": {"0": 2e8},
    "objective": {"0": 200.0, "1": 90.0, "2": 15.0, "3": 4.0, "4": 2.0, "5": 2.0},
    "valid_error": {"0": 0.3, "1": 0.03, "2": 0.011, "3": 0.005, "4": 0.007, "5": 0.005},
    "test_error": {"0": 0.35, "1": 0.025, "2": 0.009, "3": 0.005, "4": 0.007, "5": 0.005},
}  # fmt: skip


def _looks(setting: Setting) -> int:
    return 1 if setting["method"] == "program" else len(LOOKS)


EXPERIMENTS = {
    "modular_runs": Experiment(
        "When does a network fit division modulo p, when does it generalise, and does the rank of its attention move "
        "then?",
        modular_runs,
        quick=_TINY,
        paper=finished(),
        chapter=CHAPTER,
        repeats=Statistical(_OF_RUNS, ignored=(*_OF_THE_END, "seconds", "threads", "device")),
        version=2,  # the loss at the first look
        seconds_again=seconds_to_train,
        checkpoint=True,
    ),
    "modular_curves": Experiment(
        "How do loss, accuracy and the ranks of attention go while a network learns division modulo p?",
        modular_curves,
        quick=_points(_TINY)[::20],
        paper=_points(finished()),
        chapter=CHAPTER,
        repeats=Statistical(  # losses in float32
            _OF_CURVES, rtol=1e-5, before={"point": 0}, early=_EARLY, early_errors=_OF_EARLY_CURVES
        ),
        seconds_again=seconds_to_train,
    ),
    "teacher_accuracy": Experiment(
        "On which share of the test texts is a teacher right?",
        teacher_accuracy,
        quick=[{"teacher": "docstrings"}],
        paper=[{"teacher": "imdb"}, {"teacher": "bert-base-uncased"}],
        chapter=CHAPTER,
        data="teacher",
        repeats=Statistical({"accuracy": 0.01, "full_accuracy": 0.01}),
        seconds_again=lambda setting: 300.0,
    ),
    "student_runs": Experiment(
        "How near does a student come to its teacher: softmax attention, heads of (8), and the certified program (9)?",
        student_runs,
        quick=_TINY_STUDENTS,
        paper=[
            *_students(SEEDS),
            *(one for seed in FEW for rate in RATES for one in _students([seed], shares=[AT], rate=rate)
              if one["method"] != "program"),
            *_students([0], teacher="bert-base-uncased"),
        ],
        chapter=CHAPTER,
        data="teacher",
        repeats=Statistical(_OF_STUDENTS, ignored=("seconds",)),
        version=2,  # operations of the products that NumPy makes
        seconds_again=lambda setting: 900.0,
    ),
    "student_traces": Experiment(
        "How do the objective and the error of a student fall with the operations that were spent?",
        student_traces,
        quick=[one | {"look": look} for one in _TINY_STUDENTS for look in (0, 5)],
        paper=[one | {"look": look} for one in _students(SEEDS, shares=TRACED) for look in range(_looks(one))],
        chapter=CHAPTER,
        data="teacher",
        repeats=Statistical(_OF_TRACES, ignored=("seconds",), by="look"),
        version=2,  # operations of the products that NumPy makes
        seconds_again=lambda setting: 900.0,
    ),
    "student_maps": Experiment(
        "Which positions does a student attend to, and does it depend on the text?",
        student_maps,
        quick=[one | {"position": 3} for one in _TINY_STUDENTS],
        paper=[one | {"position": position} for one in _students([0], shares=[MAPPED]) for position in range(64)],
        chapter=CHAPTER,
        data="teacher",
        repeats=Statistical(_OF_MAPS, by="method"),
        seconds_again=lambda setting: 900.0,
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
