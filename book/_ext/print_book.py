"""The whole book as one PDF, printed by Chromium from the built site: the folder of the HTML is the argument.

    python book/_ext/print_book.py _build/html            writes _build/rank-of-attention.pdf
    python book/_ext/print_book.py _build/html --check    writes nothing, reports what does not fit on a printed page

The pages of _toc.yml are printed one by one, in their order, by the print rules of book.css; then a title page and the
contents with the page numbers that they got. Links between the pages lead to places in the PDF.
"""

from __future__ import annotations

import argparse
import html
import io
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

import yaml
from pypdf import PageObject, PdfReader, PdfWriter
from pypdf.generic import ArrayObject, DictionaryObject, Fit, FloatObject, NameObject, NullObject

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "book" / "tests"))

import browsing  # noqa: E402

WIDTH, HEIGHT = 642, 978  # pixels of the column of book.css's @page: 170 x 259 mm at 96 to the inch

# What stands in the footer, and the number of the first page.
FOOTER = """
@page {{
  @bottom-left {{ content: {title}; color: #5c6068; font: 8.5pt "Source Sans 3", sans-serif; }}
  @bottom-right {{ content: counter(page, {style}); color: #23262b; font: 9.5pt "Source Sans 3", sans-serif; }}
}}
@page bare {{ @bottom-left {{ content: none; }} @bottom-right {{ content: none; }} }}
html {{ counter-reset: page {before}; }}
"""
# Chromium writes down the place of those elements only that a link of the same page leads to.
LINK_ALL = """() => {
    const links = document.createElement("div")
    links.style.display = "none"
    for (const { id } of document.querySelectorAll("article [id]")) {
        const link = document.createElement("a")
        link.href = "#" + encodeURIComponent(id)
        links.append(link)
    }
    document.body.append(links)
}"""
HEADINGS = """() => [...document.querySelectorAll("article h1, article h2")].map(heading => {
    const copy = heading.cloneNode(true)
    for (const part of copy.querySelectorAll(".headerlink")) part.remove()
    for (const formula of copy.querySelectorAll(".katex"))
        formula.textContent = formula.querySelector("semantics > :first-child").textContent
    const text = copy.textContent.replace(/\\s+/g, " ").trim()
    return [heading.tagName, (heading.closest("section[id]") ?? heading).id, text]
})"""
# Formulas do not break: those wider than their place are set smaller.
SHRINK = """() => {
    for (const formula of document.querySelectorAll("article .katex")) {
        const block = formula.closest("div.math, p, li, td, th, dd, dt, figcaption, h1, h2, h3, h4")
        const style = block && getComputedStyle(block)
        const room = block && block.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight)
        const width = Math.max(formula.scrollWidth, formula.getBoundingClientRect().width)
        if (block && width > room + 1)
            formula.style.setProperty("font-size", `${Math.floor(105 * room / width)}%`, "important")
    }
}"""
# What reaches beyond the column, what scrolls (and so would be cut), and what no page has room for.
MISFITS = """height => {
    const column = document.querySelector("article").getBoundingClientRect(), found = []
    const name = e => `<${e.tagName.toLowerCase()} class="${e.getAttribute("class") ?? ""}"> ` +
        e.textContent.trim().slice(0, 60)
    const tell = (what, e) => found.push([what, e])
    for (const e of document.querySelectorAll("article, article *")) {
        const box = e.getBoundingClientRect(), style = getComputedStyle(e)
        if (!box.width || !box.height || e.closest(".katex-mathml, .visually-hidden")) continue
        if (e.closest(".katex") && !e.matches(".katex, .katex-base")) continue
        if (e.closest("svg") && e.tagName !== "svg") continue
        if (box.right > column.right + 1 || box.left < column.left - 1) tell("wider than the column", e)
        else if (e.clientWidth && /auto|scroll|hidden/.test(style.overflowX) && e.scrollWidth > e.clientWidth + 1)
            tell("cut", e)
        const whole = e.matches("figure, img, svg, .katex, tr") || /auto|scroll|hidden/.test(style.overflowX)
        if (whole && box.height > height) tell(`taller than a page (${Math.round(box.height)} px)`, e)
    }
    return found.filter(([, e]) => !found.some(([, other]) => other === e.parentElement))
        .map(([what, e]) => `${what}: ${name(e)}`)
}"""


@dataclass
class Chapter:
    """A page of the site, and what printing found of it."""

    part: str
    path: Path
    pdf: PdfReader = field(init=False)
    headings: list[tuple[str, str, str]] = field(init=False)
    first: int = field(init=False)

    @property
    def title(self) -> str:
        return next((text for tag, _, text in self.headings if tag == "H1"), self.path.stem)


