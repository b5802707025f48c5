"""Tables of the chapter growth: where rules of saturation stop, on bounds and on measured curves, seed by seed."""

from __future__ import annotations

import math

import scipy
import torch
from torch import Tensor

from attnrank import _check, theory
from attnrank.experiments.experiment import Exact, Experiment, Rounding
from attnrank.experiments.shared.distributions import DISTRIBUTIONS, WIDTHS, projections
from attnrank.experiments.shared.heads import SMALL, hardmax_rank_on_device, random_heads
from attnrank.experiments.shared.statistics import batches, seeded
from attnrank.sweep import Setting, grid

#: When a head is called large enough: see :func:`saturation`.
SATURATION_RULES = ("gap", "increment", "doubling")


#: Between the seeds of one head dimension and of the next, so that no two rows of a curve share a seed.
NEXT_SEED = 1_000_003


def increment_rule(n: int, heads: int, threshold: float, largest: int, seed: int) -> Setting:
    """The smallest d_h at which one more dimension raises the mean rank / n of ``heads`` new heads by <= ``threshold``.

    Each head dimension 1, 2, ... has heads of its own, as when a curve is measured point by point and the rule,
    :func:`attnrank.theory.increment_stop`, is then applied to it; ``largest`` where the rule never stops.
    """
    threshold = _check.real("threshold", threshold, above=0.0)
    ranks: list[float] = []
    for d_h in range(1, _check.integer("largest", largest, minimum=1) + 1):
        ranks.append(random_heads(n, d_h, heads, seed + NEXT_SEED * (d_h - 1))["rank_mean"] / n)
        stop = theory.increment_stop(ranks, threshold)
        if stop is not None:
            return {"d_h": stop}
    return {"d_h": float(largest)}


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
    return {"d_h": theory.doubling_head_dim(n, level)}


#: Heads that are sized: Gaussian keys, with and without a causal mask, and keys brought to one length.
SIZED = ("gaussian", "causal", "normalised")


def sizing(n: int, kind: str, gap: float) -> Setting:
    """Smallest head dimension at which a bound on the mean rank of one ``kind`` of head is within gap n of its limit.

    For "gaussian" and "causal" the bound is from above: a smaller head is farther from the limit, whatever it measures.
    For "normalised" it is from below, and for d_h = 2 the mean rank itself: a head of this dimension is within the gap.
    """
    loss = {"gaussian": _gaussian_loss, "causal": _causal_loss, "normalised": _normalised_loss}[
        _check.choice("kind", kind, SIZED)
    ]
    n, gap = _check.integer("n", n, minimum=3), _check.real("gap", gap, above=0.0)
    low, high = 0, 2**20  # too small, large enough
    d_h = 4 if kind == "normalised" else math.ceil(theory.lognormal_variance(n, 1) / (8.0 * gap))
    while high - low > 1:
        d_h = min(max(d_h, low + 1), high - 1)
        found = loss(n, d_h)
        low, high = (low, d_h) if found <= gap else (d_h, high)
        d_h = math.ceil(d_h * found / gap)  # the loss is nearly inversely proportional to the head dimension
    return {"d_h": high}


def _gaussian_loss(n: int, d_h: int) -> float:
    return (theory.occupancy_bound(n) - theory.head_dim_bound(n, d_h)) / n


def _causal_loss(n: int, d_h: int) -> float:
    return (theory.causal_limit(n) - theory.causal_head_dim_bound(n, d_h)) / n


def _normalised_loss(n: int, d_h: int) -> float:
    if d_h == 1:  # two keys can win
        return theory.occupancy_bound(n) / n - (2.0 - 2.0 ** (1 - n)) / n
    least = 1.0 - scipy.special.hyp2f1(-n, 2, n, 0.5) if d_h == 2 else theory.normalised_lower_bound(n, d_h) / n
    return theory.occupancy_bound(n) / n - least


_OCTAVES = {"gap": [*range(4, 41)]} | dict.fromkeys(("increment", "doubling"), [*range(4, 21), 24, 28, 32, 36, 40])
_LEVELS = (("gap", 0.1), ("gap", 0.05), ("increment", 0.01), ("increment", 0.001), ("doubling", 0.01))
#: Weights of their own at every head dimension, or the leading coordinates of one large head.
DESIGNS = ("independent", "nested")
THRESHOLD, GAP = 0.01, 0.1
#: Head dimensions at which a curve is measured: by ones as far as the increment rule looks, then coarser.
STEPS = tuple(range(1, 33))
HEAD_DIMS = (*STEPS, 40, 48, 64, 80, 96, 128)


