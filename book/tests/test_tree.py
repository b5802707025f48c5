"""The top level of the repository holds what the design names, and nothing else."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ALLOWED = {"book", "notebooks", "lib", "_config.yml", "_toc.yml", "requirements.txt", "README.md", "pyproject.toml",
           "LICENSE", "CITATION.cff"}


def strangers(paths: list[str]) -> list[str]:
    """Top-level names that are neither allowed nor hidden."""
    return sorted({path.split("/")[0] for path in paths if not path.startswith(".")} - ALLOWED)


def test_top_level(root: Path) -> None:
    if not (root / ".git").exists():
        pytest.skip("not a git checkout: no list of tracked files")
    listing = subprocess.run(["git", "ls-files"], cwd=root, check=True, capture_output=True, encoding="utf-8")
    assert "_config.yml" in listing.stdout.split()
    assert strangers(listing.stdout.splitlines()) == []


def test_strangers_are_found() -> None:
    assert strangers(["book/index.md", ".ci/run", "conftest.py", "data/x.csv"]) == ["conftest.py", "data"]
