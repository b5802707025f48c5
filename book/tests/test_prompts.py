"""Buttons of hidden cells: they say what is behind them."""

from pathlib import Path

import prompts
import pytest
from docutils import nodes

import html_checks


@pytest.mark.parametrize(("output", "what"), [
    (nodes.raw("", "<div class='table-box'><table></table></div>", format="html"), "table"),
    (nodes.raw("", "<div class='claim'><table></table></div>", format="html"), ""),
    (nodes.figure("", nodes.image("", uri="ranks.png")), "figure"), (nodes.literal_block("", "3 rows"), ""),
])  # fmt: skip
def test_what_a_hidden_cell_shows(output: nodes.Node, what: str) -> None:
    code = nodes.literal_block("", "report.table(frame)")
    assert prompts.hidden(nodes.container("", code, nodes.container("", output))) == what


def test_a_button_names_a_table_or_a_figure(site: Path) -> None:
    """Where the whole cell is hidden; where its output stays in sight, the button is that of the code."""
    said = {"Show the code": 0, "Show the table": 0, "Show the figure": 0}
    for path in site.glob("notebooks/*.html"):
        for box in html_checks.parse(path).select("div.cell details.hide"):
            what = "table" if box.select(".table-box") else "figure" if box.select(".cell_output img") else "code"
            shown, hide = (box.select_one(f"summary p.{state}").text for state in ("collapsed", "expanded"))
            assert (shown, hide) == (f"Show the {what}", f"Hide the {what}"), path.name
            said[shown] += 1
    assert said["Show the code"] > 200 and said["Show the table"] > 10 and said["Show the figure"] > 2
