"""Sweeps: grids, functions and folders, good and bad."""
# ruff: noqa: F811

from __future__ import annotations

import functools
import math
import re
import shutil

import pytest
import torch

from attnrank import sweep
from attnrank.sweep import _provenance
from sweep_job import bytes_of, record_of, simple  # noqa: F401 (fixtures)

publish = functools.partial(sweep.publish, chapter="halves", repeats=sweep.Rounding(1e-9), version=1)

# Another grid ---------------------------------------------------------------------------------------------------------

def test_a_grid_is_extended(tmp_path):
    done = []

    def function(n):
        done.append(n)
        return simple(n)
    sweep.run("T", function, sweep.grid(n=[1, 5]), folder=tmp_path)
    table = sweep.run("T", function, sweep.grid(n=[1, 3]) + sweep.grid(n=[5, 7]), folder=tmp_path)
    assert done == [1, 5, 3, 7] and table["n"].tolist() == [1, 3, 5, 7]
    record = record_of(tmp_path)
    assert [session["rows"] for session in record["sessions"]] == [2, 2]
    assert record["wall_seconds"] == pytest.approx(sum(session["wall_seconds"] for session in record["sessions"]))
    (tmp_path / "direct").mkdir()
    sweep.run("T", simple, sweep.grid(n=[1, 3, 5, 7]), folder=tmp_path / "direct")
    assert bytes_of(tmp_path) == bytes_of(tmp_path / "direct")
    assert sweep.run("T", function, sweep.grid(n=[7, 5, 3, 1]), folder=tmp_path)["n"].tolist() == [7, 5, 3, 1]
    assert (
        sweep.run("T", function, sweep.grid(n=[7, 5, 3, 1]), folder=tmp_path, repeats=sweep.Rounding(1e-6)) is not None
    )
    assert record_of(tmp_path)["repeats"]["rtol"] == 1e-6 and len(done) == 4
    assert sweep.read("T", folder=tmp_path)["half"].tolist() == [3.5, 2.5, 1.5, 0.5]


def test_another_grid_is_refused(tmp_path):
    sweep.run("T", simple, sweep.grid(n=[1, 2, 3]), folder=tmp_path)
    before = bytes_of(tmp_path), (tmp_path / "T.json").read_bytes()
    with pytest.raises(ValueError, match=r"T\.json: another grid: 2 stored rows are not in this grid, the first "
                                         r"\{'n': 1\}; 2 settings are new, the first \{'n': 4\}; keep .* another name"):
        sweep.run("T", simple, sweep.grid(n=[3, 4, 5]), folder=tmp_path)
    with pytest.raises(ValueError, match=r"T\.json: .*1 stored rows .* \{'n': 3\}; no setting is new"):
        sweep.run("T", simple, sweep.grid(n=[1, 2]), folder=tmp_path)
    with pytest.raises(ValueError, match=r"T\.json: the stored setting columns are \{'n': 'int'\}, this grid's are"):
        sweep.run("T", simple, sweep.grid(n=[1.0, 2.0, 3.0]), folder=tmp_path)
    with pytest.raises(ValueError, match=r"T\.json: the stored setting columns are"):
        sweep.run("T", simple, sweep.grid(n=[1, 2, 3], seed=[0]), folder=tmp_path)
    with pytest.raises(RuntimeError, match=r"\{'n': 4\}: function must return the same columns .*'half': 'float'"):
        sweep.run("T", lambda n: {"third": n / 3}, sweep.grid(n=[1, 2, 3, 4]), folder=tmp_path)
    sweep.run("T", simple, sweep.grid(n=[1, 2, 3]) + sweep.grid(n=[4]), folder=tmp_path)
    assert bytes_of(tmp_path) == before[0] + b"4,2.0\n"


def test_another_function_is_refused_until_the_table_says_that_it_was_renamed(tmp_path):
    def halves(n):
        return simple(n)

    sweep.run("T", simple, sweep.grid(n=[1, 2]), folder=tmp_path)
    before = bytes_of(tmp_path), (tmp_path / "T.json").read_bytes()
    for rows in ([1, 2], [1, 2, 3]):  # of a whole table too: its rows would be taken for those of the other function
        with pytest.raises(ValueError, match=r"T\.json: its rows are of the function simple, not of halves; use"):
            sweep.run("T", halves, sweep.grid(n=rows), folder=tmp_path)
    assert (bytes_of(tmp_path), (tmp_path / "T.json").read_bytes()) == before
    text = before[1].decode().replace('"function": "simple"', '"function": "halves"')
    (tmp_path / "T.json").write_text(text, encoding="utf-8", newline="\n")
    assert len(sweep.run("T", halves, sweep.grid(n=[1, 2, 3]), folder=tmp_path)) == 3


