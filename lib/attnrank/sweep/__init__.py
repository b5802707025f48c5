"""Sweeps: a grid of settings and a function of one setting give a published table, resumable and checked.

A table is two files. ``NAME.csv`` has one row a setting: the setting's columns, then the result's. ``NAME.json`` beside
it has the provenance: grid, seeds, column types, tolerance, and for each session of work its date, versions, code
fingerprints, device, wall time and rows.

While a sweep runs, the status is "running" and each finished row is appended under a lock, in one write that is forced
to disk. A crash can tear only the last line, which the next run drops and computes again. When all rows are there,
they are sorted in the order of the grid and replace the file in one step, and the status becomes "complete", with a
checksum. Before a row is computed it is claimed by a lock that the operating system frees when its process dies, so
that concurrent runs share the work; a row is stored at most once in any case.

Numbers are written so that they are read back exactly. A missing result is None, stored as nan; a result that is
computed as NaN or infinite is refused.
"""

from __future__ import annotations

import datetime
import hashlib
import inspect
import itertools
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from tqdm import tqdm

from attnrank import _check
from attnrank.sweep._session import Session
from attnrank.sweep._table import Table
from attnrank.sweep._tabletext import sha256
from attnrank.sweep._values import Row, Setting, Value, columns, frame, plain
from attnrank.sweep._work import call, outcomes


def grid(**axes: Iterable[Value]) -> list[Setting]:
    """Return the product of the axes as a list of settings, the last axis varying fastest.

    Settings can also be written by hand, and lists of settings concatenated. Raises ValueError for no axis, an empty
    axis, or a value that is not a bool, int, float (finite) or str (printable).
    """
    if not axes:
        raise ValueError("axes must not be empty: grid(n=[8, 16], seed=range(3))")
    for name, values in axes.items():
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise ValueError(f"{name} must be a list of values, got {values!r}")
    axes = {name: [plain(name, value) for value in values] for name, values in axes.items()}
    for name, values in axes.items():
        if not values:
            raise ValueError(f"{name} must not be empty, got {values!r}")
    return [dict(zip(axes, values)) for values in itertools.product(*axes.values())]


def run(name: str, function: Callable[..., dict], settings: Iterable[Setting], *, folder: str | Path | None = None,
        workers: int = 1, rtol: float = 1e-9) -> pd.DataFrame:
    """Return the table of ``function(**setting)`` over the settings, computing only the rows that are not stored.

    A complete table is returned as it is. A grid that contains the stored one extends it. An interrupted run keeps
    every finished row: run it again. On a terminal a progress bar shows rate and remaining time.

    Parameters
    ----------
    name : the table's name: letters, digits, hyphens, underscores.
    function : gives a dict of result columns (bool, int, float, str, or None for a missing float), the same columns
        for every setting. It is called with one torch thread, so that rows do not depend on the number of workers.
    settings : dicts with the same keys; each key has values of one type.
    folder : see `results_folder`.
    workers : number of processes; 1 computes in this one.
    rtol : relative tolerance that `recompute` grants this table's floats.

    Raises
    ------
    ValueError : bad argument; damaged table (the message names file, line and remedy); stored rows of another grid.
    RuntimeError : the function failed; the message names the setting, and all other finished rows are stored.
    """
    if not callable(function):
        raise ValueError(f"function must be callable, got {function!r}")
    workers = _check.integer("workers", workers, minimum=1)
    rtol = _check.real("rtol", rtol, minimum=0)
    kinds, keys = columns(settings)
    table = Session(name, results_folder(folder))
    if table.json.exists():  # a published table is read without a lock, so its folder may be read-only
        table.load()
        if table.complete and table.holds(kinds, keys, rtol):
            return table.frame()
    table.open(kinds, keys, rtol, _environment(function))
    try:
        try:
            _fill(table, function, keys, workers)
        finally:
            for key in list(table.claims):
                table.release(key)
        table.publish(keys)
    except BaseException as error:
        error.add_note(f"sweep {name}: {len(table.rows)} of {len(keys)} rows are stored in {table.csv}; "
                       "run it again for the others")
        raise
    finally:
        table.save()
    return table.frame()


def read(name: str, *, folder: str | Path | None = None) -> pd.DataFrame:
    """Return a published table: int64, float64, bool and str columns, rows in the order of the grid.

    Raises ValueError for a table that is missing, unfinished or damaged, with the file, the line and the remedy.
    """
    return _published(name, folder).frame()


