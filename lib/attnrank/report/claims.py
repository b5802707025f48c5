"""Claims: relations between numbers that are asserted, shown with a negative control, and kept in the ledger."""

from __future__ import annotations

import csv
import html
import io
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
from filelock import FileLock
from numpy.typing import ArrayLike

from attnrank import _check
from attnrank._files import replace
from attnrank.sweep import results_folder

RELATIONS = {"<=": "≤", ">=": "≥", "==": "="}
KINDS = ("theorem", "measurement", "arithmetic")
VERDICTS = ("reproduced", "sharpened", "reproduced in part", "not reproduced", "not reproducible from public facts")
ROUNDING = "rounding in float64"
CLAIM_MIME = "application/vnd.attnrank.claim+json"
#: A theorem's claim has power when its slack is at most this share of the effect of breaking the hypothesis.
POWER = 0.1


@dataclass(frozen=True)
class Claim:
    """One row of the ledger: what was stated, what was measured, and the control that the same check rejects.

    ``slack`` is by how much the measured value of the closest case could be worse before the claim failed, ``effect``
    by how much the control is worse than that case; both in the units of the statement.
    """

    id: str
    statement: str
    kind: str
    cases: int
    measured: str
    relation: str
    bound: str
    margin: str
    margin_meaning: str
    slack: str
    control: str
    control_measured: str
    control_bound: str
    effect: str
    paper: str
    verdict: str

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, object]:
        return {"text/html": _claim_html(self), "text/plain": _claim_text(self), CLAIM_MIME: asdict(self)}


def claim(
    id: str,
    statement: str,
    *,
    measured: ArrayLike,
    relation: str,
    bound: ArrayLike,
    control: str,
    control_measured: ArrayLike,
    control_bound: ArrayLike | None = None,
    margin: ArrayLike = 0.0,
    margin_meaning: str = "",
    kind: str = "measurement",
    paper: str = "",
    verdict: str = "",
    digits: int = 4,
) -> Claim:
    """Assert ``measured relation bound`` up to ``margin``, assert that the control fails it, and write the ledger.

    With arrays every case must satisfy the relation; the case closest to failing is the one that is shown. The control
    is the same check on a mutated input, and at least one of its cases must violate the relation. The row goes to
    ``ledger.csv`` in the results folder, where there is one.

    Parameters
    ----------
    id : "stem/name", stem that of the chapter's notebook; unique in the book.
    statement : one sentence in plain text.
    measured, bound, margin : numbers or arrays that broadcast; margin >= 0 in the units of measured.
    relation : "<=", ">=" or "==" (the absolute difference is at most the margin).
    control : what was mutated, in a few words. ``control_measured`` and ``control_bound`` (``bound`` when None) take
        the places of ``measured`` and ``bound``.
    margin_meaning : what the margin is, for instance its false-alarm rate. With ``ROUNDING`` measured values within
        the margin count as the bound itself, and of several such cases the first is shown: which of them is the
        closest, and its digits, differ from machine to machine.
    kind : "theorem" (a proved statement is tested), "measurement" or "arithmetic" (exact or rounding only).
    paper : the statement of a paper that this bears on, and ``verdict``, one of ``VERDICTS``, what became of it.
    digits : significant digits shown.

    Returns
    -------
    Claim, which a notebook displays. Its slack says how small a violation the check catches; a theorem's claim whose
    slack is more than ``POWER`` of the effect of breaking the hypothesis proves nothing, and a test of the ledger finds
    it: add cases that come near the bound.

    Raises
    ------
    AssertionError : the relation does not hold, or the control was not caught.
    ValueError : empty or non-finite numbers, an id of another form, or an unknown relation, kind or verdict.
    """
    if not re.fullmatch(r"[a-z][a-z_]*/[a-z0-9]+(-[a-z0-9]+)*", id):
        raise ValueError(f"id must look like 'barrier/any-keys', got {id!r}")
    _check.choice("relation", relation, RELATIONS)
    _check.choice("kind", kind, KINDS)
    if bool(paper) != bool(verdict) or (verdict and verdict not in VERDICTS):
        raise ValueError(f"verdict must be one of {VERDICTS} where a paper is named, got {verdict!r} for {paper!r}")
    rounding = margin_meaning == ROUNDING
    seen = _worst_case("measured", measured, relation, bound, margin, rounding)
    if not seen.holds:
        raise AssertionError(f"claim {id} fails: {seen.value:.{digits}g} {relation} {seen.bound:.{digits}g} "
                             f"(margin {seen.margin:.{digits}g}) is false. {statement}")
    control_bound = bound if control_bound is None else control_bound
    mutated = _worst_case("control_measured", control_measured, relation, control_bound, margin, rounding)
    if mutated.holds:
        raise AssertionError(f"claim {id}: the control ({control}) is not caught, so the check cannot fail")
    number = f".{_check.integer('digits', digits, minimum=1)}g"
    slack = -seen.excess + 0.0  # never "-0"
    row = Claim(
        id, statement, kind, seen.cases, format(seen.value, number), relation, format(seen.bound, number),
        format(seen.margin, ".2g"), margin_meaning, format(slack, ".2g"), control, format(mutated.value, number),
        format(mutated.bound, number), format(mutated.excess + slack, ".2g"), paper, verdict,
    )  # fmt: skip
    _write_ledger(row)
    return row


