"""Published tables: read back, and rows of them computed again."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pandas as pd
import torch

from attnrank import _check
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

    They are compared as the table declares that its numbers repeat; see :mod:`attnrank.sweep.repeats`.

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
    with tempfile.TemporaryDirectory() as kept:
        function = Manner(threads, checkpoint).wrap(function, name, Path(kept), table.record["version"])
        again = [_recomputed(table, function, index) for index in sample]
    return frame(table.columns(), again, sample)


def differences(name: str, function: Callable[..., dict], *, rows: Iterable[int], folder: str | Path | None = None,
                threads: str = "one", checkpoint: bool = False) -> Iterator[tuple[int, str | None]]:
    """Compute the rows with these numbers (from 0) again, one by one: yield each with what differs, or None.

    Arguments and exceptions are those of `recompute`, which raises ValueError at the first difference.
    """
    table = _published(name, folder)
    for index in rows:
        with tempfile.TemporaryDirectory() as kept:
            wrapped = Manner(threads, checkpoint).wrap(function, name, Path(kept), table.record["version"])
            try:
                _recomputed(table, wrapped, index)
            except ValueError as difference:
                yield index, str(difference)
            else:
                yield index, None


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
