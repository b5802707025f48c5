"""Benchmarks: contestants timed side by side, in turns, on the machine at hand.

    python -m attnrank.benchmarks

measures everything and prints each ratio beside its bar, a missed bar as missed. What is timed is in
:mod:`attnrank.benchmarks.contests`, which rows there are in :mod:`attnrank.experiments.measuring_speed.cases`.
"""

from attnrank.benchmarks.contests import CONTESTS, Contest
from attnrank.benchmarks.timing import (
    Ratio,
    brand,
    compare,
    extra_gpu_memory,
    extra_memory,
    interleaved,
    machine,
    processor,
)

__all__ = ["CONTESTS", "Contest", "Ratio", "brand", "compare", "extra_gpu_memory", "extra_memory", "interleaved",
           "machine", "processor"]
