"""Hardmax ranks from all scores: block by block of queries, with few passes over each while the cache holds it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from attnrank.ranks._hardmax import few
from attnrank.ranks._hardmax.repeated import first_equals
from attnrank.ranks._hardmax.tiles import block_scores, shared
from attnrank.ranks._hardmax.undecided import MANY, best_by_matrix, best_of_pairs
from attnrank.ranks._hardmax.working import Heads

#: Queries of a block at least, whatever the cache: with fewer a product, and a sum over them, are slow.
QUERIES = 64


def block_ranks(heads: Heads, *, causal: bool) -> Tensor:
    """Ranks, int64 (batch)."""
    (batch, n, _), m = heads.x.shape, heads.y.shape[1]
    size = block_scores(heads.x.device)
    together, rows = shared(size // (n * m), heads.x.device), min(n, max(QUERIES, size // m))
    scratch = heads.x.new_empty(min(together, batch) * rows * m)
    hidden = torch.full((rows, rows), -torch.inf, device=scratch.device).tril_(-1) if causal else None
    chosen = heads.x.new_zeros(batch, m)  # by how many queries, exactly
    pairs: list[Any] = []
    each = (heads.x.mT, heads.slack.unsqueeze(1), heads.y, chosen)
    parts = zip(range(0, batch, together), *(_parts(values, together, 0) for values in each), strict=True)
    for start, some, slacks, y, counts in parts:
        for first, x, slack in zip(range(0, n, rows), _parts(some, rows, 2), _parts(slacks, rows, 2), strict=True):
            close = _close(y, x, slack, first, hidden, scratch)
            seen = counts if close.shape[1] == m else counts[:, : close.shape[1]]
            marks = torch.sum(close, 2, out=seen) if first == 0 else close.sum(2)
            part, queries = slice(start, start + together), slice(first, first + x.shape[2])
            used = slack.numel() if heads.zero is None else int((~heads.zero[part, queries]).sum())
            extra = marks.sum().item() - used
            if extra > 0 and (left := _settle(heads, part, queries, causal, close, marks, extra)):
                query, key = left
                pairs.append((start * n + first + query, key))  # a part is of whole matrices, or of one
            if first > 0:
                seen.add_(marks)
    if pairs:
        query, key = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        _decide(heads, query, key, chosen)
    if heads.zero is not None:
        chosen[:, 0] += heads.zero.any(-1)
    return chosen.bool().sum(1)


def _parts(values: Tensor, size: int, dim: int) -> Sequence[Tensor]:
    return values.split(size, dim) if values.shape[dim] > size else (values,)


def _close(y: Tensor, x: Tensor, slack: Tensor, first: int, hidden: Tensor | None, scratch: Tensor) -> Tensor:
    """Which keys may be the best of queries ``x`` (matrices, d_h, queries), the first of which is query ``first``.

    Returns 0 and 1 (matrices, keys, queries). Few calls: in small matrices they cost as much as the arithmetic.
    """
    queries = x.shape[2]
    if hidden is not None:
        y = y[:, : first + queries]
    shape = (*y.shape[:2], queries)  # keys before queries: every pass below runs along the memory
    scores = torch.bmm(y, x, out=scratch[: math.prod(shape)].view(shape))
    if hidden is not None:
        scores[:, first:] += hidden[:queries, :queries]
    return torch.ge(scores, scores.amax(1, keepdim=True).sub_(slack), out=scores)


def _settle(
    heads: Heads, part: slice, queries: slice, causal: bool, close: Tensor, marks: Tensor, extra: float
) -> tuple[Tensor, Tensor] | None:
    """Decide what can be decided at once of queries that have ``extra`` close keys, more than one each; pairs left.

    ``part`` and ``queries`` say which these are; ``close`` and ``marks`` are changed.
    """
    if extra > MANY * close.shape[1] * close.shape[2]:
        used = marks.sum().item() - extra
        left = _leave_out_repeated(heads.k[part, : close.shape[1]], close, marks)
        _decide_many(heads[part], queries, causal, close, marks, left)
        extra = marks.sum().item() - used
    if close.is_cpu and 2 * extra * heads.q.shape[2] <= few.NUMBERS:
        least = close.shape[2] if heads.zero is None else 0
        if few.decide_few(heads.q, heads.k, part.start, queries.start, close, marks, least):
            return None
    return _pairs(close) if extra > 0 else None


def _pairs(close: Tensor) -> tuple[Tensor, Tensor]:
    """Query, counted through the matrices, and key of every pair of a query that has several close keys; ascending."""
    several = close.sum(1) > 1
    which, key = close.mT[several].nonzero().unbind(1)
    return several.flatten().nonzero()[which, 0], key


def _decide(heads: Heads, query: Tensor, key: Tensor, chosen: Tensor) -> None:
    """Of each query, one of all, count the best of the keys it is paired with in place of all of them."""
    n, m = heads.q.shape[1], heads.k.shape[1]
    key = torch.add(key, query // n, alpha=m)  # one of all
    best = best_of_pairs(heads.q.flatten(0, 1), heads.k.flatten(0, 1), query, key)
    chosen.view(-1).index_add_(0, key, best.to(chosen.dtype) - 1)


def _leave_out_repeated(keys: Tensor, close: Tensor, marks: Tensor) -> Tensor:
    """Leave in ``close`` and ``marks`` no key that equals an earlier one, as of several best keys the first wins.

    Returns how many keys of each matrix are left.
    """
    repeated = first_equals(keys) != torch.arange(keys.shape[1], device=keys.device)
    close.masked_fill_(repeated[..., None], 0.0)
    marks.masked_fill_(repeated, 0.0)
    return (~repeated).sum(1)


def _decide_many(heads: Heads, rows: slice, causal: bool, close: Tensor, marks: Tensor, left: Tensor) -> None:
    """Leave in ``close`` and ``marks`` only the best keys of matrices in which many scores of the keys left are close.

    ``left`` is the number of these keys.
    """
    queries = close.shape[2]
    many = (marks.sum(1) - queries > MANY * queries * left).nonzero().flatten()
    if not len(many):
        return
    index = torch.arange(rows.stop, device=close.device)
    seen = (index, index[rows]) if causal else None
    best = best_by_matrix(heads.q[many, rows], heads.k[many, : close.shape[1]], seen)
    used = torch.ones_like(best) if heads.zero is None else ~heads.zero[many, rows]
    close[many] = 0.0
    marks[many] = torch.zeros_like(marks[many]).scatter_add_(1, best, used.to(marks.dtype))
