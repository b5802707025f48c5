"""Kernels of the notebooks: a forked one is like any other."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import KernelManager, start_new_kernel

import forking

FACTS = """
import json, os, sys
before = "torch" in sys.modules
import attnrank, matplotlib, pandas
session = sys.platform == "win32" or os.getsid(0) == os.getpid()
print(json.dumps({"session": session, "folder": os.getcwd(), "path": sys.path, "before": before,
                  "backend": matplotlib.get_backend(), "given": os.environ.get("GIVEN"), "main": __name__,
                  "columns": pandas.get_option("display.max_columns")}))
"""


@pytest.fixture(params=[True, False], ids=["forked", "started"])
def kernel(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[tuple[bool, KernelManager, BlockingKernelClient]]:
    if not request.param:
        monkeypatch.setattr(forking, "server", lambda: None)
    monkeypatch.setenv("GIVEN", "here")
    manager, client = start_new_kernel(startup_timeout=1800, kernel_name="python3", cwd=str(tmp_path))
    yield request.param and sys.platform == "linux", manager, client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def shown_by(client: BlockingKernelClient, code: str) -> tuple[str, list[dict]]:
    """The status of a cell, and the contents of what it shows."""
    shown: list[dict] = []
    reply = client.execute_interactive(code, timeout=None, output_hook=lambda message: shown.append(message["content"]))
    return reply["content"]["status"], shown


def test_a_kernel_has_the_path_and_the_environment_of_one_of_its_own(kernel, tmp_path) -> None:
    forked, manager, client = kernel
    status, shown = shown_by(client, FACTS)
    assert status == "ok", shown
    facts = json.loads("".join(content.get("text", "") for content in shown))
    assert facts["before"] == forked
    assert (facts["session"], facts["given"], facts["main"]) == (True, "here", "__main__")
    assert facts["columns"] == 20  # which pandas sets when it is imported: elsewhere it shows as many as fit
    assert "inline" in facts["backend"] and Path(facts["folder"]).samefile(tmp_path)
    tests = Path(__file__).resolve().parents[2] / "lib/tests"
    assert not {str(Path(__file__).parent), str(tests)} & set(facts["path"])


def test_a_kernel_shows_figures_and_tells_of_errors(kernel) -> None:
    _, _, client = kernel
    status, shown = shown_by(client, "import matplotlib.pyplot as plt\nplt.plot([1, 2]);")
    assert status == "ok" and any("image/png" in content.get("data", {}) for content in shown)
    assert "ZeroDivisionError" in json.dumps(shown_by(client, "1 / 0"))


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_kernel_is_interrupted_and_ended(kernel) -> None:
    _, manager, client = kernel
    process = psutil.Process(manager.provisioner.pid)
    client.execute("import time\nprint('begun', end='')\ntime.sleep(3600)")
    while "begun" not in client.get_iopub_msg(timeout=None)["content"].get("text", ""):
        pass
    manager.interrupt_kernel()
    while client.get_iopub_msg(timeout=None)["content"].get("ename") != "KeyboardInterrupt":
        pass
    assert manager.is_alive() and process.is_running()
    manager.shutdown_kernel(now=True)
    assert not manager.is_alive()
    process.wait(600)


@pytest.mark.skipif(sys.platform != "linux", reason="kernels are forked on Linux alone")
def test_a_kernel_is_told_with_which_process_it_ends(kernel) -> None:
    forked, manager, client = kernel
    _, shown = shown_by(client, "import os; print(os.environ['JPY_PARENT_PID'], os.getppid())")
    named, parent = "".join(content.get("text", "") for content in shown).split()
    assert named == parent and (int(parent) == os.getpid()) != forked
