"""Sessions of work on a table: what is locked, forced to disk and written first, and what other processes change
meanwhile."""

from __future__ import annotations

import os

import pytest
import torch
from filelock import FileLock, Timeout

from attnrank import sweep
from attnrank.sweep import _provenance, _run, _session, _table, _values, _work
from attnrank.sweep._work import Outcome
from sweep_job import bytes_of, record_of, simple

GRID = sweep.grid(n=[3, 1, 2])
HALVES = b"n,half\n3,1.5\n1,0.5\n2,1.0\n"


def session(folder, settings=GRID, function=simple, repeats=sweep.Rounding(1e-9)):
    """Another process begins the table, or goes on with it, as `sweep.run` does before it computes a row."""
    table = _session.Session("T", folder)
    table.open(*_values.columns(settings), _provenance.declaration(function, "", 1, repeats), {})
    return table


def simply(function):
    """A function that is declared as `simple` is."""
    function.__qualname__ = simple.__qualname__
    return function


def before(monkeypatch, owner, name, action):
    honest = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *given, **options: (action(*given), honest(*given, **options))[1])


def test_the_files_change_under_the_lock_alone(tmp_path, monkeypatch):
    """Each look at the table and the change that follows from it, too: a lock for each write is not enough."""
    seen = []

    def held(*given):
        with pytest.raises(Timeout), FileLock(tmp_path / "T.lock").acquire(timeout=0):
            pass
        seen.append(True)

    monkeypatch.setattr(_session, "SAVE_SECONDS", -1)
    before(monkeypatch, _session, "write", held)
    for name in ("_append", "_note", "_begin", "text"):
        before(monkeypatch, _session.Session, name, held)
    sweep.run("T", simple, GRID, folder=tmp_path)
    assert bytes_of(tmp_path) == HALVES and len(seen) > 12


def test_what_is_written_is_forced_to_disk_before_it_counts(tmp_path, monkeypatch):
    forced, replaced, appended = set(), [], []

    def known(path):
        status = os.stat(path)
        return status.st_ino, status.st_size

    before(monkeypatch, _session.os, "fsync", lambda descriptor: forced.add(known(descriptor)))
    before(monkeypatch, _session, "replace", lambda temporary, path: replaced.append(known(temporary)))
    honest = _session.Session._append

    def append(table, line):
        honest(table, line)
        appended.append(known(table.csv))

    monkeypatch.setattr(_session.Session, "_append", append)
    sweep.run("T", simple, GRID, folder=tmp_path)
    assert len(appended) == 2 and {*appended, *replaced} <= forced


@pytest.mark.parametrize("earlier", [False, True])
def test_interrupted_before_and_after_every_write(earlier, tmp_path, monkeypatch):
    """Run again, the table is whole and its bytes are the same; also one that an earlier session began."""
    honest, at = {"write": _session.write, "_append": _session.Session._append}, [0, 0]

    def cut(name):
        def changed(*given):
            at[0] += 1
            if at[0] == at[1]:
                raise KeyboardInterrupt
            honest[name](*given)
            at[0] += 1
            if at[0] == at[1]:
                raise KeyboardInterrupt

        return changed

    monkeypatch.setattr(_session, "write", cut("write"))
    monkeypatch.setattr(_session.Session, "_append", cut("_append"))

    def begun(name):
        """A folder in which an earlier session, if any, stored a row out of the grid's order."""
        (tmp_path / name).mkdir()
        if earlier:
            session(tmp_path / name).store((2,), simple(2))
        return tmp_path / name

    whole = begun("whole")
    at[:] = 0, 0
    sweep.run("T", simple, GRID, folder=whole)
    assert at[0] >= 10
    for moment in range(1, at[0] + 1):
        at[:] = 0, 0
        folder = begun(str(moment))
        at[:] = 0, moment
        with pytest.raises(KeyboardInterrupt):
            sweep.run("T", simple, GRID, folder=folder)
        at[:] = 0, 0
        assert len(sweep.run("T", simple, GRID, folder=folder)) == 3
        assert bytes_of(folder) == HALVES == bytes_of(whole)
        assert sweep.read("T", folder=folder).n.tolist() == [3, 1, 2]


