"""Rows that equal earlier ones: equal keys tie for every query, and the first of them wins."""

from __future__ import annotations

import torch
from torch import Tensor

#: What integers are multiplied with to spread them, of 64 bits with a sign: Steele, Lea and Flood (2014), SplitMix.
_ODD = -0x61C8864680B583EB, -0x40A7B892E31B1A47


def distinct_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Indices of the rows of ``x`` (rows, d_h) that equal no earlier row, ascending; and of each row its equal."""
    first = first_equals(x[None])[0]
    distinct = first == torch.arange(len(x), device=x.device)
    return distinct.nonzero()[:, 0], (distinct.cumsum(0) - 1)[first]


def first_equals(x: Tensor) -> Tensor:
    """Of each row of ``x`` (batch, rows, d_h) the index of the first that equals it: int64 (batch, rows).

    Rows are sorted by a hash and compared with the one before. Should two different ones have the same hash, equal rows
    around them may be taken as different: what calls this saves arithmetic by it, and no more.
    """
    order = _hash(x).sort(dim=1, stable=True).indices
    rows = x.gather(1, order[..., None].expand_as(x))
    differs = torch.ones_like(order, dtype=torch.bool)
    differs[:, 1:] = (rows[:, 1:] != rows[:, :-1]).any(-1)
    place = torch.arange(x.shape[1], device=x.device).expand_as(order)
    begins = torch.where(differs, place, 0).cummax(1).values
    return torch.empty_like(order).scatter_(1, order, order.gather(1, begins))


def _hash(x: Tensor) -> Tensor:
    """An integer of each row (..., d_h), which only its numbers decide."""
    bits = (x.double() + 0.0).view(torch.int64)  # + 0.0 turns -0.0 into 0.0
    bits = bits ^ (bits >> 32)  # short numbers end in zeros
    weights = torch.arange(1, x.shape[-1] + 1, device=x.device) * _ODD[0]
    weights = (weights ^ (weights >> 30)) * _ODD[1]  # without this, rows with the same numbers in other places may tie
    return (bits * (weights ^ (weights >> 27))).sum(-1)