def read_ledger(folder: str | Path | None = None) -> list[dict[str, str]]:
    """Rows of the ledger in the results folder as text, sorted by id; an empty list where there is no ledger yet.

    Raises
    ------
    ValueError : the file does not have the ledger's columns.
    """
    path = results_folder(folder) / "ledger.csv"
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        if reader.fieldnames != [f.name for f in fields(Claim)]:
            raise ValueError(f"{path} is not a ledger (columns {reader.fieldnames}): delete it and rerun the notebooks")
        rows = list(reader)
    if any(None in row or None in row.values() for row in rows):
        raise ValueError(f"{path} has a row with the wrong number of fields: delete it and rerun the notebooks")
    return rows


@dataclass(frozen=True)
class _Case:
    value: float
    bound: float
    margin: float
    excess: float
    cases: int

    @property
    def holds(self) -> bool:
        return self.excess <= 0


def _worst_case(
    name: str, measured: ArrayLike, relation: str, bound: ArrayLike, margin: ArrayLike, rounding: bool = False
) -> _Case:
    value, limit, slack = np.broadcast_arrays(*(np.asarray(a, dtype=float) for a in (measured, bound, margin)))
    if value.size == 0 or not all(np.isfinite(a).all() for a in (value, limit, slack)) or (slack < 0).any():
        raise ValueError(f"{name} must be non-empty and finite with finite bounds and margins >= 0, got {measured!r}")
    if rounding:
        value = np.where(abs(value - limit) <= slack, limit, value)
    excess = {"<=": value - limit, ">=": limit - value, "==": abs(value - limit)}[relation] - slack
    worst = np.unravel_index(np.argmax(excess), excess.shape)
    return _Case(float(value[worst]), float(limit[worst]), float(slack[worst]), float(excess[worst]), value.size)


def _write_ledger(row: Claim) -> None:
    try:
        folder = results_folder()
    except ValueError:
        if os.environ.get("ATTNRANK_RESULTS"):
            raise  # a folder that does not exist
        return  # the package is used outside the book
    with FileLock(folder / "ledger.csv.lock"):
        rows = {r["id"]: r for r in read_ledger(folder)}
        new = {key: str(value) for key, value in asdict(row).items()}
        if rows.get(row.id) == new:
            return
        rows[row.id] = new
        text = io.StringIO()
        writer = csv.DictWriter(text, [f.name for f in fields(Claim)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows[key] for key in sorted(rows))
        temporary = folder / "ledger.csv.tmp"
        temporary.write_text(text.getvalue(), encoding="utf-8", newline="\n")
        replace(temporary, folder / "ledger.csv")


def anchor(row: Claim) -> str:
    """The name of the claim's box on its page."""
    return "claim-" + row.id.replace("/", "-")


def comparison(row: Claim) -> str:
    """What was measured, beside its bound and margin: "0.634 ≤ 0.633 + 0.015 (closest of 108 cases)"."""
    margin = {"<=": " + ", ">=": " − ", "==": " ± "}[row.relation] + row.margin if float(row.margin) else ""
    cases = f" (closest of {row.cases} cases)" if int(row.cases) > 1 else ""
    return f"{row.measured} {RELATIONS[row.relation]} {row.bound}{margin}{cases}"


def control_comparison(row: Claim) -> str:
    """The control, and the value by which it fails the check."""
    return f"{row.control}: {row.control_measured}, not {RELATIONS[row.relation]} {row.control_bound}"


def powerless(row: Claim) -> bool:
    """Whether a claim's slack is too large beside the effect of breaking its hypothesis for the check to prove
    anything."""
    return float(row.slack) > POWER * float(row.effect)


def slack_comparison(row: Claim) -> str:
    """The smallest violation that the check catches, beside the effect of the control."""
    caught = f"a violation of {row.slack}" if float(row.slack) else "any violation"
    return f"{caught} would be caught; the control is {row.effect} away"


def _claim_lines(row: Claim) -> Sequence[tuple[str, str]]:
    lines = [("measured", comparison(row))]
    if row.margin_meaning:
        lines.append(("margin", row.margin_meaning))
    lines.append(("slack", slack_comparison(row)))
    lines.append(("control", control_comparison(row)))
    if row.paper:
        lines.append(("paper", f"{row.paper}: {row.verdict}"))
    return lines


def _claim_text(row: Claim) -> str:
    return "\n".join([f"[{row.id}] {row.statement}", *(f"  {name}: {text}" for name, text in _claim_lines(row))])


def _claim_html(row: Claim) -> str:
    lines = "".join(
        f"<tr><th scope='row'>{html.escape(name)}</th><td>{html.escape(text)}</td></tr>"
        for name, text in _claim_lines(row)
    )
    return (
        f"<div class='claim' id='{anchor(row)}'><p class='claim-statement'>{html.escape(row.statement)}"
        f" <span class='claim-kind'>{row.kind}, holds</span></p><table>{lines}</table></div>"
    )
