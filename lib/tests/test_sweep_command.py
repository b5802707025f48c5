"""The command line of the published tables: compute, list, verify."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch

from attnrank import experiments, sweep
from attnrank.experiments import EXPERIMENTS
from attnrank.experiments.experiment import Experiment, Rounding, Statistical
from attnrank.experiments.upkeep.verification import _difference, verify
from attnrank.sweep import __main__ as command

RESULTS = Path(__file__).resolve().parents[2] / "book" / "results"


def half(n: int) -> dict:
    return {"half": n / 2, "even": n % 2 == 0, "note": f"n = {n}", "missing": None}


HALF = Experiment("What is half of n?", half, quick=sweep.grid(n=[1, 2]), paper=sweep.grid(n=list(range(1, 9))),
                  chapter="halves", repeats=Rounding(1e-9))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A results folder whose only table is that of the experiment "half"."""
    monkeypatch.setitem(experiments.EXPERIMENTS, "half", HALF)
    sweep.run("half", half, HALF.paper, folder=tmp_path)
    return tmp_path


def use(monkeypatch, **changes):
    monkeypatch.setitem(experiments.EXPERIMENTS, "half", Experiment(**(vars(HALF) | changes)))


def generator():
    return torch.Generator().manual_seed(0)


# Computing ------------------------------------------------------------------------------------------------------------


def test_as_a_process(tmp_path):
    folder = tmp_path / "somewhere"  # is made
    started = [sys.executable, "-m", "attnrank.sweep", "random_heads", "--folder", str(folder), "--workers", "2"]
    done = subprocess.run(started, capture_output=True, text=True, encoding="utf-8")
    assert (done.returncode, done.stdout, done.stderr) == (0, "random_heads (quick): 16 rows, complete\n", "")
    assert len(sweep.read("random_heads-quick", folder=folder)) == 16


def test_sweep_does_not_import_what_stands_above_it():
    code = "import sys, attnrank.sweep; print({'attnrank.experiments', 'distributed', 'dask'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, encoding="utf-8")
    assert done.stdout.strip() == "set()"


def test_help(capsys):
    with pytest.raises(SystemExit) as stopped:
        command.main(["--help"])
    shown = capsys.readouterr().out
    assert not stopped.value.code and all(option in shown for option in (
        "--profile {quick,paper}", "--workers N", "--dask ADDRESS", "--list", "--verify K", "--seconds S", "--folder"))
    assert all(f"{name}: {experiment.question}" in shown for name, experiment in EXPERIMENTS.items())


@pytest.mark.parametrize("arguments", [[], ["heads"], ["random_heads", "--profile", "small"],
                                       ["random_heads", "--workers", "two"], ["--verify"], ["--verify", "x"],
                                       ["--list", "--verify", "1"], ["random_heads", "--workers", "2", "--dask", "x"]])
def test_refused(arguments, capsys):
    assert "usage: python -m attnrank.sweep" in refusal(arguments, capsys)


def refusal(arguments, capsys):
    """What the command says of arguments that it does not take."""
    with pytest.raises(SystemExit) as stopped:
        command.main(arguments)
    shown = capsys.readouterr()
    assert stopped.value.code == 2 and shown.out == ""
    return shown.err


@pytest.mark.parametrize("option, values, message", [
    ("--verify", ["0", "-1", "x", "1.5"], "argument --verify: {} is neither a whole number from 1 on nor 'all'"),
    ("--verify=all --threads", ["0", "-3", "x"], "argument --threads: {} is no whole number from 1 on"),
    ("random_heads --workers", ["0", "-1"], "argument --workers: {} is no whole number from 1 on"),
    ("--verify=1 --seconds", ["-1", "0", "nan", "inf", "x"], "argument --seconds: {} is no number above 0"),
    ("--verify=all --record", ["missing/dir/r", "{here}"], "argument --record: {} is no file in an existing folder"),
])
def test_values_that_are_refused(option, values, message, tmp_path, monkeypatch, capsys):
    """Before a row is computed, by the option's name."""
    monkeypatch.setattr(command, "experiments", None), monkeypatch.setattr(command, "verify_all", None)
    for value in [value.format(here=tmp_path) for value in values]:
        assert message.format(repr(value)) in refusal(f"{option}={value}".split(), capsys)


