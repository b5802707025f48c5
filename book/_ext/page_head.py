"""What a page says of itself to others: description, social card, and what depends on where the repository lies.

The description is the beginning of the page's prose, as the search index has it. ``repository.url`` in _config.yml is
the one setting behind the launch, edit, issue and source buttons: while it is empty there are none.
"""

from __future__ import annotations

import html
import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.util.typing import ExtensionMetadata

LENGTH = 200
BUTTONS = ("use_repository_button", "use_edit_page_button", "use_issues_button", "use_source_button")


def description(text: str, length: int = LENGTH) -> str:
    """The first sentences that fit, or the first words."""
    fitting = re.match(rf"(?s).{{40,{length - 1}}}[.?!](?=\s|$)", text)
    if len(text) <= length or fitting:
        return fitting[0] if fitting else text
    return text[: length - 1].rsplit(" ", 1)[0] + "…"


def card(title: str, about: str, site: str, address: str = "") -> str:
    """The tags of the head; the address of the page, which social cards want in full, only where it is known."""
    tags = {"og:title": title, "og:description": about, "og:site_name": site, "og:type": "article", "og:url": address}
    lines = [f'<meta name="description" content="{html.escape(about)}"/>'] if about else []
    lines += [f'<meta property="{name}" content="{html.escape(value)}"/>' for name, value in tags.items() if value]
    return "\n  ".join(lines)


def add_head(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None) -> None:
    found = app.search_records.get(page, [])
    about = description(found[0]["text"]) if found else ""
    title = re.sub("<[^>]+>", "", context.get("title") or app.config.html_title)
    address = f"{app.config.html_baseurl}{app.builder.get_target_uri(page)}" if app.config.html_baseurl else ""
    context["head_of_page"] = card(html.unescape(title), about, app.config.html_title, address)


def show_buttons(app: Sphinx, config: Config) -> None:
    known = bool(config.html_theme_options.get("repository_url"))
    config.html_theme_options.update(dict.fromkeys(BUTTONS, known))
    if not known:
        config.html_theme_options.pop("launch_buttons", None)


def tell_citations(app: Sphinx, doctree: nodes.document, page: str) -> None:
    """A citation shows its entry of the bibliography when it is pointed at."""
    entries: dict[str, str] = {}
    for link in doctree.findall(nodes.reference):
        name, _, anchor = link.get("refuri", "").partition("#")
        if not link.get("internal") or not name.endswith("bibliography.html"):
            continue
        if not entries:
            for entry in app.env.get_doctree("book/bibliography").findall(nodes.citation):
                text = " ".join(child.astext() for child in entry.children if not isinstance(child, nodes.label))
                entries |= dict.fromkeys(entry["ids"], re.sub(r"\s+", " ", text.replace("$", "")))
        if anchor in entries:
            link["reftitle"] = entries[anchor]


def setup(app: Sphinx) -> ExtensionMetadata:
    app.connect("config-inited", show_buttons, priority=900)
    app.connect("doctree-resolved", tell_citations)
    app.connect("html-page-context", add_head)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
