"""The practical rule of the first paper: take the head dimension at which the rank saturates before training."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from attnrank import _check
from attnrank.probe import hub
from attnrank.probe._arguments import Choice, batches_of
from attnrank.probe._probe import probe

#: Resamples of the seeds from which the interval is read.
RESAMPLES = 2000


@dataclass(frozen=True)
class Recommendation:
    """A head dimension, and how sure it is.

    Attributes
    ----------
    head_dim : the smallest candidate from which on every mean rank / n is at most ``gap`` below that of the largest.
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
    build: Callable[[int, torch.Generator], nn.Module] | Any,
    batch: Tensor | tuple | Mapping | Iterable,
    head_dims: Iterable[int],
    *,
    n: int | None = None,
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
        changes with the head dimension, such as the number of heads, is up to it. Or a configuration of transformers,
        such as ``AutoConfig.from_pretrained(name)``: its ``head_dim`` changes, or, where it has none, as in BERT, GPT-2
        and ViT, the number of heads (of encoder and decoder) at the same width, which the candidates must divide.
    batch : as for ``attnrank.probe``.
    head_dims : candidates, at least two; saturation is judged against the largest.
    n : cut the batch down to this many tokens (the second dimension of its tensors); None takes it as it is.
    gap : > 0, in units of rank / n.
    seeds : number of random models for each candidate, at least 2; the same seeds for each.
    layers : as for ``attnrank.probe``; None averages over all.

    Returns
    -------
    Recommendation. Where it is the second largest candidate or the largest, the candidates may not reach saturation.

    Raises
    ------
    ValueError : bad arguments, a configuration in which a measured layer does not take on the head dimension, and what
        ``attnrank.probe`` raises.

    Source: the first paper's practical rule, "check rank saturation before training".
    """
    if not isinstance(head_dims, Iterable):
        raise ValueError(f"head_dims must be several integers, got {head_dims!r}")
    candidates = sorted({_check.integer("head_dims", d, minimum=1) for d in head_dims})
    if len(candidates) < 2:
        raise ValueError(f"head_dims must have at least two candidates, got {candidates}")
    gap, seeds = _check.real("gap", gap, above=0.0), _check.integer("seeds", seeds, minimum=2)
    layers = Choice(layers).layers  # a list: every model is asked for the same
    batches_of(batch)  # refuses what is none
    batch = batch if isinstance(batch, (Tensor, Mapping, tuple)) else list(batch)
    if n is not None:
        batch = _cut(batch, _check.integer("n", n, minimum=1))
    configured = not callable(build)
    if configured:
        build = hub.builder(build)
    _check_build(build)
    shares = np.empty((seeds, len(candidates)))
    for seed in range(seeds):
        for place, head_dim in enumerate(candidates):
            model = _built(build, head_dim, seed)
            frame = probe(model, batch, ranks="hardmax", layers=layers, per_sample=True)
            if configured:
                _check_head_dim(frame, head_dim)
            shares[seed, place] = _share(frame)
    resampled = np.random.default_rng(0).integers(seeds, size=(RESAMPLES, seeds))
    chosen = np.sort([_first_saturated(shares[rows].mean(0), gap) for rows in resampled])
    low, high = chosen[round(0.025 * RESAMPLES)], chosen[round(0.975 * RESAMPLES) - 1]
    table = pd.DataFrame(
        {"head_dim": candidates, "share": shares.mean(0), "standard_error": shares.std(0, ddof=1) / seeds**0.5}
    )
    best = _first_saturated(shares.mean(0), gap)
    return Recommendation(candidates[best], candidates[low], candidates[high], table, gap)


def _check_build(build: Callable) -> None:
    """Raise ValueError for what cannot be called with a head dimension and a generator."""
    if isinstance(build, nn.Module):
        raise ValueError(
            "build must be a function that returns a model, or a configuration of transformers, got a model"
        )
    try:
        signature = inspect.signature(build)
    except (ValueError, TypeError):  # some that are written in C do not say
        return
    try:
        signature.bind(8, None)
    except TypeError as error:
        name = getattr(build, "__name__", type(build).__name__)
        raise ValueError(f"build must be callable as build(head_dim, generator), and {name} is not: {error}") from None


def _built(build: Callable, head_dim: int, seed: int) -> nn.Module:
    model = build(head_dim, torch.Generator().manual_seed(seed))
    if not isinstance(model, nn.Module):
        got = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
        raise ValueError(f"build({head_dim}, generator) must return a model, a torch.nn.Module, got {got}")
    return model


def _check_head_dim(frame: pd.DataFrame, head_dim: int) -> None:
    """Raise ValueError if a layer has another head dimension than was asked for."""
    other = frame[frame["head_dim"] != head_dim]
    if len(other):
        layer, found = other.iloc[0][["layer", "head_dim"]]
        raise ValueError(
            f"build must be a function: of this configuration, layer {layer} has head dimension {found} where "
            f"{head_dim} was asked for; choose other layers with layers="
        )


def _share(frame: pd.DataFrame) -> float:
    """Mean over layers and heads of the mean over samples of hardmax rank / n; samples may differ in n."""
    share = frame["hardmax_rank"] / frame["n"]
    return float(share.groupby([frame["layer"], frame["head"]]).mean().mean())


def _cut(batch: Any, n: int) -> Any:
    """The first n tokens of everything in a batch that has a token dimension, the second."""
    if isinstance(batch, Mapping):
        return {name: _cut(value, n) for name, value in batch.items()}
    if isinstance(batch, (tuple, list)):
        return type(batch)(_cut(value, n) for value in batch)
    if not isinstance(batch, Tensor) or batch.ndim < 2:
        return batch
    if batch.ndim > 3 or batch.shape[1] < n:
        raise ValueError(
            f"n must be at most the number of tokens of a batch (samples, tokens) or (samples, tokens, width), "
            f"got n = {n} for shape {tuple(batch.shape)}"
        )
    return batch[:, :n]


def _first_saturated(share: np.ndarray, gap: float) -> int:
    """The first candidate from which on all are within ``gap`` of the last."""
    far = np.flatnonzero(share[-1] - share > gap)
    return int(far[-1]) + 1 if len(far) else 0
