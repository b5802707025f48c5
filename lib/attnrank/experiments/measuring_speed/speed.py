"""Tables of measured speed: every routine of `attnrank.ranks` against its baseline, and against the machine's peak."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

import torch

from attnrank import _check
from attnrank.benchmarks import CONTESTS, compare, extra_gpu_memory, extra_memory, interleaved, machine, processor
from attnrank.benchmarks.contests import dense_path, queries_and_keys, tiled_product
from attnrank.experiments.experiment import Experiment, Measured
from attnrank.experiments.measuring_speed.cases import (
    CASES,
    GPU_CASES,
    PROCESSORS,
    QUICK,
    ROOFLINE,
    ROOFLINE_QUICK,
    WITH_GPU,
    on,
)
from attnrank.ranks import hardmax_rank
from attnrank.sweep import Setting

#: Side of the square matrices whose product gives the machine's peak rate.
PEAK_SIDE = 2048

#: Seconds for which a routine is called in its turn, at least.
TURN = 0.05

MEMORY = """
import torch
from attnrank import hardmax_rank
torch.set_num_threads({threads})
q, k = torch.randn(2, {n}, {d_h}, generator=torch.Generator().manual_seed(0)).to(torch.{dtype})
hardmax_rank(q[:2048], k[:2048])
def work():
    hardmax_rank(q, k)
"""


def speed(
    contest: str,
    n: int,
    d_h: int,
    batch: int,
    dtype: str,
    threads: int,
    device: str,
    bar: str,
    rounds: int,
    processor: str,
) -> Setting:
    """One contest: medians of ``rounds`` interleaved rounds, ratio with its spread over the rounds, and the verdict.

    ``ratio`` says how many times as long the baseline takes; in the contest "memory" it is GiB of extra memory.
    ``limit`` is the ratio of a contestant that is as fast as the floor of the contest, where it has one.
    ``bar``: ">= 4" and the like for the ratio, "" for none. Without the device everything is "not measured".

    Raises
    ------
    ValueError : unknown contest, unreadable bar, a ``processor`` that is not the one at hand.
    """
    at_hand(processor)
    if contest == "memory":
        return _memory(n, d_h, dtype, threads, device, bar)
    held = CONTESTS[_check.choice("contest", contest, CONTESTS)]
    names = {"contestant": held.contestant, "baseline": held.baseline}
    if device == "cuda" and not torch.cuda.is_available():
        return _result(names, verdict="not measured")
    with threads_set(threads):
        routines = held.prepare(n, d_h, batch, dtype, device)
        times = interleaved(routines, rounds, warm=rounds > 2, turn=TURN)
    ratio = compare(*times[:2])
    limit = ratio.baseline_seconds / statistics.median(times[2]) if len(times) > 2 else None
    return _result(names, **asdict(ratio), limit=limit, verdict=verdict(ratio.ratio, bar))


def at_hand(name: str) -> None:
    """Raise ValueError for a processor that is not the one at hand."""
    if name != processor():
        raise ValueError(f"processor must be the one at hand, {processor()!r}, got {name!r}: measure its rows there")


def _memory(n: int, d_h: int, dtype: str, threads: int, device: str, bar: str) -> Setting:
    names = {"contestant": "hardmax_rank", "baseline": "1 GiB"}
    if device == "cpu":
        size = extra_memory(MEMORY.format(n=n, d_h=d_h, dtype=dtype, threads=threads))
    elif torch.cuda.is_available():
        q, k = queries_and_keys(n, d_h, 1, dtype, device)
        size = extra_gpu_memory(lambda: hardmax_rank(q, k))
    else:
        size = math.nan
    if math.isnan(size):
        return _result(names, verdict="not measured")
    gib = size / 2**30
    return _result(names, ratio=gib, low=gib, high=gib, verdict=verdict(gib, bar))


def verdict(ratio: float, bar: str) -> str:
    """Is a ratio on the right side of a bar like ">= 4" or "<= 1.25"? "no bar" where there is none."""
    if not bar:
        return "no bar"
    sense, limit = bar.split()
    met = ratio >= float(limit) if _check.choice("bar", sense, (">=", "<=")) == ">=" else ratio <= float(limit)
    return "met" if met else "missed"


def _result(names: dict, **found: float | str | None) -> Setting:
    columns = ("seconds", "baseline_seconds", "ratio", "low", "high", "limit", "verdict")
    return names | {column: found.get(column) for column in columns} | {"machine": machine()}


def roofline(path: str, n: int, d_h: int, dtype: str, threads: int, rounds: int, processor: str) -> Setting:
    """Useful operations a second, 2 n^2 d_h in the median time, beside the peak of a square product in the same rounds.

    ``path``: "product" (tiles of scores alone), "dense" (hardmax rank from all scores), "automatic" (hardmax_rank).
    """
    at_hand(processor)
    routine = {"product": tiled_product, "dense": dense_path, "automatic": hardmax_rank}[path]
    with threads_set(threads):
        q, k = queries_and_keys(n, d_h, 1, dtype, "cpu")
        side = min(PEAK_SIDE, n)
        square = torch.randn(2, side, side, generator=torch.Generator().manual_seed(1)).to(getattr(torch, dtype))
        out = torch.empty_like(square[0])
        routines = [lambda: routine(q, k), lambda: torch.mm(square[0], square[1], out=out)]
        times, peak = interleaved(routines, rounds, turn=TURN)
    seconds = statistics.median(times)
    return {
        "seconds": seconds,
        "rate": 2.0 * n * n * d_h / seconds / 1e9,
        "peak": 2.0 * side**3 / statistics.median(peak) / 1e9,
        "machine": machine(),
    }


@contextmanager
def threads_set(threads: int) -> Iterator[None]:
    """So many threads of torch, and then as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


EXPERIMENTS = {
    "speed": Experiment(
        "How fast are the rank routines beside what they replace, and beside the floor that they cannot beat?",
        speed,
        quick=on([processor()], QUICK),
        paper=on(PROCESSORS, CASES) + on(WITH_GPU, GPU_CASES),
        chapter="measuring_speed",
        repeats=Measured(),
        version=2,
    ),
    "roofline": Experiment(
        "How much of the machine's peak does the hardmax rank reach, and where does it need fewer operations?",
        roofline,
        quick=on([processor()], ROOFLINE_QUICK),
        paper=on(PROCESSORS, ROOFLINE),
        chapter="measuring_speed",
        repeats=Measured(),
        version=2,
    ),
}
