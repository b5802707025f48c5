"""Sweeps: whatever happens while a table is made, the published bytes are those of an uninterrupted run."""

from __future__ import annotations

import importlib.util
import io
import json
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
from attnrank.sweep import _provenance, _session, _table, _values

# The sweep of these tests as a script, so that other processes run the same function. Each call leaves a line in the
# file CALLS, which shows what was computed and how often.
JOB = '''
import os, sys, time
from pathlib import Path
import torch
from attnrank import sweep

def function(n, kind, seed):
    with open(os.environ["CALLS"], "a") as file:
        file.write(f"{n},{kind},{seed}\\n")
    time.sleep(0.01)
    generator = torch.Generator().manual_seed(1000 * n + seed)
    x = torch.randn(n, generator=generator, dtype=torch.float64)
    return {"rank": int((x > 0).sum()), "mean": float(x.mean()), "even": n % 2 == 0, "note": f"{kind}, \\"{n}\\"",
            "missing": None if n % 3 == 0 else 1 / n}

GRID = sweep.grid(n=[3, 8, 5], kind=["gauss", "unit"], seed=range(10))

if __name__ == "__main__":
    folder, *names = sys.argv[1:]
    for name in names:
        print("ready", flush=True)
        while len(names) > 1 and not Path(folder, "go " + name).exists():
            time.sleep(0.01)
        sweep.run(name, function, GRID, folder=folder)
'''


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("job") / "job.py"
    path.write_text(JOB, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def job(script):
    specification = importlib.util.spec_from_file_location("job", script)
    module = importlib.util.module_from_spec(specification)
    sys.modules["job"] = module
    specification.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def calls(tmp_path, monkeypatch):
    path = tmp_path / "calls"
    monkeypatch.setenv("CALLS", str(path))
    return lambda: path.read_text().splitlines() if path.exists() else []


@pytest.fixture(scope="module")
def published(job, tmp_path_factory):
    """A folder with the table T of an uninterrupted run."""
    folder = tmp_path_factory.mktemp("published")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CALLS", str(folder / "calls"))
        sweep.run("T", job.function, job.GRID, folder=folder)
    return folder


def start(script, folder, *names, **options):
    """Start a process that runs the sweep; with several tables, each waits for a file "go NAME"."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.Popen([sys.executable, str(script), str(folder), *names], **options)


def simple(n):
    return {"half": n / 2}


def bytes_of(folder, name="T"):
    return (folder / f"{name}.csv").read_bytes()


def record_of(folder, name="T"):
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


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
    assert record["seeds"] == list(range(10)) and record["rtol"] == 1e-9
    [session] = record["sessions"]
    assert session["rows"] == 60 and 0.6 < session["wall_seconds"] == record["wall_seconds"] < 60
    assert session["torch"] == torch.__version__ and session["numpy"] == np.__version__
    assert session["package_fingerprint"] == sweep.code_fingerprint() and session["function"] == "function"
    assert re.fullmatch("[0-9a-f]{64}", session["function_fingerprint"])
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

def test_killed_at_random_moments(job, script, published, tmp_path, calls):
    """Five kills, each some rows after the last; then one run finishes. No stored row is computed again."""
    chance = random.Random()
    stored = []
    for kill in range(5):
        process = start(script, tmp_path, "T", stderr=subprocess.DEVNULL)
        process.stdout.readline()
        already = len(calls())
        while len(calls()) == already and process.poll() is None:
            time.sleep(0.001)
        time.sleep(chance.uniform(0, 0.15))
        assert process.poll() is None, "the sweep ended before it was killed: lengthen it"
        process.kill()
        process.communicate()
        lines = bytes_of(tmp_path).split(b"\n") if (tmp_path / "T.csv").exists() else [b""]
        assert lines[:len(stored)] == stored  # nothing that was stored is lost or altered
        stored = lines[:-1]
        with pytest.raises(ValueError, match=r"T\.csv.*run the sweep T again|no such table"):
            sweep.read("T", folder=tmp_path)
    assert len(stored) > 1
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

def test_concurrent_processes(script, published, tmp_path, calls):
    """Three processes share a table, then two and a third that is killed: each row is computed once and stored once."""
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
            table.open(*_values.columns(grid), 1e-9, {})
            table.store((1,), simple(1))
        return simple(n)
    inner = []
    sweep.run("T", function, grid, folder=tmp_path)
    assert bytes_of(tmp_path) == b"n,half\n1,0.5\n2,1.0\n" and inner


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
    assert re.search(r"T:.*60/60", shown) and re.search(r"\d+/60 \[\d\d:\d\d<\d\d:\d\d, +[\d.]+row/s\]", shown)


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


# Damage ---------------------------------------------------------------------------------------------------------------

def csv_edit(old, new, count=1):
    def edit(folder):
        content = bytes_of(folder)
        assert old in content
        (folder / "T.csv").write_bytes(content.replace(old, new, count))
    return edit


def json_edit(**fields):
    def edit(folder):
        (folder / "T.json").write_text(json.dumps(record_of(folder) | fields), encoding="utf-8")
    return edit


def json_drop(field):
    def edit(folder):
        record = record_of(folder)
        del record[field]
        (folder / "T.json").write_text(json.dumps(record), encoding="utf-8")
    return edit


def json_bytes(content):
    return lambda folder: (folder / "T.json").write_bytes(content)


ROW = b"3,gauss,0,"
DAMAGE = {
    "a number changed": (csv_edit(b"gauss,0,2,", b"gauss,0,1,"), r"T\.csv: the checksum .*restore both files"),
    "row changed into another": (csv_edit(b"3,unit,0", b"3,unit,9"), r"T\.csv line \d+: .*stored twice"),
    "last row removed": (lambda folder: (folder / "T.csv").write_bytes(bytes_of(folder).rsplit(b"\n", 2)[0] + b"\n"),
                         r"T\.csv: its 59 rows are not the 60 settings in .*T\.json"),
    "all rows removed": (lambda folder: (folder / "T.csv").write_bytes(bytes_of(folder).split(b"\n")[0] + b"\n"),
                         r"T\.csv: its 0 rows"),
    "empty file": (lambda folder: (folder / "T.csv").write_bytes(b""), r"T\.csv: its 0 rows"),
    "two rows exchanged": (lambda folder: (folder / "T.csv").write_bytes(
        b"\n".join((lines := bytes_of(folder).split(b"\n"))[:1] + lines[2:3] + lines[1:2] + lines[3:])),
                           r"T\.csv: its 60 rows are not the 60 settings"),
    "field missing": (csv_edit(b"3,gauss,4,", b"3,gauss,"), r"T\.csv line 6: 7 fields instead of 8"),
    "field added": (csv_edit(b"3,gauss,4,", b"3,gauss,4,4,"), r"T\.csv line 6: 9 fields instead of 8"),
    "empty line": (csv_edit(b"\n3,gauss,4,", b"\n\n3,gauss,4,"), r"T\.csv line 6: 0 fields instead of 8"),
    "not a number": (csv_edit(b"3,gauss,4,", b"3,gauss,four,"), r"T\.csv line 6: seed must be of type int, got 'four'"),
    "no number": (csv_edit(b"3,gauss,4,", b"3,gauss,,"), r"T\.csv line 6: seed must be of type int, got ''"),
    "NaN not as written": (csv_edit(b",nan\n", b",NaN\n"), r"T\.csv line 2: missing must be of type float, got 'NaN'"),
    "NaN emptied": (csv_edit(b",nan\n", b",\n"), r"T\.csv line 2: missing must be of type float, got ''"),
    "infinite": (csv_edit(b",nan\n", b",inf\n"), r"T\.csv line 2: missing must be of type float, got 'inf'"),
    "number reformatted": (csv_edit(b",0.125\n", b",0.1250\n"), r"missing must be of type float, got '0.1250'"),
    "truth reformatted": (csv_edit(b",False,", b",FALSE,"), r"T\.csv line 2: even must be of type bool, got 'FALSE'"),
    "quotes lost": (csv_edit(b'"gauss, ""3"""', b'gauss; "3"'), r"T\.csv line 2: not written by a sweep"),
    "quote left open": (csv_edit(b'"gauss, ""3"""', b'"gauss'), r"T\.csv line 2: unexpected end of data"),
    "not text": (csv_edit(b"gauss", b"\xff\xfe"), r"T\.csv line 2: .*utf-8"),
    "header changed": (csv_edit(b"seed", b"sead"), r"T\.csv line 1: the header must be 'n,kind,seed.*got 'n,kind,sead"),
    "header lost": (lambda folder: (folder / "T.csv").write_bytes(bytes_of(folder).split(b"\n", 1)[1]),
                    r"T\.csv line 1: the header must be"),
    "row twice": (csv_edit(b"\n" + ROW, b"\n3,gauss,1,"), r"T\.csv line 3: the setting .*'seed': 1.* is stored twice"),
    "setting not in the grid": (csv_edit(ROW, b"3,gauss,77,"), r"T\.csv line 2: .*'seed': 77\} is not in the grid of"),
    "torn": (lambda folder: (folder / "T.csv").write_bytes(bytes_of(folder)[:-3]), r"T\.csv line 61: .* torn"),
    "no JSON": (lambda folder: (folder / "T.json").unlink(), r"T\.json: the provenance of .*T\.csv is missing"),
    "no CSV": (lambda folder: (folder / "T.csv").unlink(), r"T\.csv: the file is missing"),
    "JSON cut": (lambda folder: (folder / "T.json").write_bytes((folder / "T.json").read_bytes()[:200]),
                 r"T\.json: invalid provenance: "),
    "JSON empty": (json_bytes(b""), r"T\.json: invalid provenance: "),
    "JSON not text": (json_bytes(b"\xff\xff\xff"), r"T\.json: invalid provenance: "),
    "JSON a list": (json_bytes(b"[]"), r"T\.json: invalid provenance: "),
    "another table's JSON": (json_edit(name="U"), r"T\.json: invalid provenance: it describes another table, 'U'"),
    "another grid's JSON": (json_edit(grid={"n": [3, 8, 6], "kind": ["gauss", "unit"], "seed": list(range(10))}),
                            r"T\.csv line 42: the setting \{'n': 5, .* is not in the grid of .*T\.json"),
    "larger grid's JSON": (json_edit(grid={"n": [3, 8, 5, 6], "kind": ["gauss", "unit"], "seed": list(range(10))}),
                           r"T\.csv: its 60 rows are not the 80 settings"),
    "grid of other columns": (json_edit(grid={"n": [3]}), r"T\.json: invalid provenance: grid must have columns"),
    "grid repeated": (json_edit(grid=[[3, "gauss", 0]] * 2), r"T\.json: invalid provenance: settings must differ"),
    "grid malformed": (json_edit(grid=[[3, "gauss"]]), r"T\.json: invalid provenance: "),
    "unknown status": (json_edit(status="done"), r"T\.json: invalid provenance: status is 'done'"),
    "unknown type": (json_edit(results={"rank": "complex"}), r"T\.json: invalid provenance: unknown column type"),
    "no result columns": (json_edit(results=None), r"T\.json: invalid provenance: complete without result columns"),
    "count changed": (json_edit(rows=59), r"T\.csv: its 60 rows are not"),
    "checksum changed": (json_edit(sha256="0" * 64), r"T\.csv: the checksum"),
} | {f"JSON without {field}": (json_drop(field), rf"T\.json: invalid provenance: no field '{field}'")
     for field in _table.FIELDS}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_refused(damage, job, published, tmp_path, calls):
    for name in ("T.csv", "T.json"):
        shutil.copy(published / name, tmp_path)
    assert len(sweep.read("T", folder=tmp_path)) == len(sweep.run("T", job.function, job.GRID, folder=tmp_path)) == 60
    edit, message = DAMAGE[damage]
    edit(tmp_path)
    files = {path.name: path.read_bytes() for path in tmp_path.glob("T.[cj]*")}
    uses = {"read": lambda: sweep.read("T", folder=tmp_path),
            "run": lambda: sweep.run("T", job.function, job.GRID, folder=tmp_path),
            "recompute": lambda: sweep.recompute("T", job.function, generator=torch.Generator(), folder=tmp_path)}
    for use in uses.values():
        with pytest.raises(ValueError, match=message):
            use()
    assert not calls() and files == {path.name: path.read_bytes() for path in tmp_path.glob("T.[cj]*")}


