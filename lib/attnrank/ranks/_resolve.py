"""Which of several close keys is the best: float64 with error bounds, exact arithmetic where that is undecided."""

from __future__ import annotations

import torch
from torch import Tensor

from attnrank.ranks._exact import sign_of_difference
from attnrank.ranks._rounding import power_of_two, sum_error

#: Numbers gathered at once.
GATHERED = 1 << 20

_LAST = torch.iinfo(torch.int64).max


def best_of_each(q: Tensor, k: Tensor, rows: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """For each query that occurs in ``rows`` its best key among those paired with it; the first on exact ties.

    Parameters
    ----------
    q, k : floating-point tensors (n, d_h) and (m, d_h), the numbers as given.
    rows, keys : int64 tensors (pairs): indices of a query and a key.

    Returns
    -------
    int64 tensors of equal length: the queries, each once, and their best keys.
    """
    if not len(rows):
        return rows, keys
    order = (rows * len(k) + keys).argsort()
    rows, keys = rows[order], keys[order]
    queries, which = rows.unique_consecutive(return_inverse=True)
    score, error = _scores(q, k, rows, keys, _reduce(which, keys, len(queries), "amin")[which])
    close = score + error >= _reduce(which, score - error, len(queries), "amax")[which]
    which, keys, score = which[close], keys[close], score[close]
    best = torch.empty_like(queries)
    while len(which):  # nearly always once
        pivot = _highest(which, keys, score, len(queries))
        sign = _signs(q, k, queries[which], keys, pivot[which])
        first = _reduce(which, torch.where(sign == 0, keys, _LAST), len(queries), "amin")
        best[which] = first[which]
        better = sign > 0
        which, keys, score = which[better], keys[better], score[better]
    return queries, best


def _reduce(which: Tensor, values: Tensor, count: int, reduction: str) -> Tensor:
    """Smallest or largest of the values of each query."""
    if values.dtype == torch.int64:
        start = _LAST if reduction == "amin" else -_LAST
    else:
        start = torch.inf if reduction == "amin" else -torch.inf
    return values.new_full((count,), start).scatter_reduce_(0, which, values, reduction)


def _highest(which: Tensor, keys: Tensor, score: Tensor, count: int) -> Tensor:
    """For each query the first of its keys with the highest computed score."""
    top = _reduce(which, score, count, "amax")[which]
    return _reduce(which, torch.where(score == top, keys, _LAST), count, "amin")


def _scores(q: Tensor, k: Tensor, rows: Tensor, keys: Tensor, anchors: Tensor) -> tuple[Tensor, Tensor]:
    """What each key scores above its anchor, in float64 and up to a factor per query; and bounds of the errors."""
    low, high = torch.aminmax(k)
    scale = power_of_two(torch.maximum(high, -low).double())
    scores, errors = [], []
    parts = max(1, GATHERED // q.shape[-1])
    for row, key, anchor in zip(rows.split(parts), keys.split(parts), anchors.split(parts), strict=True):
        query = q[row].double()
        query *= power_of_two(query.abs().amax(-1, keepdim=True))
        terms = query * (k[key].double() * scale - k[anchor].double() * scale)
        scores.append(terms.sum(-1))
        errors.append(sum_error(q.shape[-1], terms.abs().sum(-1)))
    return torch.cat(scores), torch.cat(errors)


def _signs(q: Tensor, k: Tensor, rows: Tensor, keys: Tensor, pivots: Tensor) -> Tensor:
    """Sign of the score of each key against its pivot, exactly."""
    signs = torch.zeros_like(keys)
    others = (keys != pivots).nonzero().flatten()
    if not len(others):
        return signs
    for part in others.split(max(1, GATHERED // (4 * q.shape[-1]))):
        a, b = k[keys[part]], k[pivots[part]]
        unequal = (a != b).any(-1)
        part, a, b = part[unequal], a[unequal], b[unequal]
        signs[part] = sign_of_difference(q[rows[part]], a, b)
    return signs
