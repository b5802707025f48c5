"""Sweeps over processes and over a Dask cluster: whoever is killed and whenever, the published bytes are the same."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

import dask
import distributed
import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnrank import sweep
from attnrank.experiments import EXPERIMENTS
from attnrank.sweep import _device, _pools, _provenance, _work
from attnrank.sweep._work import LostWorker, Outcome, OutOfMemory

# A driver: its function is defined in a script, as in a notebook, so that workers can only get its code, not its name.
DRIVER = '''
import sys, time
from pathlib import Path
import torch
from attnrank import sweep

def function(n, seed):
    time.sleep(0.05 if address else 0)
    while n == 5 and address and not Path(folder, "go").exists():  # there are rows left at each kill
        time.sleep(0.01)
    x = torch.randn(n, generator=torch.Generator().manual_seed(1000 * n + seed), dtype=torch.float64)
    return {"positive": int((x > 0).sum()), "mean": float(x.mean()), "note": f"{n}, \\"{seed}\\"", "missing": None}

GRID = sweep.grid(n=[3, 8, 5], seed=range(30))

if __name__ == "__main__":
    folder, address = sys.argv[1:]
    sweep.run("T", function, GRID, folder=folder, **({"cluster": address} if address else {}))
'''

CLUSTER = '''
import sys
import distributed

if __name__ == "__main__":
    if sys.platform == "linux":  # the workers begin with the imports done; elsewhere each does them
        distributed.utils.get_mp_context().set_forkserver_preload(["distributed", "attnrank"])
    with distributed.LocalCluster(n_workers=3, threads_per_worker=1, dashboard_address=":0") as cluster:
        print(cluster.scheduler_address, flush=True)
        sys.stdin.read()
'''


# No connection is given up because the machine is busy.
PATIENT = {"DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "1h", "DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP": "1h"}
if sys.platform == "linux":
    PATIENT["DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD"] = "forkserver"
dask.config.refresh(env=PATIENT)


def bytes_of(folder, name="T"):
    return (Path(folder) / f"{name}.csv").read_bytes()


def rows_of(folder, name="T"):
    return bytes_of(folder, name).decode().splitlines()[1:]


# Which rows are tried again, and how often ----------------------------------------------------------------------------


class Script:
    """A pool of two whose rows fail as scripted: a list of "lost", "memory" or "done" for each, then always "done"."""

    again, again_alone, size = 1, 2, 2

    def __init__(self, script):
        self.script = {key: list(events) for key, events in script.items()}
        self.tries = {key: [] for key in script}  # how many others were in progress at each try
        self.pending = []

    def capacity(self):
        return self.size

    def submit(self, work, function, setting):
        future = Future()
        self.tries[setting["key"]].append(len(self.pending))
        self.pending.append((future, setting["key"]))
        return future

    def wait(self, futures):
        future, key = self.pending.pop(0)
        assert future in futures
        event = self.script[key].pop(0) if self.script[key] else "done"
        result = {"lost": LostWorker("lost"), "memory": OutOfMemory("memory"), "done": {"x": 1}}[event]
        future.set_result(Outcome(result, 0.0, "cpu"))
        return {future}

    def outcome(self, future):
        return future.result()


def outcomes_of(pool, stopped=lambda: False):
    tasks = iter([((key,), {"key": key}) for key in pool.script])
    return [(key, outcome.result) for (key,), outcome in _work.outcomes(None, tasks, pool, stopped)]


events = st.lists(st.sampled_from(["lost", "memory", "done"]), max_size=7)


@settings(max_examples=200, deadline=None)
@given(st.lists(events, min_size=1, max_size=6).map(lambda scripts: dict(enumerate(scripts))), st.integers(1, 3))
def test_every_row_has_one_outcome_after_a_bounded_number_of_tries(script, size):
    pool = Script(script)
    pool.size = size
    found = outcomes_of(pool)
    assert sorted(key for key, _ in found) == sorted(script)
    for key, result in found:
        tries = len(pool.tries[key])
        assert tries <= 2 + pool.again + pool.again_alone
        ran = (script[key] + ["done"] * 9)[:tries]
        assert ran.count("done") == isinstance(result, dict)
        if isinstance(result, LostWorker):  # only after it was lost alone
            assert ran.count("lost") == 1 + pool.again + pool.again_alone and pool.tries[key][-1] == 0
        if isinstance(result, OutOfMemory):  # only after it ran out alone
            assert ran[-1] == "memory" and pool.tries[key][-1] == 0 and tries > 1


def test_a_row_that_ends_every_worker_is_blamed_and_no_other():
    """Whenever row 2 is in progress, what runs beside it is lost too; only row 2 fails."""
    class Poisoned(Script):
        def wait(self, futures):
            broken = any(key == 2 for _, key in self.pending)
            for _, key in self.pending:
                self.script[key] = ["lost"] if broken else []
            done = [super(Poisoned, self).wait(futures) for _ in (list(self.pending) if broken else [0])]
            return set().union(*done)
    pool = Poisoned(dict.fromkeys(range(6), ()))
    found = dict(outcomes_of(pool))
    assert {key for key, result in found.items() if isinstance(result, LostWorker)} == {2} and len(found) == 6


def test_a_row_that_is_lost_is_tried_beside_others_first_and_then_alone():
    pool = Script({0: ["lost"] * 3, **dict.fromkeys(range(1, 9), [])})
    assert dict(outcomes_of(pool))[0] == {"x": 1}
    assert pool.tries[0] == [0, 1, 0, 0]  # how many others were in progress


def test_no_row_is_begun_again_after_a_failure():
    pool = Script({0: ["lost"], 1: ["memory"], 2: [], 3: []})
    seen = []
    tasks = iter([((key,), {"key": key}) for key in pool.script])
    for (key,), _ in _work.outcomes(None, tasks, pool, lambda: bool(seen)):
        seen.append(key)
    assert seen == [0, 2]  # row 2 was in progress; row 1 waited to be alone
    assert [len(tries) for tries in pool.tries.values()] == [2, 1, 1, 0]


# Memory of an accelerator ---------------------------------------------------------------------------------------------


def needs(folder):
    """A function of two units of memory in all, of which row n takes ``need``; row 0 keeps row 1 company at first."""
    def wait_until(condition):
        deadline = time.monotonic() + 900  # against waiting for ever; no verdict hangs on it
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.01)

    def function(n, need):
        mine, decided = folder / f"{n}.inuse", folder / "decided"
        mine.touch()
        try:
            with (folder / "tries").open("a") as file:
                file.write(f"{n}\n")
            if n == 0:
                wait_until(decided.exists)
            elif n == 1 and not decided.exists():
                wait_until((folder / "0.inuse").exists)
            beside = len(list(folder.glob("*.inuse"))) - 1
            if need > 1:
                decided.touch()
                if need + beside > 2:
                    raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
            return {"half": n / 2}
        finally:
            mine.unlink()
    return function


GRID_OF_NEEDS = [{"n": n, "need": 2 if n == 1 else 1} for n in range(6)]
HALVES = b"n,need,half\n" + b"".join(b"%d,%d,%s\n" % (n, 2 if n == 1 else 1, str(n / 2).encode()) for n in range(6))


def test_a_row_that_needs_the_accelerator_for_itself(tmp_path):
    sweep.run("T", needs(tmp_path), GRID_OF_NEEDS, folder=tmp_path, workers=2)
    assert bytes_of(tmp_path) == HALVES
    tries = (tmp_path / "tries").read_text().split()
    assert tries.count("1") == 2 and tries[-1] == "1" and len(tries) == 7  # beside another, then after all others


def test_a_row_that_never_fits_is_named(tmp_path):
    grid = [{"n": n, "need": 3 if n == 1 else 1} for n in range(4)]
    with pytest.raises(RuntimeError, match=r"T failed for \{'n': 1, 'need': 3\}: OutOfMemoryError: CUDA out of memory"):
        sweep.run("T", needs(tmp_path), grid, folder=tmp_path, workers=2)
    assert sorted(rows_of(tmp_path)) == ["0,1,0.0", "2,1,1.0", "3,1,1.5"]
    with pytest.raises(RuntimeError, match="out of memory"):  # in this process a row is alone from the start
        sweep.run("S", needs(tmp_path), grid[1:2], folder=tmp_path)


def test_device(monkeypatch):
    assert sweep.device() == torch.device("cuda" if torch.cuda.is_available() else "cpu", sweep.device().index)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    for process, index in ((6, 0), (7, 1), (8, 2)):
        monkeypatch.setattr(os, "getpid", lambda number=process: number)
        assert sweep.device() == torch.device("cuda", index)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda where: f"card {where.index}")
    for used, name in ((False, "cpu"), (True, "card 2")):  # the last process's
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda used=used: used)
        assert _device.device_name() == name


# Processes ------------------------------------------------------------------------------------------------------------


def deadly(folder, victims):
    """A function that kills its process the first time that it is called for a victim, and computes afterwards."""
    def function(n):
        time.sleep(0.01)
        died = folder / f"{n}.died"
        if n in victims and not died.exists():
            died.touch()
            psutil.Process().kill()
        return {"half": n / 2}
    return function


def test_killed_processes(tmp_path):
    victims = random.sample(range(20), 1)
    sweep.run("T", deadly(tmp_path, victims), sweep.grid(n=range(20)), folder=tmp_path, workers=2)
    assert len(list(tmp_path.glob("*.died"))) == 1
    sweep.run("S", lambda n: {"half": n / 2}, sweep.grid(n=range(20)), folder=tmp_path)
    assert bytes_of(tmp_path) == bytes_of(tmp_path, "S")


def test_a_process_that_always_dies_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(_pools.Processes, "again", 0)  # each death costs seconds; twice alone, as always, is enough
    def function(n):
        if n == 1:
            psutil.Process().kill()
        return {"half": n / 2}
    with pytest.raises(RuntimeError, match=r"T failed for \{'n': 1\}: its worker was lost each time"):
        sweep.run("T", function, sweep.grid(n=range(3)), folder=tmp_path, workers=2)
    assert sorted(rows_of(tmp_path)) == ["0,0.0", "2,1.0"]


# A cluster ------------------------------------------------------------------------------------------------------------


class ClusterProcess:
    """A Dask cluster of three worker processes, run by a process of its own."""

    def __init__(self, script, environment):
        self.process = subprocess.Popen([sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True, encoding="utf-8", env=environment)
        self.address = self.process.stdout.readline().strip()

    def workers(self):
        found = []
        for child in psutil.Process(self.process.pid).children():
            with suppress(psutil.Error):  # it has just ended
                found += child.children() if "forkserver" in str(child.cmdline()) else []
                found += [child] if "spawn_main" in str(child.cmdline()) else []
        return found

    def kill_one(self, chance):
        """Kill a worker, waiting for one to be there: Dask starts others in the place of those that died."""
        killed = False
        while not killed:
            with suppress(psutil.Error, IndexError):
                chance.choice(self.workers()).kill()
                killed = True

    def close(self):
        self.process.communicate("")


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A copy of the package: workers compare its state with the driver's, and this one may be edited meanwhile."""
    path = tmp_path_factory.mktemp("package")
    shutil.copytree(_provenance.PACKAGE, path / "attnrank", ignore=shutil.ignore_patterns("__pycache__"))
    return path


