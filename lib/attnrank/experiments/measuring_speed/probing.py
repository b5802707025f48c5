"""What a probe costs beside one forward pass of the model, in time and in memory."""

from __future__ import annotations

import math

from attnrank.benchmarks import compare, machine, processor
from attnrank.benchmarks.probing import DEPTH, HEADS, WIDTH, memory, rounds_of
from attnrank.experiments.experiment import Experiment, Measured
from attnrank.experiments.measuring_speed.cases import PROCESSORS, on
from attnrank.experiments.measuring_speed.speed import at_hand, threads_set, verdict
from attnrank.sweep import Setting

MIB = 2**20


def probe_costs(rank: str, n: int, threads: int, bar: str, rounds: int, processor: str) -> Setting:
    """Forward passes that probing for one rank takes, the model's own included: medians of ``rounds`` rounds.

    ``passes`` is the ratio of the medians, ``low`` and ``high`` the least and the largest of the rounds; ``bar`` as for
    the table "speed". One sequence, 12 layers of width 384 with 6 heads, float32.
    """
    at_hand(processor)
    with threads_set(threads):
        found = compare(*rounds_of(n, rank, rounds))
    passes = 1 / found.ratio
    return {
        "seconds": found.seconds, "forward_seconds": found.baseline_seconds, "passes": passes, "low": 1 / found.high,
        "high": 1 / found.low, "verdict": verdict(passes, bar), "machine": machine(),
    }  # fmt: skip


def probe_memory(n: int, width: int, heads: int, depth: int, threads: int, processor: str) -> Setting:
    """MiB by which the peak memory of a process grows while a model runs on n tokens, alone and probed.

    ``scores`` is what the scores of one layer's heads would take in float32.
    """
    at_hand(processor)
    alone, probed = (memory(n, width, heads, depth, threads, probed=each) / MIB for each in (False, True))
    scores = 4 * heads * n * n / MIB
    return {"alone": alone, "probed": probed, "extra": probed - alone, "scores": scores,
            "measured": not math.isnan(probed), "machine": machine()}  # fmt: skip


def _costs(rank: str, n: int, bar: str = "", *, rounds: int = 7, threads: tuple[int, ...] = (1,)) -> list[Setting]:
    return [{"rank": rank, "n": n, "threads": count, "bar": bar, "rounds": rounds} for count in threads]


#: At most one further forward pass for the hardmax ranks.
BAR = "<= 2"
COSTS = [
    *_costs("hardmax", 512, BAR, threads=(1, 2)), *_costs("hardmax", 128), *_costs("hardmax", 2048, rounds=3),
    *_costs("numerical", 128, rounds=3), *_costs("stable", 128, rounds=3), *_costs("effective", 128, rounds=3),
    *_costs("numerical", 512, rounds=3), *_costs("stable", 512, rounds=2), *_costs("effective", 512, rounds=3),
]  # fmt: skip


def _memory(ns: list[int], width: int, heads: int, depth: int) -> list[Setting]:
    return [{"n": n, "width": width, "heads": heads, "depth": depth, "threads": 1} for n in ns]


EXPERIMENTS = {
    "probe_costs": Experiment(
        f"How many forward passes does a probe take ({DEPTH} layers of width {WIDTH} with {HEADS} heads)?",
        probe_costs,
        quick=on([processor()], _costs("hardmax", 16, rounds=1)),
        paper=on(PROCESSORS, COSTS),
        chapter="measuring_speed",
        repeats=Measured(),
    ),
    "probe_memory": Experiment(
        "How much memory does a probe take beyond the model's own?",
        probe_memory,
        quick=on([processor()], _memory([512], 32, 2, 2)),
        paper=on(PROCESSORS, _memory([4096, 8192, 16384], 32, 2, 12)),
        chapter="measuring_speed",
        repeats=Measured(),
    ),
}
