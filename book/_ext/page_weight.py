"""What keeps a page light, done to the site when it is built, without loss to what a reader sees.

- Figures, which notebooks store as PNG, become lossless WebP, less than half as heavy.
- The styles of the theme and of the extensions lose the rules for classes that no page and no script names.
- The font of icons keeps those that the styles still name.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from docutils import nodes
from fontTools import subset
from PIL import Image
from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata

OWN = Path(__file__).resolve().parents[1] / "_static"
PARTS = re.compile(r"""(?s)"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|/\*.*?\*/|[{};]""")
CODES = re.compile(r'content:"\\([0-9a-f]{4})"')
ICONS = "vendor/fontawesome/webfonts/fa-solid-900.ttf"
logging.getLogger("fontTools").setLevel(logging.WARNING)  # or every build ends in forty lines on one font


def name_webp(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    if "body" in context:
        context["body"] = re.sub(r'((?:src|href)="[^"]*_images/[^"]+)\.png"', r'\1.webp"', context["body"])


def to_webp(picture: Path) -> None:
    """Write a picture anew, unless that was done; Sphinx copies one again only with the time of its source."""
    target = picture.with_suffix(".webp")
    if not target.exists() or target.stat().st_mtime < picture.stat().st_mtime:
        with Image.open(picture) as image:
            image.save(target, lossless=True, method=2, quality=50)
    picture.unlink()


def rules(style: str) -> Iterator[tuple[str, str | None]]:
    """The rules of a style sheet: what stands before the braces, and what between; statements such as @import, None."""
    depth = start = opened = 0
    for part in PARTS.finditer(style):
        if part[0] == "{":
            opened = opened if depth else part.start()
            depth += 1
        elif part[0] == "}":
            depth -= 1
            if depth == 0:
                yield style[start:opened].strip(), style[opened + 1:part.start()]
                start = part.end()
        elif part[0] == ";" and depth == 0:
            yield style[start:part.end()].strip(), None
            start = part.end()


def selectors(prelude: str) -> list[str]:
    """What stands between the commas that are in no brackets."""
    found, depth = [""], 0
    for character in prelude:
        depth += (character in "([") - (character in ")]")
        if character == "," and depth == 0:
            found.append("")
        else:
            found[-1] += character
    return found


def classes(selector: str) -> set[str]:
    """The classes without which a selector finds nothing: none that stands in brackets, as in :not(.a)."""
    bare = re.sub(r"\[[^\]]*\]", "", selector)
    while bare != (bare := re.sub(r"\([^()]*\)", "", bare)):
        pass
    return {name.replace("\\", "") for name in re.findall(r"\.((?:[\w-]|\\.)+)", bare)}


def lean(style: str, names: set[str]) -> str:
    """A style sheet without the selectors that ask for a class not among the names; licences move to its end."""
    notes = [part[0] for part in PARTS.finditer(style) if part[0].startswith("/*!")]
    style = PARTS.sub(lambda part: "" if part[0].startswith("/*") else part[0], style)
    return "".join([*kept(style, names), *notes])


def kept(style: str, names: set[str]) -> Iterator[str]:
    for prelude, body in rules(style):
        if body is None:
            yield prelude
        elif re.match(r"@(media|supports|container|layer)\b", prelude):
            inner = "".join(kept(body, names))
            yield f"{prelude}{{{inner}}}" if inner else ""
        elif prelude.startswith("@"):
            yield f"{prelude}{{{body}}}"
        elif wanted := [selector.strip() for selector in selectors(prelude) if classes(selector) <= names]:
            yield f"{','.join(wanted)}{{{body.strip()}}}"


def thin_icons(site: Path, style: str) -> str:
    """Keep the icons that the style names in the font, as TrueType, and name no other form of it."""
    named = {int(code, 16) for code in CODES.findall(style)}
    font = subset.load_font(site / ICONS, subset.Options())
    chosen = subset.Subsetter(subset.Options(layout_features=[], hinting=False, glyph_names=False))
    chosen.populate(unicodes=named)
    chosen.subset(font)
    font.save(site / ICONS)
    return re.sub(r'url\([^)]*fa-solid-900\.woff2\) format\("woff2"\),', "", style)


def make_light(app: Sphinx, exception: Exception | None) -> None:
    if exception is not None or app.builder.name != "html":
        return
    site, static = Path(app.outdir), Path(app.outdir, "_static")
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(to_webp, sorted(site.glob("_images/*.png"))))
    scripts = [path for folder in (".", "scripts", "explorables") for path in static.glob(f"{folder}/*.js")]
    names = {name for path in [*site.rglob("*.html"), *scripts] if path.name != "fontawesome.js"
             for name in re.findall(r"[\w-]+", path.read_text(encoding="utf-8"))}  # fmt: skip
    for path in [*static.glob("*.css"), *static.glob("styles/*.css")]:
        if (OWN / path.name).exists():
            continue
        style = lean(path.read_text(encoding="utf-8"), names)
        if "fa-solid-900" in style:
            style = thin_icons(static, style)
        path.write_text(style, encoding="utf-8")


def setup(app: Sphinx) -> ExtensionMetadata:
    app.connect("html-page-context", name_webp, priority=900)
    app.connect("build-finished", make_light, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
