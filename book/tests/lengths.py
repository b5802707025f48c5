"""How long a page is, and what of it is cut at the widths of laptops."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import Page

import html_checks

HEIGHT, WORDS, FIGURES = 15_000, 3_000, 8
LAPTOP = {"viewport": {"width": 1360, "height": 900}, "color_scheme": "light"}
NARROWER = {"width": 1280, "height": 900}
# Boxes of which a part can only be seen by scrolling, but for those that are folded.
CUT = """boxes => [...document.querySelectorAll(boxes)]
    .filter(e => !e.closest('details:not([open])') && e.clientWidth > 0 && e.scrollWidth > e.clientWidth + 1)
    .map(e => `${e.scrollWidth - e.clientWidth} px of ${e.textContent.trim().slice(0, 60)}`)"""
OUTPUTS = "article .cell_output :is(pre, .table-box, .output)"
NO_PROSE = "details, .toggle, .dropdown, .cell, figure, table, .math, .claim, .solution"
SHOWN = f"article .cell_input pre, {OUTPUTS}"


def too_long(tab: Page, path: Path) -> list[str]:
    """What of an open page is cut; of a chapter, also whether it is too tall with everything folded that is folded.

    The page is 1360 pixels wide, and outputs are also looked at in 1280; it is left that wide, which lays it out alike.
    """
    chapter = path.parent.name == "notebooks"
    height = tab.evaluate("document.documentElement.scrollHeight")
    faults = [f"cut: {element}" for element in tab.evaluate(CUT, SHOWN if chapter else "article pre")]
    tab.set_viewport_size(NARROWER)
    faults += [f"cut at {NARROWER['width']} pixels: {element}" for element in tab.evaluate(CUT, OUTPUTS)]
    return faults + [f"{height} pixels tall, at most {HEIGHT}"] * (chapter and height > HEIGHT)


def long_text(page: Path) -> list[str]:
    """What of a chapter has too many words of prose or too many figures; folded text is not counted."""
    article = html_checks.parse(page).select_one("article")
    figures = len(article.select("figure"))
    other = {id(part) for part in article.select(NO_PROSE)}
    prose = [text for part in article.select("p, li:not(:has(p)), h1, h2, h3") for text in part.strings
             if other.isdisjoint(map(id, text.parents))]
    words = len(re.findall(r"\w[\w'’-]*", " ".join(prose)))
    faults = [f"{words} words, at most {WORDS}"] * (words > WORDS)
    faults += [f"{figures} figures, at most {FIGURES}"] * (figures > FIGURES)
    return [f"{page.name}: {fault}" for fault in faults]
