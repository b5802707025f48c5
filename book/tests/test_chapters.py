"""Every chapter reads in one sitting: the limits of height, words and figures, and nothing cut at the width of a
laptop."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest

import browsing
import html_checks

HEIGHT, WORDS, FIGURES = 15_000, 3_000, 8
LAPTOP = {"viewport": {"width": 1360, "height": 900}, "color_scheme": "light"}
NUMBERED = re.compile(r"\d\d_")
# Code and output boxes of which a part can only be seen by scrolling, but for those that are folded.
CUT = """() => [...document.querySelectorAll('article .cell :is(pre, .table-box, .output)')]
    .filter(e => !e.closest('details:not([open])') && e.clientWidth > 0 && e.scrollWidth > e.clientWidth + 1)
    .map(e => `${e.scrollWidth - e.clientWidth} px of ${e.textContent.trim().slice(0, 60)}`)"""


def chapters(site: Path) -> list[Path]:
    pages = [path for path in (site / "notebooks").glob("*.html") if NUMBERED.match(path.name)]
    found = sorted(path for path in pages if not html_checks.parse(path).select("meta[http-equiv=refresh]"))
    assert found
    return found


def long_page(browser: browsing.Browser, page: Path) -> list[str]:
    """What of a chapter is too tall or cut at 1360 pixels, with everything folded that is folded."""
    context = browser.new_context(**LAPTOP)
    tab = context.new_page()
    tab.goto(page.as_uri(), wait_until="load")
    browsing.settle(tab)
    height = tab.evaluate("document.documentElement.scrollHeight")
    faults = [f"cut: {element}" for element in tab.evaluate(CUT)]
    context.close()
    faults += [f"{height} pixels tall, at most {HEIGHT}"] * (height > HEIGHT)
    return [f"{page.name}: {fault}" for fault in faults]


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
    assert [fault for page in chapters(site) for fault in long_page(browser, page)] == []


def test_chapters_have_few_words_and_figures(site: Path) -> None:
    assert [fault for page in chapters(site) for fault in long_text(page)] == []


PAGE = "<!doctype html><html><head><meta charset='utf-8'></head><body><article>{}</article></body></html>"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("<div style='height: 15100px'></div>", "pixels tall"),
        ("<div class='cell'><pre style='width: 300px; overflow-x: auto'>" + "x" * 400 + "</pre></div>", "cut"),
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
