"""Hardmax ranks from all scores, tile by tile; small matrices go through together."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from attnrank.ranks._rounding import Frame, norms, scaled_queries, zero_rows
from attnrank.ranks._search import Found, Queries, padded

#: Scores held at once: 4 MiB on a CPU, whose cache holds them; more keep a GPU busy.
TILE_SCORES = 1 << 20
GPU_TILE_SCORES = 1 << 24


def tile_scores(device: torch.device) -> int:
    """Scores held at once on a device."""
    return TILE_SCORES if device.type == "cpu" else GPU_TILE_SCORES


def dense_ranks(q: Tensor, k: Tensor, *, causal: bool, tile: int | None, patient: bool = True) -> Tensor:
    """Ranks (batch) of ``q`` (batch, n, d_h) and ``k`` (batch, m, d_h); raises ManyTies if not ``patient``."""
    n, m = q.shape[-2], k.shape[-2]
    columns = min(m if tile else padded(m), tile or 2048)
    rows = min(max(1, tile_scores(q.device) // columns) if tile is None else tile, n)
    together = max(1, tile_scores(q.device) // (rows * columns))
    parts = zip(q.split(together), k.split(together), strict=True)
    return torch.cat([_ranks(queries, keys, causal, rows, columns, patient) for queries, keys in parts])


def _ranks(q: Tensor, k: Tensor, causal: bool, rows: int, columns: int, patient: bool) -> Tensor:
    found = Found(q.flatten(0, 1), k.flatten(0, 1), patient=patient)
    zero = zero_rows(q)
    _search(found, scaled_queries(q), Frame.of(k)(k), zero, causal, rows, columns)
    chosen = torch.zeros(k.shape[:-1], dtype=torch.bool, device=q.device)
    chosen.view(-1)[found.best_keys()] = True
    chosen[:, 0] |= zero.any(-1)  # all keys tie for a query that is zero
    return chosen.sum(-1)


def _search(found: Found, x: Tensor, y: Tensor, zero: Tensor, causal: bool, rows: int, columns: int) -> None:
    """Show all scores of queries ``x`` (batch, n, d_h) and keys ``y`` (batch, m, d_h) to ``found``, in tiles."""
    batch, n, m = *zero.shape, y.shape[1]
    matrix = torch.arange(batch, device=x.device)[:, None]
    row, column = torch.arange(n, device=x.device), torch.arange(padded(m), device=x.device)
    queries = Queries.of(x, norms(y).amax(-1, keepdim=True), matrix * n + row, zero)
    y = pad(y, (0, 0, 0, padded(m) - m))
    scratch = x.new_empty(batch * rows * columns)
    for start in range(0, n, rows):
        block = queries[start : start + rows]
        stop = start + len(block) if causal else m
        for left in range(0, stop, columns):
            keys = y[:, left : left + columns]
            scores = scratch[: batch * keys.shape[1] * len(block)].view(batch, keys.shape[1], len(block))
            torch.bmm(keys, block.x.mT, out=scores)
            if causal and left + columns > start + 1:
                hidden = column[left : left + columns, None] > row[start : start + rows]
                scores.masked_fill_(hidden, -torch.inf)
            elif left + columns > m:
                scores[:, m - left :] = -torch.inf
            found.visit(block, matrix * m + column[left : left + columns], scores)