def test_a_grid_without_rows_is_replaced(tmp_path):
    def fails(**_):
        raise OSError
    with pytest.raises(RuntimeError):
        sweep.run("T", fails, sweep.grid(n=[1, 2]), folder=tmp_path)
    assert len(sweep.run("T", lambda m: {"x": 1}, sweep.grid(m=[5]), folder=tmp_path)) == 1


# What a function may return, and other arguments ----------------------------------------------------------------------

@pytest.mark.parametrize("result, message", [
    (math.nan, "x must be finite, got nan .*a missing result is None"), (math.inf, "x must be finite, got inf"),
    (1j, "x must be a bool, int, float or str"), ([1], r"x must be .*got \[1\]"), (2**63, "x must fit in 64 bits"),
    (torch.ones(2), "x must be a bool"), ("a\nb", "x must be printable text"),
    ("a" * 1001, "x must be printable text of at most 1000 characters"),
])
def test_bad_result(result, message, tmp_path):
    with pytest.raises(RuntimeError, match=r"sweep T failed for \{'n': 1\}: " + message):
        sweep.run("T", lambda n: {"x": result}, sweep.grid(n=[1]), folder=tmp_path)


@pytest.mark.parametrize("function, message", [
    (lambda n: 3, "the function's result must be a non-empty dict, got 3"), (lambda n: {}, "non-empty dict"),
    (lambda n: {"rank/n": 1}, "identifiers as keys, got 'rank/n'"), (lambda n: {"n": 1}, "not repeat the setting"),
    (lambda n: {"x": 1} if n < 3 else {"x": 1.0}, r"for \{'n': 3\}: function must return the same columns"),
    (lambda n: {"x": 1} if n < 3 else {"y": 1}, r"for \{'n': 3\}: function must return the same columns"),
    (lambda n: {"x": 1} if n < 3 else {"x": 1, "y": 1}, r"for \{'n': 3\}: function must return the same columns"),
    (lambda n: {"x": 1} if n < 3 else {"x": None}, r"for \{'n': 3\}: function must return the same columns"),
])
def test_bad_result_columns(function, message, tmp_path):
    with pytest.raises(RuntimeError, match=message):
        sweep.run("T", function, sweep.grid(n=[1, 2, 3, 4]), folder=tmp_path)


def test_order_of_result_columns_is_free(tmp_path):
    def function(n):
        return {"x": 1, "y": n} if n == 1 else {"y": n, "x": 1}
    table = sweep.run("T", function, sweep.grid(n=[1, 2]), folder=tmp_path)
    assert table.to_dict("list") == {"n": [1, 2], "x": [1, 1], "y": [1, 2]}


@pytest.mark.parametrize("axes, message", [
    ({}, "axes must not be empty"), ({"n": []}, "n must not be empty"), ({"n": 3}, "n must be a list of values, got 3"),
    ({"kind": "abc"}, "kind must be a list of values, got 'abc'"), ({"n": [math.nan]}, "n must be finite, got nan"),
    ({"n": [math.inf]}, "n must be finite"), ({"n": [None]}, "n must be a bool, int"),
    ({"n": [(1,)]}, "n must be a bool"),
    ({"n": [2**64]}, "n must fit in 64 bits, got"), ({"kind": ["a\r"]}, "kind must be printable text"),
])
def test_bad_axes(axes, message):
    with pytest.raises(ValueError, match=message):
        sweep.grid(**axes)


