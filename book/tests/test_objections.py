"""Every objection of the public reviews has its entry, and a cell that answers it or the reason why none can."""

from __future__ import annotations

import re
from pathlib import Path

import claim_links
import pytest

from attnrank import report

BOOK = Path(__file__).resolve().parents[1]
#: The objections of the reviews, by paper, in the order of the page.
OBJECTIONS = {
    "The rank paper": [
        "trained-weights", "orthogonality", "small-data", "first-layer", "say-random", "why-rank", "anisotropy",
        "compression", "modalities", "parametrisations", "full-rank-heads", "no-head-dimension", "query-independent",
        "what-is-lost", "figure-1", "threshold", "weight-laws", "approximation", "softmax", "aggregation", "novelty",
        "assumptions", "real-models", "finite-temperature", "dip", "setup", "tightness", "positions",
        "sparse-attention", "concatenation", "correlation",
    ],
    "The paper on convex attention": ["softmax-removed", "small-tasks", "no-rate", "regulariser"],
}  # fmt: skip


def entries(text: str) -> dict[str, dict[str, str]]:
    """The answers on the page, by paper and label, in order."""
    found = {}
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        parts = re.split(r"^\(objection-([\w-]+)\)=$", body, flags=re.MULTILINE)
        found[title] = dict(zip(parts[1::2], parts[2::2]))
    return found


def misnamed(text: str, ledger: list[dict[str, str]]) -> list[str]:
    """Claims that say which objection they answer, by its number on the page, and are not among its cells."""
    cells = {int(number): entry for number, entry in re.findall(r"^\*\*(\d+)\. (.*?)(?=^\*\*|\Z)", text, re.M | re.S)}
    found = []
    for row in ledger:
        said = re.match(r"objection (.+?):", row["paper"])
        if said and f"{{claim}}`{row['id']}`" not in cells.get(int(said[1]) if said[1].isdigit() else 0, ""):
            found.append(row["id"])
    return found


def unanswered(text: str) -> list[str]:
    """Labels missing or out of order, misnumbered, or neither answered by a claim nor said to be unanswerable."""
    page, number, faults = entries(text), 0, []
    claims = {row["id"] for row in report.read_ledger(BOOK / "results")}
    for paper, labels in OBJECTIONS.items():
        if list(page.get(paper, {})) != labels:
            faults.append(f"{paper}: {sorted(set(labels) ^ set(page.get(paper, {})))} missing, surplus or out of order")
        for label, entry in page.get(paper, {}).items():
            number += 1
            cells = re.findall(r"\{claim\}`([^`]+)`", entry)
            reason = re.search(r"Not answerable from public facts: \w.+", entry)
            if not entry.lstrip().startswith(f"**{number}. "):
                faults.append(f"{label}: is number {number}")
            if not (cells or reason) or not set(cells) <= claims:
                faults.append(f"{label}: no cell of the ledger, and no reason why there is none")
    return faults


@pytest.fixture(scope="module")
def text() -> str:
    return (BOOK / "objections.md").read_text(encoding="utf-8")


def test_every_objection_is_answered(text: str) -> None:
    assert unanswered(text) == []
    assert [len(labels) for labels in OBJECTIONS.values()] == [31, 4]


def test_claims_name_the_objections_that_they_answer(text: str) -> None:
    ledger = report.read_ledger(BOOK / "results")
    named = [row for row in ledger if row["paper"].startswith("objection ")]
    assert len(named) > 10 and misnamed(text, ledger) == []
    for other in ("objection 35: ", "objection R1: "):  # another one; one that the page does not have
        assert misnamed(text, [row | {"paper": other} for row in named]) == [row["id"] for row in named]


def test_chapters_named_as_open_are_planned_or_there(text: str) -> None:
    planned = {"accuracy", "text", "choosing_head_dimension", "convex_experiments", "rank_and_convexity"}
    assert set(re.findall(r"\{chapter\}`([^`]+)`", text)) <= planned | set(claim_links.chapters())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (r"\(objection-dip\)=", ""),
        (r"\{claim\}`heads_and_weights/rotary`", ""),
        (r"\{claim\}`heads_and_weights/rotary`", "{claim}`softmax/no-such-cell`"),
        (r"Not answerable from public facts: [^\n]*", "Not answerable."),
        (r"\*\*7\. ", "**8. "),
    ],
)
def test_a_missing_answer_is_found(text: str, old: str, new: str) -> None:
    broken = re.sub(old, new, text)
    assert broken != text and unanswered(broken)
