"""Links from a figure or a table to what it was drawn from, wherever its caption names published tables.

The name of a table in a figure's caption, ``accuracy.csv``, becomes a link to a copy of its rows. Under the caption a
line links the provenance of each table (its JSON) and the module of the package whose function computes a row; under a
table that a cell prints (``report.table``) the line links the rows, too. A name that is no published table fails the
build.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.util import logging
from sphinx.util.typing import ExtensionMetadata

RESULTS = Path(__file__).resolve().parents[1] / "results"
TABLE = re.compile(r"\b(\w+)\.csv\b")
CAPTION = re.compile(r"<p class='table-caption'>(.*?)</p>", re.S)
logger = logging.getLogger(__name__)


def tables(text: str) -> list[str]:
    """The tables that a text names, each once, in its order."""
    return list(dict.fromkeys(TABLE.findall(text)))


def provenance(name: str) -> Path:
    """The file of the provenance of a table, which is there if the table is published."""
    return RESULTS / f"{name}.json"


def module_file(module: str, root: Path) -> Path:
    """The file of a module of the package, which lies in lib."""
    path = root / "lib" / Path(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def download(path: Path, root: Path, text: str) -> nodes.Node:
    """A link to a copy of a file of the repository."""
    target = f"/{path.relative_to(root).as_posix()}"
    return addnodes.download_reference("", text, reftarget=target, refdomain="", refexplicit=True)


def linked(text: str, root: Path) -> list[nodes.Node]:
    """A text in which the names of published tables are links to them."""
    found: list[nodes.Node] = []
    end = 0
    for match in TABLE.finditer(text):
        if provenance(match[1]).is_file():
            found += [nodes.Text(text[end : match.start()]), download(RESULTS / match[0], root, match[0])]
            end = match.end()
    return [*found, nodes.Text(text[end:])]


def sources(names: list[str], root: Path, *, rows: bool) -> nodes.paragraph:
    """The line under the caption: of each table its provenance and code, before them its ``rows`` if wanted."""
    line = nodes.paragraph("", "")
    for name in names:
        known = json.loads(provenance(name).read_text(encoding="utf-8"))
        function = f"{known['module'].rpartition('.')[2]}.{known['function']}"
        line += nodes.Text(f"{' · ' if len(line) else ''}{name}: ")
        if rows:
            line += [download(RESULTS / f"{name}.csv", root, "rows"), nodes.Text(", ")]
        line += [
            download(provenance(name), root, "provenance"),
            nodes.Text(", code "),
            download(module_file(known["module"], root), root, function),
        ]
    return line


class FigureSources(SphinxTransform):
    default_priority = 800

    def apply(self, **options: Any) -> None:
        root = Path(self.env.srcdir)
        for figure in self.document.findall(nodes.figure):
            for caption in figure.findall(nodes.caption):
                names = self.published(caption.astext(), figure)
                for text in list(caption.findall(nodes.Text)):
                    if TABLE.search(text):
                        text.parent.replace(text, linked(text.astext(), root))
                if names:
                    figure += nodes.legend("", sources(names, root, rows=False), classes=["sources"])
        for printed in list(self.document.findall(nodes.raw)):
            names = self.published(" ".join(CAPTION.findall(printed.astext())), printed)
            if names:
                output = place(printed)
                line = nodes.container("", sources(names, root, rows=True), classes=["sources"])
                output.parent.insert(output.parent.index(output) + 1, line)

    def published(self, caption: str, where: nodes.Node) -> list[str]:
        """The published tables that a caption names; a name that is none of them is told."""
        names = tables(caption)
        for name in names:
            self.env.note_dependency(str(provenance(name)))
            if not provenance(name).is_file():
                logger.warning("a caption names %s.csv, which is no published table", name, location=where)
        return [name for name in names if provenance(name).is_file()]


def place(printed: nodes.Node) -> nodes.Node:
    """The output of a cell that a printed table is one form of."""
    while printed.parent is not None and "cell_output" not in printed.parent.get("classes", []):
        printed = printed.parent
    return printed


def setup(app: Sphinx) -> ExtensionMetadata:
    app.add_transform(FigureSources)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