def chapters(site: Path, toc: Path) -> list[Chapter]:
    """The pages of the table of contents, in its order; ValueError where the site lacks one."""
    contents = yaml.safe_load(toc.read_text(encoding="utf-8"))
    names = [("", contents["root"])]
    for part in contents.get("parts", []):
        names += [(part.get("caption", ""), chapter["file"]) for chapter in part["chapters"]]
    found = [Chapter(part, site / f"{name}.html") for part, name in names]
    missing = [chapter.path.relative_to(site).as_posix() for chapter in found if not chapter.path.is_file()]
    if missing:
        raise ValueError(f"site must be the HTML of the whole book, {site} lacks {', '.join(missing)}")
    return found


def open_printed(browser: browsing.Browser, path: Path) -> browsing.Page:
    """A page in the light theme, laid out as for paper, its formulas set and its proofs and solutions unfolded."""
    tab = browsing.tab_of(browser, viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
    tab.emulate_media(media="print")
    tab.goto(path.as_uri(), wait_until="load")
    browsing.settle(tab)
    tab.evaluate("() => dispatchEvent(new Event('beforeprint'))")
    tab.evaluate("""() => { for (const image of document.images) image.loading = "eager" }""")
    browsing.settle(tab)
    tab.evaluate(SHRINK)
    return tab


def to_pdf(tab: browsing.Page, title: str, first: int, style: str = "decimal") -> PdfReader:
    """Print a tab, its pages numbered from ``first`` on."""
    tab.add_style_tag(content=FOOTER.format(title=css_string(title), style=style, before=first - 1))
    reader = PdfReader(io.BytesIO(tab.pdf(prefer_css_page_size=True, print_background=True)))
    last = first + len(reader.pages) - 1
    if style == "decimal" and str(last) not in reader.pages[-1].extract_text().partition("\n")[0]:
        raise RuntimeError("no page numbers in print: Chromium must be version 131 or later")
    return reader


def css_string(text: str) -> str:
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'


def print_chapters(browser: browsing.Browser, found: list[Chapter]) -> None:
    first = 1
    for chapter in found:
        tab = open_printed(browser, chapter.path)
        chapter.headings = [tuple(heading) for heading in tab.evaluate(HEADINGS)]
        tab.evaluate(LINK_ALL)
        chapter.first, chapter.pdf = first, to_pdf(tab, chapter.title, first)
        tab.context.close()
        first += len(chapter.pdf.pages)
        print(f"{chapter.first:4}  {chapter.title}", flush=True)


def front_matter(browser: browsing.Browser, site: Path, found: list[Chapter], citation: dict[str, Any]) -> PdfReader:
    """The title page and the contents, as a page of the site prints."""
    rows, part = [], ""
    for chapter in found:
        if chapter.part != part:
            part = chapter.part
            rows.append(f'<p class="print-part">{html.escape(part)}</p>')
        title, link = html.escape(chapter.title), html.escape(chapter.path.as_uri())
        rows.append(f'<p><a href="{link}">{title}</a><span></span><a href="{link}">{chapter.first}</a></p>')
    page = f"""<!doctype html><html lang="en" data-theme="light"><head><meta charset="utf-8">
<link rel="stylesheet" href="{(site / "_static" / "book.css").as_uri()}"></head><body><article class="bd-article">
<div class="print-title"><h1>{html.escape(citation["title"])}</h1><p>{html.escape(citation.get("abstract", ""))}</p>
<p>{html.escape(", ".join(authors(citation)))}</p>
<p>Version {html.escape(str(citation["version"]))}, {html.escape(str(citation["date-released"]))}</p></div>
<div class="print-contents"><h2>Contents</h2>{"".join(rows)}</div></article></body></html>"""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "front.html")
        path.write_text(page, encoding="utf-8")
        tab = open_printed(browser, path)
        reader = to_pdf(tab, "Contents", 1, style="lower-roman")
        tab.context.close()
    return reader


def authors(citation: dict[str, Any]) -> list[str]:
    return [author.get("name") or f"{author['given-names']} {author['family-names']}" for author in citation["authors"]]


def join(front: PdfReader, found: list[Chapter], citation: dict[str, Any]) -> PdfWriter:
    """One document: pages, links, bookmarks, page labels, metadata."""
    writer = PdfWriter()
    pages: dict[Path, list[PageObject]] = {}
    opening = [writer.add_page(page) for page in front.pages]
    for chapter in found:
        pages[chapter.path] = [writer.add_page(page) for page in chapter.pdf.pages]
    places = {chapter.path: destinations(chapter.pdf, pages[chapter.path]) for chapter in found}
    for path, own in [(Path(), opening), *pages.items()]:
        for page in own:
            mend_links(page, path, places)
    add_bookmarks(writer, found, places, len(opening))
    writer.set_page_label(0, len(opening) - 1, style="/r")
    writer.set_page_label(len(opening), len(writer.pages) - 1, style="/D")
    keywords = ", ".join(citation.get("keywords", []))
    writer.add_metadata({"/Title": citation["title"], "/Author": ", ".join(authors(citation)),
                         "/Subject": citation.get("abstract", ""), "/Keywords": keywords})
    return writer


