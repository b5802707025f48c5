"""The directive ``{ledger}``: the claims of book/results/ledger.csv, one table a chapter, each linked to its cell."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

if TYPE_CHECKING:
    from attnrank.report import Claim

RESULTS = Path(__file__).resolve().parents[1] / "results"


class Ledger(SphinxDirective):
    """One table a chapter; a claim whose chapter is not in the book is an error."""

    def run(self) -> list[nodes.Node]:
        from attnrank import report  # here: importing the package takes seconds, and most builds do not read this page

        self.env.note_dependency(str(RESULTS / "ledger.csv"))
        claims: dict[str, list[Claim]] = {}
        for row in report.read_ledger(RESULTS):
            claims.setdefault(row["id"].partition("/")[0], []).append(report.Claim(**row))
        found = []
        for page in sorted(page for page in self.env.found_docs if page.startswith("notebooks/")):
            number, stem = re.fullmatch(r"(?:(\d+)_)?(.*)", PurePosixPath(page).name).groups()
            if rows := claims.pop(stem, []):
                title = f"Chapter {int(number)}, " if number else ""
                found.append(nodes.rubric("", f"{title}{stem.replace('_', ' ')}"))
                found.append(self.table(page, rows))
        if claims:
            raise self.error(f"the ledger has claims of chapters that are not in the book: {sorted(claims)}")
        return found

    def table(self, page: str, claims: list[Claim]) -> nodes.Node:
        """Five columns: the claim, what was measured, its slack, the control, and what became of the paper's
        statement."""
        from attnrank.report import anchor

        table = nodes.table(classes=["ledger"])
        group = nodes.tgroup(cols=5)
        table += group
        group += [nodes.colspec(colwidth=width) for width in (34, 20, 8, 23, 15)]
        head, body = nodes.thead(), nodes.tbody()
        group += [head, body]
        head += _row(*(nodes.Text(text) for text in ("claim", "measured", "slack", "control", "paper")))
        for claim in claims:
            address = f"{self.env.app.builder.get_relative_uri(self.env.docname, page)}#{anchor(claim)}"
            link = nodes.reference("", claim.id, refuri=address, internal=True)
            body += _row(
                [link, nodes.Text(f"  {claim.statement}")], *(nodes.Text(text) for text in _columns(claim))
            )
        return table


def _columns(claim: Claim) -> tuple[str, str, str, str]:
    from attnrank import report

    measured = report.comparison(claim) + (f"; {claim.margin_meaning}" if claim.margin_meaning else "")
    return (
        measured,
        claim.slack,
        report.control_comparison(claim),
        f"{claim.paper}: {claim.verdict}" if claim.paper else "",
    )


def _row(*cells: nodes.Node | list[nodes.Node]) -> nodes.row:
    row = nodes.row()
    for cell in cells:
        row += nodes.entry("", nodes.paragraph("", "", *(cell if isinstance(cell, list) else [cell])))
    return row


def setup(app: Sphinx) -> ExtensionMetadata:
    app.add_directive("ledger", Ledger)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