RUNNING_DAMAGE = {key: DAMAGE[key] for key in (
    "field missing", "field added", "empty line", "not a number", "NaN not as written", "infinite", "quotes lost",
    "header changed", "row twice", "setting not in the grid", "no JSON", "JSON cut", "another table's JSON",
    "grid of other columns", "JSON without grid")}


@pytest.mark.parametrize("damage", RUNNING_DAMAGE)
def test_damage_is_refused_while_running(damage, job, published, tmp_path, calls):
    for name in ("T.csv", "T.json"):
        shutil.copy(published / name, tmp_path)
    json_edit(status="running", rows=None, sha256=None)(tmp_path)
    (tmp_path / "T.csv").write_bytes(b"\n".join(bytes_of(tmp_path).split(b"\n")[:31]) + b"\n")
    (tmp_path / "sound").mkdir()
    for name in ("T.csv", "T.json"):
        shutil.copy(tmp_path / name, tmp_path / "sound")
    edit, message = RUNNING_DAMAGE[damage]
    edit(tmp_path)
    for use in (lambda: sweep.run("T", job.function, job.GRID, folder=tmp_path),
                lambda: sweep.read("T", folder=tmp_path)):
        with pytest.raises(ValueError, match=message):
            use()
    assert not calls()
    if damage == "no JSON":  # the undamaged table goes on; once is enough
        sweep.run("T", job.function, job.GRID, folder=tmp_path / "sound")
        assert bytes_of(tmp_path / "sound") == bytes_of(published) and len(calls()) == 30


