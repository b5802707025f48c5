"""Every chapter reads in one sitting: the limits of height, words and figures; nothing is cut at the widths of
laptops. Heights and cuts of the pages of the book are seen by the walk of test_site."""

from __future__ import annotations

from pathlib import Path

import pytest

import browsing
import lengths

PAGE = "<!doctype html><html><head><meta charset='utf-8'></head><body><article>{}</article></body></html>"


def chapters(site: Path) -> list[Path]:
    found = [path for path in sorted((site / "notebooks").glob("*.html")) if not browsing.moves(path)]
    assert found
    return found


def planted(folder: Path, body: str) -> Path:
    page = folder / "notebooks" / "01_planted.html"
    page.parent.mkdir()
    page.write_text(PAGE.format(body), encoding="utf-8")
    return page


def long_page(browser: browsing.Browser, page: Path) -> list[str]:
    tab = browsing.tab_of(browser, **lengths.LAPTOP)
    tab.goto(page.as_uri(), wait_until="load")
    browsing.settle(tab)
    faults = lengths.too_long(tab, page)
    tab.context.close()
    return faults


def test_chapters_have_few_words_and_figures(site: Path) -> None:
    assert [fault for page in chapters(site) for fault in lengths.long_text(page)] == []


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("<div style='height: 15100px'></div>", "pixels tall"),
        ("<div class='cell_input'><pre style='width: 300px; overflow-x: auto'>" + "x" * 400 + "</pre></div>", "cut"),
        ("<div class='cell'><div class='cell_output'><pre style='overflow-x: auto'><div style='width: 1300px'>x",
         "cut at 1280 pixels"),
        ("<p>" + "word " * 3001 + "</p>", "3001 words"),
        ("<ul><li><p>" + "word " * 3001 + "</p></li></ul>", " 3001 words"),
        ("<ul><li>" + "word " * 3001 + "</li></ul>", " 3001 words"),
        ("<figure></figure>" * 9, "9 figures"),
    ],
)
def test_long_chapters_are_found(browser: browsing.Browser, tmp_path: Path, body: str, expected: str) -> None:
    page = planted(tmp_path, body)
    assert any(expected in fault for fault in long_page(browser, page) + lengths.long_text(page))


def test_what_is_folded_does_not_count(browser: browsing.Browser, tmp_path: Path) -> None:
    page = planted(tmp_path, "<details><summary>Proof</summary><p style='height: 16000px'>" + "word " * 4000 + "</p>"
                   "<div class='cell'><pre>" + "x" * 400 + "</pre></div></details>")
    assert long_page(browser, page) + lengths.long_text(page) == []
