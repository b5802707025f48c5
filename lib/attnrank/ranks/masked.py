"""Hardmax ranks where a mask is neither absent nor causal, or where scores are given as such."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from attnrank.ranks._hardmax.rounding import sum_error
from attnrank.ranks._hardmax.undecided import best_of_pairs

#: Scores held at once, in float64.
BLOCK = 1 << 20

NO_SOFTMAX = "its scores overflow float64, or are NaN, so that they have no softmax"


def masked_ranks(q: Tensor, k: Tensor, visible: Tensor) -> Tensor:
    """Ranks (g) of the hardmax of ``q k^T`` over the keys that each query sees, in exact arithmetic; O(n + m) memory.

    Float64 products leave one key for nearly every query; where others come within a bound of their rounding errors,
    underflow among them, exact arithmetic decides. Exactly equal scores go to the first visible key, as in
    ``hardmax_rank``.

    Parameters
    ----------
    q, k : floating-point tensors (g, n, d_h) and (g, m, d_h), finite.
    visible : boolean tensor (n, m); every query sees a key.
    """
    g, n, m = *q.shape[:2], k.shape[1]
    chosen = torch.zeros(g, m, dtype=torch.bool, device=q.device)
    # What the terms of a score add up to at most (g, n, 1); it has no squares, as norms do, which over- and underflow.
    sizes = q.abs().sum(-1, keepdim=True, dtype=torch.float64) * k.abs().amax((-2, -1)).double()[:, None, None]
    slack = 2 * sum_error(q.shape[-1], sizes)
    for one in range(g):
        keys = k[one].double()
        for start, stop in blocks(n, m):
            queries = q[one, start:stop].double()
            scores = (queries @ keys.mT).masked_fill_(~visible[start:stop], -torch.inf)
            far = scores < scores.amax(-1, keepdim=True) - slack[one, start:stop]  # and not where one is NaN
            close = far.logical_not_().logical_and_(visible[start:stop])
            best = close.byte().argmax(-1)
            several = (close.sum(-1) > 1).nonzero().squeeze(-1)
            if len(several):
                best[several] = _resolved(q[one, start + several], k[one], close[several])
            chosen[one, best] = True
    return chosen.sum(-1)


def _resolved(q: Tensor, k: Tensor, close: Tensor) -> Tensor:
    """The first best key among the close ones, in exact arithmetic."""
    which, keys = close.nonzero().unbind(1)
    return keys[best_of_pairs(q, k, which, keys)]


def distinct_argmax(scores: Iterator[Tensor], g: int, m: int, device: torch.device) -> Tensor:
    """Ranks (g) of the hardmax of scores that come in blocks (g, rows, m); equal scores go to the first key.

    Raises ValueError where a score is NaN.
    """
    chosen = torch.zeros(g, m, dtype=torch.bool, device=device)
    for block in scores:
        if block.isnan().any():
            raise ValueError(NO_SOFTMAX)
        chosen.scatter_(1, block.argmax(-1), True)
    return chosen.sum(-1)


def blocks(n: int, m: int, together: int = 1) -> Iterator[tuple[int, int]]:
    """Ranges of rows, so many that ``together`` matrices with m columns stay within BLOCK."""
    step = max(1, BLOCK // max(1, m * together))
    return ((start, min(start + step, n)) for start in range(0, n, step))
