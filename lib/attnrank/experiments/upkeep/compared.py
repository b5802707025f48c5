"""``verified.csv`` of the results folder: which published rows were computed again and compared, where and how.

A line is of one table, one processor, one way to round and one number of threads. It names rows by their numbers in
the table's grid, so that another machine goes on from it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from attnrank import sweep
from attnrank.experiments.experiment import Experiment
from attnrank.sweep import Setting

#: What says which line of ``verified.csv`` it is; the rest of it.
KEYS = ["table", "version", "processor", "rounding", "threads"]
COLUMNS = [*KEYS, "rows", "compared", "different", "same", "differing", "grid"]


def stored(folder: str | Path | None) -> pd.DataFrame:
    """The lines of ``verified.csv``; none where it does not exist."""
    file = sweep.results_folder(folder) / "verified.csv"
    kinds = dict.fromkeys(("version", "threads", "rows", "compared", "different"), int)
    if not file.exists():
        return pd.DataFrame(columns=COLUMNS)
    return pd.read_csv(file, keep_default_na=False, dtype=dict.fromkeys(COLUMNS, str) | kinds)[COLUMNS]


def known(line: dict, experiment: Experiment) -> dict[str, bool]:
    """Whether the rows that a line names differed, if its table's grid still begins as it did then; else nothing."""
    rows = dict.fromkeys(numbers(line["same"]), False) | dict.fromkeys(numbers(line["differing"]), True)
    if fingerprint(experiment.paper[: max(rows, default=-1) + 1]) != line["grid"]:
        return {}
    return dict(zip(identities(line["table"], experiment, rows), rows.values(), strict=True))


def identities(name: str, experiment: Experiment, rows: Iterable[int]) -> list[str]:
    """Rows of an experiment, by :func:`identity`."""
    head = {"table": name, "version": experiment.version}
    return [identity(head | {"setting": experiment.paper[row]}) for row in rows]


def identity(entry: dict) -> str:
    """A row by what it computes: its number changes when a grid grows."""
    return json.dumps([entry["table"], entry["version"], entry["setting"]])


def fingerprint(settings: list[Setting]) -> str:
    """Eight hexadecimal digits that say whether settings are the same, in the same order."""
    return hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:8]


def spans(rows: list[int]) -> str:
    """Increasing whole numbers as spans: "0-2 5" for 0, 1, 2, 5."""
    runs: list[list[int]] = []
    for row in rows:
        if runs and row == runs[-1][1] + 1:
            runs[-1][1] = row
        else:
            runs.append([row, row])
    return " ".join(f"{first}-{last}" if last > first else f"{first}" for first, last in runs)


def numbers(text: str) -> list[int]:
    """The whole numbers of :func:`spans`."""
    ends = [span.split("-") for span in text.split()]
    return [row for span in ends for row in range(int(span[0]), int(span[-1]) + 1)]
