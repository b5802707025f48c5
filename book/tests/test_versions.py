"""The pinned versions of the build lie in the ranges that the package declares."""

from __future__ import annotations

import tomllib
from pathlib import Path

from packaging.requirements import Requirement


def test_pins_lie_in_the_ranges(root: Path) -> None:
    lines = (root / "requirements.txt").read_text(encoding="utf-8").splitlines()
    wanted = [Requirement(line) for line in lines if line and line[0].isalpha()]
    pins = {one.name.lower(): [s.version for s in one.specifier if s.operator == "=="] for one in wanted}
    project = tomllib.loads((root / "lib/pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    ranges = [*project["dependencies"], *(text for extra in extras for text in extra)]
    assert len(ranges) > 10
    for text in ranges:
        declared = Requirement(text)
        [version] = pins[declared.name.lower()]
        assert declared.specifier.contains(version), f"{text}: pinned at {version}"