@pytest.mark.parametrize("arguments", ["random_heads --record r", "--verify 1 --record r", "--list --threads 2",
                                       "random_heads --threads 1", "--verify 1 --threads 1", "random_heads --seconds 1",
                                       "--list --seconds 9"])
def test_options_that_would_do_nothing_are_refused(arguments, folder, capsys):
    said = refusal([*arguments.split(), "--folder", str(folder)], capsys)
    option = next(word for word in arguments.split() if word in ("--record", "--threads", "--seconds"))
    assert f"error: {option} goes with --verify" + ("" if option == "--seconds" else " all") in said


@pytest.mark.parametrize("arguments", ["--list", "--verify 1", "--verify all", "half --list", "half --verify 1"])
def test_a_folder_that_is_missing_is_told_in_a_line(arguments, folder, tmp_path, monkeypatch, capsys):
    arguments = arguments.split()
    failed = command.main([*arguments, "--folder", str(tmp_path / "nowhere")])
    shown = capsys.readouterr()
    said = shown.out + shown.err
    assert failed == 1 and said.count("\n") <= 2 and "folder must be an existing folder, got" in said
    monkeypatch.delenv("ATTNRANK_RESULTS", raising=False), monkeypatch.chdir(tmp_path)
    if not any((parent / "book" / "results").is_dir() for parent in tmp_path.parents):
        assert command.main(arguments) == 1
        said = "".join(capsys.readouterr())
        assert "no book/results in" in said and "copy of the book's repository" in said and "ATTNRANK_RESULTS" in said


@pytest.mark.parametrize("arguments", ["--verify 2", "--verify all"])
def test_a_folder_without_tables_is_not_verified(arguments, tmp_path, capsys):
    assert command.main([*arguments.split(), "--folder", str(tmp_path), *record_in(arguments, tmp_path)]) == 1
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err == f"error: there is no published table in {tmp_path}\n"


def record_in(arguments, folder):
    return ["--record", str(folder / "record.jsonl")] * arguments.endswith("all")


