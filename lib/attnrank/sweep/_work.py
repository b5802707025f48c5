"""A function applied to settings, here or in other processes; what it raises is returned with the setting's key."""

from __future__ import annotations

import math
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch

from attnrank.sweep._device import device_name, free_memory
from attnrank.sweep._provenance import versions
from attnrank.sweep._values import Row, Setting, Value, named, plain


class LostWorker(RuntimeError):
    """The process that computed a row died, or was cut off."""


class OutOfMemory(RuntimeError):
    """The accelerator's memory did not suffice."""


@dataclass(frozen=True)
class Outcome:
    """What came of a row: its result columns or an exception, the seconds that it took, and the device."""

    result: dict[str, Value] | Exception
    seconds: float
    device: str


class Pool(Protocol):
    """Where rows are computed beside each other; see :mod:`attnrank.sweep._pools`."""

    again: int
    again_alone: int

    def capacity(self) -> int: ...

    def submit(self, work: Callable, function: Callable, setting: Setting) -> object: ...

    def wait(self, futures: Iterable) -> set: ...

    def outcome(self, future: object) -> Outcome: ...


def call(function: Callable[..., dict], setting: Setting) -> dict[str, Value] | Exception:
    """Return the result columns for a setting, or the exception that the function raised."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        result = named("the function's result", function(**setting))
        if shared := result.keys() & setting.keys():
            raise ValueError(f"the function's result must not repeat the setting {sorted(shared)}")
        return {name: math.nan if value is None else plain(name, value) for name, value in result.items()}
    except Exception as error:
        return error
    finally:
        torch.set_num_threads(threads)


def compute(function: Callable[..., dict], setting: Setting) -> Outcome:
    started = time.perf_counter()
    result = call(function, setting)
    free_memory()
    return Outcome(result, time.perf_counter() - started, device_name())


def compute_in_worker(function: Callable[..., dict], setting: Setting, expected: dict | None = None) -> Outcome:
    """As `compute`, in a worker; an exception becomes one that can be sent to another process: not every class can.

    ``expected`` are the versions that the worker must have.
    """
    if expected is not None and _own_versions() != expected:
        return Outcome(RuntimeError(f"the worker has {_own_versions()}, this process {expected}"), 0.0, device_name())
    torch.set_num_threads(1)  # for good: a worker of several threads must not raise it while another row is computed
    outcome = compute(function, setting)
    if not isinstance(outcome.result, Exception):
        return outcome
    error = outcome.result
    kind = OutOfMemory if isinstance(error, torch.cuda.OutOfMemoryError) else RuntimeError
    plain_error = kind(f"{type(error).__name__}: {error}")
    plain_error.add_note("".join(traceback.format_exception(error)))
    return Outcome(plain_error, outcome.seconds, outcome.device)


@lru_cache
def _own_versions() -> dict[str, str]:
    return versions()


def outcomes(function: Callable[..., dict], tasks: Iterator[tuple[Row, Setting]], pool: Pool | None,
             stopped: Callable[[], bool]) -> Generator[tuple[Row, Outcome]]:
    """Yield the key of each task with its outcome, as they finish, until no task is left or ``stopped()``.

    A task is taken when a worker is idle. ``pool`` None computes in this process. A row whose worker was lost is begun
    again beside others, as most are lost to a crash that is not theirs, and then alone: a row that brings its worker
    down is found without blame for those that ran beside it.
    """
    if pool is not None:
        yield from _outcomes_of(pool, function, tasks, stopped)
        return
    for key, setting in tasks:
        yield key, compute(function, setting)
        if stopped():
            return


class _Queue:
    """Tasks in the order in which they are begun: rows of lost workers before new ones, those that go alone last."""

    def __init__(self, tasks: Iterator[tuple[Row, Setting]], pool: Pool) -> None:
        self.tasks, self.pool = tasks, pool
        self.again: deque[tuple[Row, Setting]] = deque()
        self.alone: deque[tuple[Row, Setting]] = deque()
        self.losses: Counter[Row] = Counter()
        self.lonely: set[Row] = set()

    def take(self, idle: bool) -> tuple[Row, Setting] | None:
        """The next task, one that goes alone only where all workers are ``idle``; None if there is none now."""
        task = self.again.popleft() if self.again else next(self.tasks, None)
        if task is None and self.alone and idle:
            task = self.alone.popleft()
            self.lonely.add(task[0])
        return task

    def take_back(self, task: tuple[Row, Setting], result: object) -> bool:
        """Whether a row that ended so is begun again: it ran out of memory beside others, or lost its worker."""
        key = task[0]
        if isinstance(result, OutOfMemory) and key not in self.lonely:
            self.alone.append(task)
            return True
        if not isinstance(result, LostWorker):
            return False
        self.losses[key] += 1
        if self.losses[key] > self.pool.again + self.pool.again_alone:
            return False
        (self.again if self.losses[key] <= self.pool.again else self.alone).append(task)
        return True


def _outcomes_of(pool: Pool, function: Callable, tasks: Iterator, stopped: Callable) -> Iterator[tuple[Row, Outcome]]:
    pending: dict[object, tuple[Row, Setting]] = {}
    queue = _Queue(tasks, pool)
    while True:
        while not stopped() and len(pending) < pool.capacity():
            task = queue.take(idle=not pending)
            if task is None:
                break
            pending[pool.submit(compute_in_worker, function, task[1])] = task
            if task[0] in queue.lonely:
                break
        if not pending:
            return
        for future in pool.wait(pending):
            task, outcome = pending.pop(future), pool.outcome(future)
            if not queue.take_back(task, outcome.result):
                yield task[0], outcome
