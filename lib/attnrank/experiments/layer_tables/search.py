"""The same number of tries for every cause: which departure from orthonormal tokens comes nearest to the layer
tables?"""

from __future__ import annotations

import torch

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
#: Length: heads. The scatter of a distance between two seeds is then about 0.2 or less where the distance is small.
HEADS = {64: 64, 128: 32}


def layer_search(
    cause: str, amount: float, n: int, power: float, temperature: float, samples: int, seed: int
) -> Setting:
    """One try of the search: :func:`layer_causes`, with settings drawn from the same ranges for every cause."""
    return layer_causes(cause, amount, n, power, temperature, samples, seed)


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
}
