"""Time to a verified gap: `attnrank.convex.solve` beside celer, adelie and CVXPY, and a path beside its cold solves."""

from __future__ import annotations

import math
import time
import warnings
from typing import Any

import numpy as np
import torch

from attnrank import convex
from attnrank.benchmarks import compare, machine
from attnrank.benchmarks.timing import Ratio
from attnrank.experiments.convex_attention.rivals import (
    TOLERANCES,
    Run,
    available,
    prepare,
    program,
    verified_gap,
    version,
)
from attnrank.experiments.measuring_speed.speed import at_hand, verdict
from attnrank.sweep import Setting

#: A rival's run that takes longer than this, in seconds, is not repeated, and followed by none of a stricter tolerance.
PATIENCE = 60.0
OUTPUTS = 3
#: A run of a trace that takes longer than this, in seconds, is not repeated.
LONG = 1.0


def convex_contest(
    program_name: str,
    rival: str,
    samples: int,
    n: int,
    d: int,
    share: float,
    gap: float,
    bar: str,
    rounds: int,
    processor: str,
) -> Setting:
    """Median seconds of solver and rival until the relative gap is at most ``gap``, cold, at beta = share beta_max.

    The rival runs at the loosest of its tolerances that is tight enough, by a lower bound certified to a tenth of
    ``gap``; CVXPY's time is its solver's own, without the modelling. ``rival`` "path": 50 betas down to share beta_max,
    against one cold solve at the last. "not reached" where the rival has no such run within its limits: its seconds,
    and the ratio, are then less than it would need.
    """
    at_hand(processor)
    loss = "cross_entropy" if program_name == "cross_entropy" else "squared"
    penalty = "nuclear" if program_name == "nuclear" else "group"
    x, y = program(samples, n, d, 0, outputs=OUTPUTS if penalty == "nuclear" else 0)
    y = (y > 0).double() if loss == "cross_entropy" else y
    options: dict[str, Any] = {"loss": loss, "penalty": penalty}
    largest = convex.beta_max(x, y, **options)
    beta = share * largest
    if rival == "path":
        betas = (largest * np.geomspace(1.0, share, 50)).tolist()
        return _path(x, y, betas, beta, gap, bar, rounds, options)
    if not available(rival):
        return _result(None, math.nan, math.nan, "", "not measured", 0)
    best = convex.solve(x, y, beta, tol=gap / 10, **options)
    run, tol, reached, first = _tightened(rival, x, y, beta, best.dual, gap, options)
    seconds, theirs, gaps = [], [], []
    for _ in range(rounds):
        start = time.perf_counter()
        solution = convex.solve(x, y, beta, tol=gap, **options)
        seconds.append(time.perf_counter() - start)
        taken, z = first if first[0] > PATIENCE else _timed(run, tol)
        theirs.append(taken)
        gaps.append(verified_gap(x, y, beta, z, best.dual, **options))
    ratio = compare(seconds, theirs)
    outcome = verdict(ratio.ratio, bar) if reached else f"not reached, {verdict(ratio.ratio, bar)}"
    return _result(ratio, solution.relative_gap, max(gaps), version(rival), outcome, len(solution.active))


def _path(x, y, betas, beta, gap, bar, rounds, options) -> Setting:
    seconds, cold = [], []
    for _ in range(rounds):
        start = time.perf_counter()
        solutions = convex.path(x, y, betas, tol=gap, **options)
        middle = time.perf_counter()
        convex.solve(x, y, beta, tol=gap, **options)
        seconds.append(middle - start)
        cold.append(time.perf_counter() - middle)
    ratio = compare(cold, seconds)  # how many cold solves the path costs
    worst = max(solution.relative_gap for solution in solutions)
    return _result(ratio, worst, worst, "50 betas", verdict(ratio.ratio, bar), len(solutions[-1].active))


def _tightened(rival, x, y, beta, dual, gap, options):
    """The rival, the first of its tolerances that reaches the gap (or the best until patience ends), whether it does,
    and what ``_timed`` has of it."""
    run = prepare(rival, x, y, beta, options["loss"], options["penalty"])
    best = (math.inf, None, (0.0, None))
    for tol in TOLERANCES[rival]:
        start = time.perf_counter()
        try:
            timed = _timed(run, tol)
        except (ValueError, RuntimeError, ArithmeticError, TypeError):  # a solver of the rival gave up
            break
        found = verified_gap(x, y, beta, timed[1], dual, **options)
        if found <= gap:
            return run, tol, True, timed
        best = min(best, (found, tol, timed), key=lambda tried: tried[0])
        if time.perf_counter() - start > PATIENCE:
            break
    return run, best[1], False, best[2]


def _timed(run, tol):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a tolerance was not reached is what the gap says
        start = time.perf_counter()
        z, own = run(tol)
        taken = time.perf_counter() - start
    return (taken if own is None else own), z


def _result(ratio: Ratio | None, gap: float, theirs: float, against: str, outcome: str, active: int) -> Setting:
    return {
        "seconds": ratio.seconds if ratio else None,
        "rival_seconds": ratio.baseline_seconds if ratio else None,
        "ratio": ratio.ratio if ratio else None,
        "low": ratio.low if ratio else None,
        "high": ratio.high if ratio else None,
        "reached": None if math.isnan(gap) else gap,
        "rival_reached": None if math.isnan(theirs) else theirs,
        "active": active,
        "against": against,
        "verdict": outcome,
        "machine": f"{machine()}, {torch.get_num_threads()} thread",
    }


def convex_trace(contestant: str, samples: int, n: int, d: int, share: float, tol: float, processor: str) -> Setting:
    """Seconds of one run at one tolerance and the gap verified: points of the curves gap against time.

    The least of three runs, or the first that takes over a second; CVXPY's time is its solver's own.
    """
    at_hand(processor)
    x, y = program(samples, n, d, 0)
    beta = share * convex.beta_max(x, y)
    dual = convex.solve(x, y, beta, tol=1e-12, max_iterations=200).dual
    if contestant == "attnrank":
        run: Run = lambda tol: (_best_effort(x, y, beta, tol), None)  # noqa: E731
    elif available(contestant):
        run = prepare(contestant, x, y, beta, "squared", "group")
    else:
        return {"seconds": None, "gap": None, "machine": machine()}
    runs = [_timed(run, tol)]
    while len(runs) < 3 and runs[-1][0] < LONG:
        runs.append(_timed(run, tol))
    taken, z = min(runs, key=lambda pair: pair[0])
    return {"seconds": taken, "gap": max(verified_gap(x, y, beta, z, dual), 1e-16), "machine": machine()}


def _best_effort(x, y, beta, tol):
    try:
        return convex.solve(x, y, beta, tol=tol).z
    except convex.NotConvergedError as error:
        return error.solution.z