def saturation_trial(distribution: str, n: int, d: int, design: str, repetitions: int, seed: int) -> Setting:
    """Saturated head dimension by both rules, read off one measured curve.

    The curve is the mean rank / n of ``repetitions`` token sequences, each with one head at every one of ``HEAD_DIMS``
    (``DESIGNS``). Increment rule: :func:`attnrank.theory.increment_stop` at 0.01. Gap rule: the first d_h within 0.1 of
    the barrier.
    """
    _check.choice("design", design, DESIGNS)
    repetitions = _check.integer("repetitions", repetitions, minimum=1)
    generator = seeded(seed)
    total = torch.zeros(len(HEAD_DIMS), dtype=torch.float64)
    for batch in batches(repetitions, n * sum(HEAD_DIMS), SMALL):
        total += _curves(distribution, n, d, design, batch, generator).sum(0)
    ranks = (total / (repetitions * n)).numpy()
    return {
        "increment_d_h": theory.increment_stop(ranks[: len(STEPS)], THRESHOLD),
        "gap_d_h": theory.gap_stop(HEAD_DIMS, ranks, theory.occupancy_bound(n) / n - GAP),
    }


def _curves(distribution: str, n: int, d: int, design: str, batch: int, generator: torch.Generator) -> Tensor:
    """Ranks (batch, head dimensions) of heads on ``batch`` token sequences."""
    widths = HEAD_DIMS if design == "independent" else HEAD_DIMS[-1:]
    y = torch.stack([projections(distribution, n, d, 2 * sum(widths), generator) for _ in range(batch)])
    if design == "independent":
        parts = y.split([width for width in widths for _ in range(2)], -1)
        pairs = list(zip(parts[::2], parts[1::2], strict=True))
    else:
        q, k = y.chunk(2, -1)
        pairs = [(q[..., :d_h], k[..., :d_h]) for d_h in HEAD_DIMS]
    return torch.stack([hardmax_rank_on_device(q, k) for q, k in pairs], -1).double()


#: No number of repetitions has more trials: their seeds begin at this many times the number.
MOST_TRIALS = 1000


def _trials(distribution: str, n: int, design: str, repetitions: int, trials: int) -> list[Setting]:
    return grid(
        distribution=[distribution], n=[n], d=[WIDTHS[n]], design=[design], repetitions=[repetitions],
        seed=[MOST_TRIALS * repetitions + trial for trial in range(trials)],
    )  # fmt: skip


EXPERIMENTS = {
    "saturation": Experiment(
        "At what head dimension does the bound saturate, by which rule?",
        saturation,
        quick=[{"n": n, "rule": "gap", "level": 0.1} for n in (16, 256, 4096)],
        paper=[
            {"n": 2**octave, "rule": rule, "level": level} for rule, level in _LEVELS for octave in _OCTAVES[rule]
        ],
        chapter="growth",
        repeats=Rounding(1e-8),  # of a difference of two bounds, solved to 1e-9
    ),
    "sizing": Experiment(
        "How large must a head be for a given distance from the largest rank that it can have?",
        sizing,
        quick=grid(n=[128, 1024], kind=["gaussian", "normalised"], gap=[0.1, 0.05]),
        paper=grid(n=[2**octave for octave in range(7, 18)], kind=list(SIZED), gap=[0.1, 0.05, 0.01]),
        chapter="growth",
        repeats=Exact(),
    ),
    "increment_rule": Experiment(
        "Where does the rule 'increment at most 0.01' stop when it is applied to the measured ranks of a few heads?",
        increment_rule,
        quick=grid(n=[16, 50], heads=[10], threshold=[0.01], largest=[64], seed=list(range(5))),
        paper=grid(n=[50, 100, 200, 400], heads=[10, 100], threshold=[0.01], largest=[64], seed=list(range(40))),
        chapter="growth",
        repeats=Exact(),
        version=2,  # an increment of just the threshold stops the rule, however it is rounded
    ),
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
        chapter="growth",
        repeats=Exact(),
    ),
}  # fmt: skip
