"""The directive ``{explorable} name``: a figure that the reader changes, by scripts of book/_static/explorables.

The numbers that its scripts read are in the pages that have one, so that a page works from file://. What stands in the
page itself is the static twin: a picture of the first state, for print and for readers without scripts.

    python book/_ext/explorables.py SITE

draws the twins from a built site (folder of the HTML), and writes their descriptions, with Chromium.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

STATIC = Path(__file__).resolve().parents[1] / "_static" / "explorables"
KINDS = ("attention", "plane", "head_dimension", "token_sparsity")
SCRIPTS = ("numbers.js", "page.js")


class Place(nodes.General, nodes.Element):
    """Where an explorable stands; its children are the static twin."""


class Explorable(SphinxDirective):
    """``{explorable} name``, with the caption of the static twin as its content."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        if name not in KINDS:
            raise self.error(f"explorable must be one of {KINDS}, got {name!r}")
        for file in ("data.json", "twins.json"):
            self.env.note_dependency(str(STATIC / file))
        place = Place(kind=name)
        twins = read("twins.json")
        if name in twins:
            picture = nodes.image(uri=f"/book/_static/explorables/{name}.png", alt=twins[name])
            caption = nodes.caption("", "")
            content = nodes.paragraph()
            self.state.nested_parse(self.content, self.content_offset, content)
            for paragraph in content.children:
                caption += paragraph.children
            place += nodes.figure("", picture, caption)
        return [place]


def read(name: str) -> dict[str, Any]:
    path = STATIC / name
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def open_place(self: Any, node: Place) -> None:
    self.body.append(f'<div class="explorable" data-explorable="{node["kind"]}">')


def close_place(self: Any, node: Place) -> None:
    self.body.append("</div>")


def pass_over(self: Any, node: Place) -> None:
    """Other builders show the twin alone."""


def add_scripts(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None) -> None:
    """The numbers of the explorables of a page, in the page, and their scripts."""
    kinds = [] if doctree is None else list(dict.fromkeys(node["kind"] for node in doctree.findall(Place)))
    if not kinds:
        return
    numbers = read("data.json")
    data = json.dumps({kind: numbers.get(kind, {}) for kind in kinds}, separators=(",", ":")).replace("<", "\\u003c")
    app.add_js_file(None, body=f'document.documentElement.classList.add("scripts");window.EXPLORABLES_DATA={data}')
    for name in (*SCRIPTS, *(f"{kind}.js" for kind in kinds)):
        app.add_js_file(f"explorables/{name}", defer="defer")
    app.add_css_file("explorables/explorables.css")


def setup(app: Sphinx) -> ExtensionMetadata:
    others = dict.fromkeys(("latex", "text", "man", "texinfo"), (pass_over, pass_over))
    app.add_node(Place, html=(open_place, close_place), **others)
    app.add_directive("explorable", Explorable)
    app.connect("html-page-context", add_scripts)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def draw_twins(site: Path) -> None:
    """Photograph the first state of every explorable of a built site, and write the texts that describe them."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    import browsing

    found: dict[str, str] = {}
    with browsing.open_browser(browsing.find_chromium() or "chromium") as browser:
        window = {"width": 1360, "height": 900}
        tab = browser.new_context(viewport=window, color_scheme="light", device_scale_factor=1.5).new_page()
        for page in sorted(site.rglob("*.html")):
            if 'data-explorable="' not in page.read_text(encoding="utf-8"):
                continue
            tab.goto(page.as_uri(), wait_until="load")
            browsing.settle(tab)
            for place in tab.query_selector_all(".explorable-ready"):
                kind = place.get_attribute("data-explorable")
                place.evaluate("e => e.classList.add('explorable-photograph')")
                live = place.query_selector(".explorable-live")
                live.screenshot(path=str(STATIC / f"{kind}.png"), omit_background=True)
                found[kind] = place.query_selector(".explorable-description").inner_text()
    text = json.dumps(dict(sorted(found.items())), indent=1, ensure_ascii=False)
    (STATIC / "twins.json").write_text(text + "\n", encoding="utf-8", newline="\n")


if __name__ == "__main__":
    draw_twins(Path(sys.argv[1]).resolve())
