"""The picture of layers and heads: a square for each, and a ring for each head above its bound."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from attnrank import report


def frame():
    """Two layers, of two heads and of three."""
    return pd.DataFrame(
        {
            "layer": ["a", "a", "b", "b", "b"],
            "head": [0, 1, 0, 1, 2],
            "n": 10,
            "hardmax_rank": [1.0, 5.0, 6.5, 9.0, 2.0],
            "bound": 6.0,
        }
    )


def test_squares_and_rings():
    fig, ax = plt.subplots()
    report.draw_heads(ax, frame())
    drawn = np.ma.filled(ax.images[0].get_array(), np.nan)
    np.testing.assert_allclose(drawn, [[0.1, 0.5, np.nan], [0.65, 0.9, 0.2]])
    (rings,) = ax.lines
    assert sorted(zip(*rings.get_data(), strict=True)) == [(0, 1), (1, 1)]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["1", "2"]
    plt.close(fig)


def test_rings_may_ask_for_more_than_chance():
    """Ranks 10, 9.4 and 6 at n = 10 beside the bound 6: the first two are above it by more than sqrt(10) = 3.16."""
    fig, ax = plt.subplots()
    heads = frame().assign(hardmax_rank=[10.0, 6.0, 9.4, 9.1, 6.5])
    report.draw_heads(ax, heads, excess=1.0)
    (rings,) = ax.lines
    assert sorted(zip(*rings.get_data(), strict=True)) == [(0, 0), (0, 1)]
    report.draw_heads(ax, heads)
    assert len(ax.lines[1].get_xdata()) == 4
    plt.close(fig)


def test_the_figure_grows_with_the_model():
    small, large = (report.heads_figure_size(frame().assign(head=lambda f, k=k: f["head"] * k)) for k in (1, 12))
    assert large[0] > small[0] and large[1] == small[1]


def test_a_rank_at_its_bound_has_no_ring_and_the_bar_and_the_scale_are_as_asked():
    fig, ax = plt.subplots()
    report.draw_heads(ax, frame().assign(bound=[6.0, 5.0, 6.5, 9.0, 1.0]), vmax=0.5, colour_bar=False)
    (rings,) = ax.lines
    assert list(zip(*rings.get_data(), strict=True)) == [(2, 1)]
    assert ax.images[0].get_clim() == (0, 0.5) and fig.axes == [ax]
    report.draw_heads(ax, frame())
    assert ax.images[1].get_clim() == (0, 1) and len(fig.axes) == 2
    plt.close(fig)


def test_the_figure_grows_in_height_with_the_layers():
    layers = pd.concat([frame().assign(layer=f"{i}") for i in range(20)])
    few, many = report.heads_figure_size(frame()), report.heads_figure_size(layers)
    assert many[1] > few[1] and many[0] == few[0]
