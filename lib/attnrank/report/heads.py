"""One picture of a model: a square for each layer and head, as dark as the share of keys that the head attends to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from attnrank._optional import optional

if TYPE_CHECKING:
    import seaborn as sns
    from matplotlib.axes import Axes
else:
    sns = optional("seaborn", "book")

#: Squares of a picture in inches, and the room for labels.
SQUARE, ROOM = 0.24, 1.6


def draw_heads(
    ax: Axes, frame: pd.DataFrame, *, vmax: float = 1.0, colour_bar: bool = True, excess: float = 0.0
) -> None:
    """Draw the hardmax rank over the number of queries, layers as rows from the first down, heads as columns.

    A ring marks the heads whose rank exceeds their bound by more than ``excess`` times the square root of n.

    Parameters
    ----------
    frame : as ``attnrank.probe`` returns it, without ``per_sample``: columns layer, head, n, hardmax_rank, bound.
    vmax : the share that gets the darkest colour.
    excess : how far above its bound a head must lie, in square roots of n: 1 for single heads, which chance moves by
        0.3 to 0.4 of them if they are random; 0 for means.
    """
    layers = list(dict.fromkeys(frame["layer"]))
    share = np.full((len(layers), int(frame["head"].max()) + 1), np.nan)
    row = frame["layer"].map(layers.index).to_numpy()
    share[row, frame["head"]] = frame["hardmax_rank"] / frame["n"]
    image = ax.imshow(share, cmap=sns.color_palette("crest", as_cmap=True), vmin=0, vmax=vmax, aspect="equal")
    above = (frame["hardmax_rank"] > frame["bound"] + excess * frame["n"] ** 0.5).to_numpy()
    ax.plot(frame["head"][above], row[above], "o", markersize=4.5, markerfacecolor="none", markeredgecolor="white",
            markeredgewidth=1.3)  # fmt: skip
    ax.set_xticks(range(share.shape[1]), list(map(str, range(share.shape[1]))), fontsize=8)
    ax.set_yticks(range(len(layers)), list(map(str, range(1, len(layers) + 1))), fontsize=8)
    ax.set(xlabel="head", ylabel="layer")
    ax.tick_params(length=0)
    for side in ax.spines.values():
        side.set_visible(False)
    if colour_bar:
        ax.figure.colorbar(image, ax=ax, label="rank / n", shrink=0.9)


def heads_figure_size(frame: pd.DataFrame) -> tuple[float, float]:
    """Width and height in inches of a figure with squares of one size."""
    rows, columns = frame["layer"].nunique(), int(frame["head"].max()) + 1
    return max(3.2, SQUARE * columns + ROOM), max(1.8, SQUARE * rows + 0.8)
