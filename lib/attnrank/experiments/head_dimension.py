"""Tables behind chapter 03: head dimension, its increments, and what normalising keys or queries does."""

from __future__ import annotations

import math

import torch
from scipy import optimize
from torch import Tensor

from attnrank import _check, theory
from attnrank.experiments.counting import hardmax_rank_on_device
from attnrank.experiments.experiment import Experiment
from attnrank.experiments.synthetic import random_heads
from attnrank.sweep import Setting, grid

#: What is brought to unit length before the scores.
NORMALISED = ("none", "keys", "queries", "both")

#: When a head is called large enough: see :func:`saturation`.
SATURATION_RULES = ("gap", "increment", "doubling")


def rank_increments(n: int, d_h: int, samples: int, seed: int) -> Setting:
    """Hardmax rank of random heads at ``d_h`` and what one more head dimension adds to it, on the same heads.

    The heads of dimension d_h are those of dimension d_h + 1 without their last coordinate, so that the increment has
    a far smaller variance than the two ranks. ``samples`` >= 2 heads; units of rank.
    """
    n, d_h = _check.integer("n", n, minimum=1), _check.integer("d_h", d_h, minimum=1)
    samples = _check.integer("samples", samples, minimum=2)
    generator = torch.Generator().manual_seed(_check.integer("seed", seed, minimum=0))
    before, after = [], []
    for shape in _batches(samples, n, d_h + 1):
        q = torch.randn(shape, generator=generator, dtype=torch.float64)
        k = torch.randn(shape, generator=generator, dtype=torch.float64)
        before.append(hardmax_rank_on_device(q[..., :-1], k[..., :-1]))
        after.append(hardmax_rank_on_device(q, k))
    rank, increment = torch.cat(before).double(), (torch.cat(after) - torch.cat(before)).double()
    return {
        "rank_mean": rank.mean().item(),
        "rank_standard_error": rank.std().item() / math.sqrt(samples),
        "increment_mean": increment.mean().item(),
        "increment_standard_error": increment.std().item() / math.sqrt(samples),
    }


def increment_rule(n: int, heads: int, threshold: float, largest: int, seed: int) -> Setting:
    """The smallest d_h at which one more dimension raises the mean rank / n of ``heads`` new heads by <= ``threshold``.

    Each head dimension 1, 2, ... has heads of its own, as when a curve is measured point by point and the rule is then
    applied to it; ``largest`` where the rule never stops.
    """
    threshold = _check.real("threshold", threshold, above=0.0)
    previous = random_heads(n, 1, heads, seed)["rank_mean"] / n
    for d_h in range(1, _check.integer("largest", largest, minimum=1)):
        following = random_heads(n, d_h + 1, heads, seed + 1_000_003 * d_h)["rank_mean"] / n
        if following - previous <= threshold:
            return {"d_h": float(d_h)}
        previous = following
    return {"d_h": float(largest)}


def normalised_heads(n: int, d_h: int, normalised: str, gain_spread: float, samples: int, seed: int) -> Setting:
    """Hardmax rank of random heads on orthonormal tokens whose keys or queries are normalised (``NORMALISED``).

    What is normalised is then multiplied by one positive gain per coordinate, as by an RMSNorm that has learned one:
    log-normal, with ``gain_spread`` the standard deviation of its logarithm (0: no gain), drawn anew for each head and
    separately for queries and keys. ``samples`` >= 2 heads; units of rank.
    """
    n, d_h = _check.integer("n", n, minimum=1), _check.integer("d_h", d_h, minimum=1)
    what = _check.choice("normalised", normalised, NORMALISED)
    spread = _check.real("gain_spread", gain_spread, minimum=0.0)
    samples = _check.integer("samples", samples, minimum=2)
    generator = torch.Generator().manual_seed(_check.integer("seed", seed, minimum=0))
    ranks = []
    for shape in _batches(samples, n, d_h):
        q = torch.randn(shape, generator=generator, dtype=torch.float64)
        k = torch.randn(shape, generator=generator, dtype=torch.float64)
        if what in ("queries", "both"):
            q = _normalise(q, spread, generator)
        if what in ("keys", "both"):
            k = _normalise(k, spread, generator)
        ranks.append(hardmax_rank_on_device(q, k))
    rank = torch.cat(ranks).double()
    return {"rank_mean": rank.mean().item(), "rank_standard_error": rank.std().item() / math.sqrt(samples)}


