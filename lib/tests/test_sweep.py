"""Sweeps: whatever happens while a table is made, the published bytes are those of an uninterrupted run."""
# ruff: noqa: F811

from __future__ import annotations

import functools
import io
import math
import os
import random
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from joblib.externals.loky import get_reusable_executor

from attnrank import sweep
from attnrank.sweep import _provenance, _session, _values
from sweep_job import bytes_of, calls, job, published, record_of, script, simple, start  # noqa: F401 (fixtures)

# An uninterrupted run -------------------------------------------------------------------------------------------------

def test_table_and_provenance(job, published):
    table = sweep.read("T", folder=published)
    assert table.dtypes.astype(str).to_dict() == {
        "n": "int64", "kind": str(pd.Series([""], dtype="str").dtype), "seed": "int64", "rank": "int64",
        "mean": "float64", "even": "bool", "note": str(pd.Series([""], dtype="str").dtype), "missing": "float64"}
    assert table[["n", "kind", "seed"]].to_dict("records") == job.GRID
    for _, row in table.iterrows():
        expected = job.function(row["n"], row["kind"], row["seed"])
        assert math.isnan(row["missing"]) if expected.pop("missing") is None else row["missing"] == 1 / row["n"]
        assert row[list(expected)].to_dict() == expected

    record = record_of(published)
    assert record["status"] == "complete" and record["rows"] == 60
    assert record["grid"] == {"n": [3, 8, 5], "kind": ["gauss", "unit"], "seed": list(range(10))}
    assert record["seeds"] == list(range(10)) and record["repeats"] == {"kind": "rounding", "rtol": 1e-9, "atol": 0.0}
    [session] = record["sessions"]
    assert session["rows"] == 60 and 0.6 < session["wall_seconds"] == record["wall_seconds"]
    assert session["torch"] == torch.__version__ and session["numpy"] == np.__version__
    assert (record["module"], record["function"], record["chapter"], record["version"]) == ("job", "function", "", 1)
    assert session["device"] and session["platform"] and session["python"] and session["attnrank"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", session["date"])
    assert str(published) not in (published / "T.json").read_text()
    assert sorted(path.name for path in published.iterdir()) == ["T.csv", "T.json", "T.lock", "calls"]


def test_complete_table_is_returned_unchanged(job, published, calls, monkeypatch):
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in published.glob("T.*")}
    monkeypatch.setattr(_provenance, "code_fingerprint", lambda: "0" * 64)
    table = sweep.run("T", job.function, job.GRID, folder=published)
    pd.testing.assert_frame_equal(table, sweep.read("T", folder=published))
    assert not calls()
    assert before == {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in published.glob("T.*")}


def test_read_only_published_table(job, published, tmp_path, monkeypatch, calls):
    folder = tmp_path / "results"
    folder.mkdir()
    for name in ("T.csv", "T.json"):
        shutil.copy(published / name, folder)
        (folder / name).chmod(stat.S_IREAD)
    folder.chmod(stat.S_IREAD | stat.S_IEXEC)

    def refused(*_, **__):
        raise PermissionError("read-only")
    monkeypatch.setattr(_session.FileLock, "acquire", refused)  # permissions do not bind an administrator
    try:
        assert len(sweep.read("T", folder=folder)) == len(sweep.run("T", job.function, job.GRID, folder=folder)) == 60
        generator = torch.Generator().manual_seed(0)
        assert len(sweep.recompute("T", job.function, generator=generator, rows=2, folder=folder)) == 2
        assert len(calls()) == 2 and sorted(p.name for p in folder.iterdir()) == ["T.csv", "T.json"]
        with pytest.raises(PermissionError):  # an unfinished sweep does need the lock
            sweep.run("U", job.function, job.GRID, folder=folder)
    finally:
        folder.chmod(stat.S_IRWXU)
        for path in folder.iterdir():
            path.chmod(stat.S_IREAD | stat.S_IWRITE)


def test_windows_line_ends_of_a_checkout(published, tmp_path):
    for name in ("T.csv", "T.json"):
        (tmp_path / name).write_bytes((published / name).read_bytes().replace(b"\n", b"\r\n"))
    pd.testing.assert_frame_equal(sweep.read("T", folder=tmp_path), sweep.read("T", folder=published))