def test_missing_table(tmp_path):
    with pytest.raises(ValueError, match=r"T\.csv: there is no such table; run the sweep T to compute it"):
        sweep.read("T", folder=tmp_path)


# Another grid ---------------------------------------------------------------------------------------------------------

def test_a_grid_is_extended(tmp_path, monkeypatch):
    done = []

    def function(n):
        done.append(n)
        return simple(n)
    sweep.run("T", function, sweep.grid(n=[1, 5]), folder=tmp_path)
    monkeypatch.setattr(_provenance, "code_fingerprint", lambda: "0" * 64)
    table = sweep.run("T", function, sweep.grid(n=[1, 3]) + sweep.grid(n=[5, 7]), folder=tmp_path)
    assert done == [1, 5, 3, 7] and table["n"].tolist() == [1, 3, 5, 7]
    record = record_of(tmp_path)
    assert [session["rows"] for session in record["sessions"]] == [2, 2]
    assert [session["package_fingerprint"] == "0" * 64 for session in record["sessions"]] == [False, True]
    assert record["wall_seconds"] == pytest.approx(sum(session["wall_seconds"] for session in record["sessions"]))
    (tmp_path / "direct").mkdir()
    sweep.run("T", simple, sweep.grid(n=[1, 3, 5, 7]), folder=tmp_path / "direct")
    assert bytes_of(tmp_path) == bytes_of(tmp_path / "direct")
    assert sweep.run("T", function, sweep.grid(n=[7, 5, 3, 1]), folder=tmp_path)["n"].tolist() == [7, 5, 3, 1]
    assert sweep.run("T", function, sweep.grid(n=[7, 5, 3, 1]), folder=tmp_path, rtol=1e-6) is not None
    assert record_of(tmp_path)["rtol"] == 1e-6 and len(done) == 4
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
    ({"name": 3}, "name must .*got 3"),
    ({"function": 3}, "function must be callable, got 3"), ({"workers": 0}, "workers must be at least 1, got 0"),
    ({"workers": 1.5}, "workers must be an integer"), ({"rtol": -1}, "rtol must be at least 0"),
    ({"rtol": math.nan}, "rtol must be a finite"),
    ({"folder": "nowhere"}, "folder must be an existing folder, got 'nowhere'"),
])
def test_bad_arguments(change, message, tmp_path):
    arguments = {"name": "T", "function": simple, "settings": sweep.grid(n=[1]), "folder": tmp_path} | change
    with pytest.raises(ValueError, match=message):
        sweep.run(**arguments)


