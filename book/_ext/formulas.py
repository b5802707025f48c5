"""Formulas are set in the reader's browser by KaTeX, a fifth of the weight of MathJax.

In book/_static/katex lie the minified scripts (itself, and what copies formulas as TeX), style sheet and woff2 fonts
of the npm package katex, version 0.19.1, as they come. A page has its formulas as Sphinx writes them for MathJax, in
\\( \\) or \\[ \\]; book/_static/formulas.js reads them from there.
``formula_macros`` in _config.yml are the book's own commands.
"""

from __future__ import annotations

import json
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.ext.mathjax import html_visit_displaymath, html_visit_math
from sphinx.util.typing import ExtensionMetadata


def add_files(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None) -> None:
    if 'class="math ' not in context.get("body", ""):
        return
    macros = {f"\\{name}": text for name, text in app.config.formula_macros.items()}
    app.add_css_file("katex/katex.min.css", priority=400)  # before book.css
    app.add_js_file(None, body=f"window.formulaMacros = {json.dumps(macros)}")
    for script in ("katex/katex.min.js", "katex/copy-tex.min.js", "formulas.js"):
        app.add_js_file(script, defer="defer")


def setup(app: Sphinx) -> ExtensionMetadata:
    app.add_config_value("formula_macros", {}, "html")
    app.add_html_math_renderer("katex", (html_visit_math, None), (html_visit_displaymath, None))
    app.connect("html-page-context", add_files)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
