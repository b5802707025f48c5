"""The index of the book's own search: search_sections.js, a record for each section and glossary entry.

A record has an address with an anchor, the titles above it, and its text: prose, captions and the statements of claims.
Entries of definition lists get an anchor of their own for it.
Formulas are written in plain characters; code cells, printed output and addresses are left out. book/_static/search.js
searches the records.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from bs4 import BeautifulSoup
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata

START = "window.bookSections = "
NOT_PROSE = (nodes.literal_block, nodes.math_block, nodes.comment, nodes.raw, nodes.footnote_reference, nodes.image,
             nodes.target, nodes.system_message)
SYMBOLS = {
    "le": "≤", "leq": "≤", "ge": "≥", "geq": "≥", "lt": "<", "gt": ">", "ne": "≠", "approx": "≈", "sim": "~",
    "times": "×", "cdot": "·", "pm": "±", "to": "→", "infty": "∞", "top": "ᵀ", "in": "∈", "sqrt": "√", "sum": "Σ",
    "int": "∫", "E": "E", "P": "P", "R": "R", "ldots": "…", "dots": "…", "lVert": "‖", "rVert": "‖", "norm": "‖",
    "alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "varepsilon": "ε", "epsilon": "ε", "eta": "η",
    "theta": "θ", "kappa": "κ", "lambda": "λ", "mu": "μ", "nu": "ν", "pi": "π", "rho": "ρ", "sigma": "σ", "tau": "τ",
    "varphi": "φ", "phi": "φ", "chi": "χ", "psi": "ψ", "omega": "ω", "Phi": "Φ", "Delta": "Δ", "Lambda": "Λ",
}  # fmt: skip
BRACKETS = {"norm": "‖{}‖", "abs": "|{}|", "set": "({})"}
NAMES = {"log", "exp", "max", "min", "sin", "cos", "rank", "softmax", "hardmax", "argmax", "Var", "Cov", "tr", "diag"}


def plain(tex: str) -> str:
    r"""A formula in plain characters: ``d_h \ge \log n`` becomes ``d_h ≥ log n``. What has no character is dropped."""
    tex = re.sub(r"\\[dt]?frac\s*(\{[^{}]*\}|\w)\s*(\{[^{}]*\}|\w)", r"\1/\2", tex)
    tex = re.sub(r"\\(norm|abs|set)\s*\{([^{}]*)\}", lambda m: BRACKETS[m[1]].format(m[2]), tex)
    tex = re.sub(r"\\(text|mathrm|operatorname\*?|mathbb|mathcal|mathbf|begin|end)\b", "", tex)
    tex = re.sub(r"\\([A-Za-z]+)", lambda m: f" {SYMBOLS.get(m[1], m[1] if m[1] in NAMES else '')} ", tex)
    tex = re.sub(r"\\.", " ", tex).replace("{", "").replace("}", "").replace("&", " ").replace("\\", "")
    return re.sub(r"\s+", " ", tex).replace("^ ᵀ", "ᵀ").strip()


def is_section(node: nodes.Node) -> bool:
    """A section of the page; theorems and exercises keep their text in sections, too."""
    return isinstance(node, nodes.section) and isinstance(node.parent, (nodes.section, nodes.document))


def has_records(node: nodes.Node) -> bool:
    """A section, or a list whose entries are found by themselves: its words are not those of the section above."""
    listed = isinstance(node, nodes.definition_list) and any(term["ids"] for term in node.findall(nodes.term))
    return listed or is_section(node)


def text_of(node: nodes.Node, part_only: bool = False) -> str:
    """The prose below a node, formulas in plain characters; only its part: without what has records of its own."""
    if isinstance(node, nodes.Text):  # titles in the bibliography come with their dollars
        return re.sub(r"\$([^$]+)\$", lambda formula: plain(formula[1]), node.astext())
    if isinstance(node, nodes.math):
        return plain(node.astext())
    if isinstance(node, nodes.raw):
        statement = BeautifulSoup(node.astext(), "html.parser").select_one(".claim-statement")
        return statement.get_text(" ") if statement else ""
    if isinstance(node, NOT_PROSE) or (part_only and has_records(node)) or isinstance(node, nodes.legend):
        return ""
    between = "" if isinstance(node, nodes.TextElement) else " "
    return between.join(text_of(child, part_only) for child in node.children)


def records(app: Sphinx, doctree: nodes.document, page: str) -> list[dict[str, str]]:
    """What can be found on a page, in its order."""
    title = app.env.titles[page].astext()
    number = ".".join(map(str, app.env.toc_secnumbers.get(page, {}).get("", ())))
    title = f"{number} {title}".strip()
    found = []
    for section in doctree.findall(nodes.section):
        if not is_section(section) or not section["ids"] or section.next_node(nodes.title) is None:
            continue
        anchor = section["ids"][0]
        top = isinstance(section.parent, nodes.document)
        numbers = app.env.toc_secnumbers.get(page, {}).get(f"#{anchor}", ())
        heading = text_of(section.next_node(nodes.title))
        own = [child for child in section.children if not isinstance(child, nodes.title)]
        words = [text_of(child, part_only=True) for child in own]
        found.append({
            "address": app.builder.get_target_uri(page) + ("" if top else f"#{anchor}"),
            "page": title,
            "title": title if top else f"{'.'.join(map(str, numbers))} {heading}".strip(),
            "text": re.sub(r"\s+", " ", " ".join(words)).strip(),
        })  # fmt: skip
    for term in doctree.findall(nodes.term):
        entry = term.parent
        if term["ids"]:
            found.append({
                "address": f"{app.builder.get_target_uri(page)}#{term['ids'][0]}",
                "page": title,
                "title": text_of(term).strip() if "api" not in entry.parent["classes"] else term["ids"][0],
                "text": re.sub(r"\s+", " ", " ".join(text_of(child) for child in entry.children[1:])).strip(),
            })  # fmt: skip
    return found


def give_anchors(app: Sphinx, doctree: nodes.document) -> None:
    for term in doctree.findall(nodes.term):
        if "api-items" in term.parent.parent["classes"]:  # arguments and columns are found with their function
            continue
        if not term["ids"] and (name := nodes.make_id(f"term-{text_of(term)}")) not in doctree.ids:
            term["ids"].append(name)
            doctree.ids[name] = term


def collect(app: Sphinx, doctree: nodes.document, page: str) -> None:
    if app.builder.format == "html":
        app.search_records[page] = records(app, doctree, page)


def write(app: Sphinx, exception: Exception | None) -> None:
    """Pages that were not written this time keep the records they had."""
    if exception is not None or app.builder.format != "html":
        return
    path = Path(app.outdir, "search_sections.js")
    before = json.loads(path.read_text(encoding="utf-8")[len(START):]) if path.is_file() else {}
    pages = {page: app.search_records.get(page, before.get(page, [])) for page in sorted(app.env.found_docs)}
    path.write_text(START + json.dumps(pages, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")


def setup(app: Sphinx) -> ExtensionMetadata:
    app.search_records = {}
    app.connect("doctree-read", give_anchors)
    app.connect("doctree-resolved", collect)
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": False}
