"""What the builder writes and screen readers stumble over.

Deprecated roles of a bibliography's entries, and heads of tables that do not say what they are the heads of.
"""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata

_PART = re.compile(r"<(thead|tbody)\b.*?</\1>", re.DOTALL)
_HEAD = re.compile(r"<th(?=[\s>])(?![^>]*\bscope=)")


def scoped(body: str) -> str:
    """The page with a ``scope`` at every ``th`` that has none: its column in a table's head, else its row."""

    def of(part: re.Match[str]) -> str:
        return _HEAD.sub(f'<th scope="{"col" if part[1] == "thead" else "row"}"', part[0])

    return _PART.sub(of, body)


def mend(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None) -> None:
    if "body" in context:  # a list has items, and doc-biblioentry is no longer a role
        context["body"] = scoped(context["body"].replace('role="doc-biblioentry"', 'role="listitem"'))


def setup(app: Sphinx) -> ExtensionMetadata:
    app.connect("html-page-context", mend)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
