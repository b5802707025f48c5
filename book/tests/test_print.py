"""The book as one PDF, tried on a site of two pages: contents, links, bookmarks, numbers, and what does not fit."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from pypdf import PdfReader

import browsing
import print_book

PAGE = """<!doctype html><html data-theme="light"><head><meta charset="utf-8">
<link rel="stylesheet" href="{0}_static/book.css"><script src="{0}_static/book.js"></script></head>
<body><article class="bd-article">{1}</article></body></html>"""
FIRST = """<section id="first"><h1>First page<a class="headerlink" href="#first">#</a></h1>
<p><a href="other/second.html#far">onwards</a>
<a href="notes.txt">a file</a> <a href="https://host.invalid/">away</a></p>
<div class="cell"><details class="hide"><summary>Show</summary><pre>folded = 1</pre></details></div>
<details class="sd-dropdown"><summary>Proof</summary><p>unfolded proof</p></details></section>"""
SECOND = """<section id="second"><h1>Second page</h1><p>Text.</p>
<section id="far" style="break-before: page"><h2>Far</h2>
<p><a href="../index.html">back</a> <a href="#second">up</a></p></section></section>"""


@pytest.fixture(scope="module")
def small_site(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Path:
    folder = tmp_path_factory.mktemp("printed") / "html"
    (folder / "other").mkdir(parents=True)
    (folder / "_static").mkdir()
    for name in ("book.css", "book.js"):
        (folder / "_static" / name).write_bytes((root / "book" / "_static" / name).read_bytes())
    (folder / "index.html").write_text(PAGE.format("", FIRST), encoding="utf-8")
    (folder / "other" / "second.html").write_text(PAGE.format("../", SECOND), encoding="utf-8")
    (folder.parent / "toc.yml").write_text(
        "root: index\nparts:\n  - caption: A part\n    chapters:\n      - file: other/second\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def printed(browser: browsing.Browser, small_site: Path) -> PdfReader:
    found = print_book.chapters(small_site, small_site.parent / "toc.yml")
    citation = {"title": "Two pages", "authors": [{"given-names": "A.", "family-names": "Author"}, {"name": "Others"}],
                "abstract": "About.", "version": 1, "date-released": "2026-01-01", "keywords": ["a", "b"]}
    print_book.print_chapters(browser, found)
    front = print_book.front_matter(browser, small_site, found, citation)
    path = small_site.parent / "book.pdf"
    print_book.join(front, found, citation).write(path)
    return PdfReader(path)


def links(reader: PdfReader, number: int) -> list[tuple[str, int | None]]:
    """The links of a sheet: an address, or the sheet that they lead to."""
    found = []
    for link in reader.pages[number].get("/Annots", []):
        link = link.get_object()
        if "/A" in link:
            found.append((link["/A"]["/URI"], None))
        else:
            found.append(("", reader.get_page_number(link["/Dest"][0].get_object())))
    return found


def test_title_contents_and_numbers(printed: PdfReader) -> None:
    title, contents, first, second, far = [page.extract_text() for page in printed.pages]
    assert "Two pages" in title and "A. Author, Others" in title and "2026-01-01" in title
    assert [line for line in ("A part", "First page", "Second page") if line not in contents] == []
    rows = [row.split() for row in contents.splitlines()]
    assert [row[-1] for row in rows if row[:2] in (["First", "page"], ["Second", "page"])] == ["1", "2"]
    assert "unfolded proof" in first and "folded = 1" not in first and "#" not in first
    assert printed.page_labels == ["i", "ii", "1", "2", "3"]
    assert [text.partition("\n")[0][0] for text in (first, second, far)] == ["1", "2", "3"]
    assert printed.metadata is not None
    assert (printed.metadata.title, printed.metadata.author) == ("Two pages", "A. Author, Others")


def test_links_lead_into_the_document_and_no_file_is_named(printed: PdfReader) -> None:
    assert links(printed, 1) == [("", 2), ("", 2), ("", 3), ("", 3)]
    assert links(printed, 2) == [("", 4), ("https://host.invalid/", None)]
    assert links(printed, 4) == [("", 2), ("", 3)]


def test_bookmarks(printed: PdfReader) -> None:
    contents, first, part, [second, [far]] = printed.outline
    entries = (contents, first, part, second, far)
    found = [(entry.title, printed.get_destination_page_number(entry)) for entry in entries]
    assert found == [("Contents", 1), ("First page", 2), ("A part", 3), ("Second page", 3), ("Far", 4)]


def test_what_does_not_fit_is_found(browser: browsing.Browser, small_site: Path) -> None:
    for chapter in print_book.chapters(small_site, small_site.parent / "toc.yml"):
        assert print_book.misfits(browser, chapter.path) == []
    wide = '<h1>Wide</h1><div id="wide" class="a" style="width: 660px; height: 9px"></div>'
    tall = '<svg class="b" width="9" height="990"></svg>'
    cut = '<div class="c" style="width: 90px; overflow: hidden; white-space: nowrap">longer than its box is wide</div>'
    path = small_site / "misfits.html"
    path.write_text(PAGE.format("", wide + tall + cut), encoding="utf-8")
    found = [fault.partition(">")[0] for fault in print_book.misfits(browser, path)]
    assert found == ['misfits.html: wider than the column: <div class="a"',
                     'misfits.html: taller than a page (990 px): <svg class="b"',
                     'misfits.html: cut: <div class="c"']


def test_numbers_go_on_behind_a_chapter_of_several_sheets(monkeypatch: pytest.MonkeyPatch) -> None:
    tab = SimpleNamespace(evaluate=lambda script: [["H1", "", "Title"]], context=SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(print_book, "open_printed", lambda browser, path: tab)
    monkeypatch.setattr(print_book, "to_pdf", lambda tab, title, first: SimpleNamespace(pages=[title] * 3))
    found = [print_book.Chapter("", Path(f"{name}.html")) for name in "abc"]
    print_book.print_chapters(None, found)  # type: ignore[arg-type]
    assert [chapter.first for chapter in found] == [1, 4, 7]


def test_texts_of_style_sheets_and_names_of_authors() -> None:
    assert print_book.css_string('a "b" \\ c') == '"a \\"b\\" \\\\ c"'
    authors = [{"given-names": "A. B.", "family-names": "C"}, {"name": "Others"}]
    assert print_book.authors({"authors": authors}) == ["A. B. C", "Others"]


def test_a_site_that_lacks_a_page_is_refused(small_site: Path) -> None:
    with pytest.raises(ValueError, match="lacks elsewhere.html"):
        toc = small_site.parent / "long.yml"
        toc.write_text("root: index\nparts:\n  - chapters:\n      - file: elsewhere\n", encoding="utf-8")
        print_book.chapters(small_site, toc)