def _normalise(x: Tensor, gain_spread: float, generator: torch.Generator) -> Tensor:
    unit = torch.nn.functional.normalize(x, dim=-1)
    if gain_spread == 0:
        return unit
    return unit * torch.randn(len(x), 1, x.shape[-1], generator=generator, dtype=torch.float64).mul(gain_spread).exp()


def head_dimension_bounds(n: int, d_h: int) -> Setting:
    """What is known about the mean rank of random heads: barrier, upper and lower bound, polytope bound; units of rank."""
    return {
        "barrier": theory.occupancy_bound(n),
        "upper": theory.head_dim_bound(n, d_h),
        "lower": theory.head_dim_lower_bound(n, d_h),
        "vertices": theory.polytope_vertices(n, d_h),
    }


def saturation(n: int, rule: str, level: float) -> Setting:
    """Head dimension at which ``head_dim_bound`` / n saturates, under one of three rules (``SATURATION_RULES``).

    "gap": it is within ``level`` of the barrier. "increment": from here on, one more dimension adds at most ``level``.
    "doubling": from here on, twice the dimension adds at most ``level``.
    """
    rule = _check.choice("rule", rule, SATURATION_RULES)
    if rule == "gap":
        return {"d_h": theory.saturation_head_dim(n, level)}
    if rule == "increment":
        return {"d_h": theory.marginal_head_dim(n, level)}
    return {"d_h": _doubling_head_dim(n, level)}


def _doubling_head_dim(n: int, level: float) -> float:
    """The gain of a doubling rises to its largest value, where v is near 4, and then falls for good."""

    def excess(d_h: float) -> float:
        return (theory.head_dim_bound(n, 2 * d_h) - theory.head_dim_bound(n, d_h)) / n - level

    high = max(1.0, theory.lognormal_variance(n, 1.0) / 4.0)
    if excess(high) <= 0:
        raise ValueError(f"level must be below the largest gain of a doubling, got {level!r} for n = {n}")
    low = high
    while excess(high) > 0:
        low, high = high, 2 * high
    return float(optimize.brentq(excess, low, high, rtol=1e-9))