def test_interrupted_while_it_verifies(folder, monkeypatch, capsys):
    def stopped(*_, **__):
        raise KeyboardInterrupt
    monkeypatch.setattr(command, "verify", stopped)
    assert command.main(["--verify", "1", "--folder", str(folder)]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_failure_is_told_in_a_line(folder, monkeypatch, capsys):
    use(monkeypatch, function=lambda n: {"half": 1 / (n - 2)}, quick=sweep.grid(n=[1, 2]))
    assert command.main(["half", "--folder", str(folder)]) == 1
    shown = capsys.readouterr()
    assert shown.out == "" and re.match(
        r"error: sweep half-quick failed for \{'n': 2\}: .*\nsweep half-quick: 1 of 2 rows are stored in .*; run it",
        shown.err)
    use(monkeypatch, function=lambda n: {"half": -1.0 if n == 1 else (_ for _ in ()).throw(KeyboardInterrupt)})
    (folder / "half-quick.csv").unlink(), (folder / "half-quick.json").unlink()
    assert command.main(["half", "--folder", str(folder)]) == 130
    assert re.match(r"interrupted\nsweep half-quick: 1 of 2 rows are stored", capsys.readouterr().err)


# Listing --------------------------------------------------------------------------------------------------------------


def test_list(folder, monkeypatch, capsys):
    """With a folder the tables in it, and no others; without one those of the book, computed or not."""
    assert command.main(["--list", "--folder", str(folder)]) == 0
    [alone] = capsys.readouterr().out.splitlines()
    monkeypatch.setenv("ATTNRANK_RESULTS", str(folder))
    assert command.main(["--list"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert (
        len(shown) == len(experiments.EXPERIMENTS)
        and "random_heads              not computed  chapter barrier" in shown
    )
    [line] = [line for line in shown if line.startswith("half ")]
    assert line == alone
    assert re.fullmatch(
        r"half +8 rows  complete  seeds -  \d{4}-\d\d-\d\d  \S.*  0 s  python [\d.]+  numpy [\d.]+  "
        r"torch \S+  version 1  rounding \(rtol 1e-09\)  a table of your own  test_sweep_command\.half",
        line,
    )
    use(monkeypatch, version=2)
    assert command.main(["half", "--list", "--folder", str(folder)]) == 0
    assert "  version 1 (the code is version 2)  rounding (rtol 1e-09)  a table" in capsys.readouterr().out


def test_list_of_a_folder_without_tables(tmp_path, capsys):
    assert command.main(["--list", "--folder", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"there is no table in {tmp_path}\n"
    assert command.main(["random_heads", "--list", "--folder", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "random_heads              not computed  chapter barrier\n"


def test_list_of_a_running_and_of_a_damaged_table(folder, capsys):
    path = folder / "half.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    record |= {"status": "running", "seeds": [3, 4, 5]}
    path.write_text(json.dumps(record), encoding="utf-8")
    assert command.main(["half", "--list", "--folder", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "  running  seeds 3..5  " in shown
    path.write_text("{", encoding="utf-8")
    assert command.main(["half", "--list", "--folder", str(folder)]) == 0
    assert "invalid provenance" in capsys.readouterr().out


def test_list_of_several_sessions(folder, capsys):
    """Devices and versions each once, the date of the last, and the rows of all while the table is not whole."""
    path = folder / "half.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    [own] = record["sessions"]
    times = [("2026-03-01T00:00:00+00:00", 3, "gpu"), ("2025-01-01T00:00:00+00:00", 4, "cpu")]
    sessions = [own | {"id": day, "date": day, "rows": rows, "device": device} for day, rows, device in times]
    path.write_text(json.dumps(record | {"status": "running", "rows": None, "sessions": sessions}), encoding="utf-8")
    assert command.main(["half", "--list", "--folder", str(folder)]) == 0
    assert re.match(r"half +7 rows  running  seeds -  2026-03-01  cpu/gpu  ", capsys.readouterr().out)


def test_seeds_are_a_span_only_where_they_are_one():
    for seeds, said in (([], "-"), ([3], "3"), ([3, 4], "3,4"), ([3, 4, 5], "3..5"), ([3, 5, 7], "3,5,7"),
                        ([5, 4, 3], "5,4,3"), ([0, 1, 2, 4], "0,1,2,4")):  # fmt: skip
        assert command._span(seeds) == said


def test_options_are_passed_on(folder, monkeypatch, capsys):
    given = []

    def run(name, **options):
        given.append((name, options))
        return sweep.read("half", folder=folder)

    monkeypatch.setattr(command.experiments, "run", run)
    arguments = ["half", "--profile", "paper", "--workers", "3", "--folder", str(folder)]
    assert command.main(arguments) == 0 and capsys.readouterr().out == "half (paper): 8 rows, complete\n"
    options = {"profile": "paper", "folder": str(folder), "workers": 3, "cluster": None}
    assert given == [("half", options)]
    seen = []
    honest = command.verify
    monkeypatch.setattr(command, "verify", lambda *names, **options: seen.append(options) or honest(*names, **options))
    for arguments, seconds in ((["--verify", "2"], 5.0), (["half", "--verify", "2", "--seconds", "9"], 9.0)):
        assert command.main([*arguments, "--folder", str(folder)]) == 0
        assert (seen[-1]["rows"], seen[-1]["seconds"]) == (2, seconds)


def test_list_of_the_book(capsys):
    assert command.main(["--list", "--folder", str(RESULTS)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(EXPERIMENTS)


# Verifying ------------------------------------------------------------------------------------------------------------


def test_verify(folder, capsys):
    assert command.main(["--verify", "3", "--folder", str(folder)]) == 0
    assert capsys.readouterr().out == (
        "half                      3 rows, largest relative difference 0.0e+00, the same "
        "(all rows can be computed again here)\n1 of 1 tables passed\n")


def test_verify_names_what_differs(folder, monkeypatch, capsys):
    use(monkeypatch, function=lambda n: half(n) | {"half": 5.0 if n == 6 else n / 2})
    assert command.main(["half", "--verify", "8", "--folder", str(folder)]) == 1
    shown = capsys.readouterr().out
    assert re.search(r"half +DIFFERS: .*half\.csv line 7: half is 3\.0, recomputed 5\.0 \(rtol 1e-09\), for \{'n': 6\}"
                     r"\n0 of 1 tables passed\n$", shown)


def test_difference_is_the_largest_relative_one(folder):
    changed = Experiment(**(vars(HALF) | {"function": lambda n: half(n) | {"half": n / 2 * (1 + n * 1e-11)}}))
    verdict = verify("half", changed, rows=8, generator=generator(), folder=folder)
    assert verdict.failure is None and verdict.compared == verdict.drawable == verdict.rows == 8
    assert verdict.difference == pytest.approx(8e-11, rel=1e-4)


def test_columns_that_are_not_compared_do_not_count_as_a_difference(tmp_path):
    """Nor is a number that may be drawn anew called the same."""
    def drawn(n, factor=1.0):
        return {"accuracy": n * factor, "seconds": n * factor**1000}
    declared = Experiment("?", drawn, quick=[], paper=sweep.grid(n=[1, 2, 3]), chapter="halves",
                          repeats=Statistical({"accuracy": 1.0}, ignored=("seconds",)))
    sweep.run("drawn", drawn, declared.paper, folder=tmp_path, repeats=declared.repeats)
    changed = Experiment(**(vars(declared) | {"function": lambda n: drawn(n, 1.01)}))
    verdict = verify("drawn", changed, generator=generator(), folder=tmp_path)
    assert verdict.failure is None and verdict.difference == pytest.approx(1 - 1 / 1.01)
    assert "largest relative difference 9.9e-03, within its margins (all rows can be" in str(verdict)


@pytest.mark.parametrize("change, message", [
    ({"paper": sweep.grid(n=[1, 2])}, "another grid: 6 of its 8 settings are not in the experiment's, which has 0 "),
    ({"paper": sweep.grid(n=list(range(1, 10)))}, "another grid: 0 of its 8 settings .* which has 1 that it lacks"),
    ({"paper": sweep.grid(m=[1])}, "another grid"),
    ({"function": lambda n: 1 / 0}, "the function failed for"),
    ({"function": lambda n: {"half": n / 2}}, "must return the same columns"),
])
def test_other_failures(change, message, folder):
    verdict = verify("half", Experiment(**(vars(HALF) | change)), generator=generator(), folder=folder)
    assert re.search(message, verdict.failure) and "DIFFERS" in str(verdict)


@pytest.mark.parametrize("change, message", [
    ({"version": 2}, "the table half is of version 1, its experiment of 2; delete both files"),
    ({"repeats": Rounding(1e-6)}, "the table half says that it repeats as .*1e-09.*, its experiment rounding"),
])
def test_a_table_of_another_declaration_fails(change, message, folder):
    """Its numbers may be the same: what they are compared by is not."""
    verdict = verify("half", Experiment(**(vars(HALF) | change)), generator=generator(), folder=folder)
    assert re.search(message, verdict.failure) and verdict.compared == 0


def test_a_difference_is_relative_to_the_larger_of_both():
    old, new = (pd.DataFrame({"a": a, "n": [1, 2, 3]}) for a in ([1.0, 0.0, math.nan], [4.0, 0.0, math.nan]))
    assert _difference(old, new) == 0.75 == _difference(new, old)
    assert _difference(old[1:], new[1:]) == 0.0


def test_damaged_and_unfinished_tables_fail(folder, capsys):
    stored = (folder / "half.csv").read_bytes()
    (folder / "half.csv").write_bytes(stored.replace(b"1.5", b"2.5"))
    assert command.main(["--verify", "1", "--folder", str(folder)]) == 1
    assert "the checksum in" in capsys.readouterr().out
    record = json.loads((folder / "half.json").read_text(encoding="utf-8"))
    (folder / "half.json").write_text(json.dumps(record | {"status": "running", "sha256": None}), encoding="utf-8")
    (folder / "half.csv").write_bytes(stored[: stored.index(b"\n3,") + 1])
    assert command.main(["--verify", "1", "--folder", str(folder)]) == 1
    assert "the table is unfinished, 2 of 8 rows" in capsys.readouterr().out


def test_rows_that_cannot_be_drawn(folder, monkeypatch, capsys):
    """Measured times, data that are not here, and rows that take too long are said, not compared, and do not fail."""
    times = folder / "times"
    sweep.run("half", half, HALF.paper, folder=times, repeats=sweep.Measured())
    use(monkeypatch, repeats=sweep.Measured(), function=lambda n: 1 / 0)
    assert command.main(["--verify", "1", "--folder", str(times)]) == 0
    assert "half                      not compared: its numbers are measured times\n" in capsys.readouterr().out
    assert command.main(["half", "--list", "--folder", str(times)]) == 0
    assert "  measured, not compared  a table of your own" in capsys.readouterr().out
    monkeypatch.delenv("ATTNRANK_DATA", raising=False)
    names = ["digits", "imdb", "cifar10"]
    use(monkeypatch, data="name", paper=sweep.grid(name=names), function=lambda name: {"length": len(name)})
    sweep.run("half-data", lambda name: {"length": len(name)}, sweep.grid(name=names), folder=folder)
    verdict = verify("half-data", experiments.EXPERIMENTS["half"], generator=generator(), folder=folder)
    assert verdict.failure is None and (verdict.compared, verdict.drawable, verdict.rows) == (1, 1, 3)
    assert "(1 of 3 rows can be computed again here)" in str(verdict)
    use(monkeypatch, data="name", paper=sweep.grid(name=names[1:]), function=lambda name: {"length": len(name)})
    sweep.run("half-hub", lambda name: {"length": len(name)}, sweep.grid(name=names[1:]), folder=folder)
    verdict = verify("half-hub", experiments.EXPERIMENTS["half"], generator=generator(), folder=folder)
    assert verdict.failure is None and "not compared: its data sets are not here" in str(verdict)
    record = json.loads((folder / "half.json").read_text(encoding="utf-8"))
    record["sessions"][0]["row_seconds"] = 800.0
    (folder / "half.json").write_text(json.dumps(record), encoding="utf-8")
    verdict = verify("half", HALF, seconds=9, generator=generator(), folder=folder)
    assert str(verdict).endswith("every row takes more than 90 s")
    # Every row takes 100 s: one of the cheapest.
    verdict = verify("half", HALF, seconds=11, generator=generator(), folder=folder)
    assert verdict.failure is None and (verdict.compared, verdict.drawable) == (1, 8)
    assert verify("half", HALF, seconds=101, generator=generator(), folder=folder).compared == 5


def test_where_few_rows_are_cheap_the_cheapest_are_drawn(folder):
    """Row n takes n seconds: none over ten times what is allowed, and all together no longer than that."""
    slow = Experiment(**(vars(HALF) | {"seconds_again": lambda setting: float(setting["n"])}))
    for rows, seconds, drawable, compared in ((4, 2, 4, 4), (1, 2, 2, 1), (8, 2, 8, 2), (8, 0.5, 5, 1), (9, 9, 8, 8)):
        verdict = verify("half", slow, rows=rows, seconds=seconds, generator=generator(), folder=folder)
        assert (verdict.drawable, verdict.compared) == (drawable, compared), (rows, seconds)


def test_bad_arguments(folder):
    with pytest.raises(ValueError, match="rows must be at least 1, got 0"):
        verify("half", HALF, rows=0, generator=generator(), folder=folder)
    with pytest.raises(ValueError, match="seconds must be .*got 0"):
        verify("half", HALF, seconds=0, generator=generator(), folder=folder)


def test_a_copied_folder_is_verified_where_it_is(folder, tmp_path_factory, capsys):
    other = tmp_path_factory.mktemp("copy")
    for name in ("half.csv", "half.json"):
        shutil.copy(folder / name, other)
    assert command.main(["--verify", "2", "--folder", str(other)]) == 0
    assert "1 of 1 tables passed" in capsys.readouterr().out
