"""The command line of the published tables: compute, list, verify."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from attnrank import experiments, sweep
from attnrank.experiments import EXPERIMENTS
from attnrank.experiments.experiment import Experiment, Rounding
from attnrank.experiments.upkeep.verification import verify
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
    started = [sys.executable, "-m", "attnrank.sweep", "random_heads", "--folder", str(tmp_path), "--workers", "2"]
    done = subprocess.run(started, capture_output=True, text=True, encoding="utf-8")
    assert (done.returncode, done.stdout, done.stderr) == (0, "random_heads (quick): 16 rows, complete\n", "")
    assert len(sweep.read("random_heads-quick", folder=tmp_path)) == 16


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
    with pytest.raises(SystemExit) as stopped:
        command.main(arguments)
    assert stopped.value.code == 2 and "usage: python -m attnrank.sweep" in capsys.readouterr().err


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
    assert command.main(["--list", "--folder", str(folder)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert (
        len(shown) == len(experiments.EXPERIMENTS)
        and "random_heads              not computed  chapter barrier" in shown
    )
    [line] = [line for line in shown if line.startswith("half ")]
    assert re.fullmatch(
        r"half +8 rows  complete  seeds -  \d{4}-\d\d-\d\d  \S.*  0 s  python [\d.]+  numpy [\d.]+  "
        r"torch \S+  version 1  rounding \(rtol 1e-09\)  a table of your own  test_sweep_command\.half",
        line,
    )
    use(monkeypatch, version=2, timed=True)
    assert command.main(["half", "--list", "--folder", str(folder)]) == 0
    assert (
        "  version 1 (the code is version 2)  measured times, else rounding (rtol 1e-09)  a table"
        in capsys.readouterr().out
    )


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
    use(monkeypatch, timed=True, function=lambda n: 1 / 0)
    assert command.main(["--verify", "1", "--folder", str(folder)]) == 0
    assert "half                      not compared: its numbers are measured times\n" in capsys.readouterr().out
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
