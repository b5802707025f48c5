"""The tools that read the code find nothing: ruff in everything, mypy at its basic level in the package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "command",
    [["ruff", "check", "lib", "book"], ["mypy", "--config-file", "pyproject.toml", "--cache-dir", os.devnull]],
    ids=["ruff", "mypy"],
)
def test_nothing_is_found(command):
    pytest.importorskip(command[0])
    if not (ROOT / "pyproject.toml").exists():
        pytest.skip("the package is tested without the book, which has the configuration")
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
