"""Rows that keep checkpoints, and rows that use all threads, alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from attnrank import sweep
from attnrank.sweep import _manner

COUNTING = '''
import json, sys
from pathlib import Path
from attnrank import sweep

def steps(n, folder):
    """Counts to n in steps, keeping the count; dies in the middle if a file says so."""
    kept = folder / "state.json"
    done = json.loads(kept.read_text()) if kept.exists() else 0
    started = done
    while done < n:
        done += 1
        kept.write_text(json.dumps(done))
        if done == 5 and Path(folder.parent, "die").exists():
            Path(folder.parent, "die").unlink()
            sys.stdout.flush()
            import os; os._exit(9)
    return {"steps": done - started, "total": done}

if __name__ == "__main__":
    sweep.run("T", steps, sweep.grid(n=[3, 8, 9]), folder=sys.argv[1], checkpoint=True)
'''


def test_a_killed_row_goes_on_from_its_checkpoint(tmp_path):
    script = tmp_path / "counting.py"
    script.write_text(COUNTING, encoding="utf-8")
    folder = tmp_path / "results"
    folder.mkdir()
    (folder / "die").touch()
    assert subprocess.run([sys.executable, str(script), str(folder)]).returncode == 9
    [kept] = folder.glob("T.*.partial")
    assert json.loads((kept / "state.json").read_text()) == 5
    assert subprocess.run([sys.executable, str(script), str(folder)]).returncode == 0
    table = sweep.read("T", folder=folder)
    assert table.to_dict("list") == {"n": [3, 8, 9], "steps": [3, 3, 9], "total": [3, 8, 9]}
    assert not list(folder.glob("*.partial"))


def test_checkpoints_in_worker_processes_and_when_computed_again(tmp_path):
    def once(n, folder):
        assert folder.is_dir() and not any(folder.iterdir())
        (folder / "n").write_text(str(n))
        return {"half": n / 2}

    table = sweep.run("T", once, sweep.grid(n=[1, 2, 3]), folder=tmp_path, workers=2, checkpoint=True)
    assert list(table.half) == [0.5, 1.0, 1.5] and not list(tmp_path.glob("*.partial"))
    again = sweep.recompute("T", once, generator=torch.Generator(), folder=tmp_path, checkpoint=True)
    assert len(again) == 3 and not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize("threads, expected", [("one", 1), ("all", 2)])
def test_threads_of_a_row(threads, expected, tmp_path):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        table = sweep.run("T", lambda n: {"threads": torch.get_num_threads()}, sweep.grid(n=[1]), folder=tmp_path,
                          threads=threads)
        assert list(table.threads) == [expected] and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


ALONE = '''
import sys, time
from pathlib import Path
from attnrank import sweep

def work(name, n):
    mark = Path(sys.argv[1], "busy")
    mark.touch(exist_ok=False)  # fails if another row is at work
    time.sleep(0.05)
    mark.unlink()
    return {"done": True}

if __name__ == "__main__":
    sweep.run(sys.argv[2], work, sweep.grid(name=[sys.argv[2]], n=list(range(8))), folder=sys.argv[1], threads="all")
'''


def test_rows_with_all_threads_wait_for_each_other(tmp_path):
    script = tmp_path / "alone.py"
    script.write_text(ALONE, encoding="utf-8")
    drivers = [subprocess.Popen([sys.executable, str(script), str(tmp_path), name]) for name in ("A", "B")]
    assert [driver.wait() for driver in drivers] == [0, 0]


def test_users_do_not_share_the_lock_of_rows_with_all_threads(tmp_path, monkeypatch):
    monkeypatch.setattr(_manner.tempfile, "gettempdir", lambda: str(tmp_path))
    names = []
    for user in (1000, 1001):
        monkeypatch.setattr(_manner.os, "getuid", lambda number=user: number, raising=False)
        with _manner._alone() as lock:
            names.append(Path(lock.lock_file).name)
    assert names == ["attnrank-alone-1000.lock", "attnrank-alone-1001.lock"]


def test_a_new_version_begins_anew(tmp_path):
    """What a row of the version before had kept is not gone on from, though both files of the table were deleted."""
    def old(n, folder):
        (folder / "half").write_text("0.25")
        raise KeyboardInterrupt

    def new(n, folder):
        assert not any(folder.iterdir())
        return {"half": n / 2}

    grid = sweep.grid(n=[1])
    with pytest.raises(KeyboardInterrupt):
        sweep.run("T", old, grid, folder=tmp_path, checkpoint=True)
    assert len(list(tmp_path.glob("T.*.partial"))) == 1
    for file in (tmp_path / "T.json", tmp_path / "T.csv"):
        file.unlink(missing_ok=True)
    assert sweep.run("T", new, grid, folder=tmp_path, checkpoint=True, version=2).half.tolist() == [0.5]


def test_every_row_of_every_table_and_version_has_a_folder_of_its_own(tmp_path):
    """Rows that are computed beside each other keep checkpoints of the same names."""
    places = [("T", 1, (1, "a")), ("T", 1, (2, "a")), ("T", 1, (1, "b")), ("T", 2, (1, "a")), ("S", 1, (1, "a"))]
    assert len({_manner.checkpoint_folder(tmp_path, *place) for place in places}) == len(places)
    assert _manner.row_name((1, "a")) == "eba9741678765ab6"  # in every process: the sha256 of the row's line


def test_places_that_do_not_suit(tmp_path):
    for options, message in (
        ({"threads": "all", "workers": 2}, "workers must be 1"),
        ({"checkpoint": True, "cluster": "tcp://x"}, "cluster must be left out"),
    ):
        with pytest.raises(ValueError, match=message):
            sweep.run("T", lambda n: {"half": n / 2}, sweep.grid(n=[1]), folder=tmp_path, **options)
    assert not list(Path(tmp_path).iterdir())
