"""Runs of training that tables are made of: where they are kept, by which setting, and what is read off them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from filelock import Timeout
from torch import nn

from attnrank import _check
from attnrank._files import RUNS
from attnrank.sweep import Setting
from attnrank.training import ENDING, NonFiniteLoss, Recipe, Run, Source, train
from attnrank.training.checkpoint import lock_of

#: What is measured of each head of a layer: see :func:`attnrank.training.attention_ranks`.
RANKS = ("hardmax", "rank_at_tenth", "rank_at_hundredth", "stable")


def train_or_stop(model: nn.Module, source: Source, recipe: Recipe, **options: Any) -> tuple[Run, str]:
    """:func:`attnrank.training.train` with its options; a run whose loss is not finite ends there.

    Returns the run as far as it came, and why it was stopped ("" if it was not).
    """
    runs: list[Run] = []
    try:
        train(model, source, recipe, started=runs.append, **options)
    except NonFiniteLoss as error:
        return runs[0], str(error)[:900]
    return runs[0], ""


def runs_folder() -> Path | None:
    """Where finished runs are kept and found again: the folder that the environment variable ATTNRANK_RUNS names.

    The tables of curves and of ranks are made of the runs of a table of accuracies; with this folder they read them
    instead of training again. None where it is not set. Raises ValueError if it does not exist.
    """
    named = os.environ.get(RUNS)
    if named and not Path(named).is_dir():
        raise ValueError(f"{RUNS} must name an existing folder, got {named!r}")
    return Path(named) if named else None


def run_file(setting: Setting, folder: str | Path, prefix: str = "") -> Path:
    """The checkpoint of a run in a folder."""
    return Path(folder) / (prefix + "-".join(str(value) for value in setting.values()) + ENDING)


def path_of(setting: Setting, folder: str | Path | None = None) -> Path | None:
    """The checkpoint of a run in `runs_folder` if there is one, else in ``folder``; None: nothing is kept."""
    kept = runs_folder() or folder
    return None if kept is None else run_file(setting, kept)


def setting_of(arguments: dict[str, Any], *left_out: str) -> Setting:
    """The setting of a run from the ``locals()`` of a function of its row, before that has variables of its own."""
    return {name: value for name, value in arguments.items() if name not in left_out}


def exit_status(work: Callable[[], None]) -> int:
    """Do what a command is for: 0, or what its user can mend in a line, and 1; 130 where it is interrupted."""
    try:
        work()
    except (ValueError, RuntimeError, OSError, ImportError) as error:
        print("\n".join([f"error: {error}", *getattr(error, "__notes__", [])]), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


def unfinished(
    settings: Iterable[Setting], file: Callable[[Setting], Path], is_finished: Callable[[Setting], bool]
) -> Iterator[tuple[Setting, Path]]:
    """The settings whose run is not finished, in their order, each with its checkpoint, locked until the next is
    asked for; those that another process has locked are passed over."""
    for setting in settings:
        path = file(setting)
        lock = lock_of(path)
        try:
            lock.acquire(timeout=0)
        except Timeout:  # another process trains this one
            continue
        try:
            if not is_finished(setting):
                yield setting, path
        finally:
            lock.release()


def epoch_of(run: Run, epoch: int, epochs: int) -> dict:
    """The entry of one epoch of a run of so many; empty after the end of one that was stopped."""
    if _check.integer("epoch", epoch, minimum=0) > epochs:
        raise ValueError(f"epoch must be at most {epochs}, got {epoch}")
    return run.epochs[epoch] if epoch < len(run.epochs) else {}


def mean_rank(ranks: list[dict] | None, layer: int | None = None) -> float | None:
    """Mean hardmax rank / n over the heads of a layer, or of all; None for a run that was stopped."""
    values = [row["hardmax"] for row in ranks or [] if layer in (None, row["layer"])]
    return sum(values) / len(values) if values else None


def ranks_of_layer(ranks: list[dict] | None, layer: int) -> Setting:
    """Means of ``RANKS`` over the heads of a layer, of the hardmax also the least and the largest; None if stopped."""
    found = [row for row in ranks or [] if row["layer"] == layer]
    result: Setting = {}
    for name in RANKS:
        values = [row[name] for row in found]
        result[name] = sum(values) / len(values) if values else None
        if name == "hardmax":
            result |= {"hardmax_least": min(values, default=None), "hardmax_most": max(values, default=None)}
    return result
