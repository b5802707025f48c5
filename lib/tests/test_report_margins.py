"""report: margins of statistical claims against exact laws, at levels where their rates can be seen."""

import math

import numpy as np
import pytest
from scipy import stats

from attnrank import report


def test_student_margin_uses_a_tenth_of_the_rate():
    margin = report.student_margin([1.0, 2.0], [5, 41], cases=4, false_alarm=1e-3)
    assert margin == pytest.approx([stats.t.isf(2.5e-5, 4), 2 * stats.t.isf(2.5e-5, 40)])
    assert report.student_margin(1.0, 10**9) == pytest.approx(stats.norm.isf(1e-7), rel=1e-6)


@pytest.mark.parametrize("samples", [3, 20])
def test_student_margin_has_its_rate_for_normal_samples_and_the_normal_quantile_has_not(samples):
    """At a rate of 0.05: 200,000 experiments, the count within 4.9 standard deviations of its binomial mean."""
    x = np.random.default_rng(0).standard_normal((200_000, samples))
    error = x.std(1, ddof=1) / math.sqrt(samples)
    alarms = (x.mean(1) > report.student_margin(error, samples, false_alarm=0.5)).mean()
    assert abs(alarms - 0.05) < 4.9 * math.sqrt(0.05 * 0.95 / 200_000)
    normal = (x.mean(1) > stats.norm.isf(0.05) * error).mean()
    assert normal > 0.05 + 4.9 * math.sqrt(0.05 * 0.95 / 200_000)


def test_bernstein_margin_is_its_formula_and_holds_for_a_skewed_law():
    logarithm = math.log(2 * 3 / 0.01)
    expected = math.sqrt(2 * logarithm) * 0.2 + 7 * logarithm * 5 / (3 * 49)
    assert report.bernstein_margin(0.2, 50, 5, cases=3, false_alarm=0.01) == pytest.approx(expected)
    x = (np.random.default_rng(1).random((20_000, 60)) < 0.02).astype(float)  # skewness 7
    error = x.std(1, ddof=1) / math.sqrt(60)
    for sign in (1, -1):
        excess = sign * (x.mean(1) - 0.02)
        assert (excess > report.bernstein_margin(error, 60, 1.0, false_alarm=0.05)).mean() <= 0.05
    assert ((0.02 - x.mean(1)) > stats.norm.isf(0.05) * error).mean() > 0.1  # the control


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: report.student_margin(-1.0, 5), "standard_error must be finite"),
        (lambda: report.student_margin(1.0, 1), "samples must be at least 2"),
        (lambda: report.student_margin(1.0, math.nan), "samples must be at least 2"),
        (lambda: report.student_margin(1.0, 5, cases=0), "cases must be at least 1"),
        (lambda: report.student_margin(1.0, 5, false_alarm=0.7), "false_alarm must be at most 0.5"),
        (lambda: report.bernstein_margin(1.0, 5, -1.0), "spread must be finite"),
        (lambda: report.bernstein_margin(math.inf, 5, 1.0), "standard_error must be finite"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_rates_are_one_in_a_million_by_default():
    assert report.bernstein_margin(0.2, 50, 5) == report.bernstein_margin(0.2, 50, 5, false_alarm=1e-6)
    assert report.student_margin(0.2, 50) == report.student_margin(0.2, 50, false_alarm=1e-6)
    assert report.bernstein_margin(0.0, 50, 0.0) == 0  # samples that cannot differ


@pytest.mark.parametrize("margin", [report.student_margin, lambda *a, **k: report.bernstein_margin(*a, 1.0, **k)])
def test_no_rate_and_one_sample_have_no_margin(margin):
    with pytest.raises(ValueError, match="false_alarm must be greater than 0"):
        margin(1.0, 5, false_alarm=0.0)
    with pytest.raises(ValueError, match="samples must be at least 2"):
        margin(1.0, [5, 1.5])
