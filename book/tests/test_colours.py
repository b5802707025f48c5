"""The colours of figures: contrast with the page in both themes, and differences that do not need every cone.

The dark theme turns a figure by the filter of book.css. Contrast is that of WCAG 2.2 (1.4.11: 3 for what must be seen,
1.4.3: 4.5 for letters). Missing cones are simulated by the matrices of Machado, Oliveira and Fernandes (2009), severity
1, on linear RGB; differences are Euclidean in CIELAB, where about 2.3 is just seen.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from matplotlib import colors, pyplot

from attnrank import report

FULL = np.eye(3)
PROTANOPIA = np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
                       [-0.003882, -0.048116, 1.051998]])  # fmt: skip
DEUTERANOPIA = np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                         [-0.011820, 0.042940, 0.968881]])  # fmt: skip
XYZ = np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750],
                [0.0193339, 0.1191920, 0.9503041]])  # fmt: skip
LUMINANCE = np.array([0.2126, 0.7152, 0.0722])
HUE_TURNED = np.array([[-0.574, 1.43, 0.144], [0.426, 0.43, 0.144], [0.426, 1.43, -0.856]])  # hue-rotate(180deg)


def linear(rgb: np.ndarray) -> np.ndarray:
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def contrast(one: np.ndarray, other: np.ndarray) -> float:
    low, high = sorted(float(LUMINANCE @ linear(rgb)) for rgb in (one, other))
    return (high + 0.05) / (low + 0.05)


def lab(rgb: np.ndarray, cones: np.ndarray) -> np.ndarray:
    x = XYZ @ np.clip(cones @ linear(rgb), 0, 1) / XYZ.sum(1)
    f = np.where(x > (6 / 29) ** 3, np.cbrt(x), x / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


Theme = tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]


@pytest.fixture(scope="module")
def themes(root: Path) -> dict[str, Theme]:
    """The page's colour, and what becomes of a figure's: as book.css says."""
    style = (root / "book/_static/book.css").read_text(encoding="utf-8")
    light, dark = re.findall(r"--pst-color-background: (#\w{6});", style)
    [share] = re.findall(r"filter: invert\(([\d.]+)\) hue-rotate\(180deg\);", style)

    def turned(rgb: np.ndarray) -> np.ndarray:
        return np.clip(HUE_TURNED @ (float(share) + (1 - 2 * float(share)) * rgb), 0, 1)

    return {"light": (colour(light), lambda rgb: rgb), "dark": (colour(dark), turned)}


def colour(name: object) -> np.ndarray:
    return np.array(colors.to_rgb(name))


def pale(found: dict[str, np.ndarray], themes: dict[str, Theme], least: float) -> list[str]:
    """The colours whose contrast is below ``least`` in one of the themes."""
    return [
        f"{name}: {value:.2f} in {theme}"
        for name, rgb in found.items()
        for theme, (page, turned) in themes.items()
        if (value := contrast(turned(rgb), page)) < least
    ]


def test_the_palette_stands_out_and_is_told_apart(themes: dict[str, Theme]) -> None:
    palette = {name: colour(name) for name in report.COLOURS}
    assert len(palette) == 6 and pale(palette, themes, 3.0) == []
    for cones, (_, turned) in itertools.product((FULL, PROTANOPIA, DEUTERANOPIA), themes.values()):
        for one, other in itertools.combinations(palette, 2):
            difference = np.linalg.norm(lab(turned(palette[one]), cones) - lab(turned(palette[other]), cones))
            assert difference > 10, (one, other, difference)


@pytest.mark.parametrize("count", range(1, 8))
def test_ordered_colours_stand_out_and_darken(themes: dict[str, Theme], count: int) -> None:
    found = {str(at): np.array(rgb) for at, rgb in enumerate(report.sequence_colours(count))}
    assert pale(found, themes, 3.0) == []
    for cones in (FULL, PROTANOPIA, DEUTERANOPIA):
        lightness = [lab(rgb, cones)[0] for rgb in found.values()]
        assert np.diff(lightness).max(initial=-np.inf) < -4, lightness


def test_labels_can_be_read(themes: dict[str, Theme]) -> None:
    figure, ax = pyplot.subplots()
    for name in (*report.COLOURS, *report.sequence_colours(6)):
        report.label_line(ax, 0.5, 0.5, "label", name)
    letters = {str(text.get_color()): colour(text.get_color()) for text in ax.texts}
    pyplot.close(figure)
    assert len(letters) == 12 and pale(letters, themes, 4.5) == []


def literals(root: Path) -> Iterator[tuple[str, str]]:
    """Colours that cells name themselves, other than those of guiding lines behind the data."""
    for path in sorted(root.glob("notebooks/*.md")):
        for cell in re.findall(r"^```\{code-cell\}.*?^```$", path.read_text(encoding="utf-8"), re.S | re.M):
            for line in cell.splitlines():
                if "grid(" not in line:
                    yield from ((path.stem, name) for name in re.findall(r"[\"'](#[0-9a-fA-F]{6})[\"']", line))


def test_colours_that_notebooks_name_stand_out(root: Path, themes: dict[str, Theme]) -> None:
    found = {f"{stem} {name}": colour(name) for stem, name in literals(root)}
    assert len(found) > 20
    assert pale(found, themes, 3.0) == []


DRAWN = re.compile(r"\.(plot|errorbar|step|semilog[xy]|loglog|fill_between|scatter)\(")
NAMED = re.compile(r"label_line\(|\.annotate\(|\.text\(")
SHAPED = re.compile(r"linestyle|\bls=|marker|fmt=|hatch|[\"'](?:--|-\.|:|[os^vDx*+]-{0,2}|-{1,2}[os^vDx*+])[\"']")


def by_colour_alone(text: str) -> list[str]:
    """Figures of a notebook whose curves nothing but a colour names: a legend without markers or kinds of line, or
    curves with neither these nor a name beside them."""
    found = []
    for cell in re.findall(r"^```\{code-cell\}.*?^```$", text, re.S | re.M):
        drawn = "\n".join(line for line in cell.splitlines() if not re.match(r"\s*(caption|alt|name):", line))
        name = re.search(r"name: (fig-[\w-]+)", cell)
        if name and DRAWN.search(drawn) and not SHAPED.search(drawn):
            if ".legend(" in drawn or not NAMED.search(drawn):
                found.append(name[1])
    return found


def test_no_figure_names_its_curves_by_colour_alone(root: Path) -> None:
    texts = {path.stem: path.read_text(encoding="utf-8") for path in root.glob("notebooks/*.md")}
    assert sum(len(re.findall("name: fig-", text)) for text in texts.values()) > 50
    assert {stem: found for stem, text in texts.items() if (found := by_colour_alone(text))} == {}


@pytest.mark.parametrize(("code", "faults"), [
    ("ax.plot(x, y, label='a')\nax.legend()", ["fig-a"]), ("ax.plot(x, y)", ["fig-a"]),
    ("ax.plot(x, y, 'o-', label='a')\nax.legend()", []), ("ax.plot(x, y)\nreport.label_line(ax, 1, 1, 'a')", []),
    ("ax.plot(x, y, linestyle='--', label='a')\nax.legend()", []), ("ax.imshow(x)", []),
])  # fmt: skip
def test_curves_by_colour_alone_are_found(code: str, faults: list[str]) -> None:
    head = "---\nmystnb:\n  figure:\n    caption: A line with markers.\n    name: fig-a\n---\n"
    assert by_colour_alone(f"```{{code-cell}} ipython3\n{head}{code}\n```\n") == faults


def test_pale_colours_and_confusable_ones_are_found(themes: dict[str, Theme]) -> None:
    faults = pale({"pale": colour("#999999"), "near black": colour("#cccccc")}, themes, 3.0)
    assert [fault.split(":")[0] for fault in faults] == ["pale", "near black", "near black"]
    red, olive = colour("#D55E00"), colour("#B8860B")  # told apart by who has green cones
    assert np.linalg.norm(lab(red, FULL) - lab(olive, FULL)) > 30
    assert np.linalg.norm(lab(red, DEUTERANOPIA) - lab(olive, DEUTERANOPIA)) < 4
    assert contrast(colour("#ffffff"), colour("#000000")) == pytest.approx(21)
    assert contrast(colour("#ffffff"), colour("#767676")) == pytest.approx(4.54, abs=0.01)  # WCAG's example
