"""A sweep: the rows that are missing of a table are claimed, computed and stored, until it is whole."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from tqdm import tqdm

from attnrank import _check
from attnrank.sweep._manner import Manner
from attnrank.sweep._pools import Cluster, Processes
from attnrank.sweep._provenance import declaration, environment, results_folder
from attnrank.sweep._session import Session
from attnrank.sweep._values import Row, Setting, columns
from attnrank.sweep._work import Pool, outcomes
from attnrank.sweep.repeats import Repeats, Rounding

if TYPE_CHECKING:
    from distributed import Client


def run(name: str, function: Callable[..., dict], settings: Iterable[Setting], *, folder: str | Path | None = None,
        workers: int = 1, cluster: Client | str | None = None, repeats: Repeats = Rounding(1e-9), version: int = 1,
        threads: str = "one", checkpoint: bool = False) -> pd.DataFrame:
    """Return the table of ``function(**setting)`` over the settings, computing only the rows that are not stored.

    A complete table is returned as it is. A grid that contains the stored one extends it. An interrupted run keeps
    every finished row: run it again. The table is the same, byte for byte, whether rows are computed in this process,
    in others or on a cluster. A row whose worker is lost is computed again, a few times; one that runs out of the
    memory of an accelerator beside others is computed again alone. On a terminal a progress bar shows rate and
    remaining time.

    Parameters
    ----------
    name : the table's name: letters, digits, hyphens, underscores.
    function : gives a dict of result columns (bool, int, float, str, or None for a missing float), the same columns
        for every setting. It is called with one torch thread, so that rows do not depend on the number of workers.
    settings : dicts with the same keys; each key has values of one type.
    folder : where the table is kept; made if it does not exist. It may be left out where the environment variable
        ATTNRANK_RESULTS names one.
    workers : number of processes; 1 computes in this one.
    cluster : a ``distributed.Client`` of Dask, or the address of its scheduler, to compute on a cluster instead. Its
        workers need this package at the same state, and no access to the folder.
    repeats : how `recompute` compares rows: `Exact`, `Rounding`, `Statistical` or, not at all, `Measured`.
    version : of the function, raised when its numbers change; a table that holds another version is refused.
    threads : "one", or "all" threads of this process for one row at a time, which then has the machine's accelerator
        for itself among such rows.
    checkpoint : give the function ``folder``, a `pathlib.Path` in which it may keep what it has done of the row: it
        persists when the row is interrupted, and is removed when the row is stored.

    Raises
    ------
    ValueError : bad argument; damaged table (the message names file, line and remedy); stored rows of another grid
        or function; a published table of the book.
    RuntimeError : the function failed, or every worker that tried a row was lost; the message names the setting, and
        all other finished rows are stored.
    OSError : the cluster's scheduler went away; the finished rows are stored.

    Examples
    --------
    >>> import tempfile
    >>> from attnrank import sweep, theory
    >>> def barrier(n):
    ...     return {'share': round(theory.occupancy_bound(n) / n, 3)}
    >>> folder = tempfile.TemporaryDirectory()
    >>> table = sweep.run('barrier', barrier, sweep.grid(n=[10, 1000]), folder=folder.name)
    >>> table.share.tolist()
    [0.651, 0.632]
    >>> sweep.read('barrier', folder=folder.name).equals(table)
    True
    >>> folder.cleanup()
    """
    if folder is None and not os.environ.get("ATTNRANK_RESULTS"):
        raise ValueError("folder must be given for a table of your own, as folder= or ATTNRANK_RESULTS: book/results "
                         "holds the published ones")
    return publish(name, function, settings, "", folder=folder, workers=workers, cluster=cluster, repeats=repeats,
                   version=version, threads=threads, checkpoint=checkpoint)


def publish(name: str, function: Callable[..., dict], settings: Iterable[Setting], chapter: str, *,
            folder: str | Path | None, workers: int = 1, cluster: Client | str | None = None, repeats: Repeats,
            version: int, threads: str = "one", checkpoint: bool = False) -> pd.DataFrame:
    """As `run`, for the table of a chapter, whose grid is in `attnrank.experiments`: what this package's commands call.

    Parameters
    ----------
    chapter : stem of the chapter of the book that the table belongs to.
    folder : see `results_folder`; made if it does not exist.
    name, function, settings, workers, cluster, repeats, version, threads, checkpoint : as for `run`.

    Raises
    ------
    ValueError, RuntimeError, OSError : as `run`.
    """
    if not callable(function):
        raise ValueError(f"function must be callable, got {function!r}")
    workers = _check.integer("workers", workers, minimum=1)
    if cluster is not None and workers != 1:
        raise ValueError(f"workers must be left out with a cluster, which has its own, got {workers}")
    if not isinstance(repeats, Repeats):
        raise ValueError(f"repeats must be Exact(), Rounding(...), Statistical(...) or Measured(), got {repeats!r}")
    declared = declaration(function, chapter, _check.integer("version", version, minimum=1), repeats)
    manner = Manner(threads, checkpoint)
    manner.require_place(workers, cluster)
    kinds, keys = columns(settings)
    table = Session(name, results_folder(folder, make=True))
    if table.json.exists():  # a published table is read without a lock, so its folder may be read-only
        table.load()
        if table.complete and table.holds(kinds, keys, declared):
            return table.frame()
    with _pool(workers, cluster) as pool:
        table.open(kinds, keys, declared, environment())
        try:
            try:
                _fill(table, manner.wrap(function, name, table.folder, version), keys, pool)
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


def _pool(workers: int, cluster: Client | str | None) -> AbstractContextManager[Any]:
    if cluster is not None:
        return Cluster(cluster)
    return Processes(workers) if workers > 1 else nullcontext()


def _fill(table: Session, function: Callable, keys: list[Row], pool: Pool | None) -> None:
    """Compute and store the missing rows, until none is left that this or another process computes."""
    # In a notebook, or when captured, sys.stderr is not the process's own.
    stream = sys.stderr
    shown = stream is sys.__stderr__ and stream is not None and stream.isatty()
    table.refresh()
    with tqdm(total=len(keys), initial=len(table.rows), desc=table.name, unit="row", disable=not shown) as bar:
        while any(key not in table.rows for key in keys):
            if not _compute(table, function, keys, pool, bar):
                time.sleep(0.1)  # other processes compute the rows that are missing
            table.refresh()
            bar.update(len(table.rows) - bar.n)


def _compute(table: Session, function: Callable, keys: list[Row], pool: Pool | None, bar: tqdm) -> bool:
    """Compute and store the rows that can be claimed; True if there was one.

    After a failure no row is begun, those in progress are stored, and RuntimeError is raised.
    """
    computed = False
    failure: tuple[Row, Exception] | None = None

    def tasks() -> Iterator[tuple[Row, Setting]]:
        for key in keys:
            if key not in table.rows and table.claim(key):
                yield key, table.setting(key)

    with closing(outcomes(function, tasks(), pool, stopped=lambda: failure is not None)) as finished:
        for key, outcome in finished:
            computed = True
            try:
                if isinstance(outcome.result, Exception):
                    raise outcome.result
                table.store(key, outcome.result, outcome.seconds, outcome.device)
            except Exception as error:
                failure = failure or (key, error)
            finally:
                table.release(key)
            bar.update(len(table.rows) - bar.n)
    if failure:
        key, cause = failure
        raise RuntimeError(f"sweep {table.name} failed for {table.setting(key)}: {cause}") from cause
    return computed
