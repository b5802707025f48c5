"""Published tables: read back, and rows of them computed again."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import torch

from attnrank import _check
from attnrank._files import RUNS
from attnrank.sweep._manner import Manner
from attnrank.sweep._provenance import results_folder
from attnrank.sweep._table import Table
from attnrank.sweep._values import Row, Setting, frame
from attnrank.sweep._work import call
from attnrank.sweep.repeats import from_record


def read(name: str, *, folder: str | Path | None = None) -> pd.DataFrame:
    """Return a published table: int64, float64, bool and str columns, rows in the order of the grid.

    Raises ValueError for a table that is missing, unfinished or damaged, with the file, the line and the remedy.
    """
    return _published(name, folder).frame()


def provenance(name: str, *, folder: str | Path | None = None) -> dict:
    """Return what ``NAME.json`` records of a table, finished or not: grid, seeds, status, function, how it repeats,
    sessions.

    Raises ValueError for a table that is missing or whose provenance is damaged.
    """
    table = Table(name, results_folder(folder))
    table.load_record()
    return table.record


def recompute(name: str, function: Callable[..., dict], *, generator: torch.Generator, rows: int = 5,
              folder: str | Path | None = None, accept: Callable[[Setting], bool] | None = None, threads: str = "one",
              checkpoint: bool = False) -> pd.DataFrame:
    """Recompute a random sample of the rows of a published table, and return the recomputed rows.

    They are compared as the table declares that its numbers repeat; see :mod:`attnrank.sweep.repeats`. Runs of training
    that ``ATTNRANK_RUNS`` keeps are not looked at: a row would be compared with the file that it came from.

    Parameters
    ----------
    name, function, folder, threads, checkpoint : as for `run`; checkpoints are kept in a temporary folder.
    generator : draws the sample, without replacement.
    rows : size of the sample, >= 1; all rows that may be drawn if there are fewer.
    accept : says of a setting whether its row may be drawn, for instance whether its data set is at hand; None: all.

    Raises
    ------
    ValueError : at the first difference, naming file, line, column, setting and both values; bad argument; no row that
        may be drawn; and as for `read`.
    RuntimeError : the function failed; the message names the setting.
    """
    _check.generator("generator", generator)
    rows = _check.integer("rows", rows, minimum=1)
    if accept is not None and not callable(accept):
        raise ValueError(f"accept must be callable or None, got {accept!r}")
    table = _published(name, folder)
    accepted = [index for index, key in enumerate(table.keys) if accept is None or accept(table.setting(key))]
    if not accepted:
        raise ValueError(f"accept must accept a row of the table {name}, got none of {len(table.keys)}")
    drawn = torch.randperm(len(accepted), generator=generator)[:rows].tolist()
    sample = sorted(accepted[index] for index in drawn)
    with tempfile.TemporaryDirectory() as kept, _runs_kept(None):
        function = Manner(threads, checkpoint).wrap(function, name, Path(kept), table.record["version"])
        again = [_recomputed(table, function, index) for index in sample]
    return frame(table.columns(), again, sample)


def differences(name: str, function: Callable[..., dict], *, rows: Iterable[int], folder: str | Path | None = None,
                threads: str = "one", checkpoint: bool = False, runs: Path | None = None,
                ) -> Iterator[tuple[int, str | None]]:
    """Compute the rows with these numbers (from 0) again, one by one: yield each with what differs, or None.

    Arguments and exceptions are those of `recompute`, which raises ValueError at the first difference. ``runs`` is a
    folder for runs of training that are made meanwhile, so that several tables of the same runs make them once.
    """
    table = _published(name, folder)
    for index in rows:
        with tempfile.TemporaryDirectory() as kept:
            wrapped = Manner(threads, checkpoint).wrap(function, name, Path(kept), table.record["version"])
            found = None
            try:
                with _runs_kept(runs):
                    _recomputed(table, wrapped, index)
            except ValueError as difference:
                found = str(difference)
            yield index, found


@contextmanager
def _runs_kept(folder: Path | None) -> Iterator[None]:
    """Runs of training are kept in this folder meanwhile, or not at all."""
    before = os.environ.pop(RUNS, None)
    if folder is not None:
        os.environ[RUNS] = str(folder)
    try:
        yield
    finally:
        os.environ.pop(RUNS, None)
        if before is not None:
            os.environ[RUNS] = before


def _published(name: str, folder: str | Path | None) -> Table:
    table = Table(name, results_folder(folder))
    table.load()
    table.require_complete()
    return table


def _recomputed(table: Table, function: Callable, index: int) -> Row:
    """Compute a row again and return it, or raise ValueError if it differs from the stored one."""
    key = table.keys[index]
    setting, stored = table.setting(key), table.rows[key]
    result = call(function, setting)
    if isinstance(result, Exception):
        raise RuntimeError(f"recompute {table.name}: the function failed for {setting}: {result!r}") from result
    row = key + table.ordered(result)
    old, new = (setting | dict(zip(table.results or {}, values[len(key):])) for values in (stored, row))
    if difference := from_record(table.record["repeats"]).difference(old, new, len(table.keys)):
        raise ValueError(f"{table.csv} line {index + 2}: {difference}, for {setting}")
    return row
