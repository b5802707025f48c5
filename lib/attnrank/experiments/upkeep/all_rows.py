"""Every row of the published tables computed again, over as many sessions as it takes, for each way to round.

A record, a text file of one JSON a line, says which rows were compared under which conditions, so that the work goes on
where it stopped. Set ``ATEN_CPU_CAPABILITY`` (default, avx2) or ``MKL_CBWR`` (COMPATIBLE) before Python starts, and one
machine rounds like others.

    python -m attnrank.experiments.upkeep.all_rows verified.jsonl

adds it to ``book/results/verified.csv``: how far that has come, by table, processor and way to round, and which rows
these were, so that another machine goes on from there without the record.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch

from attnrank import sweep
from attnrank.benchmarks import processor
from attnrank.experiments.experiment import Experiment, Measured
from attnrank.experiments.upkeep.compared import COLUMNS, KEYS, fingerprint, identities, identity, known, spans, stored
from attnrank.experiments.upkeep.copies import at_hand
from attnrank.experiments.upkeep.cost import seconds_again
from attnrank.sweep import Setting

#: What makes this machine round like another: torch and its products, and the products and loops of numpy.
CONDITIONS = ("ATEN_CPU_CAPABILITY", "MKL_CBWR", "OPENBLAS_CORETYPE", "NPY_DISABLE_CPU_FEATURES")

@dataclass(frozen=True)
class Threads:
    """A function of one setting, computed with so many threads, where a sweep would use one."""

    function: Callable[..., Setting]
    threads: int

    def __call__(self, **setting: object) -> Setting:
        torch.set_num_threads(self.threads)
        return self.function(**setting)


def conditions(threads: int) -> dict[str, str | int]:
    """Under what rows are computed here: processor, the variables that make it round like another, threads."""
    chosen = {name: os.environ[name] for name in CONDITIONS if os.environ.get(name)}
    return {"processor": processor(), **chosen, "threads": threads}


def cheap_rows(name: str, experiment: Experiment, seconds: float, folder: str | Path | None) -> list[int]:
    """Numbers of the rows, cheapest first, whose data are at hand and that are predicted to take at most so long."""
    if isinstance(experiment.repeats, Measured):
        return []
    predicted = seconds_again(name, experiment, folder=folder)
    here = [not experiment.data or at_hand(setting[experiment.data]) for setting in experiment.paper]
    rows = [index for index in range(len(here)) if here[index] and predicted[index] <= seconds]
    return sorted(rows, key=lambda index: predicted[index])


def read_record(record: Path) -> list[dict]:
    """What has been compared so far; a line that was torn by a crash, or names no setting or processor, is left out.

    Raises ValueError, with the number of the line, for a whole line that no run of :func:`verify_all` can have written.
    """
    done = []
    if record.exists():
        for number, line in enumerate(record.read_text(encoding="utf-8").splitlines(), 1):
            with suppress(ValueError):
                done.append((number, json.loads(line)))
    for number, entry in done:
        if why := _unreadable(entry):
            raise ValueError(f"{record} line {number}: {why}; mend the line, or delete it to compare its row again")
    entries = [entry for _, entry in done if isinstance(entry, dict)]
    return [entry for entry in entries if "setting" in entry and "processor" in entry.get("conditions", {})]


def _unreadable(entry: object) -> str:
    """What is wrong with a line of the record, "" for nothing; lines of older records may lack some of this."""
    if not isinstance(entry, dict):
        return ""
    for name in ("conditions", "setting"):
        if not isinstance(entry.get(name, {}), dict):
            return f"{name} must be an object, got {json.dumps(entry[name])}"
    if "setting" in entry and "processor" in entry.get("conditions", {}):
        missing = [name for name in ("table", "version", "difference") if name not in entry]
        missing += ["conditions.threads"] * ("threads" not in entry["conditions"])
        return f"{missing[0]} is missing" if missing else ""
    return ""


def verify_all(
    experiments: dict[str, Experiment], *, record: str | Path, seconds: float = 60.0, threads: int = 1,
    folder: str | Path | None = None,
) -> Iterator[tuple[str, int, str | None]]:
    """Compare the rows that are not compared yet, cheapest tables first: yield table, number of the row, what differs.

    Rows are those of :func:`cheap_rows`, less those that the record has under these conditions and those that did not
    differ by ``verified.csv``: on a processor like this one or, under a variable that makes machines round like others,
    on any. Each is in the record when it is yielded. Runs of training, of which several tables are made, are kept
    beside the record, in a folder for each of the conditions.
    """  # fmt: skip
    record, where = Path(record), conditions(threads)
    named = "-".join(re.sub(r"[^A-Za-z0-9]+", "_", f"{value}") for value in where.values())
    runs = record.with_suffix(".runs").resolve() / named
    runs.mkdir(parents=True, exist_ok=True)
    rounding = _rounding(where)
    done = {identity(entry) for entry in read_record(record) if entry["conditions"] == where}
    lines = stored(folder)
    for line in lines[(lines.rounding == rounding) & (lines.threads == threads)].to_dict("records"):
        if line["table"] in experiments and (rounding or line["processor"] == where["processor"]):
            done |= {row for row, different in known(line, experiments[line["table"]]).items() if not different}
    plan = {name: cheap_rows(name, experiment, seconds, folder) for name, experiment in experiments.items()}
    cost = {
        name: seconds_again(name, experiments[name], folder=folder)[rows].sum() for name, rows in plan.items() if rows
    }
    for name in sorted(cost, key=lambda name: cost[name]):
        experiment = experiments[name]
        head = {"table": name, "version": experiment.version}
        of = {row: head | {"setting": experiment.paper[row]} for row in plan[name]}
        rows = [row for row in plan[name] if identity(of[row]) not in done]
        function = Threads(experiment.function, threads) if threads > 1 else experiment.function
        started = time.perf_counter()
        for row, difference in sweep.differences(
            name, function, rows=rows, folder=folder, checkpoint=experiment.checkpoint, runs=runs
        ):
            now = time.perf_counter()
            entry = of[row] | {"conditions": where, "seconds": round(now - started, 2), "difference": difference}
            with record.open("a", encoding="utf-8") as file:
                file.write(("" if ends_whole(record) else "\n") + json.dumps(entry) + "\n")
            started = now
            yield name, row, difference


def _rounding(where: dict) -> str:
    """The way to round of some conditions, such as "MKL_CBWR=COMPATIBLE"; "" for the machine's own."""
    return " ".join(f"{name}={where[name]}" for name in CONDITIONS if name in where)