names = st.from_regex(r"[a-z][a-z0-9]{0,6}", fullmatch=True)
text = st.text(st.characters().filter(str.isprintable), max_size=12) | st.sampled_from(
    ["", "nan", "NA", "True", "1", "1.0", '"', '""', ",", " a ", "'", "#", "-", "=1+1"])
whole = st.integers(-2**63, 2**63 - 1)
real = st.floats(allow_nan=False, allow_infinity=False)
column = st.sampled_from([whole, real, text, st.booleans()])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_value_is_read_back_exactly(data):
    axis = column.flatmap(lambda kind: st.lists(kind, min_size=1, max_size=3, unique=True))
    axes = data.draw(st.dictionaries(names.map(lambda name: name + "_"), axis, min_size=1, max_size=3))
    kinds = data.draw(st.dictionaries(names, column | st.just(None), min_size=1, max_size=3))
    grid = data.draw(st.permutations(sweep.grid(**axes)))
    kinds = {name: real | st.none() if kind is None else kind for name, kind in kinds.items()}
    results = [{name: data.draw(kind) for name, kind in kinds.items()} for _ in grid]
    rows = [setting | result for setting, result in zip(grid, results)]
    stored = [{name: math.nan if value is None else value for name, value in row.items()} for row in rows]
    with tempfile.TemporaryDirectory() as folder:
        table = sweep.run("T", lambda **setting: results[grid.index(setting)], grid, folder=folder)
        assert repr([dict(zip(table, row)) for row in zip(*(table[name].tolist() for name in table))]) == repr(stored)
        pd.testing.assert_frame_equal(sweep.read("T", folder=folder), table)
        assert b"\r" not in bytes_of(Path(folder))


@settings(max_examples=30, deadline=None)
@given(st.text(st.characters(categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1, max_size=3), text)
def test_text_that_a_line_cannot_hold_is_refused(bad, good):
    with pytest.raises(ValueError, match="kind must be printable text"):
        sweep.grid(kind=[good + bad])


def test_one_thread(tmp_path):
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        table = sweep.run("T", lambda n: {"threads": torch.get_num_threads()}, sweep.grid(n=[1]), folder=tmp_path)
        assert table["threads"].tolist() == [1] and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


def test_numpy_and_torch_scalars(tmp_path):
    def function(n, x):
        assert type(n) is int and type(x) is float
        return {"a": np.float32(0.1), "b": torch.tensor(n), "c": np.bool_(True), "d": np.str_("s")}
    table = sweep.run("T", function, sweep.grid(n=np.arange(2), x=torch.linspace(0, 1, 2)), folder=tmp_path)
    assert table.to_dict("records")[3] == {"n": 1, "x": 1.0, "a": float(np.float32(0.1)), "b": 1, "c": True, "d": "s"}


# Interruptions --------------------------------------------------------------------------------------------------------

def test_killed_at_random_moments(job, script, published, tmp_path, calls, monkeypatch):
    """Five kills, each some rows after the last; then one run finishes. No stored row is computed again."""
    chance = random.Random()
    stored = []
    monkeypatch.setenv("HOLD", "yes")
    for _ in range(5):
        process = start(script, tmp_path, "T", stderr=subprocess.DEVNULL)
        process.stdout.readline()
        already = len(calls())
        while len(calls()) == already and process.poll() is None:
            time.sleep(0.001)
        time.sleep(chance.uniform(0, 0.15))
        assert process.poll() is None, "the sweep ended before it was killed"
        process.kill()
        process.communicate()
        lines = bytes_of(tmp_path).split(b"\n") if (tmp_path / "T.csv").exists() else [b""]
        assert lines[:len(stored)] == stored  # nothing that was stored is lost or altered
        stored = lines[:-1]
        with pytest.raises(ValueError, match=r"T\.csv.*run the sweep T again|no such table"):
            sweep.read("T", folder=tmp_path)
    assert len(stored) > 1
    monkeypatch.delenv("HOLD")
    table = sweep.run("T", job.function, job.GRID, folder=tmp_path)
    assert bytes_of(tmp_path) == bytes_of(published)
    pd.testing.assert_frame_equal(table, sweep.read("T", folder=tmp_path))
    assert len(calls()) <= 60 + 5  # a kill costs at most the row in progress
    assert sum(session["rows"] for session in record_of(tmp_path)["sessions"]) <= 60
    assert sorted(path.name for path in tmp_path.glob("T.*")) == ["T.csv", "T.json", "T.lock"]


def test_torn_at_every_byte(tmp_path):
    """Whatever part of a row reached the disk, read refuses the file and run repairs it."""
    grid = sweep.grid(n=[1, 2, 3])
    (tmp_path / "whole").mkdir()
    sweep.run("T", simple, grid, folder=tmp_path / "whole")

    @functools.wraps(simple)
    def fails_at_3(n):
        if n == 3:
            raise OverflowError
        return simple(n)
    with pytest.raises(RuntimeError, match=r"sweep T failed for \{'n': 3\}"):
        sweep.run("T", fails_at_3, grid, folder=tmp_path)
    running = bytes_of(tmp_path), (tmp_path / "T.json").read_bytes()
    assert running[0] == b"n,half\n1,0.5\n2,1.0\n"
    longer = b"n,half\n1,0.5\n2,1.0000000000000000000000000000001"  # than the rows that will follow it
    for content in [longer] + [running[0][:length] for length in range(len(running[0]))]:
        (tmp_path / "T.csv").write_bytes(content)
        (tmp_path / "T.json").write_bytes(running[1])
        whole = content[: content.rindex(b"\n") + 1] if b"\n" in content else b""
        rows = max(0, whole.count(b"\n") - 1)
        lines = whole.count(b"\n")
        torn = f"unfinished, {rows} of 3 rows" if content == whole else f"line {lines + 1}: the line is torn"
        with pytest.raises(ValueError, match=rf"T\.csv.*{torn}.*run the sweep T again"):
            sweep.read("T", folder=tmp_path)
        computed = []

        @functools.wraps(simple)
        def looks(n):  # what was stored whole is kept, and nothing of the torn line is left behind the new ones
            if rows and computed:
                assert bytes_of(tmp_path) == whole + b"".join(b"%d,%s\n" % (k, str(k / 2).encode()) for k in computed)
            computed.append(n)
            return simple(n)
        sweep.run("T", looks, grid, folder=tmp_path)
        assert computed == [1, 2, 3][rows:] and bytes_of(tmp_path) == bytes_of(tmp_path / "whole")
    (tmp_path / "T.csv").write_bytes(running[0][:-1])  # the same file under a provenance that says complete
    for use in (lambda: sweep.read("T", folder=tmp_path), lambda: sweep.run("T", simple, grid, folder=tmp_path)):
        with pytest.raises(ValueError, match=r"T\.csv line 3: the line is torn.*restore both files"):
            use()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ZeroDivisionError])
