"""Rules that call a head large enough, applied to a curve of ranks; and how noise moves where they stop."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from attnrank import _check


def increment_stop(ranks: ArrayLike, threshold: float) -> float | None:
    """The first head dimension, from 1 by ones, from which one more adds at most ``threshold``; None if none does.

    Examples
    --------
    >>> from attnrank import theory
    >>> round(theory.increment_stop([0.3, 0.5, 0.6, 0.62], 0.05), 3)
    3.0
    """
    below = np.diff(_vector("ranks", ranks)) <= _check.real("threshold", threshold) + 1e-12  # ranks are counts / n
    return float(np.argmax(below)) + 1.0 if below.any() else None


def gap_stop(d_h: ArrayLike, ranks: ArrayLike, level: float) -> float | None:
    """The head dimension at which a curve first reaches ``level``, interpolated in log d_h; None if it does not.

    ``d_h`` must rise from entry to entry.

    Examples
    --------
    >>> from attnrank import theory
    >>> round(theory.gap_stop([16, 32, 64], [0.4, 0.5, 0.6], 0.55), 3)
    45.255
    """
    d_h, ranks, level = _vector("d_h", d_h), _vector("ranks", ranks), _check.real("level", level)
    if len(d_h) != len(ranks):
        raise ValueError(f"d_h and ranks must have one length, got {len(d_h)} and {len(ranks)}")
    if d_h.min() <= 0:
        raise ValueError(f"d_h must be positive, got {d_h.min():g}")
    if (np.diff(d_h) <= 0).any():
        raise ValueError(f"d_h must rise from entry to entry, got {d_h.tolist()}")
    reached = ranks >= level
    if not reached.any():
        return None
    i = int(np.argmax(reached))
    if i == 0:
        return float(d_h[0])
    share = (level - ranks[i - 1]) / (ranks[i] - ranks[i - 1])
    return float(math.exp((1 - share) * math.log(d_h[i - 1]) + share * math.log(d_h[i])))


def stop_interval(increments: ArrayLike, threshold: float, noise: float) -> tuple[int, int | None]:
    """Between which head dimensions the increment rule stops if every measured increment is off by at most ``noise``.

    ``increments`` are the true ones, from head dimension 1 on by ones. The second is None if no increment is small
    enough for the rule to be sure to stop. Source: chapter growth, what noise does to the rule.

    Examples
    --------
    >>> from attnrank import theory
    >>> theory.stop_interval([0.2, 0.1, 0.01], 0.05, 0.01)
    (3, 3)
    """
    increments, threshold = _vector("increments", increments), _check.real("threshold", threshold)
    noise = _check.real("noise", noise, minimum=0.0)
    may, must = increments <= threshold + noise, increments <= threshold - noise
    if not may.any():
        raise ValueError(
            f"increments must fall to threshold + noise = {threshold + noise:g}, got {increments.min():g} at least"
        )
    return int(np.argmax(may)) + 1, int(np.argmax(must)) + 1 if must.any() else None


def seeds_needed(noise: float, variance: float, comparisons: int, failure: float) -> int:
    """Repetitions after which all of ``comparisons`` mean increments are within ``noise``, except with ``failure``.

    By Bernstein's inequality for increments in [-1, 1] of variance at most ``variance``; chapter growth.

    Examples
    --------
    >>> from attnrank import theory
    >>> theory.seeds_needed(0.01, 0.25, 10, 0.05)
    30757
    """
    noise = _check.real("noise", noise, minimum=1e-100, maximum=1e100)
    failure = _check.real("failure", failure, above=0.0, maximum=1.0)
    variance = _check.real("variance", variance, minimum=0.0, maximum=1.0)
    comparisons = _check.whole("comparisons", comparisons, minimum=1)
    # The logarithm of the quotient, which a tiny failure would take beyond the range of floats.
    return math.ceil((2 * variance + 4 * noise / 3) / noise**2 * (math.log(2 * comparisons) - math.log(failure)))


def _vector(name: str, values: ArrayLike) -> np.ndarray:
    try:
        vector = np.asarray(values)
        if vector.dtype.kind not in "iufO":  # words, truth values and complex numbers would be converted
            raise TypeError
        vector = vector.astype(float)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # torch's, for a tensor that requires a gradient
        vector = np.empty(0)
    if vector.ndim != 1 or not vector.size or not np.isfinite(vector).all():
        raise ValueError(f"{name} must be a vector of finite numbers, got {values!r}")
    return vector