# Recomputing ----------------------------------------------------------------------------------------------------------

def test_recompute(job, published, calls):
    first = sweep.recompute("T", job.function, generator=torch.Generator().manual_seed(1), rows=4, folder=published)
    again = sweep.recompute("T", job.function, generator=torch.Generator().manual_seed(1), rows=4, folder=published)
    other = sweep.recompute("T", job.function, generator=torch.Generator().manual_seed(2), rows=4, folder=published)
    pd.testing.assert_frame_equal(first, sweep.read("T", folder=published).loc[first.index])
    pd.testing.assert_frame_equal(first, again)
    assert len(first) == 4 and len(calls()) == 12 and list(first.index) != list(other.index)
    everything = sweep.recompute("T", job.function, generator=torch.Generator(), rows=1000, folder=published)
    pd.testing.assert_frame_equal(everything, sweep.read("T", folder=published))


@pytest.mark.parametrize("column, change, fails", [
    ("mean", lambda v: v * (1 + 1e-8), True), ("mean", lambda v: v * (1 + 1e-10), False),
    ("mean", lambda v: None, True),
    ("rank", lambda v: v + 1, True), ("even", lambda v: not v, True), ("note", lambda v: v + " ", True),
    ("missing", lambda v: 1.0, True), ("missing", lambda v: v, False),
])
def test_recompute_finds_a_difference(column, change, fails, job, published):
    def changed(n, kind, seed):
        result = job.function(n, kind, seed)
        return result | {column: change(result[column])} if (n, kind, seed) == (3, "unit", 7) else result
    arguments = {"generator": torch.Generator(), "rows": 60, "folder": published}
    if not fails:
        assert len(sweep.recompute("T", changed, **arguments)) == 60
        return
    with pytest.raises(ValueError, match=rf"T\.csv line 19: {column} is .*, recomputed .*'seed': 7\}} \(rtol 1e-09\)"):
        sweep.recompute("T", changed, **arguments)