def test_an_exception_keeps_the_finished_rows(error, tmp_path):
    grid = sweep.grid(n=range(6))
    done = []

    def function(n):
        if n == 4 and n not in done:
            done.append(n)
            raise error("stop")
        done.append(n)
        return simple(n)
    expected = RuntimeError if issubclass(error, Exception) else error
    with pytest.raises(expected) as caught:
        sweep.run("T", function, grid, folder=tmp_path)
    assert re.search(r"sweep T: 4 of 6 rows are stored in .*T\.csv; run it again", "".join(caught.value.__notes__))
    if expected is RuntimeError:
        assert "{'n': 4}" in str(caught.value) and isinstance(caught.value.__cause__, error)
    assert len(sweep.run("T", function, grid, folder=tmp_path)) == 6  # in the same process: its claims were freed
    assert done == [0, 1, 2, 3, 4, 4, 5]
    assert [session["rows"] for session in record_of(tmp_path)["sessions"]] == [4, 2]


def test_interrupted_between_the_two_files_of_publication(tmp_path, monkeypatch):
    grid = sweep.grid(n=[2, 1])
    write = _session.write

    def cut(path, text):
        if '"complete"' in text:
            raise KeyboardInterrupt
        write(path, text)
    monkeypatch.setattr(_session, "write", cut)
    with pytest.raises(KeyboardInterrupt):
        sweep.run("T", simple, grid, folder=tmp_path)
    monkeypatch.undo()
    with pytest.raises(ValueError, match="unfinished, 2 of 2 rows"):
        sweep.read("T", folder=tmp_path)
    sweep.run("T", simple, grid, folder=tmp_path)
    assert bytes_of(tmp_path) == b"n,half\n2,1.0\n1,0.5\n" and record_of(tmp_path)["status"] == "complete"


