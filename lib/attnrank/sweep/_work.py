"""A function applied to settings, in this process or in others; what it raises is returned with the setting's key."""

from __future__ import annotations

import itertools
import math
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, wait

import torch
from joblib.externals.loky import get_reusable_executor

from attnrank.sweep._values import Row, Setting, Value, named, plain

Outcome = dict[str, Value] | Exception


def call(function: Callable[..., dict], setting: Setting) -> Outcome:
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


def _call_in_worker(function: Callable[..., dict], setting: Setting) -> Outcome:
    """As `call`, but an exception becomes one that can be sent to another process: not every class can."""
    result = call(function, setting)
    if isinstance(result, Exception):
        plain_error = RuntimeError(f"{type(result).__name__}: {result}")
        plain_error.add_note("".join(traceback.format_exception(result)))
        return plain_error
    return result


def outcomes(
    function: Callable[..., dict], tasks: Iterator[tuple[Row, Setting]], workers: int
) -> Iterator[tuple[Row, Outcome]]:
    """Yield the key of each task with its outcome, as they finish; a task is taken when a worker is idle."""
    if workers == 1:
        return ((key, call(function, setting)) for key, setting in tasks)
    return _outcomes_of_workers(function, tasks, workers)


def _outcomes_of_workers(function, tasks, workers):
    # Loky's processes, unlike the standard library's, also run functions that are defined in a notebook.
    executor = get_reusable_executor(max_workers=workers)
    pending = {}
    try:
        while True:
            for key, setting in itertools.islice(tasks, workers - len(pending)):
                pending[executor.submit(_call_in_worker, function, setting)] = key
            if not pending:
                return
            for future in wait(pending, return_when=FIRST_COMPLETED).done:
                yield pending.pop(future), future.result()
    except BaseException:
        executor.shutdown(wait=False, kill_workers=True)
        raise
