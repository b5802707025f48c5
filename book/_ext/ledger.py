"""Claims, linked with what they belong to: the ledger's page, and the links between claims, theorems and tests.

``{ledger}``      the claims of book/results/ledger.csv, one table a chapter, each linked to its cell; a script filters.
``{verdicts}``    what became of the papers' statements: counts, then what fell, what stands, what was sharpened.
``{theorems}``    every theorem that a claim or a test of the package tests, with both.
``{claim}`id` ``  a link to the cell of a claim; one that is not in the ledger is an error.
``{chapter}`stem` ``  a link to a chapter; where the book does not have it yet, the word *open*.

On the chapters' pages a theorem names the claims that test it, and the box of such a claim names the theorem.
"""

from __future__ import annotations

import html
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import claim_links
from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective, SphinxRole
from sphinx.util.typing import ExtensionMetadata

if TYPE_CHECKING:
    from sphinx.builders import Builder
    from sphinx.environment import BuildEnvironment

    from attnrank.report import Claim

RESULTS = Path(__file__).resolve().parents[1] / "results"
BOX = re.compile(r"(<div class='claim' id='([^']+)'>.*?)(</table></div>)", re.DOTALL)
#: Verdicts in the order in which the page shows them, with its words for them, short and as a title.
GROUPS = (
    ("stand as they were", "What stands as it was", ("reproduced",)),
    ("fell, in part or whole, or could not be reproduced", "What fell, in part or whole, or could not be reproduced",
     ("reproduced in part", "not reproduced", "not reproducible from public facts")),
    ("were sharpened", "What was sharpened", ("sharpened",)),
)  # fmt: skip


def ledger() -> list[Claim]:
    from attnrank import report  # here: importing the package takes seconds, and most builds do not read this page

    return [report.Claim(**row) for row in report.read_ledger(RESULTS)]


def anchor(claim: str) -> str:
    """The name of the claim's box on its page: that of :func:`attnrank.report.anchor`, without importing it."""
    return "claim-" + claim.replace("/", "-")


def address(builder: Builder, here: str, claim: str) -> str:
    page, _ = claim_links.chapters()[claim.partition("/")[0]]
    return f"#{anchor(claim)}" if page == here else f"{builder.get_relative_uri(here, page)}#{anchor(claim)}"


def note_sources(env: BuildEnvironment) -> None:
    """A page that links claims or chapters is read again where the ledger or the contents have changed."""
    for path in (RESULTS / "ledger.csv", claim_links.ROOT / "_toc.yml"):
        env.note_dependency(str(path))


def slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


class LedgerDirective(SphinxDirective):
    """What the directives of the ledger's page share."""

    def note_ledger(self) -> list[Claim]:
        note_sources(self.env)
        for name in ("ledger.py", "claim_links.py", "claim_theorems.csv", "theorem_tests.csv"):
            self.env.note_dependency(str(Path(__file__).with_name(name)))
        claims = ledger()
        strangers = {claim.id.partition("/")[0] for claim in claims} - set(claim_links.chapters())
        if strangers:
            raise self.error(f"the ledger has claims of chapters that are not in the book: {sorted(strangers)}")
        return claims

    def link(self, claim: str, text: str = "") -> nodes.Node:
        target = address(self.env.app.builder, self.env.docname, claim)
        return nodes.reference("", text or claim, refuri=target, internal=True)

    def theorem(self, label: str) -> nodes.Node:
        target = addnodes.pending_xref("", nodes.inline("", label), refdomain="prf", reftype="ref", reftarget=label,
                                       refexplicit=False, refwarn=True, refdoc=self.env.docname)  # fmt: skip
        target.source, target.line = self.get_source_info()
        return target


