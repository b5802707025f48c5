"""experiments.accuracy.shape: the null of increasing concave curves, its p-values, its power."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from attnrank.experiments.accuracy import compare
from attnrank.experiments.accuracy.shape import agreement, concave_curves, unit_curve


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_curves_of_the_null_increase_and_are_concave():
    curves = concave_curves(7, 500, seeded())
    steps = np.diff(curves, axis=1)
    assert curves.shape == (500, 7) and (steps > 0).all() and (np.diff(steps, axis=1) <= 0).all()
    np.testing.assert_allclose(curves[:, [0, -1]], [[0, 1]] * 500, atol=1e-12)
    # the largest of 6 uniform spacings has mean (1 + 1/2 + ... + 1/6) / 6
    error = steps[:, 0].std() / 500**0.5
    assert steps[:, 0].mean() == pytest.approx(sum(1 / k for k in range(1, 7)) / 6, abs=5 * error)


def test_p_values_are_uniform_for_unrelated_curves():
    """False alarms happen as often as stated: Kolmogorov-Smirnov at 1e-6."""
    first = [0.1, 0.3, 0.42, 0.5, 0.55, 0.57]
    drawn = concave_curves(6, 200, seeded(1))
    p = [agreement(first, curve, generator=seeded(2 + i), simulations=500).p_value for i, curve in enumerate(drawn)]
    assert stats.kstest(p, "uniform").pvalue > 1e-6


def test_a_curve_that_follows_is_found():
    first = np.array([0.1, 0.3, 0.42, 0.5, 0.55, 0.57])
    found = agreement(first, 0.6 + 0.2 * first, generator=seeded())
    assert found.distance < 1e-12 and found.p_value == pytest.approx(1e-4, rel=1e-2) and found.correlation > 0.999999
    assert 0.8 < found.null_correlation < 1  # what unrelated curves have
    drawn = [np.corrcoef(first, curve)[0, 1] for curve in concave_curves(6, 10_000, seeded())[:1000]]
    assert found.null_correlation == pytest.approx(np.median(drawn))


@pytest.mark.parametrize("bad", [[0.0, 1.0], [0.0, np.nan, 1.0], [1.0, 0.5, 0.0], [[0.0, 1.0, 2.0]]])
def test_bad_curves_are_refused(bad):
    with pytest.raises(ValueError, match="values must"):
        unit_curve(bad)
    with pytest.raises(ValueError):
        agreement([0.0, 0.5, 1.0], bad, generator=seeded())


def test_curves_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="one length, got 3 and 4"):
        agreement([0.0, 0.5, 1.0], [0.0, 0.5, 0.8, 1.0], generator=seeded())


# experiments.accuracy.compare


def table(rows):
    base = {"heads": 4, "value_dim": 8, "mlp_width": 64, "intervention": "none", "best_accuracy": 0.0,
            "rank_after": 0.0,
            "rank_before_all": 0.0, "rank_after_all": 0.0, "parameters": 1}  # fmt: skip
    return pd.DataFrame([base | dict(zip(("qk_dim", "seed", "accuracy", "rank_before"), row)) for row in rows])


def test_differences_are_paired_by_seed():
    rows = table(
        [(1, 0, 0.5, 0.1), (1, 1, 0.6, 0.1), (1, 2, 0.7, 0.1), (2, 2, 0.8, 0.2), (2, 0, 0.55, 0.2), (2, 1, 0.68, 0.2)]
    )
    found = compare.difference(rows, {"qk_dim": 1}, {"qk_dim": 2})
    pairs = np.array([0.05, 0.08, 0.1])
    low, high = stats.ttest_1samp(pairs, 0).confidence_interval(0.95)
    assert (found.mean, found.low, found.high, found.seeds) == pytest.approx((pairs.mean(), low, high, 3))
    assert compare.difference(rows[rows.qk_dim == 1], {"qk_dim": 1}, {"qk_dim": 2}) is None
    single = compare.difference(rows[rows.seed == 0], {"qk_dim": 1}, {"qk_dim": 2})
    assert single.seeds == 1 and single.low == -np.inf and single.high == np.inf
    with pytest.raises(ValueError, match="single out one arm"):
        compare.difference(rows, {"intervention": "none"}, {"qk_dim": 2})
    with pytest.raises(ValueError, match="together must be at least 1, got 0"):
        compare.difference(rows, {"qk_dim": 1}, {"qk_dim": 2}, together=0)


def test_the_spread_is_pooled_over_arms():
    """Two arms alone: Student's test for independent samples of one variance, by SciPy. A third arm adds its own."""
    first, second = [0.5, 0.6, 0.7], [0.8, 0.55, 0.68]
    rows = table([(d, s, x, 0.1) for d, arm in ((1, first), (2, second)) for s, x in enumerate(arm)])
    arms, pooled = ({"qk_dim": 1}, {"qk_dim": 2}), compare.spread(rows)
    found = compare.difference(rows, *arms, pooled=pooled)
    low, high = stats.ttest_ind(second, first).confidence_interval(0.95)
    assert pooled.freedom == 4
    assert (found.mean, found.low, found.high) == pytest.approx((np.mean(second) - np.mean(first), low, high))
    more = pd.concat([rows, table([(4, s, 0.4 + 0.1 * s, 0.1) for s in range(5)])])
    wider = compare.spread(more)
    squares = [np.var(first) * 3, np.var(second) * 3, 0.1]
    assert (wider.freedom, wider.deviation) == (8, pytest.approx((sum(squares) / 8) ** 0.5))
    assert compare.difference(more, *arms, pooled=wider).mean == pytest.approx(found.mean)
    alone = compare.spread(rows[rows.seed == 0])
    assert alone.freedom == 0 and compare.difference(rows, *arms, pooled=alone).high == np.inf
    with pytest.raises(ValueError, match="column"):
        compare.spread(rows, "accuracies")


