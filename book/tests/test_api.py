"""The pages of functions: signatures, what becomes of a docstring, and the overview."""

from __future__ import annotations

import api
import pytest
from docutils import nodes
from docutils.utils import new_document

DOCSTRING = """A first line
goes on::

    y = x
      + 1

Parameters
----------
n, d_h : two numbers,
    each at least 1.
*rest : ``more``

Returns
-------

A number : of which nothing is said
and no item, for it goes on at the margin.

- one
  more
- two

>>> 1 + 1
2
"""


def test_a_signature_has_names_and_defaults_alone() -> None:
    def given(a: int, *b: str, c: float = 0.5, d: str | None = None) -> int: ...

    assert api.signature(given) == "(a, *b, c=0.5, d=None)"
    assert api.signature(dict) == ""  # Python does not know it


def test_what_becomes_of_a_docstring() -> None:
    code, part, listed, again, text, points, example = list(api.document(DOCSTRING))[1:]
    assert next(api.document(DOCSTRING)).astext() == "A first line goes on:"
    assert (code.astext(), code["language"]) == ("y = x\n  + 1", "none")
    assert [(one.astext(), one["classes"]) for one in (part, again)] == [
        ("Parameters", ["api-part"]), ("Returns", ["api-part"]),
    ]  # fmt: skip
    assert isinstance(listed, nodes.definition_list) and listed["classes"] == ["api-items"]
    items = [[part.astext() for part in item.children] for item in listed.children]
    assert items == [["n, d_h", "two numbers, each at least 1."], ["*rest", "more"]]
    assert isinstance(text, nodes.paragraph)
    assert isinstance(points, nodes.bullet_list) and [one.astext() for one in points.children] == ["one more", "two"]
    assert (example.astext(), example["language"]) == (">>> 1 + 1\n2\n", "pycon")


def test_code_in_a_text_is_set_as_code() -> None:
    found = api.inline("Of ``a`` and\n  `b`, as :func:`~c.d` has  it::")
    assert [(isinstance(part, nodes.literal), part.astext()) for part in found] == [
        (False, "Of "), (True, "a"), (False, " and "), (True, "b"), (False, ", as "), (True, "c.d"),
        (False, " has it:"),
    ]  # fmt: skip


@pytest.mark.parametrize(("text", "first"), [
    ("Bound on the rank. It holds for\nall n.", "Bound on the rank."),
    ("The law of W. Feller (1968) holds. More.", "The law of W. Feller (1968) holds."),
    ("Share of keys. `d_h` follows.", "Share of keys."),
    ("At 0.5 e.g. nothing. Then more.", "At 0.5 e.g. nothing."), ("One that goes on:", "One that goes on:"),
])  # fmt: skip
def test_the_first_sentence(text: str, first: str) -> None:
    assert api.first_sentence(text) == first


@pytest.mark.parametrize(("kind", "rows"), [
    ("", [["one", "First of one."], ["two", "First of two."], ["three", "First of three."]]),
    ("names", [["Ranks", "one, two"], ["Bounds", "three"]]),
])  # fmt: skip
def test_an_overview_has_every_name_of_the_page(kind: str, rows: list[list[str]]) -> None:
    page = new_document("page")
    page += api.Overview(kind=kind)
    for title, names in (("Ranks", ["one", "two"]), ("Bounds", ["three"])):
        listed = nodes.definition_list(classes=["api"])
        for name in names:
            term = nodes.term("", name, ids=[f"attnrank.theory.{name}"])
            text = nodes.definition("", *api.document(f"First of {name}. And more."))
            listed += nodes.definition_list_item("", term, text)
        other = nodes.definition_list("", nodes.definition_list_item("", nodes.term("", "a word"), nodes.definition()))
        page += nodes.section("", nodes.title("", title), listed, other)
    api.fill_overview(None, page)  # type: ignore[arg-type]
    (table,) = page.findall(nodes.table)
    assert [[cell.astext() for cell in row.children] for row in table.findall(nodes.row)] == rows
    links = [link["refid"] for link in table.findall(nodes.reference)]
    assert links == [f"attnrank.theory.{name}" for name in ("one", "two", "three")]
    assert not list(page.findall(api.Overview))