class Ledger(LedgerDirective):
    """One table a chapter; a claim whose chapter is not in the book is an error."""

    def run(self) -> list[nodes.Node]:
        claims = self.note_ledger()
        found: list[nodes.Node] = []
        for stem, (page, part) in claim_links.chapters().items():
            if rows := [claim for claim in claims if claim.id.partition("/")[0] == stem]:
                number = re.match(r"\d+", PurePosixPath(page).name)
                title = f"Chapter {int(number[0])}, " if number else ""
                found.append(nodes.rubric("", f"{title}{stem.replace('_', ' ')}"))
                found.append(self.table(rows, part))
        return found

    def table(self, claims: list[Claim], part: str) -> nodes.Node:
        """Five columns: the claim, what was measured, its slack, the control, and what became of the paper's
        statement. The classes of a row are what the filters go by."""
        table = nodes.table(classes=["ledger"])
        group = nodes.tgroup(cols=5)
        table += group
        group += [nodes.colspec(colwidth=width) for width in (34, 20, 8, 23, 15)]
        head, body = nodes.thead(), nodes.tbody()
        group += [head, body]
        head += _row(*(nodes.Text(text) for text in ("claim", "measured", "slack", "control", "paper")))
        theorems = claim_links.theorems()
        for claim in claims:
            about: list[nodes.Node] = [self.link(claim.id), nodes.Text(f"  {claim.statement}")]
            if claim.id in theorems:
                about += [nodes.Text("  Tests "), self.theorem(theorems[claim.id]), nodes.Text(".")]
            row = _row(about, *(nodes.Text(text) for text in _columns(claim)))
            row["classes"] += [
                "claim-row", f"part-{slug(part)}", f"kind-{claim.kind}", f"paper-{claim_links.paper(claim.id)}",
                f"verdict-{slug(claim.verdict) or 'none'}",
            ]  # fmt: skip
            body += row
        return table


class Verdicts(LedgerDirective):
    """Counts of claims and verdicts, then the statements of the papers by what became of them."""

    def run(self) -> list[nodes.Node]:
        claims = self.note_ledger()
        order = list(claim_links.chapters())
        judged = sorted((claim for claim in claims if claim.verdict),
                        key=lambda claim: order.index(claim.id.partition("/")[0]))  # fmt: skip
        tally = nodes.container(classes=["tally"])
        for short, title, verdicts in GROUPS:
            number = nodes.strong("", str(sum(claim.verdict in verdicts for claim in judged)))
            tally += nodes.paragraph("", "", nodes.reference("", "", number, nodes.Text(f" {short}"), internal=True,
                                                             refuri=f"#{slug(title)}"))  # fmt: skip
        whole = nodes.strong("", f"{len(claims)} claims, all of which hold")
        counts = nodes.paragraph("", "", whole, classes=["counts"])
        counts += nodes.Text(f"; {len(judged)} of them bear on a statement of the papers, or on an objection: ")
        for at, (_, _, verdicts) in enumerate(GROUPS):
            for verdict in verdicts:
                number = sum(claim.verdict == verdict for claim in judged)
                counts += nodes.Text(f"{number} {verdict}{'.' if (at, verdict) == (2, 'sharpened') else ', '}")
        found: list[nodes.Node] = [tally, counts]
        for _, title, verdicts in GROUPS:
            found.append(nodes.rubric("", title, ids=[slug(title)]))
            items = nodes.bullet_list(classes=["verdicts"])
            for claim in judged:
                if claim.verdict in verdicts:
                    text = nodes.strong("", claim_links.statement(claim.paper))
                    line = nodes.paragraph("", "", text, nodes.Text(f" ({claim.verdict}). "))
                    line += [self.link(claim.id, claim.statement)]
                    items += nodes.list_item("", line)
            found.append(items if len(items) else nodes.paragraph("", "Nothing."))
        return found


class Theorems(LedgerDirective):
    """Every theorem with a claim or a test, in the order of the book."""

    def run(self) -> list[nodes.Node]:
        claims = {claim.id for claim in self.note_ledger()}
        tests, tested = claim_links.tests(), {}
        for claim, theorem in claim_links.theorems().items():
            if claim in claims:
                tested.setdefault(theorem, []).append(claim)
        table = nodes.table(classes=["ledger", "theorems"])
        group = nodes.tgroup(cols=3)
        table += group
        group += [nodes.colspec(colwidth=width) for width in (20, 35, 45)]
        head, body = nodes.thead(), nodes.tbody()
        group += [head, body]
        head += _row(*(nodes.Text(text) for text in ("theorem", "claims", "tests of the package")))
        for theorem in [label for label in claim_links.results() if label in tested or label in tests]:
            links: list[nodes.Node] = []
            for claim in tested.get(theorem, []):
                links += [nodes.Text(", ")] * bool(links) + [self.link(claim)]
            names: list[nodes.Node] = []
            for test in tests.get(theorem, []):
                names += [nodes.Text(" ")] * bool(names) + [nodes.literal("", test.removeprefix("lib/tests/"))]
            body += _row([self.theorem(theorem)], links, names)
        return [table]


