"""The arms of the comparison: which models are trained, and in which order."""

from __future__ import annotations

from collections.abc import Iterable

from attnrank import _check
from attnrank.sweep import Setting

#: The models that are compared, the smallest for photographs and for digits, and larger ones: d = h d_h.
BASES = {
    "photographs": {"width": 64, "depth": 3, "heads": 4, "qk_dim": 16, "value_dim": 16, "mlp_width": 128},
    "digits": {"width": 32, "depth": 2, "heads": 4, "qk_dim": 8, "value_dim": 8, "mlp_width": 64},
    "large photographs": {"width": 128, "depth": 4, "heads": 4, "qk_dim": 32, "value_dim": 32, "mlp_width": 256},
    "wide photographs": {"width": 192, "depth": 4, "heads": 6, "qk_dim": 32, "value_dim": 32, "mlp_width": 384},
}


def head_dims(base: Setting) -> list[int]:
    """1, 2, 4, ... up to the width."""
    return [2**power for power in range(base["width"].bit_length())]


def coupled(base: Setting) -> list[Setting]:
    """The usual parametrisation d = h d_h: a larger head means fewer of them, the parameters stay the same."""
    return [base | {"heads": base["width"] // d, "qk_dim": d, "value_dim": d} for d in head_dims(base)]


def fixed_heads(base: Setting) -> list[Setting]:
    """As many heads whatever their dimension: d != h d_h."""
    return [base | {"qk_dim": d, "value_dim": d} for d in head_dims(base)]


def only_scores(base: Setting) -> list[Setting]:
    """d_qk alone, the values as they are."""
    return [base | {"qk_dim": d} for d in head_dims(base)]


def only_values(base: Setting) -> list[Setting]:
    """d_v alone, queries and keys as they are."""
    return [base | {"value_dim": d} for d in head_dims(base)]


def same_parameters(base: Setting, varied: str = "qk_dim") -> list[Setting]:
    """d_qk alone, or d_v, with as many parameters as nearly as whole units allow: the MLP takes what the heads leave.

    A unit of d_qk costs 2 h (d + 1) parameters, one of d_v h (2 d + 1), one of the MLP's hidden width 2 d + 1.
    """
    width, heads = base["width"], base["heads"]
    unit = {"qk_dim": 2 * heads * (width + 1), "value_dim": heads * (2 * width + 1)}[varied]
    arms = []
    for d in head_dims(base):
        hidden = base["mlp_width"] + round(unit * (base[varied] - d) / (2 * width + 1))
        if hidden > 0:
            arms.append(base | {varied: d, "mlp_width": hidden})
    return arms


def interventions(base: Setting) -> list[Setting]:
    """Rank changed with d_qk and d_v as they are."""
    full = base["qk_dim"]
    chosen = {"qk_norm": (1, 2, 4, full), "tied_qk_norm": (2, full), "tied": (2, full), "frozen": (2, full),
              "frozen_qk_norm": (2, full), "sharp": (2, full), "learned_temperature": (2, full)}
    return [base | {"qk_dim": d, "intervention": name} for name, dims in chosen.items() for d in dims]


#: What says which model a setting trains; the other columns of a run are its data, its budget and its seed.
SHAPE = ("width", "depth", "heads", "qk_dim", "value_dim", "mlp_width", "intervention")


def runs(
    arms: Iterable[Setting], *, dataset: str, patch: int, epochs: int, seeds: Iterable[int], by: str = "seed"
) -> list[Setting]:
    """Settings of `accuracy`: every arm once for each seed, seed by seed or arm by arm (``by`` "seed" or "arm")."""
    distinct = dict.fromkeys(tuple(({"intervention": "none"} | each)[name] for name in SHAPE) for each in arms)
    seeds = list(seeds)
    pairs = {
        "seed": [(each, seed) for seed in seeds for each in distinct],
        "arm": [(each, seed) for each in distinct for seed in seeds],
    }[_check.choice("by", by, ("seed", "arm"))]
    data = {"dataset": dataset, "patch": patch}
    return [data | dict(zip(SHAPE, each, strict=True)) | {"epochs": epochs, "seed": seed} for each, seed in pairs]


def core(base: Setting) -> list[Setting]:
    """The fewest arms that decide: attention or none, d_qk alone, rank moved with d_qk = 2 as it is, d_v alone."""
    uniform, norm, tied = ({"intervention": name} for name in ("uniform", "qk_norm", "tied_qk_norm"))
    small = base | {"qk_dim": 2}
    return [base, base | uniform, base | {"qk_dim": 1}, small, small | norm, small | tied, base | {"value_dim": 1}]


def judging(base: Setting) -> list[Setting]:
    """Every arm of the predictions: `core`, then more of the same, then weights tied or frozen, sharper scores."""
    norms = [base | {"qk_dim": d, "intervention": "qk_norm"} for d in (1, 4)]
    full = [base | {"intervention": name} for name in ("frozen", "tied", "sharp")]
    return [*core(base), norms[0], *full, base | {"qk_dim": 4}, norms[1], base | {"value_dim": 2}]


def deciding(base: Setting) -> list[Setting]:
    """The arms that separate scores, values and rank, least first: what is trained with every seed before the rest."""
    changed, scores, values = interventions(base), only_scores(base), only_values(base)
    return [base, *scores[:3], *values[:2], *changed[:3], changed[4], coupled(base)[0], coupled(base)[-1]]


def completing(base: Setting) -> list[Setting]:
    """What is wanted next: no attention at all, frozen and tied weights, the rest of d = h d_h, the other lines."""
    full = [base | {"intervention": name} for name in ("uniform", "frozen", "tied")]
    small = len([d for d in head_dims(base) if d < base["qk_dim"]])
    lines = [*fixed_heads(base)[:3], *only_scores(base)[:small], *only_values(base)[:small]]
    return [*full, *coupled(base)[2:-1], coupled(base)[1], *lines, base | {"intervention": "sharp"}]


def lines(base: Setting) -> list[Setting]:
    """Accuracy against head dimension along each line, the cheapest first: d != h d_h, d_qk, d_v, then d = h d_h."""
    return [*fixed_heads(base), *only_scores(base), *only_values(base), *reversed(coupled(base))]


def all_arms(base: Setting) -> list[Setting]:
    """Every arm once, those that decide first."""
    changed, scores, values = interventions(base), only_scores(base), only_values(base)
    rest = [*scores, *values, *changed, *coupled(base), *same_parameters(base), *fixed_heads(base)]
    return [*deciding(base), *rest, base | {"intervention": "uniform"}]
