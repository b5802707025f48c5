"""The button of a cell that is hidden whole says what is behind it: a table or a figure rather than its code."""

from __future__ import annotations

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.typing import ExtensionMetadata


def hidden(cell: nodes.Element) -> str:
    """What a cell shows below its code: "table", "figure", or "" for anything else."""
    if any("class='table-box'" in raw.astext() for raw in cell.findall(nodes.raw)):  # see attnrank.report.table
        return "table"
    return "figure" if any(cell.findall(nodes.image)) else ""


class Prompts(SphinxPostTransform):
    """After the outputs are chosen that HTML can show, and before MyST-NB writes the buttons (199)."""

    default_priority = 198
    formats = ("html",)

    def run(self, **kwargs: object) -> None:
        for cell in self.document.findall(nodes.container):
            if cell.get("hide_mode") == "all" and (what := hidden(cell)):
                cell["prompt_show"], cell["prompt_hide"] = f"Show the {what}", f"Hide the {what}"


def setup(app: Sphinx) -> ExtensionMetadata:
    app.add_post_transform(Prompts)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
