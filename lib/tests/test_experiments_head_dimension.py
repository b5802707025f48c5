"""Tables of the chapters head_dimension, growth and normalised_keys and the fits of growth laws."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import special, stats

from attnrank import theory
from attnrank.experiments import growth, normalised_keys
from attnrank.experiments import head_dimension as tables
from attnrank.report import growth as report

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


def test_normalising_queries_changes_nothing():
    for n, d_h in ((16, 2), (40, 5)):
        assert normalised_keys.normalised_heads(n, d_h, "queries", 0.0, 30, 1) == normalised_keys.normalised_heads(
            n, d_h, "none", 0.0, 30, 1
        )
        assert normalised_keys.normalised_heads(n, d_h, "both", 0.0, 30, 1) == normalised_keys.normalised_heads(
            n, d_h, "keys", 0.0, 30, 1
        )


def test_normalised_keys_in_the_plane_follow_the_hypergeometric_formula():
    n = 24
    expected = n * (1 - special.hyp2f1(-n, 2, n, 0.5))
    result = normalised_keys.normalised_heads(n, 2, "keys", 0.0, 4000, 2)
    margin = stats.norm.isf(FALSE_ALARM / 2) * result["rank_standard_error"]
    assert abs(result["rank_mean"] - expected) <= margin
    plain = normalised_keys.normalised_heads(n, 2, "none", 0.0, 4000, 2)  # control: lengths kept
    assert abs(plain["rank_mean"] - expected) > margin


def test_gains_make_normalised_keys_unequal_again():
    plain = normalised_keys.normalised_heads(128, 16, "keys", 0.0, 200, 3)
    stretched = normalised_keys.normalised_heads(128, 16, "both", 1.0, 200, 3)
    margin = stats.norm.isf(FALSE_ALARM) * math.hypot(plain["rank_standard_error"], stretched["rank_standard_error"])
    assert stretched["rank_mean"] < plain["rank_mean"] - margin


def test_the_increment_rule_stops_at_once_or_never():
    assert growth.increment_rule(12, 5, threshold=100.0, largest=9, seed=0) == {"d_h": 1}
    rising = growth.increment_rule(64, 200, threshold=1e-9, largest=3, seed=0)  # the first increments are far above
    assert rising == {"d_h": 3}


@pytest.mark.parametrize("n", [64, 4096])
def test_saturation_solves_its_rule(n):
    def fraction(d_h):
        return theory.head_dim_bound(n, d_h) / n

    d_h = growth.saturation(n, "gap", 0.05)["d_h"]
    assert theory.occupancy_bound(n) / n - fraction(d_h) == pytest.approx(0.05, rel=1e-5)
    d_h = growth.saturation(n, "increment", 0.01)["d_h"]
    assert fraction(d_h + 1) - fraction(d_h) == pytest.approx(0.01, rel=1e-4)
    d_h = growth.saturation(n, "doubling", 0.01)["d_h"]
    assert fraction(2 * d_h) - fraction(d_h) == pytest.approx(0.01, rel=1e-4)
    for wider in (1.1, 2.0, 10.0):
        assert fraction(2 * wider * d_h) - fraction(wider * d_h) < 0.01


def test_bounds_are_ordered():
    for n, d_h in ((16, 1), (64, 3), (256, 32)):
        row = tables.head_dimension_bounds(n, d_h)
        assert 0 < row["lower"] <= min(row["upper"], row["vertices"]) and row["upper"] <= row["barrier"] < n


@pytest.mark.parametrize(
    ("function", "arguments", "name"),
    [
        (normalised_keys.normalised_heads, (8, 2, "values", 0.0, 4, 0), "normalised"),
        (normalised_keys.normalised_heads, (8, 2, "keys", -0.1, 4, 0), "gain_spread"),
        (tables.rank_increments, (8, 0, 4, 0), "d_h"),
        (growth.increment_rule, (8, 4, 0.0, 9, 0), "threshold"),
        (growth.saturation, (64, "square", 0.1), "rule"),
        (growth.saturation, (64, "doubling", 0.9), "level"),
    ],
)
def test_bad_settings_are_refused_by_name(function, arguments, name):
    with pytest.raises(ValueError, match=name):
        function(*arguments)


@pytest.mark.parametrize("law", report.LAWS)
def test_a_law_fits_its_own_values_and_no_other(law):
    n = 2.0 ** np.arange(4, 20)
    transform, logarithmic = report.LAWS[law]
    values = np.exp(0.3 + 1.7 * transform(n)) if logarithmic else 0.3 + 1.7 * transform(n)
    for other in report.LAWS:
        fit = report.fit_growth(other, n, values, 8)
        if other == law:
            assert fit.b == pytest.approx(1.7) and fit.outside_error < 1e-9
            assert fit.prediction == pytest.approx(values)
        else:
            assert fit.outside_error > 1e-3


def test_the_interval_covers_the_slope_as_often_as_it_says():
    rng, n, covered = np.random.default_rng(0), 2.0 ** np.arange(4, 14), 0
    for _ in range(1000):
        fit = report.fit_growth("a + b log n", n, 50 + 3 * np.log(n) + rng.normal(size=10), 8)
        covered += fit.b_interval[0] <= 3 <= fit.b_interval[1]
    assert stats.binomtest(covered, 1000, 0.95).pvalue > FALSE_ALARM


def test_pooled_seeds_are_one_row_of_all_samples():
    rng, parts, rows = np.random.default_rng(3), [], []
    for seed, samples in enumerate((2, 2, 7)):
        parts.append(rng.normal(5, 2, samples))
        rows.append({"n": 8, "d_h": 2, "samples": samples, "seed": seed, "rank_mean": parts[-1].mean(),
                     "rank_standard_error": stats.sem(parts[-1])})  # fmt: skip
    rows.append(rows[0] | {"n": 9})
    pooled = report.pool_seeds(pd.DataFrame(rows), ["n", "d_h"])
    assert pooled.n.tolist() == [8, 9] and pooled.samples.tolist() == [11, 2]
    together = np.concatenate(parts)
    assert pooled.rank_mean[0] == pytest.approx(together.mean())
    assert pooled.rank_standard_error[0] == pytest.approx(stats.sem(together))
    assert pooled.rank_standard_error[1] == pytest.approx(stats.sem(parts[0]))


def test_a_crossing_is_found_and_its_error_is_right():
    d_h = np.array([4.0, 8, 16, 32])
    assert report.crossing(d_h, 1 / d_h, 0.01 / d_h, 0.1, degree=1)[0] == pytest.approx(10.0)
    rng, scores = np.random.default_rng(1), []
    for _ in range(500):
        found, error = report.crossing(d_h, 1 / d_h + rng.normal(size=4) * 0.02 / d_h, 0.02 / d_h, 0.1, degree=1)
        scores.append((found - 10) / error)
    assert 0.8 < np.std(scores) < 1.2 and abs(np.mean(scores)) < 0.25


def test_bad_fits_are_refused():
    n, values = [4, 8, 16, 32], [1.0, 2.0, 3.0, 4.0]
    for arguments, name in (
        (("cubic", n, values, 3), "law"),
        (("a + b n", n, values, 4), "fitted"),
        (("a + b n", n[::-1], values, 3), "n must increase"),
        (("a + b n", n, [1.0, 2.0, 0.0, 4.0], 3), "positive"),
    ):
        with pytest.raises(ValueError, match=name):
            report.fit_growth(*arguments)
    with pytest.raises(ValueError, match="level"):
        report.crossing([1.0, 2.0, 4.0], [1.0, 0.5, 0.25], [0.1, 0.1, 0.1], 0.01, degree=1)
    with pytest.raises(ValueError, match="positive"):
        report.crossing([1.0, 2.0, 4.0], [1.0, 0.5, -0.25], [0.1, 0.1, 0.1], 0.4, degree=1)
