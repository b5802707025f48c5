"""Command line of the published tables: compute what is missing of one, list them, verify them.

This module alone of the package stands above :mod:`attnrank.experiments`, which knows the tables.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from attnrank import _check, experiments, sweep
from attnrank.experiments import EXPERIMENTS, PROFILES
from attnrank.experiments.upkeep.all_rows import verify_all
from attnrank.experiments.upkeep.verification import verify
from attnrank.sweep.repeats import from_record


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit status."""
    options = _options(arguments)
    try:
        if options.list:
            return _list(options.name, options.folder)
        return _compute(options) if options.verify is None else _verify(options)
    except (ValueError, RuntimeError, OSError, ImportError) as error:
        print("\n".join([f"error: {error}", *getattr(error, "__notes__", [])]), file=sys.stderr)
        return 1
    except KeyboardInterrupt as stopped:
        print("\n".join(["interrupted", *getattr(stopped, "__notes__", [])]), file=sys.stderr)
        return 130


def _options(arguments: list[str] | None) -> argparse.Namespace:
    """The options; exits with status 2 for those that do not go together."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.name is None and options.verify is None and not options.list:
        parser.error("give the NAME of a table, --list or --verify K")
    if options.seconds is not None and options.verify is None:
        parser.error("--seconds goes with --verify")
    for option in ("record", "threads"):
        if getattr(options, option) is not None and options.verify != "all":
            parser.error(f"--{option} goes with --verify all")
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m attnrank.sweep",
        description="Compute what is missing of a published table, list the tables, or verify them.",
        epilog="\n".join(f"{name}: {experiment.question}" for name, experiment in sorted(EXPERIMENTS.items())),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", nargs="?", choices=sorted(EXPERIMENTS), metavar="NAME", help="a table, see below")
    parser.add_argument("--profile", choices=PROFILES, default="quick", help="quick (default) or as published")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--workers", type=_positive, default=1, metavar="N",
                       help="processes on this machine (default 1)")
    where.add_argument("--dask", metavar="ADDRESS", help="compute on a Dask cluster: the address of its scheduler")
    parser.add_argument("--folder", help="where the tables are; default: the book's results folder")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--list", action="store_true",
                         help="list the tables, with --folder those in it, and where they come from")
    instead.add_argument(
        "--verify",
        type=_count,
        metavar="K",
        help="compute K random rows of each (or of NAME) again; all: every row, going on where it stopped",
    )
    parser.add_argument("--seconds", type=_seconds, metavar="S",
                        help="--verify draws rows predicted to take at most this (default 5, or 60 for all)")
    parser.add_argument("--record", type=_record, metavar="FILE",
                        help="--verify all writes here which rows were compared under what (default verified.jsonl)")
    parser.add_argument(
        "--threads", type=_positive, metavar="T", help="--verify all computes with T threads (default 1)"
    )
    return parser


def _positive(text: str) -> int:
    if not (text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)


def _count(text: str) -> int | str:
    if text == "all":
        return text
    try:
        return _positive(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a whole number from 1 on nor 'all'") from None


def _seconds(text: str) -> float:
    try:
        return _check.real("seconds", float(text), above=0)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0") from None


def _record(text: str) -> str:
    """A file to write to: the first row may take a minute, after which it would be too late to refuse it."""
    if Path(text).is_dir() or not Path(text).parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is no file in an existing folder")
    return text


def _published(name: str | None, folder: str | None) -> list[str]:
    """The names of the stored tables of experiments, at least one, or the one that is asked for."""
    where = sweep.results_folder(folder)
    if name is not None:
        return [name]
    names = sorted(path.stem for path in where.glob("*.json") if path.stem in EXPERIMENTS)
    if not names:
        raise ValueError(f"there is no published table in {where}")
    return names


def _compute(options: argparse.Namespace) -> int:
    table = experiments.run(options.name, profile=options.profile, folder=options.folder, workers=options.workers,
                            cluster=options.dask)
    print(f"{options.name} ({options.profile}): {len(table)} rows, complete")
    return 0


def _list(name: str | None, folder: str | None) -> int:
    """A line for each table that is stored and, in the book's own folder, for each that is not computed yet."""
    where = sweep.results_folder(folder)
    stored = {path.stem for path in where.glob("*.json")}
    listed = [name] if name is not None else sorted(stored if folder is not None else stored | EXPERIMENTS.keys())
    if not listed:
        print(f"there is no table in {where}")
    for table in listed:
        print(
            _description(table, folder)
            if table in stored
            else f"{table:24}  not computed  chapter {EXPERIMENTS[table].chapter}"
        )
    return 0


def _description(name: str, folder: str | None) -> str:
    """One line: rows, status, seeds, date, device, wall time, versions, and of the experiment its own."""
    try:
        record = sweep.provenance(name, folder=folder)
    except ValueError as error:
        return f"{name:24}  {error}"
    sessions = sorted(record["sessions"], key=lambda session: session["date"])
    if not sessions:
        return f"{name:24}  {record['status']}, no rows"
    experiment = EXPERIMENTS.get(name)
    version = f"version {record['version']}"
    if experiment and record["version"] != experiment.version:
        version += f" (the code is version {experiment.version})"
    repeats = str(from_record(record["repeats"]))
    rows = record["rows"] or sum(
        session["rows"] for session in sessions
    )  # a row may have been stored, lost and stored again
    return "  ".join([
        f"{name:24}", f"{rows:5} rows", record["status"],
        f"seeds {_span(record['seeds'])}", sessions[-1]["date"][:10],
        _each(session["device"] for session in sessions), f"{record['wall_seconds']:.0f} s",
        "python " + _each(session["python"] for session in sessions),
        "numpy " + _each(session["numpy"] for session in sessions),
        "torch " + _each(session["torch"] for session in sessions),
        version, repeats,
        f"chapter {record['chapter']}" if record["chapter"] else "a table of your own",
        f"{record['module']}.{record['function']}",
    ])


def _each(values) -> str:
    return "/".join(dict.fromkeys(values))


def _span(seeds: list[int]) -> str:
    if len(seeds) > 2 and seeds == list(range(seeds[0], seeds[0] + len(seeds))):
        return f"{seeds[0]}..{seeds[-1]}"
    return ",".join(map(str, seeds)) or "-"


def _verify_all(options: argparse.Namespace) -> int:
    tables = {name: EXPERIMENTS[name] for name in _published(options.name, options.folder)}
    record = options.record or "verified.jsonl"
    compared = failed = 0
    for name, row, difference in verify_all(tables, record=record, seconds=options.seconds or 60.0,
                                            threads=options.threads or 1, folder=options.folder):
        compared += 1
        failed += difference is not None
        if difference is not None:
            print(f"{name:24}  row {row}  DIFFERS: {difference}", flush=True)
    print(f"{compared - failed} of {compared} rows passed, noted in {record}" if compared
          else "every row that can be computed here in that time has been compared before")
    return 1 if failed else 0


def _verify(options: argparse.Namespace) -> int:
    if options.verify == "all":
        return _verify_all(options)
    generator = torch.Generator()
    generator.seed()
    failed = 0
    names = _published(options.name, options.folder)
    for name in names:
        verdict = verify(
            name,
            EXPERIMENTS[name],
            rows=options.verify,
            seconds=options.seconds or 5.0,
            generator=generator,
            folder=options.folder,
        )
        print(verdict, flush=True)
        failed += verdict.failure is not None
    print(f"{len(names) - failed} of {len(names)} tables passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
