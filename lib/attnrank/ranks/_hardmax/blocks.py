"""Hardmax ranks from all scores: block by block of queries, with few passes over each while the cache holds it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from attnrank.ranks._hardmax.tiles import tile_scores
from attnrank.ranks._hardmax.undecided import best_by_matrix, best_of_pairs
from attnrank.ranks._hardmax.working import Heads

#: A matrix with more than this share of its scores close to the best is decided by the matrix, not pair by pair.
MANY = 1 / 16


def block_ranks(heads: Heads, *, causal: bool) -> Tensor:
    """Ranks, int64 (batch)."""
    (batch, n, _), m = heads.x.shape, heads.y.shape[1]
    size = tile_scores(heads.x.device)
    together, rows = max(1, size // (n * m)), max(1, min(n, size // m))
    scratch = heads.x.new_empty(min(together, batch) * rows * m)
    hidden = torch.full((rows, rows), -torch.inf, device=scratch.device).tril_(-1) if causal else None
    chosen = heads.x.new_zeros(batch, m)  # by how many queries; float32 counts them exactly
    pairs: list[Any] = []
    for start in range(0, batch, together):
        part = slice(start, start + together)
        for first in range(0, n, rows):
            pairs += _choose(heads, part, slice(first, min(first + rows, n)), hidden, scratch, chosen[part])
    if pairs:
        query, key = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        _decide(heads, query, key, chosen)
    if heads.zero is not None:
        chosen[:, 0] += heads.zero.any(-1)
    return (chosen > 0).sum(1)


def _choose(
    heads: Heads, part: slice, rows: slice, hidden: Tensor | None, scratch: Tensor, chosen: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """Count in ``chosen`` (matrices, m) how often each key is the best of the queries ``rows`` of matrices ``part``.

    Of queries that have several close keys each of them is counted; yields these pairs, as indices of the query among
    all of the batch and of the key.
    """
    x, slack = heads.x[part, rows], heads.slack[part, rows]
    y = heads.y[part] if hidden is None else heads.y[part, : rows.stop]
    shape = (len(y), y.shape[1], x.shape[1])  # keys before queries: every pass below runs along the memory
    scores = torch.bmm(y, x.mT, out=scratch[: shape[0] * shape[1] * shape[2]].view(shape))
    if hidden is not None:
        scores[:, rows.start :] += hidden[: shape[2], : shape[2]]
    close = torch.ge(scores, (scores.amax(1) - slack)[:, None], out=scores)
    marks = close.sum(2)
    queries = slack.numel() if heads.zero is None else int((~heads.zero[part, rows]).sum())
    extra = marks.sum().item() - queries
    if extra > MANY * close[0].numel():
        _decide_many(heads[part], rows, hidden is not None, close, marks)
        extra = marks.sum().item() - queries
    if extra > 0:
        matrix, row = (close.sum(1) > 1).nonzero().unbind(1)
        which, key = close[matrix, :, row].nonzero().unbind(1)
        n = heads.q.shape[1]
        yield (row + (part.start * n + rows.start)).add_(matrix, alpha=n)[which], key
    chosen[:, : shape[1]] += marks


def _decide(heads: Heads, query: Tensor, key: Tensor, chosen: Tensor) -> None:
    """Of each query, one of all, count the best of the keys it is paired with in place of all of them."""
    n, m = heads.q.shape[1], heads.k.shape[1]
    key = query // n * m + key  # one of all
    best = best_of_pairs(heads.q.flatten(0, 1), heads.k.flatten(0, 1), query, key)
    chosen.view(-1).index_add_(0, key, best.to(chosen.dtype) - 1)


def _decide_many(heads: Heads, rows: slice, causal: bool, close: Tensor, marks: Tensor) -> None:
    """Leave in ``close`` and ``marks`` of the matrices in which many scores are close only the best keys."""
    many = (marks.sum(1) - close.shape[2] > MANY * close[0].numel()).nonzero().flatten()
    if not len(many):
        return
    index = torch.arange(rows.stop, device=close.device)
    seen = (index, index[rows]) if causal else None
    best = best_by_matrix(heads.q[many, rows], heads.k[many, : close.shape[1]], seen)
    used = torch.ones_like(best) if heads.zero is None else ~heads.zero[many, rows]
    close[many] = 0.0
    marks[many] = torch.zeros_like(marks[many]).scatter_add_(1, best, used.to(marks.dtype))
