"""The directive ``{status}``: tables written at build time from what is on the disk and installed.

    ```{status} tables      every published table: rows, how they repeat, device, date, time, versions, the files
    ```{status} roundings   how many rows were computed again where one machine rounds like others
    ```{status} costs       the time of the tables, by chapter
    ```{status} notebooks   when the notebooks ran in this build, and how long; not in a build from stored outputs
    ```{status} versions    what this build was made with
"""

from __future__ import annotations

import csv
import json
import platform
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

RESULTS = Path(__file__).resolve().parents[1] / "results"
SPACE = "\u00a0"  # between a number and its unit, where no line breaks
LONGEST = 10.0  # seconds of a row that lib/tests/test_published_tables.py still computes again
BUILDERS = ("torch", "numpy", "scipy", "pandas", "matplotlib", "sphinx", "jupyter-book", "myst-nb", "sphinx-book-theme")


def records() -> list[dict[str, Any]]:
    """The provenance of every published table, by chapter and name."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in RESULTS.glob("*.json")]
    return sorted((record for record in found if "sessions" in record), key=lambda r: (r["chapter"], r["name"]))


def duration(seconds: float) -> str:
    """Two digits of the fitting unit."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{two_digits(seconds / size)}{SPACE}{unit}"
    return f"{two_digits(seconds)}{SPACE}s"


def two_digits(number: float) -> str:
    return f"{number:.1f}" if number < 9.95 else f"{number:.0f}"


def rows_of(record: dict[str, Any]) -> int:
    """Rows in the file: a table that is still growing has them, but no count of them in its record."""
    return len((RESULTS / f"{record['name']}.csv").read_text(encoding="utf-8").splitlines()) - 1


def seconds(record: dict[str, Any]) -> float:
    """The time of its sessions, or of its rows where these say it themselves, if that is more: a table written from
    checkpoints took the time of the runs."""
    sessions = record["wall_seconds"] or sum(session["wall_seconds"] or 0.0 for session in record["sessions"])
    with (RESULTS / f"{record['name']}.csv").open(encoding="utf-8", newline="") as file:
        return max(sessions, sum(float(row.get("seconds") or 0.0) for row in csv.DictReader(file)))


def verified(name: str) -> str:
    """Whether the tests compute some rows of a table again on every machine, and what prevents it."""
    from attnrank.experiments import EXPERIMENTS  # here: importing them takes seconds, and few builds read this page
    from attnrank.experiments.upkeep.copies import EMBEDDED
    from attnrank.experiments.upkeep.cost import seconds_again

    experiment = EXPERIMENTS[name]
    here = [not experiment.data or setting[experiment.data] in EMBEDDED for setting in experiment.paper]
    if experiment.repeats.kind == "measured":
        return "times"
    if not any(here):
        return f"with{SPACE}data"
    costs = seconds_again(name, experiment, folder=RESULTS)
    if min(cost for cost, own in zip(costs, here, strict=True) if own) > LONGEST:
        return f"too{SPACE}long"
    return "yes" if all(here) else f"in{SPACE}part"


def several(values: list[str]) -> str:
    return ", ".join(sorted({value for value in values if value}))


def dates(record: dict[str, Any]) -> str:
    """The day on which the rows were computed, or the first and the last of several."""
    days = sorted({session["date"][:10] for session in record["sessions"]})
    return " to ".join(day.replace("-", "\u2011") for day in days[:: max(1, len(days) - 1)])  # does not break


def added_up(tables: list[tuple[int, float, list[str]]]) -> list[str]:
    """The number of tables, and the sums of their rows and of their times, which come first in each."""
    rows, time = sum(rows for rows, *_ in tables), sum(time for _, time, _ in tables)
    return [str(len(tables)), f"{rows:,}", duration(time)]


def table_of(heads: list[str], rows: list[list[nodes.Node | str]]) -> nodes.table:
    table, group = nodes.table(classes=["status"]), nodes.tgroup(cols=len(heads))
    table += group
    group += [nodes.colspec(colwidth=1) for _ in heads]
    group += [nodes.thead("", row_of(heads)), nodes.tbody("", *map(row_of, rows))]
    return table


def row_of(cells: list[nodes.Node | str]) -> nodes.row:
    text = [nodes.Text(cell) if isinstance(cell, str) else cell for cell in cells]
    return nodes.row("", *(nodes.entry("", nodes.paragraph("", "", cell)) for cell in text))


def by_table(lines: list[dict[str, str]]) -> dict[str, tuple[int, int, int]]:
    """Of lines of ``verified.csv``: by table, rows compared, rows that there are, and those that differ. A row that two
    processors compared counts once; where a line does not say which rows it counts, the most of one processor count."""
    from attnrank.experiments.upkeep.compared import numbers  # here: importing it takes seconds

    found = defaultdict(list)
    for line in lines:
        found[line["table"]].append(line)
    return {
        table: (
            max(len({row for line in of for row in numbers(f"{line['same']} {line['differing']}")}),
                *(int(line["compared"]) for line in of)),
            *(max(int(line[name]) for line in of) for name in ("rows", "different")),
        )
        for table, of in found.items()
    }  # fmt: skip


