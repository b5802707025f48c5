"""What a claim belongs to: its chapter and part, the theorem that it tests, the tests of that theorem's code.

A claim of kind "theorem" tests the last theorem, corollary, proposition or lemma stated before its cell, unless
claim_theorems.csv names another, or none. theorem_tests.csv names the tests of the package that hold a theorem's bound
against simulation or an independent computation.
"""

from __future__ import annotations

import csv
import json
import re
from functools import cache
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
RESULT = re.compile(r"\{prf:(?:theorem|corollary|proposition|lemma)\}[^\n]*\n:label: (\S+)")
CLAIM_MIME = "application/vnd.attnrank.claim+json"

@cache
def chapters(root: Path = ROOT) -> dict[str, tuple[str, str]]:
    """Page and part of every notebook of the contents, by stem."""
    contents = yaml.safe_load((root / "_toc.yml").read_text(encoding="utf-8"))
    found = {}
    for part in contents["parts"]:
        for chapter in part["chapters"]:
            if chapter["file"].startswith("notebooks/"):
                found[stem(chapter["file"])] = chapter["file"], part.get("caption", "")
    return found


def statement(claim_paper: str) -> str:
    """What of a paper a claim bears on, without the reviewers' codes: "objection R4: x" is "objection: x"."""
    text = re.sub(r"^objection [^:]*:", "objection:", claim_paper)
    return f"{text[0].upper()}{text[1:]}"


def stem(page: str) -> str:
    return re.sub(r"^\d+_", "", Path(page).name)


@cache
def theorems(root: Path = ROOT) -> dict[str, str]:
    """The label of the theorem that each theorem's claim tests, by the claim's id; claims without one are missing."""
    found = {}
    for page, _ in chapters(root).values():
        last = ""
        for cell in json.loads((root / f"{page}.ipynb").read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] == "markdown":
                last = [last, *RESULT.findall("".join(cell["source"]))][-1]
            for output in cell.get("outputs", []):
                claim = output.get("data", {}).get(CLAIM_MIME)
                if claim and claim["kind"] == "theorem":
                    found[claim["id"]] = last
    found |= {row["claim"]: row["theorem"] for row in read("claim_theorems.csv")}
    return {claim: theorem for claim, theorem in found.items() if theorem}


@cache
def results(root: Path = ROOT) -> list[str]:
    """The labels of all theorems, corollaries, propositions and lemmas, in the order of the book."""
    pages = [root / f"{page}.ipynb" for page, _ in chapters(root).values()]
    cells = [cell for page in pages for cell in json.loads(page.read_text(encoding="utf-8"))["cells"]]
    texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
    return [label for text in texts for label in RESULT.findall(text)]


def tests() -> dict[str, list[str]]:
    """Tests of the package, file::function, by the label of the theorem."""
    found: dict[str, list[str]] = {}
    for row in read("theorem_tests.csv"):
        found.setdefault(row["theorem"], []).append(row["test"])
    return found


def read(name: str) -> list[dict[str, str]]:
    path = Path(__file__).with_name(name)
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def paper(claim: str) -> str:
    """The paper whose subject a claim is about, "rank" or "convex", by the part of its chapter."""
    _, part = chapters()[claim.partition("/")[0]]
    return "convex" if "Convex" in part else "rank"
