"""report.growth: laws of growth on their own values, pooled seeds, crossings of noisy curves."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from attnrank.report import growth as report

FALSE_ALARM = 1e-6


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


def test_errors_and_interval_are_their_formulas():
    n, values = np.array([4.0, 8, 16, 32, 64, 128]), np.array([1.0, 2.5, 2.7, 4.4, 4.1, 7.0])
    fit = report.fit_growth("a + b log n", n, values, 4)
    x, relative = np.log(n), fit.prediction / values - 1
    slope, intercept = np.polyfit(x[:4], values[:4], 1)
    residuals = values[:4] - intercept - slope * x[:4]
    error = np.sqrt((residuals**2).sum() / 2 / ((x[:4] - x[:4].mean()) ** 2).sum())  # 4 points, 2 coefficients
    half = stats.t.isf(0.025, 2) * error
    assert fit.b_interval == pytest.approx((slope - half, slope + half))
    assert fit.prediction == pytest.approx(intercept + slope * x)
    assert fit.inside_error == pytest.approx(np.sqrt((relative[:4] ** 2).mean()))
    assert fit.outside_error == pytest.approx(np.sqrt((relative[4:] ** 2).mean()))


@pytest.mark.parametrize("degree, log_values, expected", [
    (2, lambda x: 1 - (x - 1) ** 2, 2),  # rises through 0 at 0, and falls through it at 2
    (2, lambda x: (x - 1) ** 2 - 1, 0),  # falls at 0, and rises at 2
    (3, lambda x: -x * (x - 1) * (x - 2), 2),  # falls at 0 and at 2: the last counts
])  # fmt: skip
def test_the_last_crossing_of_a_falling_curve_counts(degree, log_values, expected):
    x = np.linspace(-0.5, 2.5, 7)
    values = 3 * np.exp(log_values(x))
    found, _ = report.crossing(np.exp(x), values, 0.01 * values, 3.0, degree)
    assert found == pytest.approx(np.exp(expected))
    if degree == 2:
        assert report.crossing(np.exp(x), values, 0.01 * values, 3.0)[0] == pytest.approx(found)


def test_points_count_with_their_own_errors():
    d_h = np.array([4.0, 8, 16, 32, 64])
    values, errors = 1 / d_h, np.array([1.0, 1, 1, 1, 1e4]) * 1e-6
    values[-1] *= 3  # off, and known badly
    assert report.crossing(d_h, values, errors, 0.1, degree=1)[0] == pytest.approx(10, rel=1e-3)
    relative = np.array([1e-6, 1e-6, 1e-6, 1e-6, 1.0])
    assert report.crossing(d_h, 1e3 * values, relative * 1e3 * values, 1e2, degree=1)[0] == pytest.approx(10, rel=1e-3)


@pytest.mark.parametrize("call, message", [
    (lambda: report.fit_growth("a + b n", [2, 4, 8, 16], [1.0, 2.0, 3.0, 4.0], 3), "n must increase from at least 3"),
    (lambda: report.fit_growth("a + b n", [4, 8, 8, 16], [1.0, 2.0, 3.0, 4.0], 3), "n must increase from at least 3"),
    (lambda: report.fit_growth("a + b n", [4, 8, 16, 32], [1.0, 2.0, 3.0, 4.0], 2), "fitted must be at least 3"),
    (lambda: report.fit_growth("a + b n", [4, 8, 16, np.inf], [1.0, 2.0, 3.0, 4.0], 3), "n must increase"),
    (lambda: report.crossing([1.0, 2.0], [2.0, 1.0], [0.1, 0.1], 1.5), "vectors of more than 2 numbers"),
    (lambda: report.crossing([1.0, 2.0, 4.0], [4.0, 2.0, 1.0], [0.1, 0.1, 0.1], 1.5, 3), "vectors of more than 3"),
    (lambda: report.crossing([1.0, 2.0, 4.0], [4.0, 2.0, 1.0], [0.1, 0.0, 0.1], 1.5), "errors must be positive"),
    (lambda: report.crossing([1.0, 2.0, 4.0], [1.0, 0.5, 0.25], [0.1, 0.1, 0.1], 2.0, 1), "level must be crossed"),
])  # fmt: skip
def test_what_cannot_be_fitted_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
