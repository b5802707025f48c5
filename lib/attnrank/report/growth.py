"""Reading tables: means over seeds, where a noisy curve crosses a level, which law of n fits the crossings best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import scipy
from numpy.typing import ArrayLike

from attnrank import _check

#: Laws of growth: the functions of n that are fitted linearly, and whether to the logarithm of the quantity.
LAWS = {
    "a + b log n": (lambda n: np.log(n), False),
    "a + b (log n)²": (lambda n: np.log(n) ** 2, False),
    "a n^b": (lambda n: np.log(n), True),
    "a + b n": (lambda n: np.asarray(n, dtype=float), False),
    "a (log n)^b": (lambda n: np.log(np.log(n)), True),
}


@dataclass(frozen=True)
class Fit:
    """A growth law fitted to the shorter sequences and tested on the longer ones."""

    law: str
    b: float
    b_interval: tuple[float, float]  # 95 %, Student's t: residuals are treated as independent noise
    inside_error: float  # root mean square relative error where it was fitted
    outside_error: float  # the same beyond
    prediction: np.ndarray  # at every n


def fit_growth(law: str, n: ArrayLike, values: ArrayLike, fitted: int) -> Fit:
    """Least-squares fit of a law of ``LAWS`` to the first ``fitted`` of the values, tested on the others.

    Parameters
    ----------
    n : increasing sequence lengths, >= 3.
    values : what grows, > 0, one for each n.
    fitted : number of values to fit, >= 3 and fewer than there are.

    Raises
    ------
    ValueError : unknown law, or arguments that do not fit together.
    """
    transform, logarithmic = LAWS[_check.choice("law", law, LAWS)]
    n, values = np.asarray(n, dtype=float), np.asarray(values, dtype=float)
    fitted = _check.integer("fitted", fitted, minimum=3)
    if n.ndim != 1 or n.shape != values.shape or fitted >= len(n):
        raise ValueError(
            f"n and values must be two vectors longer than fitted = {fitted}, got {n.shape}, {values.shape}"
        )
    if not (
        np.isfinite(n).all()
        and np.isfinite(values).all()
        and (np.diff(n) > 0).all()
        and n[0] >= 3
        and (values > 0).all()
    ):
        raise ValueError(f"n must increase from at least 3 and values be positive, got {n} and {values}")
    x, y = transform(n), np.log(values) if logarithmic else values
    line = scipy.stats.linregress(x[:fitted], y[:fitted])
    half = scipy.stats.t.ppf(0.975, fitted - 2) * line.stderr
    prediction = line.intercept + line.slope * x
    prediction = np.exp(prediction) if logarithmic else prediction
    error = prediction / values - 1.0
    return Fit(law, float(line.slope), (float(line.slope - half), float(line.slope + half)),
               float(np.sqrt(np.mean(error[:fitted] ** 2))), float(np.sqrt(np.mean(error[fitted:] ** 2))),
               prediction)  # fmt: skip


def pool_seeds(table: pd.DataFrame, by: Sequence[str], value: str = "rank") -> pd.DataFrame:
    """One row for each setting of the columns ``by``: mean and standard error of all its samples, whatever the seed.

    The columns ``VALUE_mean``, ``VALUE_standard_error`` and ``samples`` of the rows give their sums of squares, so that
    the result is what one row with all the samples would hold. Rows come in the order of the keys.
    """
    mean, error = f"{value}_mean", f"{value}_standard_error"
    rows = []
    for key, part in table.groupby(list(by)):
        samples = part.samples.sum()
        middle = (part.samples * part[mean]).sum() / samples
        squares = (
            part.samples * (part.samples - 1) * part[error] ** 2 + part.samples * (part[mean] - middle) ** 2
        ).sum()
        spread = float(np.sqrt(squares / (samples - 1) / samples))
        rows.append((*key, int(samples), float(middle), spread))
    return pd.DataFrame(rows, columns=[*by, "samples", mean, error])


def crossing(
    d_h: ArrayLike, values: ArrayLike, errors: ArrayLike, level: float, degree: int = 2
) -> tuple[float, float]:
    """The last head dimension at which a falling, noisy, positive curve crosses ``level``, and its standard error.

    The logarithm of the curve is fitted by a polynomial in log d_h, each point with its own standard error, and the
    largest root between the points is taken; its standard error is that of the fitted curve there, over its slope.

    Raises
    ------
    ValueError : fewer points than coefficients, values <= 0, or no crossing within the points.
    """
    d_h, values, errors = (np.asarray(a, dtype=float) for a in (d_h, values, errors))
    degree = _check.integer("degree", degree, minimum=1)
    if not d_h.shape == values.shape == errors.shape or d_h.ndim != 1 or len(d_h) <= degree:
        raise ValueError(f"d_h, values and errors must be vectors of more than {degree} numbers, got {d_h.shape}")
    if not ((values > 0).all() and (errors > 0).all()):
        raise ValueError(f"values and errors must be positive, got {values} and {errors}")
    x, y, weight = np.log(d_h), np.log(values), values / errors
    coefficients, covariance = np.polyfit(x, y, degree, w=weight, cov="unscaled")
    curve = np.poly1d(coefficients) - np.log(level)
    roots = [
        r.real for r in curve.roots if abs(r.imag) < 1e-9 and x.min() <= r.real <= x.max() and curve.deriv()(r.real) < 0
    ]
    if not roots:
        raise ValueError(f"level must be crossed between d_h = {d_h.min():g} and {d_h.max():g}, got {level!r}")
    root = max(roots)
    powers = root ** np.arange(degree, -1, -1)
    spread = float(np.sqrt(powers @ covariance @ powers)) / abs(curve.deriv()(root))
    return float(np.exp(root)), float(np.exp(root) * spread)
