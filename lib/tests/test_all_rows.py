"""Every row of the published tables computed again: the record, what it covers, and that the work goes on."""

from __future__ import annotations

import dataclasses
import json

import pandas as pd
import pytest
import torch

from attnrank import experiments, sweep
from attnrank.benchmarks import processor
from attnrank.experiments.experiment import Experiment, Rounding
from attnrank.experiments.upkeep import all_rows
from attnrank.experiments.upkeep.all_rows import conditions, coverage, read_record, verify_all
from attnrank.experiments.upkeep.compared import COLUMNS, fingerprint, numbers, spans
from attnrank.sweep import __main__ as command


def half(n: int) -> dict:
    return {"half": n / 2, "seconds": 1.0, "threads": torch.get_num_threads()}


def seconds_again(setting: dict) -> float:
    return setting["n"]


HALF = Experiment("What is half of n?", half, quick=sweep.grid(n=[1]), paper=sweep.grid(n=[3, 1, 2, 90]),
                  chapter="halves", repeats=Rounding(1e-9), seconds_again=seconds_again)


#: The processor at hand, as CSV has it.
CSV = f'"{processor()}"' if "," in processor() else processor()


@pytest.fixture
def book(tmp_path, monkeypatch):
    """Experiments, results folder and record of a book with one table, one of whose rows takes more than a minute."""
    for name in all_rows.CONDITIONS:
        monkeypatch.delenv(name, raising=False)
    threads = torch.get_num_threads()
    sweep.run("half", half, HALF.paper, folder=tmp_path)
    yield {"experiments": {"half": HALF}, "folder": tmp_path, "record": tmp_path / "record.jsonl"}
    torch.set_num_threads(threads)


def test_cheapest_rows_come_first_and_none_twice(book):
    expected = [("half", 1, None), ("half", 2, None), ("half", 0, None)]
    work = verify_all(**book)
    assert next(work) == expected[0]
    work.close()  # interrupted
    book["record"].write_bytes(book["record"].read_bytes() + b'{"table": "ha')  # and torn
    assert list(verify_all(**book)) == expected[1:]
    assert list(verify_all(**book)) == []
    entries = read_record(book["record"])
    assert [entry["setting"] for entry in entries] == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert all(entry["conditions"] == conditions(1) and entry["difference"] is None for entry in entries)


WHOLE = {"table": "half", "version": 1, "setting": {"n": 1}, "conditions": {"processor": "abacus", "threads": 1},
         "seconds": 0.1, "difference": None}


@pytest.mark.parametrize(("change", "message"), [
    ({"conditions": None}, "conditions must be an object, got null"),
    ({"setting": [1]}, r"setting must be an object, got \[1\]"),
    ({"conditions": {"processor": "abacus"}}, "conditions.threads is missing"),
    ({"difference": ...}, "difference is missing"),
])  # fmt: skip
def test_a_line_that_no_run_has_written_is_named(book, change, message):
    """A torn line, no JSON or of another kind, is what a crash leaves behind."""
    bad = {name: value for name, value in (WHOLE | change).items() if value is not ...}
    lines = [json.dumps(WHOLE), '{"table": "ha', "7", json.dumps({"table": "half"}), json.dumps(bad)]
    book["record"].write_text("\n".join(lines[:4]), encoding="utf-8")
    assert read_record(book["record"]) == [WHOLE]
    book["record"].write_text("\n".join(lines), encoding="utf-8")
    named = rf"record\.jsonl line 5: {message}; mend the line, or delete it"
    for reads in (lambda: read_record(book["record"]), lambda: coverage(**book), lambda: list(verify_all(**book))):
        with pytest.raises(ValueError, match=named):
            reads()


def test_the_command_says_in_a_line_what_it_cannot_read(book, monkeypatch, capsys):
    monkeypatch.setattr(experiments, "EXPERIMENTS", book["experiments"])
    book["record"].write_text(json.dumps(WHOLE | {"conditions": None}), encoding="utf-8")
    with pytest.raises(SystemExit):
        all_rows.main([str(book["record"]), "--folder", str(book["folder"])])
    assert "record.jsonl line 1: conditions must be an object" in capsys.readouterr().err


