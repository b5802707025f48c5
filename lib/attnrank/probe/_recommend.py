"""The practical rule of the first paper: take the head dimension at which the rank saturates before training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from attnrank import _check
from attnrank.probe._probe import probe

#: Resamples of the seeds from which the interval is read.
RESAMPLES = 2000


@dataclass(frozen=True)
class Recommendation:
    """A head dimension, and how sure it is.

    Attributes
    ----------
    head_dim : the smallest candidate whose mean rank / n is within ``gap`` of that of the largest candidate.
    low, high : 95 % of resamples of the seeds recommend a candidate between these.
    shares : a row for each candidate: head_dim, share (mean over layers, heads, samples and seeds of hardmax rank / n)
        and standard_error over seeds.
    gap : in units of rank / n.
    """

    head_dim: int
    low: int
    high: int
    shares: pd.DataFrame
    gap: float


def recommend_head_dim(
    build: Callable[[int, torch.Generator], nn.Module],
    batch: Tensor | tuple | Mapping | Iterable,
    head_dims: Iterable[int],
    *,
    gap: float = 0.05,
    seeds: int = 8,
    layers: Iterable[str | int] | str | int | None = None,
) -> Recommendation:
    """The head dimension at which the hardmax rank of a model with random weights saturates, on a batch of one's own.

    This is a statement about the rank before training. That accuracy saturates at the same head dimension is the first
    paper's hypothesis, not a theorem.

    Parameters
    ----------
    build : ``build(head_dim, generator)`` returns the model with random weights drawn from the generator. What else
        changes with the head dimension, such as the number of heads, is up to it.
    batch : as for ``attnrank.probe``.
    head_dims : candidates, at least two; saturation is judged against the largest.
    gap : > 0, in units of rank / n.
    seeds : number of random models for each candidate, at least 2; the same seeds for each.
    layers : as for ``attnrank.probe``; None averages over all.

    Returns
    -------
    Recommendation. Where it is the second largest candidate or the largest, the candidates may not reach saturation.

    Raises
    ------
    ValueError : bad arguments, and what ``attnrank.probe`` raises.

    Source: the first paper's practical rule, "check rank saturation before training".
    """
    candidates = sorted({_check.integer("head_dims", d, minimum=1) for d in head_dims})
    if len(candidates) < 2:
        raise ValueError(f"head_dims must have at least two candidates, got {candidates}")
    gap, seeds = _check.real("gap", gap, above=0.0), _check.integer("seeds", seeds, minimum=2)
    batch = batch if isinstance(batch, (Tensor, Mapping, tuple)) else list(batch)
    shares = np.empty((seeds, len(candidates)))
    for seed in range(seeds):
        for place, head_dim in enumerate(candidates):
            model = build(head_dim, torch.Generator().manual_seed(seed))
            frame = probe(model, batch, ranks="hardmax", layers=layers)
            shares[seed, place] = (frame["hardmax_rank"] / frame["n"]).mean()
    resampled = np.random.default_rng(0).integers(seeds, size=(RESAMPLES, seeds))
    chosen = np.sort([_first_saturated(shares[rows].mean(0), gap) for rows in resampled])
    low, high = chosen[round(0.025 * RESAMPLES)], chosen[round(0.975 * RESAMPLES) - 1]
    table = pd.DataFrame(
        {"head_dim": candidates, "share": shares.mean(0), "standard_error": shares.std(0, ddof=1) / seeds**0.5}
    )
    best = _first_saturated(shares.mean(0), gap)
    return Recommendation(candidates[best], candidates[low], candidates[high], table, gap)


def _first_saturated(share: np.ndarray, gap: float) -> int:
    """The first candidate from which on all are within ``gap`` of the last."""
    far = np.flatnonzero(share[-1] - share > gap)
    return int(far[-1]) + 1 if len(far) else 0
