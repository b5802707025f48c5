"""Keys that tie by the thousand: copies of a key, and scores so coarse that float64 computes them without error."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def distinct_rows(k: Tensor) -> Tensor:
    """Indices of the rows of ``k`` (m, d_h) that equal no earlier row, ascending."""
    rows, group = torch.unique(k + 0.0, dim=0, return_inverse=True)  # + 0.0 turns -0.0 into 0.0
    first = torch.full(rows.shape[:1], len(k), dtype=torch.int64, device=k.device)
    return first.scatter_reduce_(0, group, torch.arange(len(k), device=k.device), "amin").sort().values


def without_rounding(q: Tensor, k: Tensor) -> bool:
    """Whether all entries of ``q`` and of ``k`` are whole multiples of a unit each, so few that products add exactly.

    True for one-hot tokens, signs and small integers.
    """
    bits = (53 - math.ceil(math.log2(q.shape[-1]))) // 2
    return _whole(q, bits) and _whole(k, bits)


def _whole(x: Tensor, bits: int) -> bool:
    low, high = torch.aminmax(x)
    largest = torch.maximum(high, -low).double()
    unit = torch.frexp(largest).mantissa / largest  # a power of two: the largest entry comes to between 1/2 and 1
    return all(bool((part == part.round()).all()) for part in _parts(x, unit * 2.0**bits))


def _parts(x: Tensor, factor: Tensor):
    return (part.double() * factor for part in x.split(4096))


def first_best_keys(q: Tensor, k: Tensor, tile_scores: int) -> Tensor:
    """The first best key of every query by float64 products: right :func:`without_rounding`."""
    columns = min(len(k), 2048)
    found = []
    for queries in q.split(max(1, tile_scores // columns)):
        best = torch.full((len(queries),), -torch.inf, dtype=torch.float64, device=q.device)
        index = torch.zeros(len(queries), dtype=torch.int64, device=q.device)
        for start in range(0, len(k), columns):
            value, place = (queries.double() @ k[start : start + columns].double().T).max(-1)
            index = torch.where(value > best, place + start, index)  # strictly: the first of equal scores stays
            best = torch.maximum(best, value)
        found.append(index)
    return torch.cat(found)
