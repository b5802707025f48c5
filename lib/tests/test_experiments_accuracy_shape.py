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


def test_correlation_over_arms():
    rows = table([(d, s, 0.5 + 0.01 * d + 0.001 * s, 0.3 - 0.01 * d) for d in range(1, 9) for s in (0, 1)])
    rho, low, high, arms = compare.rank_correlation(rows, "rank_before", "accuracy")
    assert rho == pytest.approx(-1) and low <= rho <= high and arms == 8
    assert np.isnan(compare.rank_correlation(rows[rows.qk_dim < 4], "rank_before", "accuracy")[0])
    means = compare.by_arm(rows)
    assert means.seeds.eq(2).all() and means.accuracy.iloc[0] == pytest.approx(0.5105)
