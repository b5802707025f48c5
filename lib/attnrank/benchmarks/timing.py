"""Timing two routines side by side: in turns, after a first call that does not count, compared by their medians."""

from __future__ import annotations

import math
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

#: The peak memory of the running process. On Linux ``ru_maxrss`` would also remember the process that started this one.
PEAK = """
def peak():
    try:
        with open("/proc/self/status") as status:
            return next(1024 * int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    except OSError:
        pass
    try:
        import resource, sys
    except ImportError:
        return float("nan")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
"""


#: How macOS says the name of the processor; Python knows only its kind there, "arm" for each of Apple's.
BRAND = ["sysctl", "-n", "machdep.cpu.brand_string"]


@dataclass(frozen=True)
class Ratio:
    """Seconds of a contestant and of a baseline (medians), and how many times as long the baseline takes.

    ``ratio`` is that of the medians, ``low`` and ``high`` the least and the largest of the rounds.
    """

    seconds: float
    baseline_seconds: float
    ratio: float
    low: float
    high: float


def interleaved(
    routines: Sequence[Callable[[], object]],
    rounds: int,
    *,
    warm: bool = True,
    turn: float = 0.0,
    clock: Callable[[], float] | None = None,
) -> list[list[float]]:
    """Seconds of a call, by round: every round gives each routine a turn, the next round starts with the next routine.

    A change of the machine's speed thus meets all routines alike. With ``warm`` each is called once before, so that
    caches, thread pools and memory pools are as they will be, and a routine that takes less than ``turn`` seconds is
    called so often in its turn that it lasts that long; the mean counts. What the other routine left, caches full
    of its own numbers, then weighs little. Without, a turn is one call.
    """
    clock = clock or _clock
    calls = [_calls_of_a_turn(routine, turn, clock) if warm else 1 for routine in routines]
    seconds: list[list[float]] = [[] for _ in routines]
    for first in range(rounds):
        for place in range(len(routines)):
            index = (first + place) % len(routines)
            seconds[index].append(_seconds(routines[index], calls[index], clock))
    return seconds


def _calls_of_a_turn(routine: Callable[[], object], turn: float, clock: Callable[[], float]) -> int:
    """Warms the routine up, too."""
    first = _seconds(routine, 1, clock)
    return 1 if first >= turn else math.ceil(turn / _seconds(routine, 1, clock))


def _seconds(routine: Callable[[], object], calls: int, clock: Callable[[], float]) -> float:
    start = clock()
    for _ in range(calls):
        routine()
    return (clock() - start) / calls


def compare(seconds: Sequence[float], baseline: Sequence[float]) -> Ratio:
    """The ratio of two routines timed in the same rounds."""
    ratios = [b / s for s, b in zip(seconds, baseline, strict=True)]
    median, against = statistics.median(seconds), statistics.median(baseline)
    return Ratio(median, against, against / median, min(ratios), max(ratios))


def extra_memory(code: str) -> float:
    """Bytes by which the peak memory of a fresh Python process grows while it runs ``work()``, defined by ``code``.

    NaN where the operating system does not say (Windows).
    """
    program = f"{PEAK}\n{code}\nbefore = peak()\nwork()\nprint(peak() - before)\n"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return float(result.stdout.split()[-1])


def extra_gpu_memory(work: Callable[[], object]) -> float:
    """Bytes by which the memory in use on the GPU grows, at its peak, while ``work`` runs."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    torch.cuda.synchronize()
    return float(torch.cuda.max_memory_allocated() - before)


def machine() -> str:
    """The processor, its number of cores, and PyTorch's version: what a time depends on."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return f"{processor()}, {os.cpu_count()} cores, {gpu}, torch {torch.__version__}"


def processor() -> str:
    """Model of the processor; on Linux with family and model number, since virtual machines hide the name.

    A list of ARM processors has no names at all, but implementer and part.
    """
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return _brand_on_macos() or platform.processor() or platform.machine()
    facts: dict[str, str] = {}
    for name, colon, value in (line.partition(":") for line in lines):
        if colon:
            facts.setdefault(name.strip(), value.strip())
    name = facts.get("model name") or platform.machine()
    keys = ("cpu family", "model", "CPU implementer", "CPU part")
    numbers = [f"{key.lower().removeprefix('cpu ')} {facts[key]}" for key in keys if key in facts]
    return f"{name} ({', '.join(numbers)})" if numbers else name


def _brand_on_macos() -> str:
    """The name of the processor, "Apple M2 Pro"; "" on other systems, and where it is not said."""
    if sys.platform != "darwin":
        return ""
    try:
        return subprocess.run(BRAND, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def brand(processor: str) -> str:
    """Maker, family and model of a processor of `processor`, for the head of a column: "AMD EPYC model 17".

    >>> brand("Intel(R) Xeon(R) Processor @ 2.50GHz (family 6, model 85)")
    'Intel Xeon model 85'
    """
    model = re.search(r"\bmodel \w+", processor.partition("(family")[2])
    return " ".join([*processor.partition(" (")[0].replace("(R)", "").split()[:2], *([model[0]] if model else [])])


def _clock() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()