def _batches(samples: int, n: int, d_h: int) -> list[tuple[int, int, int]]:
    """Shapes (heads, n, d_h) that add up to ``samples`` heads; the queries of a batch fill at most 32 MiB."""
    together = max(1, 2**22 // (n * max(n, d_h)))
    return [(min(together, samples - start), n, d_h) for start in range(0, samples, together)]


def _heads(n: int, d_h: int) -> int:
    """So many heads that the standard error of rank / n is below 5e-4.

    The standard deviation of rank / sqrt(n) is 0.32 for wide heads; where the keys are most unequal it reaches 0.35 for
    short sequences and 0.46 for long ones.
    """
    if n == 4096 and d_h > 64:
        return 620_000 // n
    if d_h >= 512 or (d_h > 64 and n <= 64):
        return 420_000 // n
    if d_h > 64:
        return (620_000 if (n, d_h) == (2048, 128) else 520_000) // n
    return (600_000 if n <= 64 else 1_000_000 if n >= 1024 and d_h >= 8 else 700_000) // n


_LENGTHS = [2**octave for octave in range(4, 13)]
#: At n = 65,536 a row has two heads only, so that a sweep can be interrupted; a chapter pools the rows of all seeds.
_LONG = [{"n": 65536, "d_h": d_h, "samples": 2, "seed": 3 + k} for d_h, rows in ((2, 8), (16, 4), (64, 4)) for k in range(rows)]


def _wide() -> list[Setting]:
    fine = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
    coarse = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
    head_dims = {n: fine for n in (16, 32, 64)} | {n: coarse for n in (256, 1024, 4096)}
    head_dims |= {128: (1, 2, 3, 4, 8, 16, 24, 32, 48, 64), 512: (8, 32, 48, 64, 96), 2048: (8, 48, 64, 96, 128, 192)}
    head_dims[256] += (24, 48)
    head_dims[1024] += (48, 96)
    head_dims[4096] += (96, 192)
    cells = [(n, d_h) for n in _LENGTHS for d_h in head_dims[n]]
    cells += [(n, d_h) for n in (16, 64, 256, 1024, 4096) for d_h in (1024, 4096)] + [(n, 512) for n in (16, 32, 64)]
    return [{"n": n, "d_h": d_h, "samples": _heads(n, d_h), "seed": 3} for n, d_h in cells]


def _increments() -> list[Setting]:
    """Enough heads that the standard error of an increment / n is about 5e-4 (1e-3 for n > 800)."""
    queries = {n: 400_000 for n in (16, 32, 50, 64, 100, 128, 200, 256, 400, 512, 800)}
    queries |= {1024: 200_000, 2048: 150_000, 4096: 100_000}
    head_dims = (1, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20)
    return [
        {"n": n, "d_h": d_h, "samples": total // n, "seed": 4} for n, total in queries.items() for d_h in head_dims
    ]


def _normalised() -> list[Setting]:
    def rows(n: int, d_h: int, normalised: str, gain_spread: float, samples: int) -> Setting:
        return {"n": n, "d_h": d_h, "normalised": normalised, "gain_spread": gain_spread, "samples": samples, "seed": 5}

    lengths, head_dims = (64, 256, 1024, 4096), (2, 3, 4, 5, 6, 8, 12, 16, 32, 64, 128)
    plain = [rows(n, d_h, "keys", 0.0, 400_000 // n) for n in lengths for d_h in head_dims]
    controls = [
        rows(1024, d_h, normalised, spread, 200)
        for d_h in (4, 8, 16, 32, 64, 128)
        for normalised, spread in (("none", 0.0), ("queries", 0.0), ("keys", 0.5), ("both", 0.25), ("both", 0.5), ("both", 1.0))
    ]
    long = [rows(65536, d_h, "keys", 0.0, 2) | {"seed": seed} for d_h in (2, 3, 8) for seed in (5, 6, 7)]
    return plain + controls + long


_CURVE = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256,
          320, 384, 448, 512, 640, 768, 1024, 1280, 1536, 2048, 2560, 3072, 4096)  # fmt: skip
_OCTAVES = {"gap": [*range(4, 41)]} | dict.fromkeys(("increment", "doubling"), [*range(4, 21), 24, 28, 32, 36, 40])
_LEVELS = (("gap", 0.1), ("gap", 0.05), ("increment", 0.01), ("increment", 0.001), ("doubling", 0.01))

EXPERIMENTS = {
    "head_dimension": Experiment(
        "How close is the rank of random heads to its bounds, over nine octaves of length and twelve of head dimension?",
        random_heads,
        quick=grid(n=[16, 64, 256], d_h=[1, 2, 4, 8, 16, 32, 64], samples=[200], seed=[3]),
        paper=_wide() + _LONG,
    ),
    "rank_increments": Experiment(
        "How much rank does one more head dimension add?",
        rank_increments,
        quick=grid(n=[16, 64], d_h=[1, 2, 4, 8, 16], samples=[400], seed=[4]),
        paper=_increments(),
    ),
    "normalised_heads": Experiment(
        "What is the rank of random heads whose keys or queries are normalised?",
        normalised_heads,
        quick=grid(n=[64, 256], d_h=[2, 4, 8], normalised=["none", "keys"], gain_spread=[0.0], samples=[100], seed=[5]),
        paper=_normalised(),
    ),
    "head_dimension_bounds": Experiment(
        "Between which bounds does the mean rank of random heads lie?",
        head_dimension_bounds,
        quick=grid(n=[16, 64], d_h=[1, 2, 4, 8, 16, 32, 64]),
        paper=grid(n=[*_LENGTHS, 2**16, 10**6], d_h=list(_CURVE)),
    ),
    "saturation": Experiment(
        "At what head dimension does the bound saturate, by which rule?",
        saturation,
        quick=[{"n": n, "rule": "gap", "level": 0.1} for n in (16, 256, 4096)],
        paper=[
            {"n": 2**octave, "rule": rule, "level": level} for rule, level in _LEVELS for octave in _OCTAVES[rule]
        ],
    ),
    "increment_rule": Experiment(
        "Where does the rule 'increment at most 0.01' stop when it is applied to the measured ranks of a few heads?",
        increment_rule,
        quick=grid(n=[16, 50], heads=[10], threshold=[0.01], largest=[64], seed=list(range(5))),
        paper=grid(n=[50, 100, 200, 400], heads=[10, 100], threshold=[0.01], largest=[64], seed=list(range(40))),
    ),
}
