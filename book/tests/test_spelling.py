"""No common misspelling in the texts and the code, by codespell with the settings of pyproject.toml."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def misspellings(root: Path, *paths: str) -> list[str]:
    """What the documented command prints, in the repository."""
    command = [sys.executable, "-m", "codespell_lib", *paths]
    result = subprocess.run(command, cwd=root, capture_output=True, encoding="utf-8")
    assert result.returncode in (0, 65) and not result.stderr, result.stderr
    return result.stdout.splitlines()


def test_there_are_no_misspellings(root: Path) -> None:
    assert misspellings(root, "README.md", "book", "lib", "notebooks") == []


def test_misspellings_are_found(root: Path, tmp_path: Path) -> None:
    wrong = "seper" + "ate"  # in parts, so that this file has none
    (tmp_path / "page.md").write_text(f"# Rank\n\nTwo {wrong} heads.\n", encoding="utf-8")
    [line] = misspellings(root, str(tmp_path))
    assert line.endswith(f"page.md:3: {wrong} ==> separate")
