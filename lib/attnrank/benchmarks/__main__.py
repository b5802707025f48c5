"""python -m attnrank.benchmarks [--quick] [--folder F]: measure every ratio anew, and print it beside its bar."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import pandas as pd

from attnrank import sweep
from attnrank.experiments.measuring_speed.speed import EXPERIMENTS


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m attnrank.benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few small cases, in seconds")
    parser.add_argument("--folder", help="keep the tables in this folder, in place of earlier ones")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.folder or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        tables = {name: measure(name, options.quick, folder) for name in EXPERIMENTS}
    print(tables["speed"]["machine"].iloc[0], "\n")
    print("\n".join(map(line, tables["speed"].to_dict("records"))), "\n")
    print("Gflop/s, useful operations over time; and the peak of a square product in the same rounds")
    columns = ["path", "n", "d_h", "threads", "rate", "peak"]
    print(tables["roofline"][columns].to_string(index=False, float_format="%.1f"))


def measure(name: str, quick: bool, folder: Path) -> pd.DataFrame:
    """All rows of a table, measured now: an earlier table of that name in the folder is replaced."""
    experiment, stored = EXPERIMENTS[name], f"{name}-quick" if quick else name
    for suffix in ("csv", "json"):
        (folder / f"{stored}.{suffix}").unlink(missing_ok=True)
    settings = experiment.quick if quick else experiment.paper
    return sweep.run(stored, experiment.function, settings, folder=folder, chapter=experiment.chapter,
                     repeats=experiment.repeats, version=experiment.version)


def line(row: dict) -> str:
    """One row of the speed table in words and numbers."""
    case = f"{row['contestant']} / {row['baseline']}"
    shape = f"n {row['n']:>7} d_h {row['d_h']:>3} batch {row['batch']:>2} {row['dtype']:8} threads {row['threads']}"
    if row["verdict"] == "not measured":
        return f"{case:55} {shape} {row['device']:4}  not measured here   (bar {row['bar']})"
    spread = f"{row['ratio']:8.2f} [{row['low']:.2f}, {row['high']:.2f}]"
    return f"{case:55} {shape} {row['device']:4} {spread:30} {row['bar']:8} {row['verdict']}"


if __name__ == "__main__":
    main()