def test_a_row_that_another_process_stored_meanwhile_is_not_claimed(tmp_path):
    one, other = session(tmp_path), session(tmp_path)
    assert one.claim((1,)) and not other.claim((1,))
    one.store((1,), simple(1))
    one.release((1,))
    assert not other.claim((1,)) and not other.claims and other.rows.keys() == {(1,)}
    assert other.claim((2,)) and list(other.claims) == [(2,)]


def test_a_session_says_what_its_rows_took(tmp_path, monkeypatch):
    monkeypatch.setattr(_session, "SAVE_SECONDS", -1)
    table = session(tmp_path)
    for rows, (n, seconds, device) in enumerate([(3, 2.0, "gpu"), (1, 5.0, "cpu"), (2, 1.0, "gpu")], start=1):
        table.store((n,), simple(n), seconds, device)
        [entry] = record_of(tmp_path)["sessions"]  # said while it goes on
        assert entry["rows"] == rows
    assert (entry["row_seconds"], entry["longest_row_seconds"], entry["device"]) == (8.0, 5.0, "cpu and gpu")


def test_the_progress_of_a_session_is_not_written_with_every_row(tmp_path):
    table = session(tmp_path)
    for n in (3, 1, 2):
        table.store((n,), simple(n))
    assert record_of(tmp_path)["sessions"] == [] and table.entry["rows"] == 3


def test_a_grid_that_another_process_extends_meanwhile_is_not_published_without_its_rows(tmp_path):
    more = sweep.grid(n=[3, 1, 2, 4])
    function = simply(lambda n: (session(tmp_path, more) if n == 2 else None, simple(n))[1])
    with pytest.raises(ValueError, match="another process is computing another grid for this table; run that sweep"):
        sweep.run("T", function, GRID, folder=tmp_path)
    assert record_of(tmp_path)["status"] == "running"
    assert sweep.run("T", simple, more, folder=tmp_path).n.tolist() == [3, 1, 2, 4]


def test_a_table_that_is_begun_anew_with_another_function_meanwhile(tmp_path):
    function = simply(lambda n: (session(tmp_path, function=bytes_of), simple(n))[1])
    with pytest.raises(RuntimeError, match="another process began this table with another function, bytes_of instead"):
        sweep.run("T", function, GRID, folder=tmp_path)
    assert not (tmp_path / "T.csv").exists()


def test_a_table_that_is_declared_anew_just_before_it_is_published(tmp_path, monkeypatch):
    before(monkeypatch, _session.Session, "publish", lambda *_: session(tmp_path, repeats=sweep.Exact()))
    with pytest.raises(ValueError, match="another process began this table with another repeats"):
        sweep.run("T", simple, GRID, folder=tmp_path)
    assert record_of(tmp_path)["status"] == "running"


def test_settings_without_rows_may_leave_the_grid(tmp_path):
    def fails_at_1(n):
        return {"half": n / 2 if n != 1 else 1 / 0}

    with pytest.raises(RuntimeError):
        sweep.run("T", simply(fails_at_1), GRID, folder=tmp_path)
    assert sweep.run("T", simple, sweep.grid(n=[5, 3]), folder=tmp_path).n.tolist() == [5, 3]


