"""The pinned versions of the build lie in the ranges that the package declares; how to cite the book is said once."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from pybtex.database import parse_file


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


def test_the_citation_is_the_same_everywhere(root: Path) -> None:
    declared = yaml.safe_load((root / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((root / "lib/pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = (root / "book/reading.md").read_text(encoding="utf-8")
    shown = dict(re.findall(r"^  (\w+) += \{+([^{}]+)\}+", page, flags=re.MULTILINE))
    [author] = declared["authors"]
    expected = {"title": declared["title"], "author": author["name"], "version": declared["version"],
                "year": str(declared["date-released"])[:4]}  # fmt: skip
    assert shown == expected and project["version"] == declared["version"]


def test_the_papers_that_one_should_cite_are_those_of_the_bibliography(root: Path) -> None:
    """Title, authors, year and address; who wrote a paper under review is not known, and nobody is named."""
    declared = yaml.safe_load((root / "CITATION.cff").read_text(encoding="utf-8"))
    page = (root / "book/reading.md").read_text(encoding="utf-8").split("## How to cite")[1]
    entries = parse_file(root / "book/references.bib").entries
    papers = [entries[key] for key in re.findall(r"{cite:t}`(\w+)`", page)]
    expected = [
        {
            "type": "unpublished" if "url" in fields else "article",
            "title": re.sub("[{}]", "", fields["title"]),
            "authors": [{"family-names": one.last_names[0], "given-names": one.first_names[0]} for one in people]
            or [{"name": "anonymous"}],
            "year": int(fields["year"]),
            "url": fields.get("url") or f"https://arxiv.org/abs/{fields['eprint']}",
        }
        for fields, people in ((paper.fields, paper.persons.get("author", [])) for paper in papers)
    ]
    assert declared["references"] == expected and len(expected) == 2