@pytest.fixture(scope="module")
def cluster(package, tmp_path_factory):
    script = tmp_path_factory.mktemp("cluster") / "cluster.py"
    script.write_text(CLUSTER, encoding="utf-8")
    running = ClusterProcess(script, os.environ | PATIENT | {"PYTHONPATH": str(package)})
    with distributed.Client(running.address, set_as_default=False) as client:
        [state, *others] = client.run(_provenance.versions).values()
        assert others == [state, state]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_pools, "versions", lambda: state)
        yield running
    running.close()


@pytest.fixture(scope="module")
def driver(package, tmp_path_factory):
    """The script of a sweep, and beside it the table that it makes in one process."""
    folder = tmp_path_factory.mktemp("published")
    script = folder / "driver.py"
    script.write_text(DRIVER, encoding="utf-8")
    subprocess.run([sys.executable, str(script), str(folder), ""], check=True)
    return script


def test_cluster_equals_one_process(cluster, tmp_path):
    factor = 3.0

    def function(n, kind):  # a closure
        return {"third": n / factor, "kinds": kind * n, "odd": n % 2 == 1, "missing": None}
    grid = sweep.grid(n=range(10), kind=["a", "b"])
    one = sweep.run("T", function, grid, folder=tmp_path)
    address = sweep.run("A", function, grid, folder=tmp_path, cluster=cluster.address)
    with distributed.Client(cluster.address, set_as_default=False) as client:
        given_client = sweep.run("C", function, grid, folder=tmp_path, cluster=client)
        assert client.status == "running"  # it is not ours to close
        random_heads = sweep.run("R", EXPERIMENTS["random_heads"].function,
                                 sweep.grid(n=[16], d_h=[1, 2], samples=[40], seed=[0]), folder=tmp_path,
                                 cluster=client)
    assert bytes_of(tmp_path) == bytes_of(tmp_path, "A") == bytes_of(tmp_path, "C")
    assert one.equals(address) and one.equals(given_client) and len(random_heads) == 2


