"""The lines that figures draw beside what is measured, as one table."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import scipy

from attnrank import _check, theory
from attnrank.sweep import Setting

#: The gap of the gap rule in chapter growth.
GAP = 0.1


def formula_lines(curve: str, n: int, x: float) -> Setting:
    """One point of a line of a figure: the value at x of a curve of ``CURVES``, for n tokens (0 where n does not
    occur).

    Values are fractions of n, except for the curves whose description says otherwise.
    """
    return {"value": float(CURVES[_check.choice("curve", curve, CURVES)](n, x))}


def _collapsed_head_dim(n: int, x: float) -> float:
    v = scipy.optimize.brentq(lambda v: theory.lognormal_limit(v) - (1.0 - math.exp(-1.0) - GAP), 0.01, 10.0)
    return theory.lognormal_variance(n, 1.0) / v


def _many_heads(d_h: int) -> Callable[[int, float], float]:
    return lambda n, x: theory.multihead_limit(n, round(x), float(d_h)) / n


#: For each curve its value at (n, x).
CURVES: dict[str, Callable[[int, float], float]] = {
    # x = a_n^4 / d_h
    "collapse": lambda n, x: theory.lognormal_limit(x / 2.0),
    "collapse, first term": lambda n, x: 1.0 - math.exp(-1.0) - x / (4.0 * math.e),
    # x = the gap; the value is a head dimension
    "collapsed head dimension": _collapsed_head_dim,
    # x = head dimension
    "normalised keys": lambda n, x: theory.qk_norm_limit(round(x)),
    "head dimension bound": lambda n, x: theory.head_dim_bound(n, x) / n,
    "tied": lambda n, x: theory.tied_bound(n, round(x)) / n,
    # x = 0; the value is in tokens
    "simplex, first order": lambda n, x: theory.simplex_first_order(n),
    # x = d / n: the smallest eigenvalue of wide random tokens is near (1 - (n / d)^{1/2})^2
    "random tokens, any keys": lambda n, x: min(n, theory.smallest_eigenvalue_bound(n, (1.0 - x**-0.5) ** 2)) / n,
    # x = temperature in units of sqrt(d_h); the value is a distance
    "softmax, first order": lambda n, x: theory.gap_density(n) * math.log(2.0) * x,
    # x = temperature; the value is a stable rank
    "stable rank": lambda n, x: math.exp(1.0 / x**2),
    # x = 0; the value is a temperature
    "freezing": lambda n, x: theory.freezing_temperature(n),
    # x = window
    "causal window": lambda n, x: theory.window_limit(n, round(x), causal=True) / n,
    # x = number of keys seen
    "head dimension 8 on x tokens": lambda n, x: theory.head_dim_bound(round(x), 8) / round(x),
    # x = heads
    "heads together, d_h = 8": _many_heads(8),
    "heads together, d_h = 512": _many_heads(512),
    # x = cosine
    "anisotropic": lambda n, x: theory.anisotropic_bound(n, x) / n,
}


def line_points() -> list[Setting]:
    """The points of every line, each once: settings of :func:`formula_lines`."""

    def line(curve: str, x: Sequence[float], lengths: tuple[int, ...] = (0,)) -> list[Setting]:
        return [{"curve": curve, "n": n, "x": float(value)} for n in lengths for value in x]

    def spaced(low: float, high: float, points: int) -> list[float]:
        return [float(f"{value:.6g}") for value in np.geomspace(low, high, points)]

    lengths = {"tied": (64, 256, 1024), "head dimension bound": (100, 1024)}
    settings = [
        *line("collapse", spaced(0.003, 60, 120)),
        *line("collapse, first term", spaced(0.003, 6, 60)),
        *line("collapsed head dimension", [GAP], tuple(2**octave for octave in range(4, 41))),
        *line("normalised keys", list(range(2, 17)) + [20, 24, 32, 48, 64, 96, 128]),
        *line("head dimension bound", [4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128,
                                       160, 192, 224, 256], lengths["head dimension bound"]),
        *line("tied", [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 18, 20, 22, 24, 28, 32, 48, 64], lengths["tied"]),
        *line("simplex, first order", [0], (4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)),
        *line("random tokens, any keys", [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 7, 10, 14, 20], (256,)),
        *line("softmax, first order", [0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1], (100,)),
        *line("stable rank", spaced(0.38, 4, 60)),
        *line("freezing", [0], (100, 400, 1024)),
        *line("causal window", [1, 2, 4, 8, 16, 32, 64, 128, 256, 512], (512,)),
        *line("head dimension 8 on x tokens", [2, 4, 8, 16, 32, 64, 128]),
        *(s for d_h in (8, 512) for s in line(f"heads together, d_h = {d_h}", [1, 2, 3, 4, 5, 6], (256,))),
        *line("anisotropic", [k / 25 for k in range(25)] + [0.98], (256,)),
        *line("anisotropic", [0, 0.1, 0.25, 0.5, 0.75, 0.9], (64, 1024, 4096)),
        *line("anisotropic", [0.1, 0.25, 0.5, 0.75, 0.9], (256,)),
    ]  # fmt: skip
    return list({tuple(setting.items()): setting for setting in settings}.values())