# Several processes ----------------------------------------------------------------------------------------------------

def test_concurrent_processes(script, published, tmp_path, calls, monkeypatch):
    """Three processes share a table, then two and a third that is killed: each row is computed once and stored once."""
    monkeypatch.setenv("COMPANY", "3")
    processes = [start(script, tmp_path, "T", "S") for _ in range(3)]
    for process in processes:
        process.stdout.readline()
    (tmp_path / "go T").touch()
    for process in processes:
        process.stdout.readline()
    assert bytes_of(tmp_path) == bytes_of(published)
    assert len(calls()) == len(set(calls())) == 60
    record = record_of(tmp_path)
    assert sum(session["rows"] for session in record["sessions"]) == 60 and len(record["sessions"]) == 3
    assert record["status"] == "complete"

    (tmp_path / "calls").unlink()
    (tmp_path / "go S").touch()
    while len(calls()) < 10:
        time.sleep(0.005)
    processes[0].kill()
    errors = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes[1:]] == [0, 0]
    assert errors[1:] == [b"", b""]  # no progress bar off a terminal
    assert bytes_of(tmp_path, "S") == bytes_of(published)
    assert 60 <= len(calls()) <= 61 and len(set(calls())) == 60
    assert sorted(path.name for path in tmp_path.glob("S.*")) == ["S.csv", "S.json", "S.lock"]


def test_two_workers_equal_one(job, script, published, tmp_path, calls, monkeypatch):
    get_reusable_executor().shutdown(kill_workers=True)  # new ones see this test's path and environment
    monkeypatch.syspath_prepend(script.parent)
    table = sweep.run("T", job.function, job.GRID, folder=tmp_path, workers=2)
    assert bytes_of(tmp_path) == bytes_of(published)
    pd.testing.assert_frame_equal(table, sweep.read("T", folder=published))
    assert len(calls()) == 60


def test_failure_in_a_worker(tmp_path):
    class Odd(Exception):  # cannot be sent between processes: unpickling calls it with one argument
        def __init__(self, first, second):
            super().__init__(first)

    def function(n, broken):  # a closure: only its code can be sent, not its name
        if n == broken:
            raise Odd("odd", "pair")
        return simple_copy(n)

    def simple_copy(n):
        return {"half": n / 2}
    settings = sweep.grid(n=range(8), broken=[3])
    with pytest.raises(RuntimeError, match=r"failed for \{'n': 3, 'broken': 3\}: Odd: odd"):
        sweep.run("T", function, settings, folder=tmp_path, workers=2)
    rows = bytes_of(tmp_path).decode().splitlines()[1:]
    assert {"0,3,0.0", "1,3,0.5", "2,3,1.0"} <= set(rows) and len(rows) < 8


def test_row_stored_by_another_process_meanwhile(tmp_path):
    """Even if a claim fails to keep two processes apart, the row is stored once."""
    grid = sweep.grid(n=[1, 2])

    def function(n):
        if n == 1 and len(inner) == 0:
            inner.append(True)
            table = _session.Session("T", tmp_path)
            table.open(*_values.columns(grid), _provenance.declaration(function, "", 1, sweep.Rounding(1e-9)), {})
            table.store((1,), simple(1))
        return simple(n)
    inner = []
    sweep.run("T", function, grid, folder=tmp_path)
    assert bytes_of(tmp_path) == b"n,half\n1,0.5\n2,1.0\n" and inner


def begun_beside(folder, settings, version=1, repeats=sweep.Rounding(1e-9)):
    """Another process begins the table, as `sweep.run` does before it computes a row."""
    table = _session.Session("T", folder)
    table.open(*_values.columns(settings), _provenance.declaration(simple, "", version, repeats), {})


def computed_while(other, at=0):
    """As `simple`, but at the row ``at`` another process goes on with the same table."""
    def function(n):
        if n == at:
            other()
        return simple(n)
    function.__qualname__ = simple.__qualname__
    return function


