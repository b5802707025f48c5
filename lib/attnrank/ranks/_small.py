"""Hardmax ranks of many small matrices: whole score matrices in float32, few passes over each."""

from __future__ import annotations

import torch
from torch import Tensor

from attnrank.ranks._dense import tile_scores
from attnrank.ranks._resolve import best_of_each
from attnrank.ranks._rounding import norms, score_error

#: Keys below which a reduction over each row of scores is slow, and halving the rows is not.
SHORT = 32


def small_ranks(q: Tensor, k: Tensor, *, causal: bool) -> tuple[Tensor, Tensor]:
    """Ranks (batch) of ``q`` (batch, n, d_h) and ``k`` (batch, m, d_h), and for which of them to use another method.

    Nothing is scaled: the largest sizes in ``q`` and ``k`` must be moderate. Where many scores are close to the best
    of their query, another method is better, and the rank given here is meaningless.
    """
    batch, n, m = *q.shape[:2], k.shape[1]
    x, y = q.float(), k.float()
    slack = 2 * score_error(q.shape[-1], norms(x), norms(y).amax(-1, keepdim=True))
    together = max(1, tile_scores(q.device) // (n * m))
    scratch = x.new_empty(min(together, batch) * n * m)
    chosen = x.new_empty(batch, m)  # by how many queries; float32 counts them exactly
    many = torch.zeros(batch, dtype=torch.bool, device=q.device)
    undecided = []
    for start in range(0, batch, together):
        part = slice(start, start + together)
        close = _close(x[part], y[part], slack[part], causal, scratch)
        marks = torch.sum(close, 1, out=chosen[part])
        if marks.sum() > len(close) * n:  # some queries have several close keys
            row, key, many[part] = _take_undecided(close, marks)
            undecided.append((row + start * n, key + start * m))
    if undecided:
        row, key = (torch.cat(parts) for parts in zip(*undecided, strict=True))
        _, best = best_of_each(q.flatten(0, 1), k.flatten(0, 1), row, key)
        chosen.view(-1)[best] = 1.0
    return (chosen > 0).sum(1), many


def _close(x: Tensor, y: Tensor, slack: Tensor, causal: bool, scratch: Tensor) -> Tensor:
    """Mark scores (batch, n, m) that are within ``slack`` of the best of their query by 1, the others by 0."""
    batch, n, m = *slack.shape, y.shape[1]
    scores = torch.bmm(x, y.mT, out=scratch[: batch * n * m].view(batch, n, m))
    if causal:
        scores += torch.full_like(scores[0], -torch.inf).triu_(1)
    return torch.ge(scores, (_highest(scores) - slack)[..., None], out=scores)


def _highest(scores: Tensor) -> Tensor:
    """Maxima over the keys."""
    while 1 < scores.shape[2] < SHORT:
        half = (scores.shape[2] + 1) // 2
        scores = torch.maximum(scores[..., :half], scores[..., -half:])
    return scores.amax(2)


def _take_undecided(close: Tensor, marks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Take the queries that have several close keys, of ``close`` (batch, n, m), out of its sums ``marks`` (batch, m).

    Returns these pairs, as indices of queries and of keys among all of the batch, and which matrices have so many that
    they are left out.
    """
    _, n, m = close.shape
    counts = close.sum(2)
    several = counts > 1
    many = (counts * several).sum(1) > n + n * m // 32
    rows = (several & ~many[:, None]).flatten().nonzero().squeeze(1)
    taken = close.view(-1, m)[rows]
    marks.index_add_(0, rows // n, taken, alpha=-1)
    which, key = taken.nonzero().unbind(1)
    row = rows[which]
    return row, row // n * m + key, many
