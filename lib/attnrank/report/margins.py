"""Margins of statistical claims: what a mean may exceed its bound by with a stated false-alarm rate."""

from __future__ import annotations

import numpy as np
import scipy
from numpy.typing import ArrayLike

from attnrank import _check


def student_margin(
    standard_error: ArrayLike, samples: ArrayLike, *, cases: int = 1, false_alarm: float = 1e-6
) -> np.ndarray:
    """Margin for means of few or many samples: Student's quantile times the standard error, Bonferroni over cases.

    For normal samples the chance that any mean exceeds its bound by more than its margin is at most a tenth of
    ``false_alarm``. The rest is kept for samples that are not normal: to first order, skewness g multiplies the chance
    by exp(|g| x^3 / (3 sqrt(samples))), x the quantile, which for ranks of heads is less than ten.

    Parameters
    ----------
    standard_error : standard errors >= 0 of the means, as estimated from the samples themselves, any shape.
    samples : numbers of independent samples in each mean, >= 2; broadcasts against ``standard_error``.
    cases : number of comparisons made, >= 1; a two-sided one counts twice.
    false_alarm : in (0, 1/2].

    Returns
    -------
    array of margins in the units of ``standard_error``.

    Raises
    ------
    ValueError : a negative or non-finite standard error, fewer than 2 samples, cases < 1, false_alarm out of range.
    """
    error, samples = _errors(standard_error), _counts(samples)
    return scipy.stats.t.isf(_level(cases, false_alarm) / 10.0, samples - 1.0) * error


def bernstein_margin(
    standard_error: ArrayLike, samples: ArrayLike, spread: ArrayLike, *, cases: int = 1, false_alarm: float = 1e-6
) -> np.ndarray:
    """Margin for means of bounded samples, exact for every law and number of samples: the empirical Bernstein bound.

    Parameters
    ----------
    standard_error, samples, cases, false_alarm : as for :func:`student_margin`; the whole rate is used.
    spread : length of an interval that is known to contain every sample, >= 0; for a rank n - 1.

    Returns
    -------
    array of margins in the units of ``standard_error``.

    Raises
    ------
    ValueError : as for :func:`student_margin`; a negative or non-finite spread.

    Source: Maurer and Pontil (2009), Empirical Bernstein bounds and sample variance penalization, Theorem 4.
    """
    error, samples = _errors(standard_error), _counts(samples)
    spread = np.asarray(spread, dtype=float)
    if not np.isfinite(spread).all() or (spread < 0).any():
        raise ValueError(f"spread must be finite and at least 0, got {spread!r}")
    logarithm = np.log(2.0 / _level(cases, false_alarm))
    return np.sqrt(2.0 * logarithm) * error + 7.0 * logarithm / 3.0 * spread / (samples - 1.0)


def _errors(standard_error: ArrayLike) -> np.ndarray:
    error = np.asarray(standard_error, dtype=float)
    if not np.isfinite(error).all() or (error < 0).any():
        raise ValueError(f"standard_error must be finite and at least 0, got {standard_error!r}")
    return error


def _counts(samples: ArrayLike) -> np.ndarray:
    counts = np.asarray(samples, dtype=float)
    if not np.isfinite(counts).all() or (counts < 2).any():
        raise ValueError(f"samples must be at least 2, got {samples!r}")
    return counts


def _level(cases: int, false_alarm: float) -> float:
    cases = _check.integer("cases", cases, minimum=1)
    return _check.real("false_alarm", false_alarm, above=0.0, maximum=0.5) / cases
