"""What a page weighs: the files that it loads, as a server sends them, texts compressed."""

from __future__ import annotations

import gzip
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

import browsing
import html_checks

LIMIT = 1_500_000
FONTS = {".woff", ".woff2"}
TEXTS = {".html", ".css", ".js", ".svg"}
LOADED = {"link": "href", "script": "src", "img": "src", "source": "src"}
NOT_LOADED = {"next", "prev", "index", "search", "canonical"}


@cache
def weight(path: Path) -> int:
    content = path.read_bytes()
    return len(gzip.compress(content, 6)) if path.suffix in TEXTS else len(content)


def loaded(page: Path) -> set[Path]:
    """The page, what it refers to, and, as if it needed them all, the fonts of its style sheets and formulas."""
    tags = html_checks.parse(page).find_all(list(LOADED))
    found = [tag.get(LOADED[tag.name]) for tag in tags if not NOT_LOADED & set(tag.get("rel") or ())]
    names = [unquote(urlsplit(name).path) for name in found if name and not urlsplit(name).scheme]
    files = {page, *((page.parent / name).resolve() for name in names)}
    static = next((file.parent for file in files if file.name == "book.css"), None)
    if static:
        files |= {*static.glob("fonts/*.woff2"), *static.glob("vendor/fontawesome/webfonts/fa-solid-*.woff2")}
    for script in [file for file in files if file.name.startswith("tex-chtml")]:
        files |= set(script.parent.glob("output/chtml/fonts/*/*.woff*"))
    return files


def weights(folder: Path) -> dict[str, int]:
    pages = [page for page in sorted(folder.rglob("*.html")) if "_static" not in page.relative_to(folder).parts]
    return {page.relative_to(folder).as_posix(): sum(map(weight, loaded(page))) for page in pages}


def measured(browser: browsing.Browser, page: Path) -> int:
    """The same with the fonts that the browser asks for in place of all of them."""
    fonts: set[Path] = set()
    tab = browsing.tab_of(browser, viewport={"width": 1360, "height": 900})
    tab.on("requestfinished", lambda request: fonts.add(Path(url2pathname(urlsplit(request.url).path))))
    tab.goto(page.as_uri(), wait_until="load")
    browsing.settle(tab)
    tab.context.close()
    fonts = {path for path in fonts if path.suffix in FONTS}
    assert fonts
    return sum(map(weight, {path for path in loaded(page) if path.suffix not in FONTS} | fonts))


def test_pages_are_light(browser: browsing.Browser, site: Path) -> None:
    found = weights(site)
    assert len(found) > 30 and max(found.values()) > 500_000
    heavy = {page: measured(browser, site / page) for page, size in found.items() if size > LIMIT}
    assert {page: size for page, size in heavy.items() if size > LIMIT} == {}


def test_icons_come_without_their_script_and_mathematics_only_where_it_is(site: Path) -> None:
    for page in [*site.glob("book/*.html"), *site.glob("notebooks/*.html")]:
        names = {file.name for file in loaded(page)}
        assert "fontawesome.js" not in names, page.name
        assert not html_checks.parse(page).select("article .math") or "tex-chtml-full.js" in names, page.name
    assert "tex-chtml-full.js" not in {file.name for file in loaded(site / "book/ledger.html")}


def test_heavy_pages_are_found(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("<link rel='next' href='b.png'><script src='a.js?v=1'></script>", "utf-8")
    (tmp_path / "a.js").write_text("x" * 2 * LIMIT, encoding="utf-8")
    (tmp_path / "b.png").write_bytes(bytes(2 * LIMIT))
    assert weights(tmp_path)["page.html"] < 10_000  # compressed; the next page's files are not this one's
    with (tmp_path / "page.html").open("a", encoding="utf-8") as file:
        file.write("<img src='b.png'>")
    html_checks.parse.cache_clear()
    weight.cache_clear()
    assert weights(tmp_path)["page.html"] > LIMIT
