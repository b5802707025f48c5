"""Samples of ranks: generators, batches, means and standard errors."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnrank import _check
from attnrank.sweep import Setting


def seeded(seed: int) -> torch.Generator:
    """A generator on the CPU with this seed >= 0."""
    return torch.Generator().manual_seed(_check.integer("seed", seed, minimum=0))


def batches(samples: int, entries: int, limit: int) -> list[int]:
    """Sizes of batches that add up to ``samples``, of at most ``limit`` numbers at ``entries`` a sample, or of one.

    Queries and keys of a batch are drawn at once, so that a table's limits belong to its order of draws.
    """
    together = max(1, limit // entries)
    return [min(together, samples - start) for start in range(0, samples, together)]


def summary(name: str, values: Tensor, *, std: bool = False) -> Setting:
    """Mean and standard error of ``values`` (samples,) as columns, between them the standard deviation if ``std``."""
    values = values.double()
    deviation = values.std().item()
    middle = {f"{name}_std": deviation} if std else {}
    error = deviation / math.sqrt(len(values))
    return {f"{name}_mean": values.mean().item(), **middle, f"{name}_standard_error": error}