def test_each_way_to_round_is_its_own(book, monkeypatch):
    assert len(list(verify_all(**book, seconds=2))) == 2
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    assert len(list(verify_all(**book))) == 3
    expected = pd.DataFrame({
        "table": "half", "version": 1, "processor": processor(), "rounding": ["", "MKL_CBWR=COMPATIBLE"], "threads": 1,
        "rows": 3, "compared": [2, 3], "different": 0,
        "same": ["1-2", "0-2"], "differing": "", "grid": fingerprint(HALF.paper[:3]),
    })  # fmt: skip
    pd.testing.assert_frame_equal(coverage(**book), expected)


def test_runs_of_training_are_kept_apart_by_the_way_to_round(book, monkeypatch):
    """One that was trained under another variable would be read back, and compared with itself."""
    seen = []

    def differences(name, function, *, runs, **options):
        seen.append((runs, runs.is_dir()))
        return iter(())

    monkeypatch.setattr(all_rows.sweep, "differences", differences)
    for threads, rounding in ((1, ""), (2, ""), (1, "COMPATIBLE")):
        monkeypatch.setenv("MKL_CBWR", rounding)
        assert list(verify_all(**book, threads=threads)) == []
    assert len({folder for folder, _ in seen}) == 3 and all(made for _, made in seen)
    assert {folder.parent for folder, _ in seen} == {book["record"].with_suffix(".runs").resolve()}


def test_threads_are_set_and_a_difference_is_kept_until_it_is_mended(book):
    """The table was computed with one thread, and says so: with two its last column differs."""
    found = [difference for *_, difference in verify_all(**book, threads=2)]
    assert all("threads is 1, recomputed 2" in difference for difference in found) and len(found) == 3
    assert coverage(**book)[["threads", "compared", "different"]].to_numpy().tolist() == [[2, 3, 3]]
    mended = [entry | {"difference": None} for entry in read_record(book["record"])[:2]]
    with book["record"].open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(entry) + "\n" for entry in mended)
    assert coverage(**book)["different"].tolist() == [1]


def test_rows_are_known_by_their_settings(book):
    """A grid that grows in its middle moves rows; a new version compares all of them again."""
    list(verify_all(**book))
    grown = dataclasses.replace(HALF, paper=sweep.grid(n=[3, 5, 1, 2, 90]))
    sweep.run("half", half, grown.paper, folder=book["folder"])
    assert list(verify_all({"half": grown}, folder=book["folder"], record=book["record"])) == [("half", 1, None)]
    new = dataclasses.replace(grown, version=2)
    assert coverage({"half": new}, folder=book["folder"], record=book["record"])["compared"].sum() == 0


def test_what_has_no_rows_is_left_out(book):
    list(verify_all(**book))
    timed = dataclasses.replace(HALF, repeats=sweep.Measured())
    assert coverage({"half": timed}, folder=book["folder"], record=book["record"]).empty


def test_command(book, monkeypatch, capsys):
    monkeypatch.setattr(experiments, "EXPERIMENTS", book["experiments"])
    list(verify_all(**book))
    all_rows.main([str(book["record"]), "--folder", str(book["folder"])])
    grid = fingerprint(HALF.paper[:3])
    assert (book["folder"] / "verified.csv").read_text(encoding="utf-8") == (
        f"{','.join(COLUMNS)}\nhalf,1,{CSV},,1,3,3,0,0-2,,{grid}\n")
    with pytest.raises(SystemExit):
        all_rows.main([str(book["folder"] / "none.jsonl")])
    assert "record must be a file" in capsys.readouterr().err


def test_command_of_every_row(book, monkeypatch, capsys):
    """It says what passed, what differs and fails then, and when nothing is left."""
    monkeypatch.setattr(command, "EXPERIMENTS", book["experiments"])
    arguments = ["--verify", "all", "--folder", str(book["folder"]), "--record", str(book["record"])]
    assert command.main([*arguments, "--seconds", "2"]) == 0
    assert f"2 of 2 rows passed, noted in {book['record']}" in capsys.readouterr().out
    assert command.main([*arguments, "--threads", "2"]) == 1
    said = capsys.readouterr().out
    assert said.count("DIFFERS") == 3 and "threads is 1, recomputed 2" in said and "0 of 3 rows passed" in said
    assert command.main([*arguments, "--seconds", "2"]) == 0
    assert "has been compared before" in capsys.readouterr().out


