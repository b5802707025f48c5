"""The arms of the comparison: which models are trained, and in which order."""

from __future__ import annotations

from collections.abc import Iterable

from attnrank.sweep import Setting

#: The smallest models that are compared, one for photographs and one for digits: d = h d_h.
BASES = {
    "photographs": {"width": 64, "depth": 3, "heads": 4, "qk_dim": 16, "value_dim": 16, "mlp_width": 128},
    "digits": {"width": 32, "depth": 2, "heads": 4, "qk_dim": 8, "value_dim": 8, "mlp_width": 64},
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


def same_parameters(base: Setting) -> list[Setting]:
    """d_qk alone with as many parameters as nearly as whole units allow: the MLP takes what queries and keys leave.

    A unit of d_qk costs 2 h (d + 1) parameters, one of the MLP's hidden width 2 d + 1.
    """
    arms = []
    for d in head_dims(base):
        freed = 2 * base["heads"] * (base["width"] + 1) * (base["qk_dim"] - d)
        hidden = base["mlp_width"] + round(freed / (2 * base["width"] + 1))
        if hidden > 0:
            arms.append(base | {"qk_dim": d, "mlp_width": hidden})
    return arms


def interventions(base: Setting) -> list[Setting]:
    """Rank changed with d_qk and d_v as they are."""
    full = base["qk_dim"]
    chosen = {"qk_norm": (1, 2, 4, full), "tied_qk_norm": (2, full), "tied": (2, full), "frozen": (2, full),
              "frozen_qk_norm": (2, full), "sharp": (2, full), "learned_temperature": (2, full)}
    return [base | {"qk_dim": d, "intervention": name} for name, dims in chosen.items() for d in dims]


def runs(
    arms: Iterable[Setting], *, dataset: str, patch: int, epochs: int, seeds: Iterable[int]
) -> list[Setting]:
    """Settings of `accuracy`: every arm once for each seed, seed by seed; an arm that is named twice is run once."""
    full = [{"intervention": "none"} | each for each in arms]
    names = ("width", "depth", "heads", "qk_dim", "value_dim", "mlp_width", "intervention")
    distinct = dict.fromkeys(tuple(each[name] for name in names) for each in full)
    data = {"dataset": dataset, "patch": patch}
    return [data | dict(zip(names, each, strict=True)) | {"epochs": epochs, "seed": seed}
            for seed in seeds for each in distinct]  # fmt: skip


def deciding(base: Setting) -> list[Setting]:
    """The arms that separate scores, values and rank, least first: what is trained with every seed before the rest."""
    changed, scores, values = interventions(base), only_scores(base), only_values(base)
    return [base, *scores[:3], *values[:2], *changed[:3], changed[4], coupled(base)[0], coupled(base)[-1]]


def all_arms(base: Setting) -> list[Setting]:
    """Every arm once, those that decide first."""
    changed, scores, values = interventions(base), only_scores(base), only_values(base)
    rest = [*scores, *values, *changed, *coupled(base), *same_parameters(base), *fixed_heads(base)]
    return [*deciding(base), *rest]
