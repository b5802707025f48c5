"""The directive ``{api}``: functions and classes of a module as their docstrings tell them.

    ```{api} attnrank.theory
    ```

shows all of ``__all__``, or the names in its body; ``{api-overview}`` lists what a page shows, with the first sentence
of each, or as ``{api-overview} names`` the names of each section alone.

Docstrings of the package are plain text with few marks: headed parts ("Parameters" and a line of dashes), items
"name : text", lists, indented code, examples with prompts, and ``code``. Read as reStructuredText, their formulas would
be errors.
"""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

ITEM = re.compile(r"^(?:- )?([\w*][\w*., ]{0,60}?) : (.*)", re.DOTALL)


def signature(thing: Any) -> str:
    """Arguments by name and default; what they are is told in the text."""
    try:
        found = inspect.signature(thing)
    except ValueError:
        return ""
    bare = [argument.replace(annotation=inspect.Parameter.empty) for argument in found.parameters.values()]
    return str(found.replace(parameters=bare, return_annotation=inspect.Signature.empty))


def inline(text: str) -> list[nodes.Node]:
    """Text with its code: ``code``, `code`, :func:`name`."""
    text = re.sub(r":\w+:`~?([^`]+)`", r"``\1``", re.sub(r"::$", ":", re.sub(r"\s+", " ", text).strip()))
    parts = re.split(r"``(.+?)``|`([^`]+)`", text)
    found: list[nodes.Node] = []
    for text, double, single in zip(parts[::3], [*parts[1::3], None], [*parts[2::3], None]):
        found += [nodes.Text(text)] * bool(text)
        if code := double or single:
            found.append(nodes.literal(code, code))
    return found


def code(text: str, language: str) -> nodes.Node:
    return nodes.literal_block(text, text, language=language)


def items(text: str) -> list[str]:
    """Lines that begin at the margin, each with the indented lines that go on from it."""
    return re.split(r"\n(?=\S)", text)


def block(text: str) -> Iterator[nodes.Node]:
    """A part of a docstring between empty lines."""
    if text.startswith(">>>"):
        yield code(text, "pycon")
    elif text.startswith("    "):
        yield code(textwrap.dedent(text), "none")
    elif all(ITEM.match(item) for item in items(text)):
        listed = nodes.definition_list(classes=["api-items"])
        for item in items(text):
            name, meaning = ITEM.match(item).groups()
            term = nodes.term("", "", nodes.literal(name, name))
            text_below = nodes.definition("", nodes.paragraph("", "", *inline(meaning)))
            listed += nodes.definition_list_item("", term, text_below)
        yield listed
    elif text.startswith("- "):
        points = (nodes.paragraph("", "", *inline(item.removeprefix("- "))) for item in items(text))
        yield nodes.bullet_list("", *(nodes.list_item("", point) for point in points))
    else:
        yield nodes.paragraph(text, "", *inline(text))


def document(docstring: str) -> Iterator[nodes.Node]:
    """A docstring as nodes."""
    for text in re.split(r"\n\s*\n", docstring):
        heading = re.match(r"(\w[\w ]*)\n-{3,}\n?", text)
        if heading:
            yield nodes.paragraph("", "", nodes.strong("", heading[1]), classes=["api-part"])
            text = text[heading.end():]
        if text.strip():
            yield from block(text)


class Api(SphinxDirective):
    """A definition list: a term for each name, with an anchor of its full name; below it the docstring."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        module = importlib.import_module(self.arguments[0])
        listed = nodes.definition_list(classes=["api"])
        for name in " ".join(self.content).split() or module.__all__:
            thing = getattr(module, name, None)
            if not callable(thing):
                if self.content:
                    raise self.error(f"{self.arguments[0]} has no function or class {name!r}")
                continue  # a constant: the text of the functions names its values
            if not inspect.getdoc(thing):
                raise self.error(f"{self.arguments[0]}.{name} has no docstring")
            title = nodes.literal(name, f"{name}{signature(thing)}")
            term = nodes.term("", "", title, ids=[f"{module.__name__}.{name}"])
            listed += nodes.definition_list_item("", term, nodes.definition("", *document(inspect.getdoc(thing))))
        self.env.note_dependency(inspect.getsourcefile(module))
        return [listed]


class Overview(nodes.General, nodes.Element):
    """Stands for the overview until the page is read."""


class ApiOverview(SphinxDirective):
    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        if self.arguments not in ([], ["names"]):
            raise self.error(f"api-overview takes no argument or 'names', got {self.arguments[0]!r}")
        return [Overview(kind=" ".join(self.arguments))]


def link(term: nodes.Element) -> nodes.Node:
    name = term["ids"][0].rpartition(".")[2]
    return nodes.reference("", "", nodes.literal(name, name), refid=term["ids"][0], internal=True)


def row(*cells: nodes.Node) -> nodes.row:
    return nodes.row("", *(nodes.entry("", nodes.paragraph("", "", *cell)) for cell in cells))


def fill_overview(app: Sphinx, doctree: nodes.document) -> None:
    """A table of what the page shows: its name, and the first sentence of its text or, by section, the names."""
    for place in list(doctree.findall(Overview)):
        rows: dict[str, list[list[nodes.Node]]] = {}
        for listed in (found for found in doctree.findall(nodes.definition_list) if "api" in found["classes"]):
            for entry in listed.children:
                term, text = entry.children[0], entry.children[1].children[0]
                if place["kind"] == "names":
                    title = listed.parent.next_node(nodes.title).astext()
                    names = rows.setdefault(title, [[nodes.Text(title)], []])[1]
                    names += [nodes.Text(", ")] * bool(names) + [link(term)]
                else:
                    rows[term["ids"][0]] = [[link(term)], inline(first_sentence(text.rawsource))]
        body = nodes.tbody("", *(row(*cells) for cells in rows.values()))
        columns = [nodes.colspec(colwidth=width) for width in (30, 70)]
        place.replace_self(nodes.table("", nodes.tgroup("", *columns, body, cols=2), classes=["api-overview"]))


def first_sentence(text: str) -> str:
    return re.split(r"(?<=\w\w[.)`])\s+(?=[A-Z`])|(?<=:)\s*$", re.sub(r"\s+", " ", text).strip())[0]


def setup(app: Sphinx) -> ExtensionMetadata:
    app.add_directive("api", Api)
    app.add_directive("api-overview", ApiOverview)
    app.connect("doctree-read", fill_overview)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
