"""Faults that the HTML files show without a browser: dead links, figures without alt text or caption, raw markup."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from bs4 import BeautifulSoup, Tag

LINKS = {"a": "href", "link": "href", "img": "src", "script": "src", "iframe": "src", "object": "data", "source": "src"}


CODE, COLOUR = re.compile(r"<pre>.*?</pre>", re.DOTALL), re.compile(r"</?span[^>]*>")


@cache
def parse(path: Path) -> BeautifulSoup:
    """A page, but for the colours of code: two elements of three, which say nothing else."""
    text = CODE.sub(lambda code: COLOUR.sub("", code[0]), path.read_text(encoding="utf-8"))
    return BeautifulSoup(text, "html.parser")


@cache
def anchors(path: Path) -> frozenset[str]:
    tags = parse(path).find_all(True)
    return frozenset(tag[name] for tag in tags for name in ("id", "name") if tag.get(name))


def dead_links(path: Path) -> list[str]:
    """Internal links without a file or anchor behind them; anything a page loads from elsewhere."""
    faults = []
    for tag in parse(path).find_all(list(LINKS)):
        target = tag.get(LINKS[tag.name])
        if target is None or target == "#":
            continue
        parts = urlsplit(target)
        if parts.scheme or parts.netloc:
            if tag.name != "a" and parts.scheme != "data":
                faults.append(f"{path.name}: loads {target}")
            continue
        file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        if not file.is_file():
            faults.append(f"{path.name}: no file behind {target}")
        elif parts.fragment and file.suffix == ".html" and unquote(parts.fragment) not in anchors(file):
            faults.append(f"{path.name}: no anchor behind {target}")
    return faults


def figure_faults(path: Path) -> list[str]:
    """Images of the text without a description or without a caption."""
    faults = []
    for image in parse(path).select("article img"):
        name = PurePosixPath(image.get("src", "")).name
        alt = (image.get("alt") or "").strip()
        if not alt:
            faults.append(f"{path.name}: {name} has no alt text")
        elif name in alt or PurePosixPath(alt).suffix in (".png", ".svg", ".jpg"):
            faults.append(f"{path.name}: the alt text of {name} is a file name")
        if not caption(image):
            faults.append(f"{path.name}: {name} has no caption")
    return faults


def caption(image: Tag) -> str:
    figure = image.find_parent("figure")
    text = figure.find("figcaption") if figure else None
    return text.get_text(strip=True) if text else ""


#: Formulas, emphasis, roles and code that nothing turned into what they stand for.
RAW = re.compile(r"\$[^$\s][^$]*\$|\\[A-Za-z]{2,}|\*\*\S|\{[a-z:]+\}`|``[^`]+``|\bnan\b")


def raw_markup(path: Path) -> list[str]:
    """Markup that is read as text, outside of code and formulas: a caption with dollar signs, say."""
    found = [(text, match) for article in parse(path).select("article") for text in article.find_all(string=True)
             for match in RAW.finditer(text)]
    return [f"{path.name}: {match.group()!r} is raw" for text, match in found
            if not text.find_parent(["code", "pre", "script", "style"]) and not text.find_parent(class_="math")]
