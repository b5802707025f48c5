"""experiments.head_dimension: increments against a loop and a closed form, bounds in their order."""

import numpy as np
import pytest
import torch
from scipy import stats

from attnrank.experiments import head_dimension as tables

FALSE_ALARM = 1e-6


def test_an_increment_is_the_rank_gained_by_the_last_coordinate():
    n, d_h, samples, seed = 9, 3, 40, 11
    result = tables.rank_increments(n, d_h, samples, seed)
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(samples, n, d_h + 1, generator=generator, dtype=torch.float64).numpy()
    k = torch.randn(samples, n, d_h + 1, generator=generator, dtype=torch.float64).numpy()

    def ranks(width):
        scores = np.einsum("snd,smd->snm", q[..., :width], k[..., :width])
        return np.array([len(set(row)) for row in scores.argmax(-1)])

    gained = ranks(d_h + 1) - ranks(d_h)
    assert result["rank_mean"] == pytest.approx(ranks(d_h).mean())
    assert result["increment_mean"] == pytest.approx(gained.mean())
    assert result["increment_standard_error"] == pytest.approx(stats.sem(gained))


def test_increments_add_up_to_the_bound_they_belong_to():
    result = tables.rank_increments(32, 1, 4000, 0)  # d_h = 1: the mean rank is 2 - 2^{1-n}
    margin = stats.norm.isf(FALSE_ALARM) * result["rank_standard_error"]
    assert abs(result["rank_mean"] - 2.0) <= margin + 2.0**-31


def test_bounds_are_ordered():
    for n, d_h in ((16, 1), (64, 3), (256, 32)):
        row = tables.head_dimension_bounds(n, d_h)
        assert 0 < row["lower"] <= min(row["upper"], row["vertices"]) and row["upper"] <= row["barrier"] < n


def test_bad_settings_are_refused_by_name():
    with pytest.raises(ValueError, match="d_h"):
        tables.rank_increments(8, 0, 4, 0)