def test_intervals_that_hold_together_are_wider():
    """13 comparisons at 95 % in all: each at 1 - 0.05 / 13."""
    rows = table([(d, s, x, 0.1) for d, arm in ((1, [0.5, 0.6, 0.7]), (2, [0.6, 0.8, 0.7])) for s, x in enumerate(arm)])
    arms = ({"qk_dim": 1}, {"qk_dim": 2})
    error = np.std([0.1, 0.2, 0.0], ddof=1) / 3**0.5
    for together, quantile in ((1, 4.302653), (13, stats.t.isf(0.025 / 13, 2))):
        found = compare.difference(rows, *arms, together=together)
        assert (found.high - found.mean) / error == pytest.approx(quantile, rel=1e-4)
        pooled = compare.Spread(0.1, 20)
        half = compare.difference(rows, *arms, together=together, pooled=pooled).high - found.mean
        assert half == pytest.approx(0.1 * (2 / 3) ** 0.5 * stats.t.isf(0.025 / together, 20))


def test_the_interval_of_a_correlation():
    """Ten arms with Spearman's 0.5152: Fisher's interval with the variance of Bonett and Wright, by hand."""
    order = [3, 1, 2, 6, 9, 4, 0, 5, 8, 7]
    rows = table([(d, s, 0.5 + 0.01 * order[d - 1] ** 3, 0.01 * d) for d in range(1, 11) for s in (0, 1)])
    rho, low, high, arms = compare.rank_correlation(rows, "rank_before", "accuracy")
    expected = stats.spearmanr(range(10), order).statistic
    half, middle = 1.959964 * ((1 + expected**2 / 2) / 7) ** 0.5, np.arctanh(expected)
    ends = [(np.exp(2 * z) - 1) / (np.exp(2 * z) + 1) for z in (middle - half, middle + half)]
    assert 0.3 < rho < 0.7 and (rho, low, high, arms) == (pytest.approx(expected), *map(pytest.approx, ends), 10)


def test_correlation_over_arms():
    rows = table([(d, s, 0.5 + 0.01 * d + 0.001 * s, 0.3 - 0.01 * d) for d in range(1, 9) for s in (0, 1)])
    rho, low, high, arms = compare.rank_correlation(rows, "rank_before", "accuracy")
    assert rho == pytest.approx(-1) and low <= rho <= high and arms == 8
    few = {d: compare.rank_correlation(rows[rows.qk_dim <= d], "rank_before", "accuracy") for d in (4, 5)}
    assert np.isnan(few[4][:3]).all() and few[4][3] == 4 and few[5][0] == pytest.approx(-1)
    means = compare.by_arm(rows)
    assert means.spread.to_numpy() == pytest.approx(0.001 / 2**0.5)
    assert means.seeds.eq(2).all() and means.accuracy.iloc[0] == pytest.approx(0.5105)
