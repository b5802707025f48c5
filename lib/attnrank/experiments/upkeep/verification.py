"""Published tables verified: rows drawn at random are computed again and compared."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch

from attnrank import _check, sweep
from attnrank.experiments.experiment import Experiment, Measured, Statistical
from attnrank.experiments.upkeep.copies import at_hand
from attnrank.experiments.upkeep.cost import seconds_again
from attnrank.sweep import Setting
from attnrank.sweep.repeats import from_record

#: A table without enough rows that are cheap is verified by its cheapest ones, up to this many times as long.
PATIENCE = 10


@dataclass(frozen=True)
class Verdict:
    """What became of one table. ``failure`` says what differs, with file, line, column and both values; None: nothing.

    ``compared`` rows were computed again, of ``drawable`` that can be here in the time allowed, of ``rows`` in all;
    ``difference`` is the largest relative difference of a number that is compared, ``agreement`` what it amounts to.
    """

    name: str
    rows: int
    drawable: int = 0
    compared: int = 0
    difference: float = 0.0
    failure: str | None = None
    remark: str = ""
    agreement: str = "the same"

    def __str__(self) -> str:
        if self.failure is not None:
            return f"{self.name:24}  DIFFERS: {self.failure}"
        if not self.compared:
            return f"{self.name:24}  not compared: {self.remark}"
        where = "all rows" if self.drawable == self.rows else f"{self.drawable} of {self.rows} rows"
        compared = f"{self.compared} row" + "s" * (self.compared > 1)
        return (f"{self.name:24}  {compared}, largest relative difference {self.difference:.1e}, {self.agreement} "
                f"({where} can be computed again here)")


def verify(name: str, experiment: Experiment, *, rows: int = 5, seconds: float = 5.0, generator: torch.Generator,
           folder: str | Path | None = None) -> Verdict:
    """Compute a random sample of the rows of a published table again, and say whether they are the same.

    Rows are drawn among those whose data are at hand and that are predicted (`seconds_again`) to take ``seconds`` at
    most; where these are too few, among the cheapest, none of which takes over ten times as long, and then fewer than
    ``rows``, so that all of them together take no longer than one may. A table of measured times is only read. A table
    that is damaged, unfinished or not of the experiment's grid fails.
    """
    rows, seconds = _check.integer("rows", rows, minimum=1), _check.real("seconds", seconds, above=0)
    total = len(experiment.paper)
    try:
        table = sweep.read(name, folder=folder)
        _require_declared(name, experiment, sweep.provenance(name, folder=folder))
        _require_grid(name, table, experiment.paper)
        if isinstance(experiment.repeats, Measured):
            return Verdict(name, total, remark="its numbers are measured times")
        here = [setting for setting in experiment.paper if not experiment.data or at_hand(setting[experiment.data])]
        if not here:
            return Verdict(name, total, remark="its data sets are not here")
        cost = dict(zip(map(_key, experiment.paper), seconds_again(name, experiment, folder=folder)))
        costs = sorted(cost[_key(setting)] for setting in here)
        if costs[0] > PATIENCE * seconds:
            return Verdict(name, total, remark=f"every row takes more than {PATIENCE * seconds:g} s")
        limit = min(max(seconds, costs[min(rows, len(costs)) - 1]), PATIENCE * seconds)
        drawable = {_key(setting) for setting in here if cost[_key(setting)] <= limit}
        if limit > seconds:
            rows = min(rows, int(PATIENCE * seconds / limit))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".* is partial")  # as the published copies are
            again = sweep.recompute(name, experiment.function, generator=generator, rows=rows, folder=folder,
                                    accept=lambda setting: _key(setting) in drawable,
                                    threads=experiment.threads, checkpoint=experiment.checkpoint)
    except (ValueError, RuntimeError) as error:
        return Verdict(name, total, failure=str(error))
    ignored = list(getattr(experiment.repeats, "ignored", ()))
    difference = _difference(*(rows.drop(columns=ignored) for rows in (table.loc[again.index], again)))
    agreement = "within its margins" if isinstance(experiment.repeats, Statistical) else "the same"
    return Verdict(name, total, len(drawable), len(again), difference, agreement=agreement)


def _key(setting: Setting) -> tuple:
    return tuple(setting.values())


def _require_declared(name: str, experiment: Experiment, record: dict) -> None:
    """Refuse a table whose JSON says another version or another way of repeating than its experiment."""
    if record["version"] != experiment.version:
        raise ValueError(f"the table {name} is of version {record['version']}, its experiment of {experiment.version}; "
                         "delete both files and run the sweep")
    if from_record(record["repeats"]) != experiment.repeats:
        raise ValueError(f"the table {name} says that it repeats as {record['repeats']}, its experiment "
                         f"{experiment.repeats}; run the sweep, which keeps the rows")


def _require_grid(name: str, table: pd.DataFrame, settings: list[Setting]) -> None:
    stored = table[[column for column in settings[0] if column in table]].to_dict("records")
    if stored != settings:
        lost = sum(setting not in settings for setting in stored)
        new = sum(setting not in stored for setting in settings)
        raise ValueError(f"the table {name} is of another grid: {lost} of its {len(stored)} settings are not in the "
                         f"experiment's, which has {new} that it lacks; run the sweep")


def _difference(old: pd.DataFrame, new: pd.DataFrame) -> float:
    """Largest |a - b| / max(|a|, |b|) over the columns of floats; 0 where both are 0 or missing."""
    a, b = (table.select_dtypes("float64").to_numpy() for table in (old, new))
    scale = abs(a).clip(abs(b))
    relative = abs(a - b)[scale > 0] / scale[scale > 0]
    return float(relative.max(initial=0.0))
