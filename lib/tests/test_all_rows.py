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


def test_each_way_to_round_is_its_own(book, monkeypatch):
    assert len(list(verify_all(**book, seconds=2))) == 2
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    assert len(list(verify_all(**book))) == 3
    expected = pd.DataFrame({
        "table": "half", "version": 1, "processor": processor(), "rounding": ["", "MKL_CBWR=COMPATIBLE"], "threads": 1,
        "rows": 3,
        "compared": [2, 3], "different": 0,
    })  # fmt: skip
    pd.testing.assert_frame_equal(coverage(**book), expected)


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
    timed = dataclasses.replace(HALF, timed=True)
    assert coverage({"half": timed}, folder=book["folder"], record=book["record"]).empty


def test_command(book, monkeypatch, capsys):
    monkeypatch.setattr(experiments, "EXPERIMENTS", book["experiments"])
    list(verify_all(**book))
    all_rows.main([str(book["record"]), "--folder", str(book["folder"])])
    assert (book["folder"] / "verified.csv").read_text(encoding="utf-8") == (
        f"table,version,processor,rounding,threads,rows,compared,different\nhalf,1,{CSV},,1,3,3,0\n")
    with pytest.raises(SystemExit):
        all_rows.main([str(book["folder"] / "none.jsonl")])
    assert "record must be a file" in capsys.readouterr().err


def test_counts_of_other_processors_stay(book, monkeypatch):
    """Those of the same version; of a processor that the record names, the record says everything."""
    monkeypatch.setattr(experiments, "EXPERIMENTS", book["experiments"])
    list(verify_all(**book))
    stored = book["folder"] / "verified.csv"
    lines = [
        "table,version,processor,rounding,threads,rows,compared,different", "half,1,abacus,,1,3,2,1",
        "half,0,abacus,MKL_CBWR=COMPATIBLE,1,3,3,0", "gone,1,abacus,,1,3,3,0", f"half,1,{CSV},,2,3,3,3",
    ]  # fmt: skip
    stored.write_text("\n".join(lines) + "\n", encoding="utf-8")
    for _ in range(2):
        all_rows.main([str(book["record"]), "--folder", str(book["folder"])])
        held = stored.read_text(encoding="utf-8").splitlines()
        assert held[0] == lines[0] and sorted(held[1:]) == sorted([lines[1], f"half,1,{CSV},,1,3,3,0"])
