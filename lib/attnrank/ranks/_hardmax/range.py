"""Refusal of queries and keys whose scores overflow, by a rule that does not depend on the order of summation."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnrank import _check

#: Rows and columns of the tiles in which scores are checked one by one.
_TILE = 1024


def check_range(q: Tensor, k: Tensor, causal: bool) -> None:
    """Raises ValueError for NaN, infinite numbers, and scores that overflow: ``q`` (..., n, d_h), ``k`` (..., m, d_h).

    A score overflows when its positive terms, added up, exceed the largest number of float64, for float64 input, or of
    float32. Scores that a causal mask hides may overflow.
    """
    precision = torch.float64 if q.dtype == torch.float64 else torch.float32
    most = torch.finfo(precision).max / (1.01 * q.shape[-1])
    largest_q, largest_k = _largest("q", q), _largest("k", k)
    if largest_q * largest_k < most:
        return
    q, k = (x.reshape(-1, *x.shape[-2:]).to(precision) for x in (q, k))
    for queries, keys in zip(q, k, strict=True):
        rows = (queries.abs().amax(-1).double() * largest_k >= most).nonzero().flatten()
        columns = (keys.abs().amax(-1).double() * largest_q >= most).nonzero().flatten()
        for row in rows.split(_TILE):
            for column in columns.split(_TILE):
                if _overflows(queries[row], keys[column], column > row[:, None] if causal else None):
                    raise ValueError(
                        f"q and k must have finite scores: q k^T overflows {precision}; rescale or use float64"
                    )


def _largest(name: str, x: Tensor) -> float:
    low, high = torch.aminmax(x)
    largest = max(-low.item(), high.item())
    if not math.isfinite(low.item() + high.item()):
        _check.finite(name, x)
    return largest


def _overflows(q: Tensor, k: Tensor, hidden: Tensor | None) -> bool:
    positive = q.new_zeros(len(q), len(k))
    for x, y in zip(q.unbind(-1), k.unbind(-1), strict=True):
        positive += (x[:, None] * y).clamp_(min=0.0)
    if hidden is not None:
        positive.masked_fill_(hidden, 0.0)
    return bool(torch.isinf(positive).any())
