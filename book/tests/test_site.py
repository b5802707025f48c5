"""The built site: every page, in light, dark and on a phone. Each check is also shown a fault that it must find."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
import yaml

import browsing
import html_checks
import lengths

PAGE = """<!doctype html><html lang='en'><head><meta charset='utf-8'><title>Planted</title>{head}</head>
<body><article>{body}</article></body></html>"""
PIXEL = base64.b64decode("R0lGODlhAQABAIAAAAAAAP///ywAAAAAAQABAAACAUwAOw==")


def pages(site: Path) -> list[Path]:
    found = sorted(path for path in site.rglob("*.html") if "_static" not in path.relative_to(site).parts)
    assert found
    return found


def planted(folder: Path, *, head: str = "", body: str = "") -> Path:
    page = folder / "planted.html"
    page.write_text(PAGE.format(head=head, body=body), encoding="utf-8")
    (folder / "dot.gif").write_bytes(PIXEL)
    return page


def katex(root: Path) -> str:
    """The styles and scripts that set formulas, with the macros of the book."""
    settings = yaml.safe_load((root / "_config.yml").read_text(encoding="utf-8"))["sphinx"]["config"]
    macros = {f"\\{name}": text for name, text in settings["formula_macros"].items()}
    static = (root / "book/_static").as_uri()
    names = ("katex/katex.min.js", "katex/copy-tex.min.js", "formulas.js")
    scripts = [f"<script defer src='{static}/{name}'></script>" for name in names]
    return (f"<link rel='stylesheet' href='{static}/katex/katex.min.css'>"
            f"<script>window.formulaMacros = {json.dumps(macros)}</script>{''.join(scripts)}")


def test_every_page_of_the_contents_is_built(root: Path, site: Path) -> None:
    contents = yaml.safe_load((root / "_toc.yml").read_text(encoding="utf-8"))
    names = [contents["root"], *(chapter["file"] for part in contents["parts"] for chapter in part["chapters"])]
    assert len(names) > 1
    assert [name for name in names if not (site / f"{name}.html").is_file()] == []
    notebooks = {path.with_suffix("").relative_to(root).as_posix() for path in root.glob("notebooks/*.ipynb")}
    assert notebooks <= set(names), "a notebook is not in the contents"


@pytest.mark.parametrize(("mode", "how"), [("light", {"check": lengths.too_long, "article": False}), ("phone", {})])
def test_pages_in_the_browser(fresh_browser: browsing.Browser, site: Path, mode: str, how: dict) -> None:
    styles: set[str] = set()
    shown = [page for page in pages(site) if mode == "light" or not browsing.moves(page)]
    with browsing.tab_in(fresh_browser, mode) as tab:
        assert [fault for page in shown for fault in browsing.visit(tab, page, mode, styles, **how)] == []


def test_the_theme_is_that_of_the_system(browser: browsing.Browser, site: Path) -> None:
    with browsing.tab_in(browser, "dark") as tab:
        tab.goto((site / "book/index.html").as_uri(), wait_until="load")
        for theme in ("dark", "light", "dark"):
            tab.emulate_media(color_scheme=theme)
            tab.wait_for_function("theme => document.documentElement.dataset.theme === theme", arg=theme)


def test_mathematics_is_there_to_be_rendered(site: Path) -> None:
    assert sum(len(html_checks.parse(page).select(".math")) for page in pages(site)) > 0


def test_links_lead_somewhere(site: Path) -> None:
    assert [fault for page in pages(site) for fault in html_checks.dead_links(page)] == []


def test_figures_have_alt_text_and_caption(site: Path) -> None:
    assert sum(len(html_checks.parse(page).select("article figure img")) for page in pages(site)) > 0
    assert [fault for page in pages(site) for fault in html_checks.figure_faults(page)] == []


def test_markup_is_rendered(site: Path) -> None:
    assert [fault for page in pages(site) for fault in html_checks.raw_markup(page)] == []


def test_old_addresses_lead_to_pages(root: Path, site: Path) -> None:
    moved = yaml.safe_load((root / "_config.yml").read_text(encoding="utf-8"))["sphinx"]["config"]["redirects"]
    assert moved
    for old, new in moved.items():
        (link,) = html_checks.parse(site / f"{old}.html").select("article a")
        assert (site / f"{old}.html").parent.joinpath(link["href"]).resolve() == (site / f"{new}.html").resolve()


GOOD = """<figure><img src='dot.gif' alt='A dot'><figcaption>A dot.</figcaption></figure>
<a id='here' href='#here'>here</a> <a href='https://other.invalid'>elsewhere</a> <a href='planted.html#here'>here</a>
<span class='math'>\\(\\hardmax x\\)</span>
<div style='overflow-x: auto' tabindex='0'><div style='width: 900px'>wide, but it scrolls</div></div>"""


def test_a_faultless_page_passes_in_the_browser(browser: browsing.Browser, tmp_path: Path, root: Path) -> None:
    page = planted(tmp_path, head=katex(root), body=GOOD)
    for mode in browsing.MODES:
        with browsing.tab_in(browser, mode) as tab:
            assert browsing.visit(tab, page, mode) == []


COPIED = """() => {
    getSelection().selectAllChildren(document.querySelector('p'))
    const clipboardData = new DataTransfer()
    document.dispatchEvent(new ClipboardEvent('copy', {clipboardData, cancelable: true}))
    return clipboardData.getData('text/plain')
}"""


def test_formulas_are_copied_as_tex(browser: browsing.Browser, tmp_path: Path, root: Path) -> None:
    body = "<p>Let <span class='math'>\\(k \\in \\R^d\\)</span> be a key.</p>"
    tab = browsing.tab_of(browser)
    tab.goto(planted(tmp_path, head=katex(root), body=body).as_uri(), wait_until="load")
    assert tab.evaluate(COPIED) == r"Let $k \in \R^d$ be a key."
    tab.context.close()


def of_the_book(root: Path) -> str:
    static = (root / "book/_static").as_uri()
    return f"<link rel='stylesheet' href='{static}/book.css'><script src='{static}/book.js'></script>"


def test_a_wide_formula_keeps_its_full_stop_on_the_line(browser: browsing.Browser, tmp_path: Path, root: Path) -> None:
    formula = " + ".join(f"x_{{{i}}}" for i in range(40))
    body = f"<div class='bd-article'><p>It is <span class='math'>\\({formula}\\)</span>. Done.</p></div>"
    tab = browsing.tab_of(browser, **browsing.MODES["phone"])
    tab.goto(planted(tmp_path, head=katex(root) + of_the_book(root), body=body).as_uri(), wait_until="load")
    tab.wait_for_selector(".katex.wide")
    box, stop = tab.evaluate("""() => {
        const stop = document.createRange()
        stop.selectNode(document.querySelector('.together').lastChild)
        return [document.querySelector('.katex.wide'), stop].map(thing => thing.getBoundingClientRect().toJSON())
    }""")
    assert box["right"] <= stop["left"] + 1 and stop["right"] <= browsing.MODES["phone"]["viewport"]["width"]
    assert box["top"] < (stop["top"] + stop["bottom"]) / 2 < box["bottom"]
    tab.context.close()


def test_numbers_keep_their_units_on_the_line(browser: browsing.Browser, tmp_path: Path, root: Path) -> None:
    body = ("<div class='bd-article'><p>At <span class='pasted-text'>0.6</span> <span class='math'>x</span>, "
            "<span class='pasted-text'>9</span> % or 95 %, 1 ± 2 of it, -1.5 (-2 to +0.5).</p><pre>10 % 3</pre></div>")
    tab = browsing.tab_of(browser)
    tab.goto(planted(tmp_path, head=of_the_book(root), body=body).as_uri(), wait_until="load")
    text = tab.locator("p").evaluate("p => p.textContent")
    assert text == "At 0.6\u00a0x, 9\u00a0% or 95\u00a0%, 1\u00a0±\u00a02 of it, -1.5 (-2\u00a0to\u00a0+0.5)."
    assert tab.locator("pre").text_content() == "10 % 3"
    tab.context.close()


def test_names_stand_left_and_numbers_right(browser: browsing.Browser, tmp_path: Path, root: Path) -> None:
    lines = (("64 words", "0.1"), ("n = 9", "never"))
    rows = "".join(f"<tr><td>{name}</td><td>{value}</td></tr>" for name, value in lines)
    body = f"<table class='numbers'><thead><tr><th>series</th><th>rank</th></tr></thead><tbody>{rows}</tbody></table>"
    tab = browsing.tab_of(browser)
    tab.goto(planted(tmp_path, head=of_the_book(root), body=body).as_uri(), wait_until="load")
    assert tab.locator(".words").all_text_contents() == ["series", "64 words", "n = 9"]
    tab.context.close()


def test_a_faultless_page_passes_without_browser(tmp_path: Path) -> None:
    page = planted(tmp_path, body=GOOD)
    assert html_checks.dead_links(page) == html_checks.figure_faults(page) == html_checks.raw_markup(page) == []


#: The mode in which a page is shown, what it has in its head and in its body, and the fault of it.
FAULTS = [
    ("light", "<link rel='stylesheet' href='https://other.invalid/a.css'>", "", "request to https://other.invalid"),
    ("light", "<script src='http://127.0.0.1:9/a.js'></script>", "", "request to http://127.0.0.1"),
    ("dark", "<script src='missing.js'></script>", "", "request failed"),
    ("light", "<script>console.error('planted')</script>", "", "console error: planted"),
    ("dark", "<script>throw new Error('planted')</script>", "", "script error"),
    ("light", "", "<span class='math'>\\(x\\)</span>", "formula not rendered"),
    ("light", "KATEX", "<span class='math'>\\(\\undefinedmacro\\)</span>", "TeX error"),
    ("light", "KATEX", "<span class='math'>\\(x^2^3\\)</span>", "TeX error"),
    ("light", "", "<img src='missing.png' alt='x'>", "image without picture"),
    ("phone", "", "<img src='dot.gif' alt='x' width='80' height='40'>", "image distorted"),
    ("phone", "", "<div style='width: 900px'>wide</div>", "wider than the screen"),
    ("phone", "", "<div style='overflow: hidden'><p style='width: 900px'>cut</p></div>", "wider than the screen"),
    ("light", "", "<p style='color: #999'>pale</p>", "light: color-contrast"),
    ("light", "<style>[data-theme=dark] p { color: #444; background: #222 }</style>", "<p>dim</p>", "dark: color"),
    ("phone", "", "<details><summary>more</summary><p style='color: #999'>pale</p></details>", "color-contrast"),
    ("light", "", "<a href='#here' id='here'><img src='dot.gif' alt=''></a>", "link-name"),
    ("phone", "", f"<div style='overflow: auto; white-space: nowrap'>{'wide ' * 99}</div>", "scrollable-region"),
]


@pytest.mark.parametrize("mode", browsing.MODES)
def test_browser_faults_are_found(browser: browsing.Browser, tmp_path: Path, root: Path, mode: str) -> None:
    """One tab shows all pages, then again in the opposite order: it finds the same, whatever page came before."""
    faulty, found = {}, []
    for at, (of, head, body, expected) in enumerate(FAULTS):
        if of == mode:
            (tmp_path / str(at)).mkdir()
            faulty[planted(tmp_path / str(at), head=head.replace("KATEX", katex(root)), body=body)] = expected
    with browsing.tab_in(browser, mode) as tab:
        for pages in (list(faulty), list(faulty)[::-1]):
            found.append({page: browsing.visit(tab, page, mode) for page in pages})
        assert browsing.visit(tab, planted(tmp_path, body="<p>nothing</p>"), mode) == []  # nothing of them is left
    assert found[0] == found[1]
    for page, expected in faulty.items():
        assert any(expected in fault for fault in found[0][page]), found[0][page]


def test_without_its_article_a_page_has_the_faults_around_it_and_of_colour(
    browser: browsing.Browser, tmp_path: Path
) -> None:
    link = "<a href='#{0}' id='{0}'><img src='dot.gif' alt=''></a>"
    page = planted(tmp_path, body=f"{link.format('inside')}<p style='color: #999'>pale</p>")
    text = page.read_text(encoding="utf-8")
    page.write_text(text.replace("</article>", f"</article>{link.format('around')}"), encoding="utf-8")
    with browsing.tab_in(browser, "light") as tab:
        for article, expected in ((True, {"#around", "#inside"}), (False, {"#around"})):
            faults = browsing.visit(tab, page, "light", article=article)
            assert {name for name in ("#around", "#inside") for f in faults if f"link-name: {name}" in f} == expected
            assert any("light: color-contrast" in fault for fault in faults)


def test_a_heavy_page_is_found(browser: browsing.Browser, tmp_path: Path) -> None:
    (tmp_path / "heavy.js").write_bytes(b" " * browsing.HEAVIEST)
    page = planted(tmp_path, head="<script src='heavy.js?once'></script><script src='heavy.js?again'></script>")
    weight = browsing.HEAVIEST + page.stat().st_size
    with browsing.tab_in(browser, "dark") as tab:
        for _ in range(2):  # what the tab has loaded before counts
            (fault,) = browsing.visit(tab, page, "dark")
            assert f"loads {weight:,} bytes" in fault


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("<a href='gone.html'>x</a>", "no file behind gone.html"),
        ("<a href='#gone'>x</a>", "no anchor behind #gone"),
        ("<a href='planted.html#gone'>x</a>", "no anchor behind planted.html#gone"),
        ("<img src='gone.png'>", "no file behind gone.png"),
        ("<script src='https://cdn.invalid/a.js'></script>", "loads https://cdn.invalid/a.js"),
    ],
)
def test_dead_links_are_found(tmp_path: Path, body: str, expected: str) -> None:
    assert any(expected in fault for fault in html_checks.dead_links(planted(tmp_path, body=body)))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("<figure><img src='dot.gif'><figcaption>A dot.</figcaption></figure>", "has no alt text"),
        ("<figure><img src='dot.gif' alt=' '><figcaption>A dot.</figcaption></figure>", "has no alt text"),
        ("<figure><img src='dot.gif' alt='../dot.gif'><figcaption>A dot.</figcaption></figure>", "is a file name"),
        ("<figure><img src='dot.gif' alt='A dot'></figure>", "has no caption"),
        ("<figure><img src='dot.gif' alt='A dot'><figcaption> </figcaption></figure>", "has no caption"),
        ("<img src='dot.gif' alt='A dot'>", "has no caption"),
    ],
)
def test_figure_faults_are_found(tmp_path: Path, body: str, expected: str) -> None:
    assert any(expected in fault for fault in html_checks.figure_faults(planted(tmp_path, body=body)))


@pytest.mark.parametrize("raw", ["$d_{qk}$ alone", "a **bold** word", "{doc}`page`", "\\alpha", "``code``", "rank nan"])
def test_raw_markup_is_found(tmp_path: Path, raw: str) -> None:
    page = planted(tmp_path, body=f"<p>{raw}</p><code>{raw}</code><span class='math'>{raw}</span>")
    assert len(html_checks.raw_markup(page)) == 1
