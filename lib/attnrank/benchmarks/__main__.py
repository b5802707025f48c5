"""python -m attnrank.benchmarks [--quick] [--folder F]: measure every ratio anew, and print it beside its bar.

With a folder, what was interrupted goes on where it stopped: every row times its contestants side by side, so that rows
may be measured at different times.
"""

from __future__ import annotations

import argparse
import functools
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from attnrank import sweep
from attnrank.benchmarks import processor
from attnrank.experiments.measuring_speed.cases import GPU_CASES, on
from attnrank.experiments.measuring_speed.speed import EXPERIMENTS


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m attnrank.benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few small cases, in seconds, without bars")
    parser.add_argument("--folder", help="keep the tables in this folder, in place of earlier ones")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.folder or temporary)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            parser.error(f"--folder must be a folder, or one that can be made: {error}")
        tables = measure_all(options.quick, folder)
    tables = {name: table[table.processor == processor()] for name, table in tables.items()}
    print(tables["speed"]["machine"].iloc[0], "\n")
    print("\n".join(map(line, tables["speed"].to_dict("records"))), "\n")
    if not options.quick and not torch.cuda.is_available():
        print("not measured here, for want of a GPU:", len(GPU_CASES), "rows\n")
    print("Gflop/s, useful operations over time; and the peak of a square product in the same rounds")
    columns = ["path", "n", "d_h", "threads", "rate", "peak"]
    print(tables["roofline"][columns].to_string(index=False, float_format="%.1f"))


def measure_all(quick: bool, folder: Path) -> dict[str, pd.DataFrame]:
    """All tables, one after another; where one was interrupted, those before it are done."""
    stored = {name: f"{name}-quick" if quick else name for name in EXPERIMENTS}
    begun = [bool(_interrupted(table, folder)) for table in stored.values()]
    done = begun.index(True) if any(begun) else 0
    return {
        name: sweep.read(table, folder=folder) if place < done else measure(name, table, quick, folder)
        for place, (name, table) in enumerate(stored.items())
    }


def measure(name: str, stored: str, quick: bool, folder: Path) -> pd.DataFrame:
    """All rows of a table, measured now on the processor at hand; rows of others in the folder stay as they are."""
    experiment = EXPERIMENTS[name]
    settings = experiment.quick if quick else on([processor()], _cases(experiment.paper))
    options: dict[str, Any] = {name: getattr(experiment, name) for name in ("chapter", "repeats", "version")}
    if wanted := _interrupted(stored, folder):
        return sweep.publish(stored, experiment.function, wanted, folder=folder, **options)
    others = _measured_elsewhere(stored, folder)
    with tempfile.TemporaryDirectory() as temporary:
        if len(others):
            keep(stored, experiment.function, others, settings[0].keys(), Path(temporary), options)
        for suffix in ("csv", "json"):
            (folder / f"{stored}.{suffix}").unlink(missing_ok=True)
            if len(others):
                shutil.copy(Path(temporary) / f"{stored}.{suffix}", folder)
    kept = [{key: row[key] for key in settings[0]} for row in others.to_dict("records")]
    place = {tuple(setting.values()): index for index, setting in enumerate(experiment.paper)}
    ordered = sorted(kept + settings, key=lambda setting: place.get(tuple(setting.values()), len(place)))
    return sweep.publish(stored, experiment.function, ordered, folder=folder, **options)


def _cases(rows: list[sweep.Setting]) -> list[sweep.Setting]:
    """The rows without their processor, each once; those of a GPU only where there is one."""
    each = dict.fromkeys(tuple((k, v) for k, v in row.items() if k != "processor") for row in rows)
    devices = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    return [case for case in map(dict, each) if case.get("device", "cpu") in devices]


def _interrupted(name: str, folder: Path) -> list[sweep.Setting]:
    """The settings of a table that was begun in the folder and is not complete; none if there is no such table."""
    if not (folder / f"{name}.json").exists():
        return []
    record = sweep.provenance(name, folder=folder)
    if record["status"] == "complete":
        return []
    axes, settings = record["grid"], record["settings"]
    return sweep.grid(**axes) if isinstance(axes, dict) else [dict(zip(settings, row, strict=True)) for row in axes]


def _measured_elsewhere(name: str, folder: Path) -> pd.DataFrame:
    if not (folder / f"{name}.json").exists():
        return pd.DataFrame()
    table = sweep.read(name, folder=folder)
    return table[table.processor != processor()] if "processor" in table else pd.DataFrame()


def keep(
    name: str, function: Callable, rows: pd.DataFrame, keys: Iterable[str], folder: Path, options: dict[str, Any]
) -> None:
    """Write a table of rows that have been measured."""
    keys = list(keys)
    results = rows.drop(columns=keys).astype(object).where(rows.drop(columns=keys).notna(), None).to_dict("records")
    settings = rows[keys].to_dict("records")
    stored = {tuple(setting.values()): result for setting, result in zip(settings, results, strict=True)}

    @functools.wraps(function)
    def recall(**setting: sweep.Setting) -> dict:
        return stored[tuple(setting.values())]

    sweep.publish(name, recall, settings, folder=folder, **options)


def line(row: dict) -> str:
    """One row of the speed table in words and numbers."""
    case = f"{row['contestant']} / {row['baseline']}"
    shape = f"n {row['n']:>7} d_h {row['d_h']:>3} batch {row['batch']:>2} {row['dtype']:8} threads {row['threads']}"
    if row["verdict"] == "not measured":
        bar = f"   (bar {row['bar']})" if row["bar"] else ""
        return f"{case:55} {shape} {row['device']:4}  not measured here{bar}"
    spread = f"{row['ratio']:8.2f} [{row['low']:.2f}, {row['high']:.2f}]"
    limit = "" if pd.isna(row["limit"]) else f"   (limit {row['limit']:.0f})"
    return f"{case:55} {shape} {row['device']:4} {spread:30} {row['bar']:8} {row['verdict']}{limit}"


if __name__ == "__main__":
    main()
