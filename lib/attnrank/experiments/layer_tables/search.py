"""The same number of tries for every cause: which departure from orthonormal tokens comes nearest to the layer
tables? And the settings that were chosen, again with many heads."""

from __future__ import annotations

import torch

from attnrank import _check
from attnrank.experiments.experiment import Experiment, Rounding
from attnrank.experiments.layer_tables.causes import CAUSES, layer_causes
from attnrank.sweep import Setting

TRIES = 24
#: Range of the amount of each cause; the others have none, and their tries differ in length and temperature only.
RANGES = {
    "repeated": (0.05, 1.0),
    "zipf": (0.8, 2.0),
    "padding": (0.0, 0.95),
    "masked": (0.0, 0.95),
    "directions": (2.0, 16.0),
    "cosine": (0.0, 0.98),
}
#: Length: heads of a try.
HEADS = {64: 64, 128: 32}
#: What ``layer_causes`` and then ``layer_search`` chose for each cause, by the distance of seed 0: cause, amount, n,
#: power, temperature, and heads enough for a distance that is known to about 0.2.
CHOSEN = {
    "layer_causes": [
        ("none", 0.0, 256, 1.0, 0.3, 128),
        ("repeated", 0.265, 512, 0.5, 4.0, 32),
        ("zipf", 1.25, 384, 0.0, 1.0, 64),
        ("padding", 0.74, 512, 0.5, 2.0, 64),
        ("masked", 0.74, 384, 0.5, 4.0, 32),
        ("directions", 6.0, 256, 0.0, 1.0, 384),
        ("cosine", 0.5, 384, 0.5, 0.1, 384),
        ("tied", 0.0, 256, 1.0, 1.0, 128),
        ("unit_keys", 0.0, 192, 1.0, 0.3, 128),
        ("causal", 0.0, 256, 0.5, 0.1, 128),
    ],
    "layer_search": [
        ("none", 0.0, 128, 1.0, 0.164, 256),
        ("repeated", 0.633, 128, 0.0, 0.104, 256),
        ("zipf", 1.278, 128, 0.0, 0.152, 256),
        ("padding", 0.54, 128, 1.0, 0.1, 512),
        ("masked", 0.03, 128, 1.0, 0.223, 256),
        ("directions", 11.0, 128, 0.0, 0.181, 512),
        ("cosine", 0.36, 128, 0.0, 0.415, 1024),
        ("tied", 0.0, 128, 1.0, 0.309, 256),
        ("unit_keys", 0.0, 128, 1.0, 0.198, 256),
        ("causal", 0.0, 128, 0.0, 0.228, 256),
    ],
}


def layer_search(
    cause: str, amount: float, n: int, power: float, temperature: float, samples: int, seed: int
) -> Setting:
    """One try of the search: :func:`layer_causes`, with settings drawn from the same ranges for every cause."""
    return layer_causes(cause, amount, n, power, temperature, samples, seed)


def layer_finals(
    chosen_by: str, cause: str, amount: float, n: int, power: float, temperature: float, samples: int, seed: int
) -> Setting:
    """:func:`layer_causes` at a setting that the table ``chosen_by`` chose, with heads that had no part in it."""
    _check.choice("chosen_by", chosen_by, tuple(CHOSEN))
    return layer_causes(cause, amount, n, power, temperature, samples, seed)


def finals(limit: int | None = None) -> list[Setting]:
    """The settings of ``layer_finals``, with at most so many heads each."""
    names = ("cause", "amount", "n", "power", "temperature", "samples")
    return [
        {"chosen_by": table} | dict(zip(names, chosen, strict=True)) | {"samples": min(chosen[-1], limit or chosen[-1])}
        | {"seed": seed}
        for table, settings in CHOSEN.items()
        for chosen in settings
        for seed in (2, 3)
    ]  # fmt: skip


def tries(count: int, heads: dict[int, int]) -> list[Setting]:
    """``count`` settings a cause, a Latin hypercube of amount, length, power and temperature; each with two seeds."""
    settings = []
    for index, cause in enumerate(CAUSES):
        generator = torch.Generator().manual_seed(index)
        cells = torch.stack([torch.randperm(count, generator=generator) for _ in range(4)], -1)
        points = (cells + torch.rand(count, 4, generator=generator, dtype=torch.float64)) / count
        for u in points.tolist():
            low, high = RANGES.get(cause, (0.0, 0.0))
            amount = low + (high - low) * u[0]
            n = list(heads)[int(len(heads) * u[1])]
            setting = {
                "cause": cause,
                "amount": float(round(amount) if cause == "directions" else round(amount, 3)),
                "n": n,
                "power": (0.0, 0.5, 1.0)[int(3 * u[2])],
                "temperature": float(f"{0.1 * 50.0 ** u[3]:.3g}"),  # 0.1 to 5
                "samples": heads[n],
            }
            settings += [setting | {"seed": seed} for seed in (0, 1)]
    return settings


EXPERIMENTS = {
    "layer_search": Experiment(
        "With as many tries for each, which single departure from orthonormal tokens comes nearest to the layer "
        "tables?",
        layer_search,
        quick=tries(1, {64: 2}),
        paper=tries(TRIES, HEADS),
        chapter="layer_tables",
        repeats=Rounding(1e-9),
    ),
    "layer_finals": Experiment(
        "How far from the layer tables are the settings that were chosen, with other heads and many of them?",
        layer_finals,
        quick=finals(1)[-2:],
        paper=finals(),
        chapter="layer_tables",
        repeats=Rounding(1e-9),
    ),
}