def test_cluster_failure(cluster, tmp_path):
    def function(n):
        return {"x": 1 // (n - 2)}
    with pytest.raises(RuntimeError, match=r"T failed for \{'n': 2\}: ZeroDivisionError: .*"):
        sweep.run("T", function, sweep.grid(n=range(30)), folder=tmp_path, cluster=cluster.address)
    assert "0,-1" in rows_of(tmp_path)
    sweep.run("T", lambda n: {"x": n}, sweep.grid(n=range(30)), folder=tmp_path, cluster=cluster.address)


def test_cluster_memory(cluster, tmp_path):
    sweep.run("T", needs(tmp_path), GRID_OF_NEEDS[:3], folder=tmp_path, cluster=cluster.address)
    assert len(rows_of(tmp_path)) == 3 and (tmp_path / "tries").read_text().split()[-1] == "1"


def test_cluster_of_another_state_is_refused(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(_pools, "versions", lambda: {"attnrank": "0" * 64})
    with pytest.raises(RuntimeError, match=r"for \{'n': 0\}: the worker has \{'attnrank': '.*this process"):
        sweep.run("T", lambda n: {"x": n}, sweep.grid(n=[0]), folder=tmp_path, cluster=cluster.address)


def test_bad_cluster(tmp_path):
    def run(**options):
        sweep.run("T", lambda n: {"x": n}, sweep.grid(n=[0]), folder=tmp_path, **options)
    with pytest.raises(ValueError, match=r"cluster must be a distributed.Client or a scheduler's address, got 3"):
        run(cluster=3)
    with pytest.raises(ValueError, match="workers must be left out with a cluster, .*got 2"):
        run(cluster="tcp://127.0.0.1:9", workers=2)
    soon = dask.config.set({"distributed.comm.timeouts.connect": "300ms"})
    with soon, pytest.raises(ValueError, match=r"cluster: no scheduler answers at 'tcp://127.0.0.1:9'"):
        run(cluster="tcp://127.0.0.1:9")
    assert not list(tmp_path.iterdir())


def test_killed_workers_and_drivers(cluster, driver, package, tmp_path):
    """Three workers and two drivers are killed at random moments: no row is lost and none doubled.

    Dask gives up on a row when four workers have died with it, and a sweep then tries it alone: three cannot fail it.
    """
    chance = random.Random()
    victims = ["worker"] * 3 + ["driver"] * 2
    chance.shuffle(victims)
    # Rows stored before each kill. The last is 12 before the first row that waits for "go": six are begun beside each
    # other, and one that waited in every worker would leave none for those that the next kill waits for.
    moments = sorted(chance.sample(range(1, 49), len(victims)))
    process, stored = None, []

    def start():
        return subprocess.Popen([sys.executable, str(driver), str(tmp_path), cluster.address],
                                stderr=(driver.parent / "errors").open("a"),
                                env=os.environ | PATIENT | {"PYTHONPATH": str(package)})

    def lines():
        return bytes_of(tmp_path).split(b"\n")[:-1] if (tmp_path / "T.csv").exists() else []

    for moment, victim in zip(moments, victims):
        process = process or start()
        while len(lines()) <= moment:
            assert process.poll() is None, (driver.parent / "errors").read_text()
            time.sleep(0.005)
        time.sleep(chance.uniform(0, 0.05))  # anywhere within a row
        if victim == "driver":
            process.kill()
            process.wait()
            process = None
        else:
            cluster.kill_one(chance)
        kept = lines()
        assert kept[: len(stored)] == stored  # nothing that was stored is lost or altered
        stored = kept
    (tmp_path / "go").touch()
    process = process or start()
    assert process.wait() == 0, (driver.parent / "errors").read_text()
    assert bytes_of(tmp_path) == bytes_of(driver.parent)
    assert len(sweep.read("T", folder=tmp_path)) == 90
    assert set(stored) <= set(bytes_of(tmp_path).split(b"\n"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["T.csv", "T.json", "T.lock", "go"]


def test_a_row_that_ends_every_worker_of_the_cluster_is_named(cluster, tmp_path):
    """Last, as it costs workers. Dask is told to give up at the first death, and the row is then tried alone, once."""
    def function(n):
        if n == 1:
            psutil.Process().kill()
        return {"half": n / 2}

    def allow(failures, dask_scheduler):
        dask_scheduler.allowed_failures = failures
    with distributed.Client(cluster.address, set_as_default=False) as client:
        client.run_on_scheduler(allow, 0)
    with pytest.raises(RuntimeError, match=r"T failed for \{'n': 1\}: its worker was lost each time"):
        sweep.run("T", function, sweep.grid(n=range(2)), folder=tmp_path, cluster=cluster.address)
    assert rows_of(tmp_path) == ["0,0.0"]


def test_workers_know_the_environment_of_their_sweep(monkeypatch):
    """Workers of a moment ago had that of the sweep before, so that rows depended on how soon a cell was run."""
    for named in ("first", None):
        if named is None:
            monkeypatch.delenv("ATTNRANK_DATA")
        else:
            monkeypatch.setenv("ATTNRANK_DATA", named)
        with _pools.Processes(1) as workers:
            assert workers.submit(os.getenv, "ATTNRANK_DATA", {}).result() == (named or {})
