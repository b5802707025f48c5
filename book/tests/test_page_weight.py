"""What makes pages light loses nothing: pictures keep every pixel, styles what is named, the font its icons."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import page_weight
import pytest
from fontTools.ttLib import TTFont
from PIL import Image

from html_checks import parse


def test_a_picture_keeps_every_pixel(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (30, 40, 4), dtype=np.uint8)
    pixels[..., 3] = np.maximum(pixels[..., 3], 1)  # of what is quite transparent the colour is not kept
    Image.fromarray(pixels).save(tmp_path / "a.png")
    page_weight.to_webp(tmp_path / "a.png")
    assert [path.name for path in tmp_path.iterdir()] == ["a.webp"]
    with Image.open(tmp_path / "a.webp") as image:
        assert (np.asarray(image.convert("RGBA")) == pixels).all()


def test_a_newer_picture_replaces_an_older_one(tmp_path: Path) -> None:
    for colour in (10, 200):
        Image.new("L", (4, 4), colour).save(tmp_path / "a.png")
        page_weight.to_webp(tmp_path / "a.png")
    with Image.open(tmp_path / "a.webp") as image:
        assert image.convert("L").getpixel((0, 0)) == 200


def test_pages_name_the_new_pictures() -> None:
    context = {"body": '<img src="../_images/a.png"/><a href="../_images/a.png">x</a><img src="../_static/b.png">a.png'}
    page_weight.name_webp(None, "", "", context, None)  # type: ignore[arg-type]
    assert context["body"] == ('<img src="../_images/a.webp"/><a href="../_images/a.webp">x</a>'
                               '<img src="../_static/b.png">a.png')


@pytest.mark.parametrize(
    ("style", "expected"),
    [
        ("p, .a .gone { color: red } .b{x:y}", "p{color: red}.b{x:y}"),
        (".gone:hover, a.gone > b{x:y}", ""),
        ("p:not(.gone, .lost:is(.x)){x:y} :is(.gone, p){x:y}", "p:not(.gone, .lost:is(.x)){x:y}:is(.gone, p){x:y}"),
        ('[class*=".gone"]{content:"}.gone{;"}', '[class*=".gone"]{content:"}.gone{;"}'),
        ('@charset "UTF-8";@import url("a;b.css");.a{x:y}', '@charset "UTF-8";@import url("a;b.css");.a{x:y}'),
        ("@media print{.gone{x:y}}@media a{@supports (x:y){.a,.gone{x:y}}}", "@media a{@supports (x:y){.a{x:y}}}"),
        ("@keyframes a{to{x:y}to{x:z}}@font-face{src:url(a)}", "@keyframes a{to{x:y}to{x:z}}@font-face{src:url(a)}"),
        ("/* .a{} */.b{x:y}/*! licence */.gone{x:y}", ".b{x:y}/*! licence */"),
        (r".w-1\.5{x:y} .gone\/2{x:y}", r".w-1\.5{x:y}"),
    ],
)  # fmt: skip
def test_styles_keep_what_is_named(style: str, expected: str) -> None:
    assert page_weight.lean(style, {"a", "b", "w-1.5"}) == expected


def test_the_site_is_light(site: Path) -> None:
    assert list(site.glob("_images/*.png")) == [] and list(site.glob("_images/*.webp"))
    theme = (site / "_static/styles/pydata-sphinx-theme.css").read_text(encoding="utf-8")
    font = TTFont(site / "_static" / page_weight.ICONS)
    named = {int(code, 16) for code in page_weight.CODES.findall(theme)}
    assert ord("\uf002") in named <= set(font.getBestCmap()) | {0x20}  # the magnifying glass and others
    assert len(font.getBestCmap()) < 40 and "fa-solid-900.woff2" not in theme


def test_mathematics_is_loaded_only_where_it_is(site: Path) -> None:
    """What pages weigh is measured where each is opened, in test_site."""
    found = []
    for page in [*site.glob("book/*.html"), *site.glob("notebooks/*.html")]:
        sources = [script.get("src", "") for script in parse(page).select("script")]
        scripts = {source.rpartition("/")[2].partition("?")[0] for source in sources}
        assert "fontawesome.js" not in scripts, page.name
        assert bool(parse(page).select("article .math")) == ("katex.min.js" in scripts), page.name
        found.append("katex.min.js" in scripts)
    assert any(found) and not all(found)