def test_a_reader_sees_what_others_do_to_the_file(tmp_path):
    """Rows that were added, also of a grid that was extended; sorted by another process; cut; and removed."""
    writer = session(tmp_path)
    writer.store((1,), simple(1))
    reader = _table.Table("T", tmp_path)
    reader.load()
    writer.store((3,), simple(3))
    reader.refresh()
    assert list(reader.rows) == [(1,), (3,)]
    session(tmp_path, sweep.grid(n=[3, 1, 2, 4])).store((4,), simple(4))
    reader.refresh()
    assert list(reader.rows) == [(1,), (3,), (4,)] and reader.lines == 4
    whole = bytes_of(tmp_path)
    (tmp_path / "other").write_bytes(b"n,half\n3,1.5\n1,0.5\n4,2.0\n")
    os.replace(tmp_path / "other", reader.csv)
    reader.refresh()
    assert list(reader.rows) == [(3,), (1,), (4,)] and len(whole) == reader.offset
    os.truncate(reader.csv, len(b"n,half\n3,1.5\n1"))
    reader.refresh()
    assert list(reader.rows) == [(3,)] and reader.torn
    reader.csv.unlink()
    reader.refresh()
    assert not reader.rows and not reader.torn and reader.lines == reader.offset == 0


def test_the_first_of_several_failures_is_named(tmp_path, monkeypatch):
    def outcomes(function, tasks, pool, stopped):
        for key, setting in tasks:
            yield key, Outcome(ArithmeticError(f"at {setting['n']}") if setting["n"] != 1 else simple(1), 0.0, "cpu")

    monkeypatch.setattr(_run, "outcomes", outcomes)
    with pytest.raises(RuntimeError, match=r"sweep T failed for \{'n': 3\}: at 3"):
        sweep.run("T", simple, GRID, folder=tmp_path)
    assert bytes_of(tmp_path) == b"n,half\n1,0.5\n"


def test_a_worker_has_one_thread_from_then_on_and_gives_its_memory_back(monkeypatch):
    threads, freed = torch.get_num_threads(), []
    monkeypatch.setattr(_work, "free_memory", lambda: freed.append(torch.get_num_threads()))
    try:
        torch.set_num_threads(2)
        assert _work.compute(simple, {"n": 3}).result == {"half": 1.5} and torch.get_num_threads() == 2
        assert _work.compute_in_worker(simple, {"n": 3}).result == {"half": 1.5} and torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(threads)
    assert len(freed) == 2


def test_margins_of_rows_that_are_computed_again_are_those_of_the_whole_table(tmp_path):
    """A difference that one row in a million shows by chance is none among sixty."""
    repeats, grid = sweep.Statistical({"half": 1.0}), sweep.grid(n=list(range(60)))
    sweep.run("T", simple, grid, folder=tmp_path, repeats=repeats)
    alone, together = (repeats.margin("half", simple(0), rows) for rows in (1, 60))
    between = 0.5 * (alone + together)
    found = sweep.differences("T", lambda n: {"half": n / 2 + between}, rows=[0, 59], folder=tmp_path)
    assert [difference for _, difference in found] == [None, None]
    found = sweep.differences("T", lambda n: {"half": n / 2 + 1.01 * together}, rows=[0], folder=tmp_path)
    assert "half is 0.0" in next(found)[1]


def test_the_folder_of_results_does_not_move_with_the_process(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    assert sweep.results_folder("here") == tmp_path.resolve() / "here"


def test_settings_whose_columns_are_exchanged_are_others(tmp_path):
    def function(**setting):
        return {"difference": setting["a"] - setting["b"]}

    sweep.run("T", function, [{"a": 1, "b": 2}], folder=tmp_path)
    with pytest.raises(ValueError, match="the stored setting columns are"):
        sweep.run("T", function, [{"b": 1, "a": 2}], folder=tmp_path)


def test_a_file_that_replaces_one_of_its_size_is_told_from_it(tmp_path):
    _session.write(tmp_path / "a", "one")
    before = _session.stamp(tmp_path / "a")
    assert before == _session.stamp(tmp_path / "a") is not None
    _session.write(tmp_path / "a", "two")
    assert _session.stamp(tmp_path / "a") != before and _session.stamp(tmp_path / "b") is None


def test_values_at_the_ends_of_their_range_are_held(tmp_path):
    ends = {"least": -(2**63), "most": 2**63 - 1, "longest": "a" * 1000}
    sweep.run("T", lambda n: ends, sweep.grid(n=[1]), folder=tmp_path)
    assert sweep.read("T", folder=tmp_path).to_dict("records") == [{"n": 1} | ends]
