"""The pictures of the landing page and the READMEs are those that landing.py draws from the published tables."""

from __future__ import annotations

from pathlib import Path

import landing
import numpy as np
import pytest
from matplotlib import pyplot
from PIL import Image


def unlike(one: Path, two: Path) -> float:
    """The share of pixels that differ by more than versions of the libraries smooth an edge differently."""
    first, second = (np.asarray(Image.open(path).convert("RGBA"), dtype=int) for path in (one, two))
    assert first.shape == second.shape
    return (abs(first - second).max(-1) > 20).mean()


@pytest.fixture(autouse=True)
def agg() -> None:
    pyplot.switch_backend("agg")


@pytest.mark.parametrize("finding", landing.FINDINGS, ids=lambda finding: finding.__name__)
def test_a_small_picture_is_that_of_its_table(finding, tmp_path: Path) -> None:
    landing.small(finding).savefig(tmp_path / "new.png", dpi=150)
    assert unlike(tmp_path / "new.png", landing.BOOK / "_static" / f"finding-{finding.__name__}.png") < 0.003


def test_the_large_pictures_are_those_of_their_table(tmp_path: Path) -> None:
    """One figure for both, in this order: its layout settles as it is drawn."""
    figure, book = landing.draw(), landing.BOOK
    for path, dpi in ((book / "_static" / "landing.png", 200), (book.parent / "lib" / "picture.png", 90)):
        figure.savefig(tmp_path / path.name, dpi=dpi, facecolor="white")
        assert unlike(tmp_path / path.name, path) < 0.003, path.name