def test_spans():
    """A hole, a single number, none: and back."""
    for rows, text in (([0, 1, 2, 5, 7, 8], "0-2 5 7-8"), ([4], "4"), ([], "")):
        assert spans(rows) == text and numbers(text) == rows


def publish(book, monkeypatch) -> list[str]:
    """Add the record to verified.csv, and return its lines."""
    monkeypatch.setattr(experiments, "EXPERIMENTS", book["experiments"])
    all_rows.main([str(book["record"]), "--folder", str(book["folder"])])
    return (book["folder"] / "verified.csv").read_text(encoding="utf-8").splitlines()


def test_another_machine_goes_on_without_the_record(book, monkeypatch):
    """The file says which rows were compared: what is left is compared, and the two add up to all."""
    assert len(list(verify_all(**book, seconds=2))) == 2
    first = publish(book, monkeypatch)
    book["record"].write_text("", encoding="utf-8")
    assert publish(book, monkeypatch) == first
    assert list(verify_all(**book)) == [("half", 0, None)]
    assert publish(book, monkeypatch)[1:] == [f"half,1,{CSV},,1,3,3,0,0-2,,{fingerprint(HALF.paper[:3])}"]


@pytest.mark.parametrize(("grid", "rows"), [([3, 1, 2, 5, 90], [3]), ([3, 5, 1, 2, 90], [1, 2, 3, 0])])
def test_numbers_of_rows_hold_for_the_grid_that_they_were_taken_from(book, monkeypatch, grid, rows):
    """A grid that grows at its end keeps them; in one that grows in its middle they would name other rows."""
    list(verify_all(**book))
    publish(book, monkeypatch)
    book["record"].write_text("", encoding="utf-8")
    grown = dataclasses.replace(HALF, paper=sweep.grid(n=grid))
    sweep.run("half", half, grown.paper, folder=book["folder"])
    found = verify_all({"half": grown}, folder=book["folder"], record=book["record"])
    assert sorted(row for _, row, _ in found) == sorted(row for row in rows)


def test_a_processor_made_to_round_like_others_spares_others_the_work(book, monkeypatch):
    """What one compared under a variable no other compares again; its own rounding each compares for itself."""
    for rounding, left in (("MKL_CBWR=COMPATIBLE", 0), ("", 3)):
        line = f"half,1,abacus,{rounding},1,3,3,0,0-2,,{fingerprint(HALF.paper[:3])}"
        (book["folder"] / "verified.csv").write_text(f"{','.join(COLUMNS)}\n{line}\n", encoding="utf-8")
        if rounding:
            monkeypatch.setenv(*rounding.split("="))
        else:
            monkeypatch.delenv("MKL_CBWR")
        assert len(list(verify_all(**book))) == left


def test_a_row_that_differed_is_compared_again(book, monkeypatch):
    """The file keeps it until then: by the record of another machine, which has it not."""
    line = f"half,1,{CSV},,1,3,3,1,0 2,1,{fingerprint(HALF.paper[:3])}"
    (book["folder"] / "verified.csv").write_text(f"{','.join(COLUMNS)}\n{line}\n", encoding="utf-8")
    book["record"].write_text("", encoding="utf-8")
    assert publish(book, monkeypatch)[1:] == [line]
    assert list(verify_all(**book)) == [("half", 1, None)]
    assert publish(book, monkeypatch)[1:] == [f"half,1,{CSV},,1,3,3,0,0-2,,{fingerprint(HALF.paper[:3])}"]


def test_counts_of_the_same_version_stay(book, monkeypatch):
    """Those of other processors, and those that do not say which rows they counted, as long as they are the larger."""
    list(verify_all(**book, seconds=2))
    old = f"half,1,{CSV},,1,3,3,0,,,"
    lines = [
        ",".join(COLUMNS), "half,1,abacus,,1,3,2,1,,,", "half,0,abacus,MKL_CBWR=COMPATIBLE,1,3,3,0,,,",
        "gone,1,abacus,,1,3,3,0,,,", old,
    ]  # fmt: skip
    (book["folder"] / "verified.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for _ in range(2):
        assert sorted(publish(book, monkeypatch)) == sorted([lines[0], lines[1], old])
    list(verify_all(**book))
    known = f"half,1,{CSV},,1,3,3,0,0-2,,{fingerprint(HALF.paper[:3])}"
    assert sorted(publish(book, monkeypatch)) == sorted([lines[0], lines[1], known])
