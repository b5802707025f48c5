"""axe-core on a page that is open in the browser: what breaks WCAG 2.2 AA, in words.

The rules on structure see the whole page, or all but its article. The rules on colour are slow, and a page has
thousands of words in the same few styles: they see one text of each style, that is of each chain of tags and classes up
to the root, and of a style that an earlier page has shown, none.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from playwright.sync_api import Page

LEVELS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22a", "wcag22aa"]
COLOUR = ["color-contrast", "link-in-text-block"]
# Formulas become boxes of their size: their thousands of elements are KaTeX's, and their colour that of the text.
UNFOLD = """async () => {
    for (const folded of document.querySelectorAll('details')) folded.open = true
    await new Promise(done => setTimeout(() => requestAnimationFrame(done), 50))
}"""
REPLACE_FORMULAS = """async () => {
    // all are measured before the first is replaced: the page is laid out once
    const sizes = [...document.querySelectorAll('.katex')].map(formula => [formula, formula.getBoundingClientRect()])
    for (const [formula, size] of sizes) {
        const box = document.createElement('span')
        box.style.cssText = `display: inline-block; overflow: hidden; width: ${size.width}px; height: ${size.height}px`
        box.textContent = 'formula'
        formula.replaceChildren(box)
    }
    dispatchEvent(new Event('resize'))
    await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))
}"""
# Coloured code is thousands of elements that say nothing about structure; it comes back for the colours.
PLAIN_CODE = """() => {
    window.coloured = [...document.querySelectorAll('pre')].map(pre => [pre, [...pre.childNodes]])
    for (const [pre] of window.coloured) pre.textContent = pre.textContent
}"""
COLOURED_CODE = "() => { for (const [pre, parts] of window.coloured) pre.replaceChildren(...parts) }"
# Most of a page, and at another width the same elements.
TAKE_ARTICLE = """() => {
    window.parts = [...document.querySelector('article').childNodes]
    document.querySelector('article').replaceChildren()
}"""
GIVE_ARTICLE = "() => document.querySelector('article').replaceChildren(...window.parts)"
KEEP_ONE_OF_EACH_STYLE = """known => {
    const paths = new Map(), seen = new Set(known), kept = new Set()
    const path = e => {
        if (!e || e === document.documentElement) return ''
        if (!paths.has(e)) paths.set(e, `${path(e.parentElement)}>${e.tagName}.${e.getAttribute('class') || ''}`
            + (e.getAttribute('style') ? `[${e.style.color} ${e.style.background} ${e.style.opacity}]` : ''))
        return paths.get(e)
    }
    for (const e of document.body.querySelectorAll('*')) {
        if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()) || seen.has(path(e))) continue
        if (!e.checkVisibility()) continue  // what is folded would be laid out to be measured
        const box = e.getBoundingClientRect()
        if (box.width === 0 || box.height === 0) continue
        seen.add(path(e))
        for (let p = e; p; p = p.parentElement) kept.add(p)
    }
    for (const e of [...document.body.querySelectorAll('*')]) if (!kept.has(e) && e.isConnected) e.remove()
    // now, for the few that are left
    const still = document.createElement('style')
    still.textContent = '*, ::before, ::after { transition: none !important; animation: none !important }'
    document.head.append(still)
    for (const e of kept) for (const n of [...e.childNodes])
        if (n.nodeType === 3 && n.data.length > 60) n.data = n.data.slice(0, 60)
    return [...seen].slice(known.length)
}"""
SET_THEME = "theme => { document.documentElement.dataset.theme = document.documentElement.dataset.mode = theme }"
RUN = """async options => {
    const found = await axe.run(document, {...options, resultTypes: ['violations'], preload: false})
    return found.violations.flatMap(v => v.nodes.map(n =>
        `${v.id}: ${n.target.join(' ')}: ${([...n.any, ...n.all, ...n.none][0] || {}).message || v.help}`))
}"""


@cache
def axe() -> str:
    return files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")


def violations(page: Page, *, unfold: bool, styles: set[str], article: bool = True) -> list[str]:
    """What axe-core finds in the light and the dark theme. The page is spoilt by it: text is taken away.

    ``styles`` are those that were checked before at this width; those of this page are added. Without ``article`` the
    rules on structure see what is around it, those on colour all.
    """
    if unfold:
        page.evaluate(UNFOLD)
    page.evaluate(axe())
    page.evaluate(REPLACE_FORMULAS)
    page.evaluate(PLAIN_CODE if article else TAKE_ARTICLE)
    rules = {rule: {"enabled": False} for rule in COLOUR}
    found = page.evaluate(RUN, {"runOnly": {"type": "tag", "values": LEVELS}, "rules": rules})
    page.evaluate(COLOURED_CODE if article else GIVE_ARTICLE)
    new = page.evaluate(KEEP_ONE_OF_EACH_STYLE, list(styles))
    styles.update(new)
    for theme in ("light", "dark") if new else ():
        page.evaluate(SET_THEME, theme)
        colours = page.evaluate(RUN, {"runOnly": {"type": "rule", "values": COLOUR}})
        found += [f"{theme}: {fault}" for fault in colours]
    return found
