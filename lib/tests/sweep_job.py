"""The sweep of the tests of sweeps: a script that other processes run too, and fixtures with what it makes."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import pytest

from attnrank import sweep

# The sweep of these tests as a script, so that other processes run the same function. Each call leaves a line in the
# file CALLS, which shows what was computed and how often. With HOLD no process goes beyond row 40: it is there to be
# killed, however late. With COMPANY a process's rows wait until so many processes have begun one.
JOB = '''
import os, sys, time
from pathlib import Path
import torch
from attnrank import sweep

def function(n, kind, seed):
    with open(os.environ["CALLS"], "a") as file:
        file.write(f"{n},{kind},{seed}\\n")
    if "HOLD" in os.environ:
        while n == 5:
            time.sleep(0.01)
    if "COMPANY" in os.environ:
        Path(os.environ["CALLS"] + f".{os.getpid()}").touch()
        while len(list(Path(os.environ["CALLS"]).parent.glob("calls.*"))) < int(os.environ["COMPANY"]):
            time.sleep(0.01)
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