def test_recompute_draws_only_what_is_accepted(job, published, calls):
    """Whatever the seed, only accepted rows are computed; all of them, once, when more are asked for."""
    def accept(setting):
        assert setting.keys() == {"n", "kind", "seed"}
        return setting["n"] == 8 and setting["seed"] < 3
    everything = sweep.read("T", folder=published)
    expected = everything.query("n == 8 and seed < 3")
    assert len(expected) == 6
    for seed in range(8):
        arguments = {"generator": torch.Generator().manual_seed(seed), "folder": published, "accept": accept}
        pd.testing.assert_frame_equal(sweep.recompute("T", job.function, rows=100, **arguments), expected)
        few = sweep.recompute("T", job.function, rows=2, **arguments)
        assert len(few) == 2 and set(few.index) <= set(expected.index)
    assert len(calls()) == 8 * 8 and {line[:2] for line in calls()} == {"8,"}
    arguments = {"rows": 4, "folder": published}  # accepting all changes nothing
    one = sweep.recompute("T", job.function, generator=torch.Generator().manual_seed(1), **arguments)
    two = sweep.recompute("T", job.function, generator=torch.Generator().manual_seed(1), accept=bool, **arguments)
    pd.testing.assert_frame_equal(one, two)


def test_a_difference_in_an_accepted_row_is_found(job, published):
    def changed(n, kind, seed):
        return job.function(n, kind, seed) | {"rank": -1}
    last = {"n": 5, "kind": "unit", "seed": 9}
    with pytest.raises(ValueError, match=rf"T\.csv line 61: rank is \d, recomputed -1, for {last}"):
        sweep.recompute("T", changed, generator=torch.Generator(), folder=published, accept=lambda s: s == last)


def test_recompute_bad_arguments(job, published):
    with pytest.raises(ValueError, match="accept must accept a row of the table T, got none of 60"):
        sweep.recompute("T", job.function, generator=torch.Generator(), folder=published, accept=lambda setting: False)
    with pytest.raises(ValueError, match="accept must be callable or None, got 'digits'"):
        sweep.recompute("T", job.function, generator=torch.Generator(), folder=published, accept="digits")
    with pytest.raises(ValueError, match="generator must be a torch.Generator"):
        sweep.recompute("T", job.function, generator=0, folder=published)
    with pytest.raises(ValueError, match="rows must be at least 1"):
        sweep.recompute("T", job.function, generator=torch.Generator(), rows=0, folder=published)
    with pytest.raises(ValueError, match="same columns"):
        sweep.recompute("T", lambda **_: {"x": 1}, generator=torch.Generator(), folder=published)
    with pytest.raises(RuntimeError, match=r"recompute T: the function failed for \{'n'"):
        sweep.recompute("T", lambda **_: 1 / 0, generator=torch.Generator(), folder=published)


# Folder and fingerprint -----------------------------------------------------------------------------------------------

def test_results_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("ATTNRANK_RESULTS", raising=False)
    deep = tmp_path / "notebooks" / "deep"
    deep.mkdir(parents=True)
    monkeypatch.chdir(deep)
    if not any((parent / "book" / "results").is_dir() for parent in tmp_path.parents):
        with pytest.raises(ValueError, match="folder: no book/results in .* pass folder=, or set ATTNRANK_RESULTS"):
            sweep.results_folder()
    (tmp_path / "book" / "results").mkdir(parents=True)
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
    original = sweep.code_fingerprint()
    assert re.fullmatch("[0-9a-f]{64}", original)
    (package / "notes.txt").write_text("not a source")
    source = (package / "scores.py").read_bytes()
    (package / "scores.py").write_bytes(source.replace(b"\n", b"\r\n"))
    assert sweep.code_fingerprint() == original
    (package / "scores.py").write_bytes(source + b"# a change\n")
    assert sweep.code_fingerprint() != original
    (package / "scores.py").write_bytes(source)
    (package / "scores.py").rename(package / "score.py")
    assert sweep.code_fingerprint() != original