@pytest.mark.parametrize("settings, message", [
    ([], "settings must not be empty"), ([{}], "settings must be a non-empty dict"),
    ({"n": 1}, "settings must be a list of dicts"), (None, "settings must be a list of dicts, got None"),
    ([3], "settings must be a non-empty dict, got 3"), ([{"n": 1}, {"m": 1}], r"same keys: \['n'\] and \['m'\]"),
    ([{"n": 1}, {"n": 1.0}], "n must be of one type in all settings: int, got 1.0"),
    ([{"n": True}, {"n": 1}], "n must be of one type in all settings: bool, got 1"),
    ([{"n": 1}, {"n": 2}, {"n": 1}], r"settings must differ: 1 repeated, the first \{'n': 1\}"),
    ([{"n d": 1}], "identifiers as keys, got 'n d'"), ([{"n": math.nan}], "n must be finite"),
])
def test_bad_settings(settings, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        sweep.run("T", simple, settings, folder=tmp_path)
    assert not list(tmp_path.glob("T*"))


@pytest.mark.parametrize("change, message", [
    ({"name": "a/b"}, "name must consist of .* got 'a/b'"), ({"name": ""}, "name must .*got ''"),
    ({"name": 3}, "name must .*got 3"), ({"name": "a.b"}, "name must consist of .* got 'a.b'"),
    ({"function": 3}, "function must be callable, got 3"), ({"workers": 0}, "workers must be at least 1, got 0"),
    ({"workers": 1.5}, "workers must be an integer"), ({"repeats": 1e-9}, "repeats must be Exact"),
    ({"version": 0}, "version must be at least 1"), ({"threads": "two"}, "threads must be one of all, one"),
    ({"checkpoint": 1}, "checkpoint must be True or False"),
    ({"threads": "all", "workers": 2}, "workers must be 1, without a cluster"),
    ({"folder": __file__}, r"folder must be an existing folder, got .*arguments\.py'; make it, or name the one that"),
    ({"folder": f"{__file__}/deeper"}, "folder must be an existing folder, got .*deeper'; make it, or"),
])
def test_bad_arguments(change, message, tmp_path):
    arguments = {"name": "T", "function": simple, "settings": sweep.grid(n=[1]), "folder": tmp_path} | change
    with pytest.raises(ValueError, match=message):
        sweep.run(**arguments)


def test_rows_of_another_version_are_refused(tmp_path):
    grid = sweep.grid(n=[1, 2])
    sweep.run("T", simple, grid, folder=tmp_path, version=2)
    before = bytes_of(tmp_path)
    with pytest.raises(ValueError, match="rows are of version 2 of simple, the code is version 3; delete both files"):
        sweep.run("T", simple, grid, folder=tmp_path, version=3)
    assert bytes_of(tmp_path) == before and record_of(tmp_path)["version"] == 2
    publish("T", simple, grid, folder=tmp_path, version=2)  # a move changes no numbers
    assert bytes_of(tmp_path) == before and record_of(tmp_path)["chapter"] == "halves"


def test_a_published_table_is_extended_only_through_its_grid(tmp_path):
    publish("T", simple, sweep.grid(n=[1, 2]), folder=tmp_path)
    before = bytes_of(tmp_path)
    with pytest.raises(
        ValueError,
        match=r"published table of the chapter halves; to add rows, add them to its grid, "
        r"EXPERIMENTS\['T'\]\.paper in attnrank\.experiments\.halves, and run python -m "
        r"attnrank\.sweep T --profile paper; a table of your own needs another name",
    ):
        sweep.run("T", simple, sweep.grid(n=[1, 2, 3]), folder=tmp_path)
    assert bytes_of(tmp_path) == before
    table = publish("T", simple, sweep.grid(n=[1, 2, 3]), folder=tmp_path)  # what the command does
    assert len(table) == 3


def test_a_table_of_ones_own_names_its_folder(tmp_path, monkeypatch):
    """Else it would lie among the published tables wherever the book's repository is near."""
    monkeypatch.delenv("ATTNRANK_RESULTS", raising=False), monkeypatch.chdir(tmp_path)
    (tmp_path / "book" / "results").mkdir(parents=True)
    with pytest.raises(ValueError, match="folder must be given for a table of your own, as folder= or ATTNRANK_RES"):
        sweep.run("T", simple, sweep.grid(n=[1]))
    assert not list((tmp_path / "book" / "results").iterdir())
    (tmp_path / "mine").mkdir(), monkeypatch.setenv("ATTNRANK_RESULTS", str(tmp_path / "mine"))
    sweep.run("T", simple, sweep.grid(n=[1]))
    assert (tmp_path / "mine" / "T.csv").exists()


@pytest.mark.parametrize("name, grid", [("T", "EXPERIMENTS['T'].paper"), ("T-quick", "EXPERIMENTS['T'].quick")])
def test_rows_that_a_published_grid_has_lost_are_not_advised_away(tmp_path, name, grid):
    """They may have taken days: the grid gets them back, or the files come from version control."""
    publish(name, simple, sweep.grid(n=[1, 2]), folder=tmp_path)
    for settings in (sweep.grid(n=[1, 3]), sweep.grid(n=[1.0, 2.0])):
        with pytest.raises(ValueError, match=r"; .*") as refused:
            publish(name, simple, settings, folder=tmp_path)
        assert str(refused.value).endswith(
            f"; put these settings back in {grid} in attnrank.experiments.halves, or restore both files from version "
            "control")
        assert "delete" not in str(refused.value)


def test_a_published_table_is_declared_anew_by_functions_of_its_own_package_only(tmp_path, monkeypatch):
    """The command does so where a declaration has changed; a table of one's own has no business under its name."""
    grid = sweep.grid(n=[1, 2])
    publish("T", simple, grid, folder=tmp_path)
    publish("T", simple, grid, folder=tmp_path, repeats=sweep.Exact())
    before = bytes_of(tmp_path), record_of(tmp_path)
    assert before[1]["repeats"] == {"kind": "exact"}

    def own(n):
        return {"half": n / 2}
    monkeypatch.setattr(own, "__module__", "__main__")
    with pytest.raises(ValueError, match="published table of the chapter halves; .* of your own needs another name"):
        publish("T", own, grid, folder=tmp_path, repeats=sweep.Rounding(0.5))
    assert (bytes_of(tmp_path), record_of(tmp_path)) == before


# Folder and fingerprint -----------------------------------------------------------------------------------------------

def test_a_folder_is_made_for_rows_and_not_for_reading(tmp_path, monkeypatch):
    folder = tmp_path / "a" / "b"
    for read in (sweep.read, sweep.provenance, lambda name, folder: sweep.results_folder(folder),
                 lambda name, folder: next(sweep.differences(name, simple, rows=[0], folder=folder))):
        with pytest.raises(ValueError, match="folder must be an existing folder, got .*; make it, or name the one"):
            read("T", folder=folder)
    assert not list(tmp_path.iterdir())
    table = sweep.run("T", simple, sweep.grid(n=[1, 2]), folder=folder)
    assert sweep.read("T", folder=folder).equals(table) and len(table) == 2
    monkeypatch.setenv("ATTNRANK_RESULTS", str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="ATTNRANK_RESULTS must be an existing folder, got .*; make it, or"):
        sweep.run("T", simple, sweep.grid(n=[1]))



def test_results_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("ATTNRANK_RESULTS", raising=False)
    deep = tmp_path / "notebooks" / "deep"
    deep.mkdir(parents=True)
    monkeypatch.chdir(deep)
    if not any((parent / "book" / "results").is_dir() for parent in tmp_path.parents):
        with pytest.raises(ValueError, match="no book/results in .* repository, .* --folder. or ATTNRANK_RESULTS"):
            sweep.results_folder()
    (tmp_path / "book" / "results").mkdir(parents=True)
    assert sweep.results_folder().samefile(tmp_path / "book" / "results")
    monkeypatch.setenv("ATTNRANK_RESULTS", "")  # as if it were not set
    assert sweep.results_folder().samefile(tmp_path / "book" / "results")
    monkeypatch.setenv("ATTNRANK_RESULTS", str(deep))
    assert sweep.results_folder() == deep
    assert sweep.results_folder(str(tmp_path)) == tmp_path
    monkeypatch.setenv("ATTNRANK_RESULTS", str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="ATTNRANK_RESULTS must be an existing folder, got .*nowhere"):
        sweep.results_folder()


def test_code_fingerprint(tmp_path, monkeypatch):
    package = tmp_path / "attnrank"
    shutil.copytree(_provenance.PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(_provenance, "PACKAGE", package)
    original = _provenance.code_fingerprint()
    assert re.fullmatch("[0-9a-f]{64}", original)
    (package / "notes.txt").write_text("not a source")
    source = (package / "scores.py").read_bytes()
    (package / "scores.py").write_bytes(source.replace(b"\n", b"\r\n"))
    assert _provenance.code_fingerprint() == original
    (package / "scores.py").write_bytes(source + b"# a change\n")
    assert _provenance.code_fingerprint() != original
    (package / "scores.py").write_bytes(source)
    (package / "scores.py").rename(package / "score.py")
    assert _provenance.code_fingerprint() != original