def recompute(name: str, function: Callable[..., dict], *, generator: torch.Generator, rows: int = 5,
              folder: str | Path | None = None, accept: Callable[[Setting], bool] | None = None) -> pd.DataFrame:
    """Recompute a random sample of the rows of a published table, and return the recomputed rows.

    Floats may differ by the table's ``rtol`` times the larger magnitude; everything else must be equal.

    Parameters
    ----------
    name, function, folder : as for `run`.
    generator : draws the sample, without replacement.
    rows : size of the sample, >= 1; all rows that may be drawn if there are fewer.
    accept : says of a setting whether its row may be drawn, for instance whether its data set is at hand; None: all.

    Raises
    ------
    ValueError : at the first difference, naming file, line, setting and both values; bad argument; no row that may be
        drawn; and as for `read`.
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
    return frame(table.settings | table.results, [_recomputed(table, function, index) for index in sample], sample)


def results_folder(folder: str | Path | None = None) -> Path:
    """Return the folder of the published tables.

    That is the argument, else the environment variable ATTNRANK_RESULTS, else the nearest ``book/results`` in the
    current folder or its parents. Raises ValueError if it does not exist.
    """
    for source, path in (("folder", folder), ("ATTNRANK_RESULTS", os.environ.get("ATTNRANK_RESULTS"))):
        if path is not None:
            if not Path(path).is_dir():
                raise ValueError(f"{source} must be an existing folder, got {str(path)!r}")
            return Path(path)
    here = Path.cwd()
    for parent in (here, *here.parents):
        if (parent / "book" / "results").is_dir():
            return parent / "book" / "results"
    raise ValueError(f"folder: no book/results in {here} or its parents; pass folder=, or set ATTNRANK_RESULTS")


def code_fingerprint() -> str:
    """Return the sha256 (hexadecimal) of the package's Python sources, the same on every platform."""
    root = Path(__file__).parents[1]
    sources = {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*.py")}
    digest = hashlib.sha256()
    for name in sorted(sources):
        digest.update(name.encode() + b"\0" + sources[name].replace(b"\r\n", b"\n") + b"\0")
    return digest.hexdigest()


def _environment(function: Callable) -> dict[str, str | None]:
    """What a session's rows are computed with; the device is the accelerator that is available."""
    try:
        source = sha256(inspect.getsource(inspect.unwrap(getattr(function, "func", function))).replace("\r\n", "\n"))
    except (OSError, TypeError):  # typed at a prompt, or not written in Python
        source = None
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "platform": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(), "numpy": np.__version__, "torch": torch.__version__,
        "attnrank": version("attnrank"), "package_fingerprint": code_fingerprint(),
        "function": getattr(function, "__qualname__", repr(type(function))), "function_fingerprint": source,
    }


def _fill(table: Session, function: Callable, keys: list[Row], workers: int) -> None:
    """Compute and store the missing rows, until none is left that this or another process computes."""
    # In a notebook, or when captured, sys.stderr is not the process's own.
    shown = sys.stderr is not None and sys.stderr is sys.__stderr__ and sys.stderr.isatty()
    table.refresh()
    with tqdm(total=len(keys), initial=len(table.rows), desc=table.name, unit="row", disable=not shown) as bar:
        while any(key not in table.rows for key in keys):
            if not _compute(table, function, keys, workers, bar):
                time.sleep(0.1)  # other processes compute the rows that are missing
            table.refresh()
            bar.update(len(table.rows) - bar.n)


def _compute(table: Session, function: Callable, keys: list[Row], workers: int, bar: tqdm) -> bool:
    """Compute and store the rows that can be claimed; True if there was one.

    After a failure no row is begun, those in progress are stored, and RuntimeError is raised.
    """
    computed, failure = False, None

    def tasks() -> Iterator[tuple[Row, Setting]]:
        for key in keys:
            if failure:
                return
            if key not in table.rows and table.claim(key):
                yield key, table.setting(key)

    with closing(outcomes(function, tasks(), workers)) as finished:
        for key, outcome in finished:
            computed = True
            try:
                if isinstance(outcome, Exception):
                    raise outcome
                table.store(key, outcome)
            except Exception as error:
                failure = failure or (key, error)
            finally:
                table.release(key)
            bar.update(len(table.rows) - bar.n)
    if failure:
        key, error = failure
        raise RuntimeError(f"sweep {table.name} failed for {table.setting(key)}: {error}") from error
    return computed


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
    row, rtol = key + table.ordered(result), table.record["rtol"]
    for column, old, new in zip(table.settings | table.results, stored, row):
        if not _agree(old, new, rtol):
            raise ValueError(f"{table.csv} line {index + 2}: {column} is {old!r}, recomputed {new!r}, for {setting} "
                             f"(rtol {rtol})")
    return row


def _agree(a: Value, b: Value, rtol: float) -> bool:
    if not isinstance(a, float):
        return a == b
    return abs(a - b) <= rtol * max(abs(a), abs(b)) or (math.isnan(a) and math.isnan(b))
