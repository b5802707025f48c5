"""Open a page of the site in Chromium as a reader would, and say in words what is wrong with it."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from playwright.sync_api import Browser, BrowserType, Page, Request, sync_playwright

import accessibility

#: Milliseconds. No busy machine takes as long; a browser that has died must not hang the tests.
PATIENCE = 600_000
#: Bytes that a page may load from disk: itself, styles, scripts, fonts, and all its pictures.
HEAVIEST = 1_500_000
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge", "microsoft-edge")
MAC = ("Chromium.app/Contents/MacOS/Chromium", "Google Chrome.app/Contents/MacOS/Google Chrome",
       "Microsoft Edge.app/Contents/MacOS/Microsoft Edge")
WINDOWS = ("Google/Chrome/Application/chrome.exe", "Chromium/Application/chrome.exe",
           "Microsoft/Edge/Application/msedge.exe")
MODES = {
    "light": {"viewport": {"width": 1360, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1360, "height": 900}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light", "device_scale_factor": 2},
}
# Two frames; a tab that the browser does not draw gets none, and goes on after ten seconds.
DRAWN = """() => Promise.race([
    new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done))),
    new Promise(done => setTimeout(done, 10_000))])"""
# Formulas that KaTeX has not set, and formulas it could not read.
UNRENDERED = """() => [...document.querySelectorAll('.math')]
    .filter(e => !e.querySelector('.katex')).map(e => e.textContent.slice(0, 80))"""
TEX_ERRORS = """() => [...document.querySelectorAll('.formula-error, .katex-error')]
    .map(e => (e.title || e.textContent).slice(0, 120))"""
BROKEN_IMAGES = """() => [...document.images]
    .filter(i => i.loading !== 'lazy' && !(i.complete && i.naturalWidth > 0)).map(i => i.getAttribute('src'))"""
# The picture itself, without the padding that the dark theme puts around it.
DISTORTED_IMAGES = """() => {
    const drawn = i => {
        const style = getComputedStyle(i), pixels = side => parseFloat(style[`padding${side}`])
        return [i.clientWidth - pixels('Left') - pixels('Right'), i.clientHeight - pixels('Top') - pixels('Bottom')]
    }
    return [...document.querySelectorAll('article img')]
        .filter(i => i.complete && i.naturalWidth > 0 && i.clientWidth > 0)
        .filter(i => Math.abs(Math.log(drawn(i)[0] * i.naturalHeight / (drawn(i)[1] * i.naturalWidth))) > 0.03)
        .map(i => `${i.getAttribute('src')} drawn ${drawn(i).join(' x ')}`)
}"""
# Elements that reach beyond the window and do not lie in something that scrolls or in text for screen readers only.
OVERFLOWING = """() => {
    const width = document.documentElement.clientWidth
    const reaches = e => { const box = e.getBoundingClientRect(); return box.width > 0 && box.right > width + 1 }
    const scrolls = e => {
        for (let p = e.parentElement; p && p !== document.body; p = p.parentElement)
            if (['auto', 'scroll'].includes(getComputedStyle(p).overflowX) && !reaches(p)) return true
        return false
    }
    const main = document.querySelector('article') || document.body
    const found = [...main.querySelectorAll('*')].filter(
        e => !e.closest('.katex-mathml, .katex svg, .visually-hidden, .onlyprint') && reaches(e) && !scrolls(e))
    const outermost = found.filter(e => !found.includes(e.parentElement))
        .map(e => `<${e.tagName.toLowerCase()} class="${e.className}"> ${e.textContent.trim().slice(0, 60)}`)
    const root = document.scrollingElement
    return root.scrollWidth > width + 1 ? [`page is ${root.scrollWidth} wide`, ...outermost] : outermost
}"""


def find_chromium() -> str | None:
    """The executable named by ATTNRANK_CHROMIUM, or the first browser of the family found in its usual places."""
    named = os.environ.get("ATTNRANK_CHROMIUM")
    if named:
        if not Path(named).is_file():
            raise FileNotFoundError(f"ATTNRANK_CHROMIUM names no file: {named}")
        return named
    folders = [Path("/Applications"), Path.home() / "Applications"] if sys.platform == "darwin" else []
    candidates = [folder / name for folder in folders for name in MAC]
    for variable in ("PROGRAMFILES", "PROGRAMFILES(X86)", "LOCALAPPDATA"):
        candidates += [Path(os.environ[variable], name) for name in WINDOWS if variable in os.environ]
    found = [str(path) for path in candidates if path.is_file()]
    return next((path for path in map(shutil.which, NAMES) if path), found[0] if found else None)


@contextmanager
def open_browser(executable: str) -> Iterator[Browser]:
    with sync_playwright() as playwright, launched(playwright.chromium, executable) as browser:
        yield browser


@contextmanager
def launched(kind: BrowserType, executable: str) -> Iterator[Browser]:
    """One browser, of which a process may have several, while `open_browser` is called once."""
    arguments = ["--disable-gpu", "--disable-background-networking", "--disable-component-update", "--no-first-run",
                 "--disable-sync"]
    if sys.platform == "linux":
        arguments += ["--no-sandbox", "--disable-dev-shm-usage"]
    browser = kind.launch(executable_path=executable, args=arguments, timeout=PATIENCE)
    yield browser
    browser.close()


def outside(url: str) -> bool:
    return not url.startswith(("file:", "data:", "blob:", "about:"))


def tab_of(browser: Browser, **options: Any) -> Page:
    """A new tab in a context of its own, which waits as long as a busy machine takes."""
    context = browser.new_context(**options)
    context.set_default_timeout(PATIENCE)
    return context.new_page()


@contextmanager
def tab_in(browser: Browser, mode: str) -> Iterator[Page]:
    """A tab in one of `MODES`, for `visit`."""
    tab = tab_of(browser, **MODES[mode])
    yield tab
    tab.context.close()


def visit(
    tab: Page, path: Path, mode: str, styles: set[str] | None = None,
    check: Callable[[Page, Path], list[str]] = lambda tab, path: [], article: bool = True,
) -> list[str]:  # fmt: skip
    """Open a page and return every fault: network, weight, console, mathematics, images, overflow, axe.

    ``tab`` is `tab_in` the mode, and is left empty for the next page: its scripts are compiled then, and it takes
    two thirds of the time. A page that is open in light also turns dark, as when the system does. ``styles``
    collects those whose colours were checked, for the next page of the same site in the same mode; ``check`` is what
    else is to be seen of the page. Without ``article`` the structure of the article is not checked: it is that of the
    same page in another mode.
    """
    faults: list[str] = []
    loaded: set[str] = set()
    tab.set_viewport_size(MODES[mode]["viewport"])  # as it was before the last page was looked at
    tab.emulate_media(color_scheme=MODES[mode]["color_scheme"])
    with listening(
        tab,
        request=lambda request: loaded.add(request.url)
        or (outside(request.url) and faults.append(f"request to {request.url}")),
        requestfailed=lambda request: faults.append(f"request failed: {request.url} {failure(request)}"),
        console=lambda message: message.type == "error" and faults.append(f"console error: {message.text}"),
        pageerror=lambda error: faults.append(f"script error: {error}"),
    ):
        tab.goto(path.as_uri(), wait_until="load")
        settle(tab, leaving=path.as_uri() if moves(path) else None)
        weight = weigh(loaded | set(tab.evaluate("() => [...document.images].map(image => image.src)")))
        if weight > HEAVIEST:
            faults.append(f"loads {weight:,} bytes, the limit is {HEAVIEST:,}")
        faults += [f"formula not rendered: {text}" for text in tab.evaluate(UNRENDERED)]
        faults += [f"TeX error: {text}" for text in tab.evaluate(TEX_ERRORS)]
        faults += [f"image without picture: {source}" for source in tab.evaluate(BROKEN_IMAGES)]
        faults += [f"image distorted: {source}" for source in tab.evaluate(DISTORTED_IMAGES)]
        if mode == "phone":
            faults += [f"wider than the screen: {element}" for element in tab.evaluate(OVERFLOWING)]
        arrived = tab.url == path.as_uri()  # where a page that moved leads is visited itself
        if arrived:
            faults += check(tab, path)
        if mode == "light":
            tab.emulate_media(color_scheme="dark")
            tab.evaluate(DRAWN)
    # From here on nobody listens: scripts that miss what the next step takes away are no fault of the page.
    if mode != "dark" and arrived:
        styles = set() if styles is None else styles
        faults += accessibility.violations(tab, unfold=mode == "phone", styles=styles, article=article)
    tab.goto("about:blank")
    return [f"{path.name} ({mode}): {fault}" for fault in faults]


@contextmanager
def listening(tab: Page, **handlers: Callable[[Any], object]) -> Iterator[None]:
    """Call the handlers at the events of a tab, and let it reach nothing outside."""
    tab.route(outside, lambda route: route.abort())
    for event, handler in handlers.items():
        tab.on(event, handler)
    yield
    for event, handler in handlers.items():
        tab.remove_listener(event, handler)
    tab.unroute(outside)


def weigh(urls: set[str]) -> int:
    """The bytes of the files among the addresses."""
    paths = {Path(url2pathname(urlsplit(url).path)) for url in urls if url.startswith("file:")}
    return sum(path.stat().st_size for path in paths if path.is_file())


def failure(request: Request) -> str:
    return request.failure or ""


def moves(path: Path) -> bool:
    """Does the page lead to another at once?"""
    return re.search(rb'http-equiv="?refresh', path.read_bytes(), re.IGNORECASE) is not None


def settle(page: Page, *, leaving: str | None = None) -> None:
    """Wait for the page that another (``leaving``) leads to, for the fonts, and for two frames after them."""
    if leaving:
        page.wait_for_url(lambda url: url != leaving, wait_until="load")
    page.evaluate("async () => { await document.fonts.ready }")
    page.evaluate(DRAWN)