@pytest.mark.parametrize("change, message", [
    ({"version": 2}, "with another version, 2 instead of 1; run this sweep again"),
    ({"repeats": sweep.Exact()}, "with another repeats, .*exact.* instead of .*rounding"),
    ({"settings": sweep.grid(n=[0, 1], seed=[0])}, "with another setting columns, .*seed.* instead of"),
    ({"settings": sweep.grid(n=[1, 2])}, r"with another grid, without \{'n': 0\}; run this sweep again"),
])
def test_a_row_of_one_experiment_is_not_stored_in_the_table_of_another(change, message, tmp_path):
    """A table without rows is begun anew, so that another process may do it while the first row is computed."""
    grid = sweep.grid(n=[0, 1])
    function = computed_while(lambda: begun_beside(tmp_path, **{"settings": grid} | change))
    with pytest.raises(RuntimeError, match=rf"another process began this table {message}"):
        sweep.run("T", function, grid, folder=tmp_path)
    assert not (tmp_path / "T.csv").exists()


def test_a_new_version_has_its_own_numbers_only(tmp_path):
    grid = sweep.grid(n=[0, 1])
    function = computed_while(lambda: begun_beside(tmp_path, grid, version=2))
    with pytest.raises(RuntimeError, match="another version"):
        sweep.run("T", function, grid, folder=tmp_path)
    def third(n):
        return {"half": n / 3}
    third.__qualname__ = simple.__qualname__
    sweep.run("T", third, grid, folder=tmp_path, version=2)
    assert bytes_of(tmp_path) == b"n,half\n0,0.0\n1,0.3333333333333333\n" and record_of(tmp_path)["version"] == 2


def test_a_table_that_was_published_meanwhile_with_fewer_rows_stays_readable(tmp_path):
    few = sweep.grid(n=[0, 1])
    function = computed_while(lambda: sweep.run("T", simple, few, folder=tmp_path), at=2)
    with pytest.raises(RuntimeError, match=r"with another grid, without \{'n': 2\}"):
        sweep.run("T", function, sweep.grid(n=[0, 1, 2, 3]), folder=tmp_path)
    assert sweep.read("T", folder=tmp_path).n.tolist() == [0, 1]
    assert len(sweep.run("T", simple, sweep.grid(n=[0, 1, 2, 3]), folder=tmp_path)) == 4


def test_a_grid_is_read_again_only_if_it_was_written_again(tmp_path, monkeypatch):
    read = []
    plain = _session.Table.load_record

    def counted(table):
        read.append(table)
        plain(table)
    monkeypatch.setattr(_session.Table, "load_record", counted)
    sweep.run("T", simple, sweep.grid(n=range(20)), folder=tmp_path)
    assert len(read) < 10


def test_another_order_that_was_asked_for_meanwhile_is_published(tmp_path):
    function = computed_while(lambda: begun_beside(tmp_path, sweep.grid(n=[1, 0])))
    assert sweep.run("T", function, sweep.grid(n=[0, 1]), folder=tmp_path).n.tolist() == [1, 0]
    assert sweep.read("T", folder=tmp_path).n.tolist() == [1, 0]


# Progress -------------------------------------------------------------------------------------------------------------

def test_no_progress_when_captured(job, tmp_path, capfd):
    sweep.run("T", job.function, job.GRID[:10], folder=tmp_path)
    assert capfd.readouterr() == ("", "")


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals are a Unix facility")
def test_progress_on_a_terminal(script, tmp_path):
    import pty
    import termios
    terminal, end = pty.openpty()
    termios.tcsetwinsize(end, (24, 100))
    process = start(script, tmp_path, "T", stderr=end)
    os.close(end)
    shown = b""
    try:
        while part := os.read(terminal, 4096):
            shown += part
    except OSError:  # how Linux reports that the other end is closed
        pass
    os.close(terminal)
    process.communicate()
    assert process.returncode == 0
    shown = shown.decode()
    assert re.search(r"T:.*60/60", shown)
    assert re.search(r"\d+/60 \[\d\d:\d\d<\d\d:\d\d, +[\d.]+(row/s|s/row)\]", shown)


def test_no_progress_in_a_notebook(job, tmp_path, monkeypatch):
    class Cell(io.StringIO):  # as the kernel does, which replaces the stream by one that may claim to be a terminal
        def isatty(self):
            return True
    monkeypatch.setattr(sys, "stderr", Cell())
    sweep.run("T", job.function, job.GRID[:10], folder=tmp_path)
    assert sys.stderr.getvalue() == ""
    monkeypatch.setattr(sys, "__stderr__", sys.stderr)
    sweep.run("T", job.function, job.GRID[:20], folder=tmp_path)
    assert "20/20" in sys.stderr.getvalue()
