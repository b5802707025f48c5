"""Tables of chapter 06 about saturation: where a rule stops when it is applied to measured curves, seed by seed."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from attnrank import _check, theory
from attnrank.experiments.counting import hardmax_rank_on_device
from attnrank.experiments.experiment import Experiment
from attnrank.experiments.sweeps_heads import DISTRIBUTIONS, WIDTHS, projections
from attnrank.sweep import Setting, grid

#: Weights of their own at every head dimension, or the leading coordinates of one large head.
DESIGNS = ("independent", "nested")

THRESHOLD, GAP = 0.01, 0.1
#: Head dimensions at which a curve is measured: by ones as far as the increment rule looks, then coarser.
STEPS = tuple(range(1, 33))
HEAD_DIMS = (*STEPS, 40, 48, 64, 80, 96, 128)


def increment_stop(ranks: ArrayLike, threshold: float) -> float | None:
    """The first head dimension, from 1 by ones, from which one more adds at most ``threshold``; None if none does."""
    below = np.diff(np.asarray(ranks, dtype=float)) <= threshold + 1e-12  # rounding; ranks are counts over n
    return float(np.argmax(below)) + 1.0 if below.any() else None


def gap_stop(d_h: ArrayLike, ranks: ArrayLike, level: float) -> float | None:
    """The head dimension at which a curve first reaches ``level``, interpolated in log d_h; None if it does not."""
    d_h, ranks = np.asarray(d_h, dtype=float), np.asarray(ranks, dtype=float)
    reached = ranks >= level
    if not reached.any():
        return None
    i = int(np.argmax(reached))
    if i == 0:
        return float(d_h[0])
    share = (level - ranks[i - 1]) / (ranks[i] - ranks[i - 1])
    return float(math.exp((1 - share) * math.log(d_h[i - 1]) + share * math.log(d_h[i])))


def increment_crossing(
    d_h: ArrayLike, increments: ArrayLike, errors: ArrayLike, threshold: float
) -> tuple[float, float] | None:
    """The last head dimension at which noisy increments fall through ``threshold``, and its standard error.

    From the largest increment on, a cubic in 1 / d_h without constant is fitted by weighted least squares. It is linear
    in the increments, so that their noise does not bias it, and increments below 0 need no exception. None if the curve
    does not cross between the points, or there are fewer than four.
    """
    d_h, increments, errors = (np.asarray(a, dtype=float) for a in (d_h, increments, errors))
    if not d_h.shape == increments.shape == errors.shape or d_h.ndim != 1 or (np.diff(d_h) <= 0).any():
        raise ValueError(f"d_h must increase, with as many increments and errors, got {d_h}, {increments}, {errors}")
    first = int(np.argmax(increments)) if len(d_h) else 0
    if len(d_h) - first < 4:
        return None

    def powers(x: np.ndarray) -> np.ndarray:
        return np.stack([x**-1.0, x**-2.0, x**-3.0], -1)

    rows = powers(d_h[first:]) / errors[first:, None]
    covariance = np.linalg.inv(rows.T @ rows)
    coefficients = covariance @ rows.T @ (increments[first:] / errors[first:])
    grid = np.linspace(d_h[first], d_h[-1], 4001)
    excess = powers(grid) @ coefficients - threshold
    falls = np.flatnonzero((excess[:-1] > 0) & (excess[1:] <= 0))
    if not len(falls):
        return None
    i = falls[-1]
    slope = (excess[i] - excess[i + 1]) / (grid[i + 1] - grid[i])
    at = grid[i] + excess[i] / slope
    spread = math.sqrt(powers(np.array(at)) @ covariance @ powers(np.array(at)))
    return float(at), spread / slope


def stop_interval(increments: ArrayLike, threshold: float, noise: float) -> tuple[int, int | None]:
    """Between which head dimensions the increment rule stops if every measured increment is off by at most ``noise``.

    ``increments`` are the true ones, from head dimension 1 on by ones. The second is None if no increment is small
    enough for the rule to be sure to stop. Source: chapter 06, what noise does to the rule.
    """
    increments = np.asarray(increments, dtype=float)
    noise = _check.real("noise", noise, minimum=0.0)
    may, must = increments <= threshold + noise, increments <= threshold - noise
    if not may.any():
        raise ValueError(f"increments must fall to threshold + noise = {threshold + noise:g}, got {increments.min():g} at least")
    return int(np.argmax(may)) + 1, int(np.argmax(must)) + 1 if must.any() else None


def seeds_needed(noise: float, variance: float, comparisons: int, failure: float) -> int:
    """Repetitions after which all of ``comparisons`` mean increments are within ``noise``, except with ``failure``.

    By Bernstein's inequality for increments in [-1, 1] of variance at most ``variance``; chapter 06.
    """
    noise, failure = _check.real("noise", noise, above=0.0), _check.real("failure", failure, above=0.0, maximum=1.0)
    variance = _check.real("variance", variance, minimum=0.0)
    comparisons = _check.integer("comparisons", comparisons, minimum=1)
    return math.ceil((2 * variance + 4 * noise / 3) / noise**2 * math.log(2 * comparisons / failure))


def saturation_trial(distribution: str, n: int, d: int, design: str, repetitions: int, seed: int) -> Setting:
    """Saturated head dimension by both rules, read off one measured curve.

    The curve is the mean rank / n of ``repetitions`` token sequences, each with one head at every one of ``HEAD_DIMS``
    (``DESIGNS``). Increment rule: :func:`increment_stop` at 0.01. Gap rule: the first d_h within 0.1 of the barrier.
    """
    _check.choice("design", design, DESIGNS)
    repetitions = _check.integer("repetitions", repetitions, minimum=1)
    generator = torch.Generator().manual_seed(_check.integer("seed", seed, minimum=0))
    total = torch.zeros(len(HEAD_DIMS), dtype=torch.float64)
    together = max(1, 2**20 // (n * sum(HEAD_DIMS)))
    for start in range(0, repetitions, together):
        batch = min(together, repetitions - start)
        total += _curves(distribution, n, d, design, batch, generator).sum(0)
    ranks = (total / (repetitions * n)).numpy()
    return {
        "increment_d_h": increment_stop(ranks[: len(STEPS)], THRESHOLD),
        "gap_d_h": gap_stop(HEAD_DIMS, ranks, theory.occupancy_bound(n) / n - GAP),
    }


def _curves(distribution: str, n: int, d: int, design: str, batch: int, generator: torch.Generator) -> Tensor:
    """Ranks (batch, head dimensions) of heads on ``batch`` token sequences."""
    widths = HEAD_DIMS if design == "independent" else HEAD_DIMS[-1:]
    y = torch.stack([projections(distribution, n, d, 2 * sum(widths), generator) for _ in range(batch)])
    if design == "independent":
        parts = y.split([width for width in widths for _ in range(2)], -1)
        pairs = zip(parts[::2], parts[1::2], strict=True)
    else:
        q, k = y.chunk(2, -1)
        pairs = ((q[..., :d_h], k[..., :d_h]) for d_h in HEAD_DIMS)
    return torch.stack([hardmax_rank_on_device(q, k) for q, k in pairs], -1).double()


def _trials(distribution: str, n: int, design: str, repetitions: int, trials: int) -> list[Setting]:
    return grid(
        distribution=[distribution], n=[n], d=[WIDTHS[n]], design=[design], repetitions=[repetitions],
        seed=[1000 * repetitions + trial for trial in range(trials)],
    )  # fmt: skip


EXPERIMENTS = {
    "saturation_trials": Experiment(
        "Where do the two rules of saturation stop, and how far apart from one set of seeds to the next?",
        saturation_trial,
        quick=grid(distribution=["gaussian"], n=[25], d=[64], design=list(DESIGNS), repetitions=[10], seed=[0, 1]),
        paper=[
            *(
                setting
                for design in DESIGNS
                for repetitions, trials in ((10, 40), (30, 20), (100, 20), (300, 10), (1000, 4))
                for setting in _trials("orthonormal", 200, design, repetitions, trials)
            ),
            *(
                setting
                for n in (25, 50, 100, 400)
                for repetitions, trials in ((10, 20), (100, 10))
                for setting in _trials("orthonormal", n, "independent", repetitions, trials)
            ),
            *(s for name in DISTRIBUTIONS if name != "orthonormal" for s in _trials(name, 200, "independent", 30, 5)),
        ],
    ),
}
