"""Tables of formulas: the lines that the figures of chapters 03 to 05 draw beside what is measured."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy import integrate, optimize, stats

from attnrank import _check, theory
from attnrank.experiments import beyond_bounds as bounds
from attnrank.experiments.experiment import Experiment
from attnrank.sweep import Setting, grid

#: The gap of the gap rule in chapter 03.
GAP = 0.1


def formula_lines(curve: str, n: int, x: float) -> Setting:
    """One point of a line of a figure: the value at x of a curve of ``CURVES``, for n tokens (0 where n does not occur).

    Values are fractions of n, except for the curves whose description says otherwise.
    """
    return {"value": float(CURVES[_check.choice("curve", curve, CURVES)](n, x))}


def eigenvalue_bounds(n: int, smallest: float) -> Setting:
    """The barrier and the bounds of chapter 04 that know the smallest eigenvalue of the Gram matrix; units of rank."""
    return {
        "barrier": theory.occupancy_bound(n),
        "noise_stability": theory.smallest_eigenvalue_bound(n, smallest),
        "effective_queries": theory.effective_queries_bound(n, smallest),
    }


def token_conditions(n: int, d: int, d_h: int) -> Setting:
    """Scales of the largest cosine that the theorems of chapter 04 admit, and that of n random directions in R^d.

    "paper" n^{-3/2} / (d + d_h), "total_variation" n^{-2} d_h^{-1/2}, "effective_queries" n^{-2}, "small_cosines"
    1 / (n (log n)^3), all for a remainder O(1); "noise_stability" 1 / (n log n) for O(log n); "vanishing" 1 / n for
    o(n); "random_directions" 2 sqrt(log n / d), above the largest cosine for long sequences. "ratio" is that of the
    second to the first.
    """
    n, d, d_h = (_check.integer(name, value, minimum=1) for name, value in (("n", n), ("d", d), ("d_h", d_h)))
    log_n = math.log(_check.integer("n", n, minimum=2))
    paper, total_variation = n**-1.5 / (d + d_h), n**-2.0 * d_h**-0.5
    return {
        "paper": paper,
        "total_variation": total_variation,
        "ratio": total_variation / paper,
        "effective_queries": n**-2.0,
        "small_cosines": 1.0 / (n * log_n**3),
        "noise_stability": 1.0 / (n * log_n),
        "vanishing": 1.0 / n,
        "random_directions": 2.0 * math.sqrt(log_n / d),
    }


def simplex_first_order(n: int) -> float:
    """First-order gain of rank of the regular simplex of n tokens with orthonormal keys, c n of chapter 04, in tokens.

    c = a^2 / (2 (n - 1)) (1 - 1/n)^{n - 2}, a the mean of the largest of n standard normal numbers.
    """
    n = _check.integer("n", n, minimum=2)
    largest = integrate.quad(lambda x: x * n * stats.norm.pdf(x) * stats.norm.cdf(x) ** (n - 1), -8, 10)[0]
    return largest**2 * n / (2.0 * (n - 1)) * (1.0 - 1.0 / n) ** (n - 2)


def _collapsed_head_dim(n: int, x: float) -> float:
    v = optimize.brentq(lambda v: theory.lognormal_limit(v) - (1.0 - math.exp(-1.0) - GAP), 0.01, 10.0)
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
    "tied": lambda n, x: bounds.tied_bound(n, round(x)) / n,
    # x = 0; the value is in tokens
    "simplex, first order": lambda n, x: simplex_first_order(n),
    # x = d / n: the smallest eigenvalue of wide random tokens is near (1 - (n / d)^{1/2})^2
    "random tokens, any keys": lambda n, x: min(n, theory.smallest_eigenvalue_bound(n, (1.0 - x**-0.5) ** 2)) / n,
    # x = temperature in units of sqrt(d_h); the value is a distance
    "softmax, first order": lambda n, x: bounds.gap_density(n) * math.log(2.0) * x,
    # x = temperature; the value is a stable rank
    "stable rank": lambda n, x: math.exp(1.0 / x**2),
    # x = 0; the value is a temperature
    "freezing": lambda n, x: bounds.freezing_temperature(n),
    # x = window
    "causal window": lambda n, x: bounds.window_limit(n, round(x), causal=True) / n,
    # x = number of keys seen
    "head dimension 8 on x tokens": lambda n, x: theory.head_dim_bound(round(x), 8) / round(x),
    # x = heads
    "heads together, d_h = 8": _many_heads(8),
    "heads together, d_h = 512": _many_heads(512),
    # x = cosine
    "anisotropic": lambda n, x: bounds.anisotropic_bound(n, x) / n,
}


def _lines() -> list[Setting]:
    def line(curve: str, x: list[float], lengths: tuple[int, ...] = (0,)) -> list[Setting]:
        return [{"curve": curve, "n": n, "x": float(value)} for n in lengths for value in x]

    def spaced(low: float, high: float, points: int) -> list[float]:
        return [float(f"{value:.6g}") for value in np.geomspace(low, high, points)]

    lengths = {"tied": (64, 256, 1024), "head dimension bound": (100, 1024)}
    return [
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


def _unique(settings: list[Setting]) -> list[Setting]:
    return list({tuple(setting.items()): setting for setting in settings}.values())


_LENGTHS = [16, 64, 256, 1024, 4096, 16384, 65536]
_HEAD_DIMS = [1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 512, 1024]

EXPERIMENTS = {
    "formula_lines": Experiment(
        "Which lines do the figures draw beside what is measured?",
        formula_lines,
        quick=[{"curve": "collapse", "n": 0, "x": x} for x in (0.1, 1.0)],
        paper=_unique(_lines()),
    ),
    "eigenvalue_bounds": Experiment(
        "What does the smallest eigenvalue of the Gram matrix allow the mean rank to be, by sequence length?",
        eigenvalue_bounds,
        quick=grid(n=[16, 256], smallest=[0.1, 0.9]),
        paper=grid(
            n=sorted({int(n) for n in np.geomspace(16, 1e12, 60).round()}), smallest=[0.1, 0.3, 0.6, 0.9, 0.99]
        ),
    ),
    "token_conditions": Experiment(
        "How large may the cosines of tokens be, by which theorem, and how large are those of random directions?",
        token_conditions,
        quick=grid(n=[16, 256], d=[256], d_h=[8, 64]),
        paper=[
            *({"n": n, "d": width * n, "d_h": d_h} for n in _LENGTHS for width in (1, 2, 4, 16, 64) for d_h in _HEAD_DIMS),
            *({"n": n, "d": d, "d_h": 64} for n, d in ((16, 192), (64, 192), (256, 192), (4096, 64))),
        ],
    ),
}
