"""The pictures of the landing page and the README: python book/_ext/landing.py writes them to book/_static.

landing.png, and one small finding-NAME.png for each of the five findings, drawn from published tables. A smaller
landing.png is lib/picture.png, on the package's page.
"""

from __future__ import annotations

import math
from collections.abc import Callable
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


def small(draw: Callable[[Axes], None]) -> Figure:
    """One of the five small pictures: no numbers on its axes, the sentence beside it says what it shows."""
    report.setup()
    fig, ax = plt.subplots(figsize=(2.4, 1.6))
    draw(ax)
    ax.tick_params(which="both", length=0, labelbottom=False, labelleft=False)
    return fig


def barrier(ax: Axes) -> None:
    """Rank / n of random heads against n, a curve for each head dimension, below the barrier."""
    table = sweep.read("random_heads", folder=BOOK / "results")
    dims = (4, 16, 64, 256)
    for d_h, colour in zip(dims, report.sequence_colours(len(dims)), strict=True):
        rows = table[table.d_h == d_h]
        ax.plot(rows.n, rows.rank_mean / rows.n, "o-", color=colour, markersize=4)
    ax.axhline(1 - 1 / math.e, color=EMPTY, linewidth=2.5)
    ax.annotate("63 %", (1.0, 1 - 1 / math.e), xycoords=("axes fraction", "data"), xytext=(0, 4),
                textcoords="offset points", color=EMPTY, fontsize=14, ha="right", weight="bold")  # fmt: skip
    ax.set(xscale="log", ylim=(0, 0.9))


def growth(ax: Axes) -> None:
    """The head dimension that a gap of 0.1 takes against log n, and the straight line from its first point."""
    table = sweep.read("sizing", folder=BOOK / "results")
    rows = table[(table.kind == "gaussian") & (table.gap == 0.1)].sort_values("n")
    ax.plot(rows.n, rows.d_h, "o-", color=INK, markersize=4, linewidth=2.5)
    ax.plot(rows.n, rows.d_h.iloc[0] * np.log(rows.n) / math.log(rows.n.iloc[0]), "--", color="#444444")
    ax.annotate("log n", (rows.n.iloc[-1], 75), color="#222222", fontsize=13, ha="right", va="bottom")
    ax.annotate("(log n)²", (rows.n.iloc[2], 170), color=INK, fontsize=14, weight="bold")
    ax.set(xscale="log", ylim=(0, None))


def after_training(ax: Axes) -> None:
    """Rank / n of the heads of one routing model at n = 20, random on the left, trained on the right."""
    table = sweep.read("trained_heads", folder=BOOK / "results")
    table = table[(table.model == "route_tsp100") & (table.treatment == "none") & (table.n == 20)]
    for x, (weights, colour) in enumerate((("random", "#555555"), ("trained", INK))):
        ranks = np.sort(table[table.weights == weights]["rank"])
        ax.plot(x + 0.5 * (np.arange(len(ranks)) / len(ranks) - 0.5), ranks, "o", color=colour, markersize=4.5)
        ax.annotate(weights, (x, -0.16), ha="center", fontsize=12, color=colour, annotation_clip=False)
    ax.axhline(table.barrier.iloc[0], color=EMPTY, linewidth=2.5)
    ax.set(xlim=(-0.5, 1.5), ylim=(0, 1))


def does_rank_matter(ax: Axes) -> None:
    """Rank / n of heads that learn a permutation of 16 tokens, before and after, by head dimension."""
    table = sweep.read("task_heads", folder=BOOK / "results")
    rows = table[(table.task == "permutation") & (table.n == 16) & (table.readout == "pointer") & (table.heads == 1)]
    rows = rows[(rows.intervention == "none") & (rows.epochs == 4)]
    means = rows.groupby("qk_dim")[["rank_before", "rank"]].mean() / 16
    places = np.arange(len(means))
    ax.plot(places, means.rank_before, "o--", color="#555555", markersize=4.5)
    ax.plot(places, means["rank"], "o-", color=INK, markersize=4.5, linewidth=2.5)
    ax.annotate("after", (2.5, 0.86), color=INK, fontsize=13, ha="center", weight="bold")
    ax.annotate("before", (3.5, 0.36), color="#222222", fontsize=13, ha="center")
    ax.set(ylim=(0, 1.08))


def token_sparsity(ax: Axes) -> None:
    """Active tokens of convex programs against the number of samples, below the diagonal."""
    table = sweep.read("active_tokens", folder=BOOK / "results")
    table = table[(table.outputs == 1) & (table.n == 64) & (table.d == 16)]
    for share, colour in zip((0.5, 0.1, 0.01), report.sequence_colours(3), strict=True):
        rows = table[table.share == share].sort_values("samples")
        ax.plot(rows.samples, rows.active_mean, "o-", color=colour, markersize=4)
    ax.plot([2, 40], [2, 40], color=EMPTY, linewidth=2.5)
    ax.annotate("samples", (40, 34), color=EMPTY, fontsize=13, weight="bold")
    ax.set(ylim=(0, 42))


FINDINGS = (barrier, growth, after_training, does_rank_matter, token_sparsity)


if __name__ == "__main__":
    plt.switch_backend("agg")
    for finding in FINDINGS:
        target = BOOK / "_static" / f"finding-{finding.__name__}.png"
        small(finding).savefig(target, dpi=150, metadata={"Software": None})
    # An opaque page: the README is read on sites that choose their own background.
    figure = draw()
    for path, dpi in ((BOOK / "_static" / "landing.png", 200), (BOOK.parent / "lib" / "picture.png", 90)):
        figure.savefig(path, dpi=dpi, facecolor="white", metadata={"Software": None})
