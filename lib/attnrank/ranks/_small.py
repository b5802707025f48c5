"""Hardmax ranks of many small matrices: whole score matrices in float32, few passes over each."""

from __future__ import annotations

import torch
from torch import Tensor

from attnrank.ranks._dense import tile_scores
from attnrank.ranks._resolve import best_of_each
from attnrank.ranks._rounding import norms, score_error


def small_ranks(q: Tensor, k: Tensor, *, causal: bool) -> tuple[Tensor, Tensor]:
    """Ranks (batch) of ``q`` (batch, n, d_h) and ``k`` (batch, m, d_h), and for which of them to use another method.

    Nothing is scaled: the largest sizes in ``q`` and ``k`` must be moderate. Where many scores are close to the best
    of their query, another method is better, and the rank given here is meaningless.
    """
    n, m = q.shape[-2], k.shape[-2]
    together = max(1, tile_scores(q.device) // (n * m))
    x, y = q.float(), k.float()
    slack = 2 * score_error(q.shape[-1], norms(x), norms(y).amax(-1, keepdim=True))
    scratch = x.new_empty(min(together, len(q)) * n * m)
    ranks, refused = [], []
    for start in range(0, len(q), together):
        part = slice(start, start + together)
        close = _close(x[part], y[part], slack[part], causal, scratch)
        chosen = close.sum(2)  # by how many queries; float32 counts them exactly
        many = torch.zeros_like(chosen[:, 0], dtype=torch.bool)
        if chosen.sum() > len(close) * n:  # some queries have several close keys
            chosen, many = _resolved(q[part], k[part], close)
        ranks.append((chosen > 0).sum(1))
        refused.append(many)
    return torch.cat(ranks), torch.cat(refused)


def _close(x: Tensor, y: Tensor, slack: Tensor, causal: bool, scratch: Tensor) -> Tensor:
    """Mark scores (batch, m, n) that are within ``slack`` of the best of their query by 1, the others by 0."""
    batch, n, m = *slack.shape, y.shape[1]
    scores = torch.bmm(y, x.mT, out=scratch[: batch * m * n].view(batch, m, n))
    if causal:
        scores += torch.full_like(scores[0], -torch.inf).tril_(-1)
    return torch.ge(scores, (_highest(scores) - slack)[:, None], out=scores)


def _highest(scores: Tensor) -> Tensor:
    """Maxima over the keys; by halves where rows are too short for a reduction to be fast."""
    while scores.shape[1] > 1 and scores.shape[2] < 64:
        half = (scores.shape[1] + 1) // 2
        scores = torch.maximum(scores[:, :half], scores[:, -half:])
    return scores.amax(1)


def _resolved(q: Tensor, k: Tensor, close: Tensor) -> tuple[Tensor, Tensor]:
    """Keys (batch, m) that are the best of a query, marked by 1 or more; matrices (batch) with too many close keys."""
    _, m, n = close.shape
    counts = close.sum(1)
    many = counts.sum(1) > n + n * m // 32
    several = (counts > 1) & ~many[:, None]
    matrix, query = several.nonzero().unbind(1)
    row, key = close[matrix, :, query].nonzero().unbind(1)
    close[matrix, :, query] = 0.0
    chosen = close.sum(2)
    _, best = best_of_each(q.flatten(0, 1), k.flatten(0, 1), (matrix * n + query)[row], matrix[row] * m + key)
    chosen.view(-1)[best] = 1.0
    return chosen, many
