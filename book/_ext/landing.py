"""The picture of the landing page and the READMEs.

python book/_ext/landing.py writes book/_static/landing.png and, smaller, lib/picture.png.
"""

from __future__ import annotations

import math
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from attnrank import attention, report, sweep, theory

BOOK = Path(__file__).resolve().parents[1]
INK, EMPTY = "#1F4E79", "#D55E00"


def draw() -> Figure:
    """Left, a random head's attention; right, rank / n against head dimension, from random_heads.csv."""
    report.setup()
    fig, (left, right) = plt.subplots(1, 2, figsize=(9.6, 4.3), width_ratios=[1, 1.25])
    draw_head(left, n=100, d_h=64)
    draw_curves(right)
    fig.get_layout_engine().set(wspace=0.08)
    return fig


def draw_head(ax: Axes, n: int, d_h: int) -> None:
    q, k = torch.randn(2, n, d_h, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    chosen = attention(q, k, hard=True).numpy()
    row, column = chosen.nonzero()
    empty = np.flatnonzero(chosen.sum(0) == 0)
    ax.vlines(empty, -0.5, n - 0.5, color=EMPTY, alpha=0.13, linewidth=2.2)
    ax.plot(column, row, "s", color=INK, markersize=2.4)
    ax.plot(empty, np.full(len(empty), -4), "v", color=EMPTY, markersize=3.2, clip_on=False)
    ax.text(
        n / 2, -8.5, f"{len(empty)} of {n} tokens: never looked at", color=EMPTY, ha="center", va="bottom", fontsize=11
    )
    ax.set(
        xlim=(-0.5, n - 0.5), ylim=(n - 0.5, -0.5), aspect="equal", xlabel="key", ylabel="query", xticks=[], yticks=[]
    )


def draw_curves(ax: Axes) -> None:
    table = sweep.read("random_heads", folder=BOOK / "results")
    lengths = sorted(table.n.unique().tolist())
    for n, colour in zip(lengths, report.sequence_colours(len(lengths)), strict=True):
        rows = table[table.n == n]
        d_h = np.geomspace(1, rows.d_h.max(), 60)
        ax.plot(d_h, [theory.head_dim_bound(n, d) / n for d in d_h], color=colour, linewidth=1.4)
        ax.plot(rows.d_h, rows.rank_mean / n, "o", color=colour, markersize=4.5)
        at = rows.iloc[3]
        label = ax.annotate(f"n = {n}", (at.d_h, at.rank_mean / n), xytext=(7, -9), textcoords="offset points",
                            color=colour, fontsize=9.5)  # fmt: skip
        label.set_path_effects([withStroke(linewidth=3, foreground="white")])
    report.draw_ceiling(ax, 1 - 1 / math.e, "1 − 1/e = 0.632…")
    ax.set(xscale="log", xlabel="head dimension", ylabel="share of tokens looked at", ylim=(0, 0.72))
    ax.set_xticks([1, 4, 16, 64, 256], [1, 4, 16, 64, 256])


if __name__ == "__main__":
    plt.switch_backend("agg")
    # An opaque page: the README is read on sites that choose their own background.
    figure = draw()
    for path, dpi in ((BOOK / "_static" / "landing.png", 200), (BOOK.parent / "lib" / "picture.png", 90)):
        figure.savefig(path, dpi=dpi, facecolor="white", metadata={"Software": None})