class ClaimRole(SphinxRole):
    """A link to the cell of a claim, whose text is the claim's id without the chapter."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        note_sources(self.env)
        if self.text not in {claim.id for claim in ledger()}:
            message = self.inliner.reporter.error(f"the ledger has no claim {self.text!r}", line=self.lineno)
            return [], [message]
        text = self.text.partition("/")[2].replace("-", " ")
        target = address(self.env.app.builder, self.env.docname, self.text)
        return [nodes.reference("", text, refuri=target, internal=True, classes=["claim-link"])], []


class ChapterRole(SphinxRole):
    """A link to the chapter of a stem, or the word open where the book does not have it."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        note_sources(self.env)
        if self.text not in claim_links.chapters():
            return [nodes.emphasis("", "open")], []
        page = f"/{claim_links.chapters()[self.text][0]}"
        target = addnodes.pending_xref("", nodes.inline("", self.text), refdomain="std", reftype="doc", reftarget=page,
                                       refexplicit=False, refwarn=True, refdoc=self.env.docname)  # fmt: skip
        return [target], []


def link_theorems_and_claims(app: Sphinx, doctree: nodes.document, page: str) -> None:
    """On a chapter's page: each theorem names its claims, and the box of each claim its theorem."""
    if page not in {page for page, _ in claim_links.chapters().values()}:
        return
    theorems = claim_links.theorems()
    for node in doctree.findall(nodes.Element):
        label = node.get("label")
        if label and "proof" in node.get("classes", []):
            if claims := [claim for claim, theorem in theorems.items() if theorem == label]:
                node += tested_by(app, page, claims)
    by_anchor = {anchor(claim): theorem for claim, theorem in theorems.items()}
    for raw in doctree.findall(nodes.raw):
        if "class='claim'" in raw.astext():
            text = BOX.sub(lambda box: with_theorem(app, page, by_anchor, box), raw.astext())
            text = re.sub(r"(?<=<td>)objection [^:<]*:", "objection:", text)  # the reviewers' codes mean nothing here
            raw.children = [nodes.Text(text)]
            raw.rawsource = text


def tested_by(app: Sphinx, page: str, claims: list[str]) -> nodes.Node:
    line = nodes.paragraph("", "Tested by ", classes=["tested-by"])
    for at, claim in enumerate(claims):
        target = address(app.builder, page, claim)
        line += [nodes.Text(", ")] * bool(at)
        line += nodes.reference("", claim.partition("/")[2].replace("-", " "), refuri=target, internal=True)
    line += nodes.Text(".")
    return line


def with_theorem(app: Sphinx, page: str, by_anchor: dict[str, str], box: re.Match[str]) -> str:
    theorem = by_anchor.get(html.unescape(box[2]))
    known = getattr(app.env, "proof_list", {}).get(theorem)
    if not known:
        return box[0]
    there = known["docname"]
    target = f"#{theorem}" if there == page else f"{app.builder.get_relative_uri(page, there)}#{theorem}"
    line = f"<tr><th scope='row'>tests</th><td><a href='{target}'>the {known['realtype']}</a></td></tr>"
    return f"{box[1]}{line}{box[3]}"


def add_filters(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None) -> None:
    if doctree is not None and any("ledger" in table["classes"] for table in doctree.findall(nodes.table)):
        app.add_js_file("ledger.js", defer="defer")


def _columns(claim: Claim) -> tuple[str, str, str, str]:
    from attnrank import report

    measured = report.comparison(claim) + (f"; {claim.margin_meaning}" if claim.margin_meaning else "")
    return (
        measured,
        claim.slack,
        report.control_comparison(claim),
        f"{claim_links.statement(claim.paper)}: {claim.verdict}" if claim.paper else "",
    )


def _row(*cells: nodes.Node | list[nodes.Node]) -> nodes.row:
    row = nodes.row()
    for cell in cells:
        row += nodes.entry("", nodes.paragraph("", "", *(cell if isinstance(cell, list) else [cell])))
    return row


def outdated(app: Sphinx, env: BuildEnvironment, added: set, changed: set, removed: set) -> list[str]:
    claim_links.chapters.cache_clear()
    claim_links.theorems.cache_clear()
    claim_links.results.cache_clear()
    return []


def setup(app: Sphinx) -> ExtensionMetadata:
    app.add_directive("ledger", Ledger)
    app.add_directive("verdicts", Verdicts)
    app.add_directive("theorems", Theorems)
    app.add_role("claim", ClaimRole())
    app.add_role("chapter", ChapterRole())
    app.connect("env-get-outdated", outdated)
    app.connect("doctree-resolved", link_theorems_and_claims)
    app.connect("html-page-context", add_filters)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
