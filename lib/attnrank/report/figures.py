"""The style of the book's figures, and the few things they draw with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from attnrank import _check
from attnrank._optional import optional

if TYPE_CHECKING:
    import matplotlib as mpl
    import seaborn as sns
    from matplotlib.axes import Axes
else:
    mpl, sns = optional("matplotlib", "book"), optional("seaborn", "book")

#: For unordered curves: at 3:1 against the page in both themes, and told apart without red or green cones.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#8F2F6B", "#7A5200", "#404040")


def setup() -> None:
    """First call of every chapter: the book's figure style, and one thread, so that sums come out the same
    everywhere."""
    torch.set_num_threads(1)
    sns.set_theme(style="ticks", context="notebook", palette=list(COLOURS))
    mpl.rcParams.update(
        {
            "figure.figsize": (7.2, 4.0),
            "figure.facecolor": "none",  # transparent: the page shows the figure on its own colour, light or dark
            "axes.facecolor": "none",
            "savefig.facecolor": "none",
            "figure.constrained_layout.use": True,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.edgecolor": "#444444",
            "axes.linewidth": 0.9,
            "axes.labelcolor": "#222222",
            "text.color": "#222222",
            "xtick.color": "#444444",
            "ytick.color": "#444444",
            "font.family": ["DejaVu Sans"],
            "font.size": 10.5,
            "axes.labelsize": 11,
            "legend.frameon": False,
            "lines.linewidth": 1.8,
            "lines.markersize": 5,
        }
    )
    if "inline" in mpl.get_backend():
        from matplotlib_inline.backend_inline import set_matplotlib_formats

        set_matplotlib_formats("retina")


def sequence_colours(count: int) -> list[tuple[float, float, float]]:
    """``count`` colours from light to dark for an ordered quantity, distinct in print and without colour vision.

    The lightest has a contrast of at least 3 on the page, and inverted on that of the dark theme.
    """
    palette = sns.color_palette("crest", as_cmap=True)
    return [palette(level)[:3] for level in np.linspace(0.35, 1.0, _check.integer("count", count, minimum=1))]


def label_line(ax: Axes, x: float, y: float, text: str, colour: object, **options: Any) -> None:
    """Write ``text`` in the colour of a line just right of its end (x, y), in place of a legend.

    Letters are thinner than lines, so a light colour is darkened until they have a contrast of 4.5 on white.
    """
    ax.annotate(text, (x, y), xytext=(5, 0), textcoords="offset points", color=_ink(colour), va="center",
                annotation_clip=False, **options)  # fmt: skip


def _ink(colour: Any) -> tuple[float, ...]:
    """The colour, darkened until its luminance is that of #707070 at most."""
    red, green, blue = mpl.colors.to_rgb(colour)
    while 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2 > 0.16:
        red, green, blue = 0.97 * red, 0.97 * green, 0.97 * blue
    return red, green, blue


def draw_band(ax: Axes, x: ArrayLike, mean: ArrayLike, spread: ArrayLike, colour: object, **options: Any) -> None:
    """A line through ``mean`` with a band of one ``spread`` on either side."""
    ax.fill_between(x, np.subtract(mean, spread), np.add(mean, spread), color=colour, alpha=0.18, linewidth=0)
    ax.plot(x, mean, color=colour, **options)


def draw_ceiling(ax: Axes, level: float, text: str) -> None:
    """A dashed horizontal line at ``level``, labelled above its left end."""
    ax.axhline(level, color="#222222", linewidth=1.1, linestyle=(0, (5, 3)), zorder=1)
    ax.annotate(text, (0.01, level), xycoords=("axes fraction", "data"), xytext=(0, 3), textcoords="offset points",
                va="bottom", fontsize=9.5)  # fmt: skip
