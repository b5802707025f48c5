"""A figure links the rows it was drawn from, their provenance and the code that computes them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import figure_sources
import pytest
from docutils import nodes

import html_checks


def test_figures_link_their_tables_and_code(root: Path, site: Path) -> None:
    seen = 0
    for page in sorted(site.glob("notebooks/*.html")):
        for figure in html_checks.parse(page).select("article figure"):
            caption = figure.select_one(".caption-text")
            names = figure_sources.tables(caption.get_text() if caption else "")
            copies = {link.get_text(): page.parent / link["href"] for link in figure.select("a.download")}
            where = f"{page.name}: {figure.get('id')}"
            assert bool(names) == bool(figure.select(".sources")), where
            for name in names:
                rows = root / "book/results" / f"{name}.csv"
                assert copies[rows.name].read_bytes() == rows.read_bytes(), where
                seen += 1
            line = figure.select_one(".sources").get_text(" ", strip=True) if names else ""
            assert re.findall(r"(\w+): provenance", line) == names, where
            for link in figure.select(".sources a.download"):
                copy = page.parent / link["href"]
                if copy.suffix == ".json":
                    name = copy.stem
                    known = json.loads((root / "book/results" / copy.name).read_text(encoding="utf-8"))
                    assert json.loads(copy.read_text(encoding="utf-8")) == known and name in names, where
                else:
                    assert link.get_text() == f"{known['module'].rpartition('.')[2]}.{known['function']}", where
                    assert copy.read_bytes() == figure_sources.module_file(known["module"], root).read_bytes(), where
                    assert re.search(rf"^def {known['function']}\(", copy.read_text(encoding="utf-8"), re.M), where
    assert seen > 40


def test_printed_tables_link_their_rows_and_code(root: Path, site: Path) -> None:
    seen = 0
    for page in sorted(site.glob("notebooks/*.html")):
        for caption in html_checks.parse(page).select("article p.table-caption"):
            names = figure_sources.tables(caption.get_text())
            line = caption.find_parent("div", class_="output").find_next_sibling()
            linked = bool(line and "sources" in line.get("class", []))
            assert bool(names) == linked, f"{page.name}: {caption.get_text()}"
            if names:
                assert re.findall(r"(\w+): rows , provenance", line.get_text(" ", strip=True)) == names
                links = line.select("a.download")
                copies = [(page.parent / link["href"]).read_bytes() for link in links]
                folder = root / "book/results"
                for at, name in enumerate(names):
                    known = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
                    own = [folder / f"{name}.csv", folder / f"{name}.json",
                           figure_sources.module_file(known["module"], root)]  # fmt: skip
                    assert copies[3 * at : 3 * at + 3] == [path.read_bytes() for path in own], name
                seen += len(names)
    assert seen > 5


def test_every_table_has_its_code_in_the_package(root: Path) -> None:
    for path in sorted((root / "book/results").glob("*.json")):
        known = json.loads(path.read_text(encoding="utf-8"))
        if "module" in known:
            file = figure_sources.module_file(known["module"], root)
            assert re.search(rf"^def {known['function']}\(", file.read_text(encoding="utf-8"), re.M), path.name


@pytest.mark.parametrize("name", ["no_such_table", "table"])  # the second has rows, and no provenance
def test_a_caption_with_a_table_that_is_not_there_fails_the_build(small_book, name: str) -> None:
    small_book.write("book/other.md", f"# Other page\n\n(a-label)=\n## A section\n\n```{{figure}} _static/logo.svg\n"
                     f":alt: A logo\n\nA logo. Drawn from {name}.csv.\n```\n")
    result = small_book.build(execute="off")
    assert result.returncode != 0
    assert f"a caption names {name}.csv, which is no published table" in result.stdout


def test_names_are_found_once_and_in_order() -> None:
    assert figure_sources.tables("From b.csv, a_2.csv and\nb.csv; not c.csvx, d.json.") == ["b", "a_2"]


def test_links_of_a_caption_and_of_the_line_below_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of tables that are there become links and all else stays; a module may be a file or a folder."""
    monkeypatch.setattr(figure_sources, "RESULTS", tmp_path / "results")
    (tmp_path / "results").mkdir()
    (tmp_path / "lib/attnrank/folder").mkdir(parents=True)
    for name, module in (("a", "attnrank.folder"), ("b", "attnrank.file")):
        known = {"module": module, "function": f"of_{name}"}
        (tmp_path / f"results/{name}.json").write_text(json.dumps(known), encoding="utf-8")

    def told(found: list[nodes.Node]) -> list[str | tuple[str, str]]:
        return [(part.astext(), part["reftarget"]) if isinstance(part, nodes.Element) else part.astext()
                for part in found]  # fmt: skip

    assert told(figure_sources.linked("From a.csv, c.csv and b.csv.", tmp_path)) == [
        "From ", ("a.csv", "/results/a.csv"), ", c.csv and ", ("b.csv", "/results/b.csv"), ".",
    ]  # fmt: skip
    of = {name: [("provenance", f"/results/{name}.json"), ", code ", (f"{module}.of_{name}", f"/lib/attnrank/{file}")]
          for name, module, file in (("a", "folder", "folder/__init__.py"), ("b", "file", "file.py"))}  # fmt: skip
    rows = [("rows", "/results/a.csv"), ", "]
    for with_rows in (False, True):
        line = figure_sources.sources(["a", "b"], tmp_path, rows=with_rows)
        second = [("rows", "/results/b.csv"), ", "] if with_rows else []
        assert told(line.children) == ["a: ", *(rows if with_rows else []), *of["a"], " · b: ", *second, *of["b"]]