class Notebooks(nodes.General, nodes.Element):
    """Stands for the table of the notebooks until all of them have been read."""


class Status(SphinxDirective):
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        kinds = {"tables": self.tables, "roundings": self.roundings, "costs": self.costs, "versions": self.versions,
                 "notebooks": self.notebooks}  # fmt: skip
        if self.arguments[0] not in kinds:
            raise self.error(f"status must be one of {', '.join(kinds)}, got {self.arguments[0]!r}")
        return [kinds[self.arguments[0]]()]

    def tables(self) -> nodes.Node:
        rows: list[list[nodes.Node | str]] = []
        for record in records():
            sessions, so_far = record["sessions"], " so far" * (record["status"] != "complete")
            self.env.note_dependency(str(RESULTS / f"{record['name']}.json"))
            rows.append([
                self.file(f"{record['name']}.csv"), self.chapter(record["chapter"]), f"{rows_of(record):,}{so_far}",
                record["repeats"]["kind"], several([session["device"] for session in sessions]), dates(record),
                duration(seconds(record)), several([session["torch"].split("+")[0] for session in sessions]),
                verified(record["name"]),
            ])  # fmt: skip
        heads = ["table", "chapter", "rows", "repeats", "device", "date", "time", "torch", "verified"]
        return table_of(heads, rows)

    def roundings(self) -> nodes.Node:
        """The counts of ``verified.csv``, added over the tables; `attnrank.experiments.upkeep.all_rows` writes it."""
        self.env.note_dependency(str(RESULTS / "verified.csv"))
        of = defaultdict(list)
        with (RESULTS / "verified.csv").open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                of[row["rounding"], row["threads"], row["processor"]].append(row)
                if row["rounding"]:
                    of[row["rounding"], row["threads"], "all"].append(row)  # sorts behind any processor's name
        rows: list[list[nodes.Node | str]] = []
        for (rounding, threads, processor), found in sorted(of.items()):
            counts = list(by_table(found).values())
            here, every, different = (sum(count[at] for count in counts) for at in range(3))
            tables = f"{sum(count[0] > 0 for count in counts)} of {len(counts)}"
            how: nodes.Node | str = nodes.literal("", rounding) if rounding else "its own"
            rows.append([how, threads, processor, tables, f"{here:,} of {every:,}", str(different)])
        return table_of(["rounding", "threads", "processor", "tables", "rows compared", "different"], rows)

    def costs(self) -> nodes.Node:
        chapters = defaultdict(list)
        for record in records():
            devices = [session["device"] for session in record["sessions"]]
            chapters[record["chapter"]].append((rows_of(record), seconds(record), devices))
        rows: list[list[nodes.Node | str]] = [
            [self.chapter(chapter), *added_up(found), several([device for *_, used in found for device in used])]
            for chapter, found in sorted(chapters.items(), key=lambda item: self.page(item[0]))
        ]
        rows.append(["all", *added_up([table for found in chapters.values() for table in found]), ""])
        return table_of(["chapter", "tables", "rows", "time", "device"], rows)

    def versions(self) -> nodes.Node:
        rows: list[list[nodes.Node | str]] = [["Python", platform.python_version()]]
        return table_of(["package", "version"], rows + [[name, version(name)] for name in BUILDERS])

    def notebooks(self) -> nodes.Node:
        return Notebooks()

    def page(self, stem: str) -> str:
        """The page of a chapter, "" if it is not in the book."""
        pages = [page for page in self.env.found_docs if PurePosixPath(page).name.lstrip("0123456789_") == stem]
        return pages[0] if pages else ""

    def chapter(self, stem: str) -> nodes.Node | str:
        page = self.page(stem)
        if not page:
            return stem.replace("_", " ")
        address = self.env.app.builder.get_relative_uri(self.env.docname, page)
        return nodes.reference("", stem.replace("_", " "), refuri=address, internal=True)

    def file(self, name: str) -> nodes.Node:
        """A link to a copy of a table's file."""
        target = f"/{(RESULTS / name).relative_to(self.env.srcdir).as_posix()}"
        return addnodes.download_reference("", "", nodes.literal("", name.removesuffix(".csv")), reftarget=target,
                                           refdomain="", refexplicit=True)  # fmt: skip


def fill_notebooks(app: Sphinx, doctree: nodes.document, page: str) -> None:
    for place in list(doctree.findall(Notebooks)):
        data = getattr(app.env, "nb_metadata", {})
        rows: list[list[nodes.Node | str]] = []
        for name in sorted(data):
            if found := data[name].get("exec_data"):
                address = app.builder.get_relative_uri(page, name)
                link = nodes.reference("", app.env.titles[name].astext(), refuri=address, internal=True)
                rows.append([link, duration(found["runtime"] or 0.0), "passed" if found["succeeded"] else "failed"])
        text = "This copy was built from the outputs stored in the notebooks, without running them."
        place.replace_self(table_of(["notebook", "time", "result"], rows) if rows else nodes.paragraph("", text))


def setup(app: Sphinx) -> ExtensionMetadata:
    app.add_node(Notebooks)
    app.add_directive("status", Status)
    app.connect("doctree-resolved", fill_notebooks, priority=300)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
