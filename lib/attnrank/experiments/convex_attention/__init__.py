"""Tables of the chapter convex_attention: contests and scale of the solver, and non-convex training beside it."""

from __future__ import annotations

from attnrank.benchmarks import processor
from attnrank.experiments.convex_attention.contests import convex_contest, convex_trace
from attnrank.experiments.convex_attention.scale import convex_memory, convex_scale
from attnrank.experiments.convex_attention.training import LOOKS, METHODS, nonconvex_runs, nonconvex_trace
from attnrank.experiments.experiment import Experiment, Measured, Rounding, Statistical
from attnrank.experiments.measuring_speed.cases import PROCESSORS, on
from attnrank.sweep import Setting, grid

CHAPTER = "convex_attention"

#: Those on which times were measured. To add another, add its name here and let the sweep compute what is missing.
TIMED = (PROCESSORS[0], PROCESSORS[2])


def _contests(
    program_name: str,
    rivals: tuple[str, ...],
    bar: str,
    sizes: list[tuple[int, int, int]],
    *,
    shares: tuple[float, ...] = (0.3, 0.1, 0.02),
    gap: float = 1e-9,
    rounds: int = 5,
) -> list[Setting]:
    return [
        {"program_name": program_name, "rival": rival, "samples": samples, "n": n, "d": d, "share": share,
         "gap": gap, "bar": bar, "rounds": rounds}
        for samples, n, d in sizes for share in shares for rival in rivals
    ]  # fmt: skip


_SIZES = [(samples, 64, d) for samples in (200, 1000) for d in (32, 128)]
_RUNS: dict[str, list] = {"method": list(METHODS), "seeds": [50]}

EXPERIMENTS = {
    "convex_contests": Experiment(
        "How long does the solver take to a verified gap, beside what a user would pick instead?",
        convex_contest,
        quick=on([processor()], _contests("squared", ("celer", "path"), ">= 1", [(50, 8, 4)], shares=(0.1,), rounds=2)),
        paper=on(TIMED, [
            *_contests("squared", ("celer", "adelie"), ">= 1", _SIZES, shares=(0.3, 0.1)),
            *_contests("squared", ("celer",), ">= 10", _SIZES, shares=(0.02,), rounds=3),
            *_contests("squared", ("adelie",), ">= 1", _SIZES, shares=(0.02,), rounds=3),
            *_contests("squared", ("path",), "<= 5", _SIZES, shares=(0.02,), rounds=3),
            *_contests("squared", ("CVXPY, CLARABEL",), ">= 30", _SIZES, rounds=1),
            *_contests("cross_entropy", ("CVXPY, CLARABEL",), ">= 20", [(200, 64, 32)], rounds=1),
            *_contests("nuclear", ("CVXPY, CLARABEL", "CVXPY, SCS"), ">= 20", [(200, 16, 8)], gap=1e-7, rounds=3),
            *_contests("nuclear", ("CVXPY, CLARABEL",), ">= 20", [(200, 64, 8)], gap=1e-7, rounds=1),
        ]),
        chapter=CHAPTER,
        repeats=Measured(),
    ),
    "convex_traces": Experiment(
        "How does the verified gap fall with time, for the solver and for its rivals?",
        convex_trace,
        quick=on(
            [processor()], grid(contestant=["attnrank"], samples=[50], n=[8], d=[4], share=[0.1], tol=[1e-3, 1e-9])
        ),
        paper=on(TIMED, [
            setting
            for contestant, tolerances in (
                ("attnrank", [10.0**-k for k in range(1, 13)]),
                ("celer", [10.0**-k for k in range(2, 15, 2)]),
                ("adelie", [10.0**-k for k in range(4, 19, 2)]),
                ("CVXPY, CLARABEL", [10.0**-k for k in range(2, 11, 2)]),
            )
            for d in (32, 128)
            for setting in grid(contestant=[contestant], samples=[200], n=[64], d=[d], share=[0.02], tol=tolerances)
        ]),
        chapter=CHAPTER,
        repeats=Measured(),
    ),
    "convex_scale": Experiment(
        "What memory and time does the solver need, by samples, tokens and dimension?",
        convex_scale,
        quick=on([processor()], grid(samples=[200], n=[16], d=[4], share=[0.1])),
        paper=on(TIMED, [
            {"samples": samples, "n": n, "d": d, "share": 0.1}
            for samples, n, d in (
                (1250, 64, 48), (5000, 64, 48), (20_000, 64, 48),
                (5000, 16, 48), (5000, 256, 48), (5000, 64, 12), (5000, 64, 192),
            )
        ]),
        chapter=CHAPTER,
        repeats=Measured(),
    ),
    "convex_memory": Experiment(
        "What memory does the solver need with cross-entropy?",
        convex_memory,
        quick=grid(loss=["cross_entropy"], samples=[200], n=[16], d=[4], share=[0.1]),
        paper=grid(loss=["cross_entropy"], samples=[1250, 5000, 20_000], n=[64], d=[48], share=[0.1]),
        chapter=CHAPTER,
        repeats=Measured(),
    ),
    "nonconvex_runs": Experiment(
        "How often does non-convex training end at the certified optimum, by heads, width of the start and method?",
        nonconvex_runs,
        quick=grid(problem=["toy"], heads=[6], method=["projected"], scale=[1.0], seeds=[2]),
        paper=[
            *grid(problem=["toy"], heads=[1, 2, 3, 4, 6, 12, 24], scale=[1.0], **_RUNS),
            *grid(problem=["toy"], heads=[6], scale=[0.1, 2.0], **_RUNS),
            *grid(problem=["medium"], heads=[1, 4, 12, 24], scale=[1.0], **_RUNS),
        ],
        chapter=CHAPTER,
        repeats=Statistical(
            {"global_share": "global_share_se", "gap": "gap_se", "certificate": "certificate_se", "ratio": "ratio_se",
             # Least of 50, so that a single run decides, whose end another processor can change: by 0.027 on an Intel
             # Xeon (medium, one head), a third of this standard error. Where none changes it moves by 5.3e-8.
             "least_excess": "certificate_se"}
        ),
    ),
    "nonconvex_trace": Experiment(
        "How does the certificate close over training, beside the true gap?",
        nonconvex_trace,
        quick=grid(problem=["toy"], method=["projected"], heads=[6], scale=[1.0], seeds=[4], step=[0, 100]),
        paper=grid(
            problem=["toy"], method=["projected"], heads=[2, 6], scale=[1.0], seeds=[50], step=list(LOOKS)
        ),
        chapter=CHAPTER,
        repeats=Rounding(1e-7),
    ),
}  # fmt: skip
