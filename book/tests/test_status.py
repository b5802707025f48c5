"""The status page: what it adds up."""

import json
from types import SimpleNamespace

import pytest
import status

from attnrank.sweep import Exact, Measured


def test_a_row_that_two_processors_compared_counts_once():
    """Where a line says which rows it counts; a count that does not say is one processor's, and stands by itself."""
    line = {"table": "heads", "rows": "9", "different": "0", "compared": "3", "same": "0-2", "differing": ""}
    overlapping = line | {"same": "2-3", "differing": "8", "different": "1"}
    assert status.by_table([line, overlapping]) == {"heads": (5, 9, 1)}
    unknown = line | {"compared": "7", "same": "", "table": "layers"}
    assert status.by_table([line, unknown, unknown | {"compared": "4"}]) == {"heads": (3, 9, 0), "layers": (7, 9, 0)}


def test_rows_and_times_of_a_table(tmp_path, monkeypatch):
    """A table written from checkpoints took the time of its runs; of a growing one there is no count but the file's."""
    monkeypatch.setattr(status, "RESULTS", tmp_path)
    (tmp_path / "heads.csv").write_text("n,seconds\n1,40.5\n2,\n3,30\n", encoding="utf-8")
    record = {"name": "heads", "wall_seconds": 12.0, "sessions": [{"wall_seconds": 8.0}, {"wall_seconds": 90.0}]}
    assert status.rows_of(record) == 3 and status.seconds(record) == 70.5
    assert status.seconds(record | {"wall_seconds": 71.0}) == 71.0
    assert status.seconds(record | {"wall_seconds": None}) == 98.0


def test_tables_are_added_up():
    said = status.added_up([(1200, 30.0, ["cpu"]), (34, 60.0, [])])
    assert said == ["2", "1,234", f"1.5{status.SPACE}min"]
    assert status.added_up([]) == ["0", "0", f"0.0{status.SPACE}s"]


def test_dates_and_durations():
    def said(*days):
        return status.dates({"sessions": [{"date": f"2026-{day}T10:00:00"} for day in days]}).replace("\u2011", "-")

    assert said("03-02") == said("03-02", "03-02") == "2026-03-02"
    assert said("03-05", "03-01") == said("03-05", "03-02", "03-01") == "2026-03-01 to 2026-03-05"
    for seconds, text in ((0.04, "0.0 s"), (9.94, "9.9 s"), (59.4, "59 s"), (60, "1.0 min"), (3599, "60 min"),
                          (3600, "1.0 h"), (36000, "10 h"), (9.96, "10 s"), (599, "10 min"), (35990, "10 h"),
                          (9.94 * 60, "9.9 min")):  # fmt: skip
        assert status.duration(seconds) == text.replace(" ", status.SPACE)


def test_published_tables_are_those_with_sessions_by_chapter_and_name(tmp_path, monkeypatch):
    monkeypatch.setattr(status, "RESULTS", tmp_path)
    for name, chapter in (("b", "growth"), ("c", "barrier"), ("a", "growth")):
        record = {"name": name, "chapter": chapter, "sessions": []}
        (tmp_path / f"{name}.json").write_text(json.dumps(record), encoding="utf-8")
    (tmp_path / "other.json").write_text(json.dumps({"name": "other", "chapter": "growth"}), encoding="utf-8")
    assert [record["name"] for record in status.records()] == ["c", "a", "b"]
    assert status.several(["cpu", "", "cuda", "cpu"]) == "cpu, cuda" and status.several(["", ""]) == ""


@pytest.mark.parametrize(("names", "costs", "said"), [
    (None, [10.0, 20.0], "yes"), (None, [10.1, 20.0], "too long"),
    (["digits", "docstrings"], [20.0, 10.0], "yes"), (["imdb", "cifar10"], [1.0, 1.0], "with data"),
    (["digits", "imdb"], [9.0, 20.0], "in part"), (["digits", "imdb"], [20.0, 1.0], "too long"),
    ("measured", [1.0, 1.0], "times"),
])  # fmt: skip
def test_which_tables_are_computed_again(monkeypatch, names, costs, said):
    """Where a row needs neither data nor more than ten seconds."""
    repeats = Measured() if names == "measured" else Exact()
    paper = [{"set": name} for name in (names or ["", ""])] if names != "measured" else 2 * [{"set": "digits"}]
    experiment = SimpleNamespace(data="set" if names else "", paper=paper, repeats=repeats)
    monkeypatch.setattr("attnrank.experiments.EXPERIMENTS", {"heads": experiment})
    monkeypatch.setattr("attnrank.experiments.upkeep.cost.seconds_again", lambda name, experiment, folder: costs)
    assert status.verified("heads") == said.replace(" ", status.SPACE)