Places = dict[str, tuple[PageObject, float]]  # by the id of an element, "" for the page: sheet and height on it


def destinations(pdf: PdfReader, pages: list[PageObject]) -> Places:
    found: Places = {"": (pages[0], float(pages[0].mediabox.top))}
    for name, place in pdf.named_destinations.items():
        number = pdf.get_destination_page_number(place)
        if number is not None and number >= 0:
            found[unquote(str(name)).lstrip("/")] = pages[number], float(place.top or 0)
    return found


def mend_links(page: PageObject, path: Path, places: dict[Path, Places]) -> None:
    """Let links to pages of the site lead into the PDF, and drop those to other files of the site."""
    kept = ArrayObject()
    for reference in page.get("/Annots", ArrayObject()):
        link = reference.get_object()
        action = link.get("/A", DictionaryObject()).get_object()
        address = urlsplit(str(action.get("/URI", "")))
        inside = "/Dest" in link or "/D" in action
        name = str(link.get("/Dest", action.get("/D", ""))).lstrip("/") if inside else address.fragment
        target = path if inside else Path(url2pathname(address.path))
        if not inside and address.scheme != "file":
            kept.append(reference)
        elif target in places:
            sheet, top = places[target].get(unquote(name), places[target][""])
            link.pop("/A", None)
            link[NameObject("/Dest")] = explicit(sheet, top)
            kept.append(reference)
    page[NameObject("/Annots")] = kept


def explicit(page: PageObject, top: float) -> ArrayObject:
    reference = page.indirect_reference
    assert reference is not None
    return ArrayObject([reference, NameObject("/XYZ"), NullObject(), FloatObject(top), NullObject()])


def add_bookmarks(writer: PdfWriter, found: list[Chapter], places: dict[Path, Places], front: int) -> None:
    """Parts, their chapters, and the sections of these."""
    if front > 1:
        writer.add_outline_item(title="Contents", page_number=1)
    part, above = "", None
    for chapter in found:
        start = front + chapter.first - 1
        if chapter.part != part:
            part = chapter.part
            above = writer.add_outline_item(title=part, page_number=start, is_open=False)
        own = writer.add_outline_item(title=chapter.title, page_number=start, parent=above, is_open=False)
        for tag, anchor, text in chapter.headings:
            if tag == "H2" and anchor in places[chapter.path]:
                sheet, top = places[chapter.path][anchor]
                number = writer.get_page_number(sheet)
                if number is not None:
                    writer.add_outline_item(title=text, page_number=number, parent=own, fit=Fit.xyz(top=top))


def misfits(browser: browsing.Browser, path: Path) -> list[str]:
    """What is wider than the printed column, cut at its edge, or taller than a sheet."""
    tab = open_printed(browser, path)
    found = tab.evaluate(MISFITS, HEIGHT)
    tab.context.close()
    return [f"{path.name}: {misfit}" for misfit in found]


def check(browser: browsing.Browser, found: list[Chapter]) -> Iterator[str]:
    for chapter in found:
        yield from misfits(browser, chapter.path)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("site", type=Path, help="folder of the HTML, such as _build/html")
    parser.add_argument("--toc", type=Path, default=ROOT / "_toc.yml", help="table of contents (default: the book's)")
    parser.add_argument("--output", type=Path, help="default: rank-of-attention.pdf beside the folder of the HTML")
    parser.add_argument("--check", action="store_true", help="write nothing, report what does not fit on its page")
    options = parser.parse_args(arguments)
    site, executable = options.site.resolve(), browsing.find_chromium()
    try:
        found = chapters(site, options.toc)
    except ValueError as error:
        parser.error(str(error))
    if executable is None:
        parser.error("no Chromium, Chrome or Edge found: install one or name it in ATTNRANK_CHROMIUM")
    with browsing.open_browser(executable) as browser:
        if options.check:
            faults = list(check(browser, found))
            print("\n".join(faults) or "everything fits", file=sys.stderr if faults else sys.stdout)
            return 1 if faults else 0
        citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
        print_chapters(browser, found)
        front = front_matter(browser, site, found, citation)
    writer = join(front, found, citation)
    output = options.output or site.parent / "rank-of-attention.pdf"
    draft = output.with_suffix(".pdf.tmp")
    writer.write(draft)
    draft.replace(output)
    print(f"{output}: {len(writer.pages)} pages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