def coverage(
    experiments: dict[str, Experiment], *, record: str | Path, seconds: float = 60.0, folder: str | Path | None = None
) -> pd.DataFrame:
    """How many rows of each table have been compared, by processor, way to round and number of threads.

    What the record has is added to what ``verified.csv`` has, of tables whose version is still the same. Columns:
    ``table``, ``version``, ``processor``, ``rounding`` (such as "MKL_CBWR=COMPATIBLE", "" for the machine's own),
    ``threads``, ``rows`` (those of :func:`cheap_rows`), ``compared`` of them, ``different`` of these when they were
    compared last, ``same`` and ``differing`` (the numbers of these rows in the table's grid, from 0, such as "0-27 30";
    "" in lines that counted without saying which) and ``grid`` (a fingerprint of the table's settings up to the last of
    these, without which the numbers say nothing). Tables of measured times and those whose data are not at hand have no
    rows: what was known of them stays as it was.
    """
    last: dict[tuple[str, str, int], dict[str, bool]] = defaultdict(dict)
    lines = {}
    for line in stored(folder).to_dict("records"):
        experiment = experiments.get(line["table"])
        if experiment is not None and line["version"] == experiment.version:
            lines[tuple(line[key] for key in KEYS)] = line
            last[line["processor"], line["rounding"], line["threads"]] |= known(line, experiment)
    for entry in read_record(Path(record)):
        where = entry["conditions"]
        different = entry["difference"] is not None
        last[where["processor"], _rounding(where), where["threads"]][identity(entry)] = different
    for name, experiment in experiments.items():
        rows = cheap_rows(name, experiment, seconds, folder)
        of = dict(zip(identities(name, experiment, rows), rows, strict=True))
        for place, results in last.items() if rows else ():
            key = (name, experiment.version, *place)
            here = {row: results[known_by] for known_by, row in of.items() if known_by in results}
            if key not in lines or len(here) >= lines[key]["compared"]:  # a count whose rows are unknown may be larger
                lines[key] = dict(zip(KEYS, key, strict=True)) | _counts(experiment, len(rows), here)
    table = pd.DataFrame(lines.values(), columns=COLUMNS)
    return table.sort_values(KEYS, kind="stable", ignore_index=True)


def _counts(experiment: Experiment, rows: int, here: dict[int, bool]) -> dict:
    """The rest of a line: ``here`` says of each row that was compared whether it differed."""
    same, differing = (sorted(row for row, different in here.items() if different == kind) for kind in (False, True))
    return {
        "rows": rows, "compared": len(here), "different": len(differing), "same": spans(same),
        "differing": spans(differing), "grid": fingerprint(experiment.paper[: max(here, default=-1) + 1]),
    }  # fmt: skip


def ends_whole(path: Path) -> bool:
    """Is the file empty, or its last line whole?"""
    with path.open("rb") as file:
        file.seek(0, os.SEEK_END)
        if not file.tell():
            return True
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"


def main(arguments: list[str] | None = None) -> None:
    """Add a record to ``verified.csv`` in the results folder."""
    from attnrank.experiments import EXPERIMENTS  # here: the registry imports every experiment, this module none

    parser = argparse.ArgumentParser(description="Write verified.csv: which published rows were compared, and how.")
    parser.add_argument("record", type=Path, help="what python -m attnrank.sweep --verify all has written")
    parser.add_argument("--folder", type=Path, help="the results folder (default book/results)")
    options = parser.parse_args(arguments)
    if not options.record.exists():
        parser.error(f"record must be a file, {options.record} is none")
    folder = sweep.results_folder(options.folder)
    published = {name: each for name, each in EXPERIMENTS.items() if (folder / f"{name}.json").exists()}
    try:
        table = coverage(published, record=options.record, folder=folder)
    except ValueError as error:
        parser.error(str(error))
    table.to_csv(folder / "verified.csv", index=False, lineterminator="\n")


if __name__ == "__main__":
    main()
