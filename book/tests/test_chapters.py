"""Every chapter reads in one sitting: the limits of height, words and figures; nothing is cut at the widths of
laptops."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest

import browsing
import html_checks

HEIGHT, WORDS, FIGURES = 15_000, 3_000, 8
LAPTOP = {"viewport": {"width": 1360, "height": 900}, "color_scheme": "light"}
NARROWER = {"width": 1280, "height": 900}
# Boxes of which a part can only be seen by scrolling, but for those that are folded.
CUT = """boxes => [...document.querySelectorAll(boxes)]
    .filter(e => !e.closest('details:not([open])') && e.clientWidth > 0 && e.scrollWidth > e.clientWidth + 1)
    .map(e => `${e.scrollWidth - e.clientWidth} px of ${e.textContent.trim().slice(0, 60)}`)"""


OUTPUTS = "article .cell_output :is(pre, .table-box, .output)"
SHOWN = f"article .cell_input pre, {OUTPUTS}"


def pages(site: Path, folder: str) -> list[Path]:
    """The pages of a folder, but for those that only lead to others."""
    every = sorted((site / folder).glob("*.html"))
    found = [path for path in every if not html_checks.parse(path).select("meta[http-equiv=refresh]")]
    assert found
    return found


def cut(browser: browsing.Browser, page: Path, shown: str = SHOWN) -> tuple[list[str], int]:
    """What is cut, of what is ``shown`` at 1360 pixels and of outputs at 1280, and the height at 1360 pixels."""
    tab = browsing.tab_of(browser, **LAPTOP)
    tab.goto(page.as_uri(), wait_until="load")
    browsing.settle(tab)
    height = tab.evaluate("document.documentElement.scrollHeight")
    faults = [f"cut: {element}" for element in tab.evaluate(CUT, shown)]
    tab.set_viewport_size(NARROWER)
    faults += [f"cut at {NARROWER['width']} pixels: {element}" for element in tab.evaluate(CUT, OUTPUTS)]
    tab.context.close()
    return [f"{page.name}: {fault}" for fault in faults], height


def long_page(browser: browsing.Browser, page: Path) -> list[str]:
    """What of a chapter is too tall or cut at 1360 pixels, with everything folded that is folded."""
    faults, height = cut(browser, page)
    return faults + [f"{page.name}: {height} pixels tall, at most {HEIGHT}"] * (height > HEIGHT)


def long_text(page: Path) -> list[str]:
    """What of a chapter has too many words of prose or too many figures; folded text is not counted."""
    article = copy.copy(html_checks.parse(page)).select_one("article")
    figures = len(article.select("figure"))
    for other in article.select("details, .toggle, .dropdown, .cell, figure, table, .math, .claim, .solution"):
        other.decompose()
    words = len(re.findall(r"\w[\w'’-]*", " ".join(p.get_text(" ") for p in article.select("p, li, h1, h2, h3"))))
    faults = [f"{words} words, at most {WORDS}"] * (words > WORDS)
    faults += [f"{figures} figures, at most {FIGURES}"] * (figures > FIGURES)
    return [f"{page.name}: {fault}" for fault in faults]


def test_chapters_are_short(browser: browsing.Browser, site: Path) -> None:
    assert [fault for page in pages(site, "notebooks") for fault in long_page(browser, page)] == []


def test_nothing_is_cut_on_the_other_pages(browser: browsing.Browser, site: Path) -> None:
    assert [fault for page in pages(site, "book") for fault in cut(browser, page, "article pre")[0]] == []


def test_chapters_have_few_words_and_figures(site: Path) -> None:
    assert [fault for page in pages(site, "notebooks") for fault in long_text(page)] == []


PAGE = "<!doctype html><html><head><meta charset='utf-8'></head><body><article>{}</article></body></html>"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("<div style='height: 15100px'></div>", "pixels tall"),
        ("<div class='cell_input'><pre style='width: 300px; overflow-x: auto'>" + "x" * 400 + "</pre></div>", "cut"),
        ("<div class='cell'><div class='cell_output'><pre style='overflow-x: auto'><div style='width: 1300px'>x",
         "cut at 1280 pixels"),
        ("<p>" + "word " * 3001 + "</p>", "3001 words"),
        ("<figure></figure>" * 9, "9 figures"),
    ],
)
def test_long_chapters_are_found(browser: browsing.Browser, tmp_path: Path, body: str, expected: str) -> None:
    page = tmp_path / "01_planted.html"
    page.write_text(PAGE.format(body), encoding="utf-8")
    assert any(expected in fault for fault in long_page(browser, page) + long_text(page))


def test_what_is_folded_does_not_count(browser: browsing.Browser, tmp_path: Path) -> None:
    page = tmp_path / "01_planted.html"
    page.write_text(PAGE.format("<details><summary>Proof</summary><p style='height: 16000px'>" + "word " * 4000 + "</p>"
                    "<div class='cell'><pre>" + "x" * 400 + "</pre></div></details>"), encoding="utf-8")
    assert long_page(browser, page) + long_text(page) == []
