"""Do two curves agree in shape, beyond both rising and flattening? A simulation test of that, and its null.

Curves against head dimension that both increase are perfectly rank-correlated, and if both are concave their linear
correlation is near 1 as well, whatever the one has to do with the other. The null here is: the second curve is
increasing and concave, and otherwise unrelated to the first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike

from attnrank import _check


def unit_curve(values: ArrayLike) -> np.ndarray:
    """A curve moved and scaled so that its first value is 0 and its last one is 1.

    Raises ValueError for fewer than three values, values that are not finite, or a last value not above the first.
    """
    curve = np.asarray(values, dtype=float)
    if curve.ndim != 1 or len(curve) < 3 or not np.isfinite(curve).all():
        raise ValueError(f"values must be at least three finite numbers, got {values!r}")
    if curve[-1] <= curve[0]:
        raise ValueError(f"values must end above where they begin, got {values!r}")
    return (curve - curve[0]) / (curve[-1] - curve[0])


def concave_curves(points: int, count: int, generator: torch.Generator) -> np.ndarray:
    """Random increasing concave curves from 0 to 1, (count, points): increments uniform on the simplex, sorted."""
    _check.integer("points", points, minimum=3)
    shape = (_check.integer("count", count, minimum=1), points - 1)
    uniform = torch.rand(shape, generator=_check.generator("generator", generator), dtype=torch.float64)
    increments = -np.log1p(-uniform.numpy())
    increments = -np.sort(-increments / increments.sum(1, keepdims=True), axis=1)
    return np.concatenate([np.zeros((count, 1)), np.cumsum(increments, axis=1)], axis=1)


@dataclass(frozen=True)
class Agreement:
    """How near two curves are, and how often an unrelated increasing concave curve is as near.

    ``distance`` is the root mean square difference of the unit curves, ``p_value`` the share of random curves that are
    at most as far from the first, ``correlation`` the linear correlation, ``null_correlation`` its median over random
    curves.
    """

    distance: float
    p_value: float
    correlation: float
    null_correlation: float


def agreement(
    first: ArrayLike, second: ArrayLike, *, generator: torch.Generator, simulations: int = 10_000
) -> Agreement:
    """Test whether ``second`` follows ``first`` more closely than an unrelated increasing concave curve does.

    Both are values at the same abscissae, in their order. The p-value is exact for a second curve drawn like
    `concave_curves`. Raises ValueError for curves of different lengths, and as `unit_curve`.
    """
    a, b = unit_curve(first), unit_curve(second)
    if len(a) != len(b):
        raise ValueError(f"first and second must be of one length, got {len(a)} and {len(b)}")
    null = concave_curves(len(a), simulations, generator)
    distances = np.sqrt(((null - a) ** 2).mean(1))
    distance = float(np.sqrt(((b - a) ** 2).mean()))
    near = int((distances <= distance).sum())
    p_value = (1 + near) / (1 + simulations)
    return Agreement(distance, p_value, float(_correlations(a, b)), float(np.median(_correlations(a, null[:1000]))))


def _correlations(curve: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Linear correlations (...) of a curve (points) with others (..., points)."""
    curve, others = curve - curve.mean(), others - others.mean(-1, keepdims=True)
    return others @ curve / (np.linalg.norm(others, axis=-1) * np.linalg.norm(curve))
