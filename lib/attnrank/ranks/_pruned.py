"""Hardmax ranks from the longest keys: a query whose best score no shorter key can reach is finished."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from attnrank.ranks._dense import tile_scores
from attnrank.ranks._rounding import Frame, norms, scaled_queries, zero_rows
from attnrank.ranks._search import Found, ManyTies, Queries, padded
from attnrank.ranks._ties import distinct_rows, first_best_keys, without_rounding

#: Keys of a tile: few, so that queries are found finished early; on a GPU more, for every tile costs it some calls.
KEYS, GPU_KEYS = 512, 4096

#: Queries that are searched together; this bounds what is held in memory.
QUERIES = 1 << 16


def pruned_rank(q: Tensor, k: Tensor, *, tile: int | None) -> Tensor:
    """Rank, int64 (), of one matrix, with ``q`` (n, d_h) and ``k`` (m, d_h) of any floating-point dtype."""
    chosen = torch.zeros(len(k), dtype=torch.bool, device=q.device)
    chosen[_best_keys(q, k, tile)] = True
    return chosen.sum()


def _best_keys(q: Tensor, k: Tensor, tile: int | None) -> Tensor:
    try:
        return _search(q, SortedKeys.of(k, torch.arange(len(k), device=k.device)), tile, patient=False)
    except ManyTies:
        distinct = distinct_rows(k)
    if len(distinct) < len(k):
        try:
            return _search(q, SortedKeys.of(k, distinct), tile, patient=False)
        except ManyTies:
            pass
    if without_rounding(q, k):
        return first_best_keys(q, k, tile_scores(q.device))
    return _search(q, SortedKeys.of(k, distinct), tile, patient=True)


@dataclass
class SortedKeys:
    """Keys by their distance from a centre, largest first."""

    k: Tensor
    index: Tensor
    norm: Tensor
    frame: Frame

    @classmethod
    def of(cls, k: Tensor, index: Tensor) -> SortedKeys:
        """Those keys of ``k`` (m, d_h) whose indices are given, in any order."""
        keys = cls(k, index, index, Frame.of(k))
        norm = torch.cat([norms(keys[start : start + QUERIES]) for start in range(0, len(index), QUERIES)])
        norm, order = norm.sort(descending=True)
        return cls(k, index[order], norm, keys.frame)

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, part: slice) -> Tensor:
        """Some of the keys in float32, as the frame has them."""
        return self.frame(self.k.index_select(0, self.index[part]))


def _search(q: Tensor, keys: SortedKeys, tile: int | None, *, patient: bool) -> Tensor:
    """Indices of the best keys of all queries."""
    best = []
    for start in range(0, len(q), QUERIES):
        part = q[start : start + QUERIES]
        zero = zero_rows(part)
        index = torch.arange(len(part), device=q.device)
        queries = Queries.of(scaled_queries(part)[None], keys.norm[:1], index[None], zero[None])
        search = Search(Found(part, keys.k, patient=patient), keys, tile)
        left, second = search.best_tiles(queries)
        once = (second < queries.best[0] - queries.slack[0]) & ~zero
        search.show_best_tiles(queries[once], left[once])
        search.show_all(queries[~(once | zero)])
        best += [search.found.best_keys(), torch.zeros_like(index[zero][:1])]  # all keys tie for a query that is zero
    return torch.cat(best)


class Search:
    """A search through tiles of sorted keys, which stops where all further keys are too short.

    First only the best score of each query in each tile is computed. Then, once the best tile of a query is known,
    its scores are computed again, and the best keys found among them.
    """

    def __init__(self, found: Found, keys: SortedKeys, tile: int | None) -> None:
        self.found, self.keys = found, keys
        self.columns = min(tile or (KEYS if keys.k.device.type == "cpu" else GPU_KEYS), len(keys))
        self.pad = tile is None
        self._scores = self.columns * tile if tile else max(padded(self.columns), tile_scores(keys.k.device))
        self._scratch = torch.empty(self._scores, dtype=torch.float32, device=keys.k.device)

    def _slices(self, queries: Queries, columns: int) -> Iterator[slice]:
        """Slices of the queries whose scores with so many keys are held at once."""
        rows = max(1, self._scores // columns)
        return (slice(start, start + rows) for start in range(0, len(queries), rows))

    def _product(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.mm(x, y.T, out=self._scratch[: len(x) * len(y)].view(len(x), len(y)))

    def best_tiles(self, queries: Queries) -> tuple[Tensor, Tensor]:
        """Set the best score of each query; return the first key of the tile it is in, and the best of other tiles."""
        left, second = torch.zeros_like(queries.index[0]), torch.full_like(queries.best[0], -torch.inf)
        active, where, runner_up = queries[:], left, second
        for start in range(0, len(self.keys), self.columns):
            highest = torch.empty_like(active.norm)
            y = self.keys[start : start + self.columns]
            for part in self._slices(active, len(y)):
                torch.amax(self._product(active.x[0, part], y), 1, out=highest[0, part])
            runner_up = torch.maximum(runner_up, torch.minimum(active.best[0], highest[0]))
            where = torch.where(highest[0] > active.best[0], start, where)
            active.best = torch.maximum(active.best, highest)
            unfinished = self._unfinished(active, start + self.columns)
            if unfinished.sum() < 0.9 * len(active):
                index = active.index[0]
                queries.best[0, index], left[index], second[index] = active.best[0], where, runner_up
                unfinished = unfinished.nonzero().flatten()
                active, where, runner_up = active[unfinished], where[unfinished], runner_up[unfinished]
                if not len(active):
                    break
        index = active.index[0]
        queries.best[0, index], left[index], second[index] = active.best[0], where, runner_up
        return left, second

    def _unfinished(self, queries: Queries, start: int) -> Tensor:
        """The queries (queries) that a key from ``start`` on may serve better or as well."""
        if start >= len(self.keys):
            return torch.zeros_like(queries.norm[0], dtype=torch.bool)
        return queries.norm[0] * self.keys.norm[start] + 2 * queries.slack[0] >= queries.best[0]

    def show_best_tiles(self, queries: Queries, left: Tensor) -> None:
        """Show each query the tile of keys that begins at ``left``."""
        order = left.argsort()
        queries, starts, counts = queries[order], *left[order].unique_consecutive(return_counts=True)
        for first, last, rows in _spans(starts.tolist(), counts.tolist(), self.columns, self._scores):
            self._show(queries[rows], first, last)

    def show_all(self, queries: Queries) -> None:
        """Show the queries all keys that are long enough."""
        if not len(queries):
            return
        span = self.columns * max(1, self._scores // (self.columns * len(queries)))
        for start in range(0, len(self.keys), span):
            self._show(queries, start, start + span)
            if not self._unfinished(queries, start + span).any():
                break

    def _show(self, queries: Queries, first: int, last: int) -> None:
        y = self.keys[first:last]
        extra = padded(len(y)) - len(y) if self.pad else 0
        for part in self._slices(queries, len(y) + extra):
            scores = self._product(pad(y, (0, 0, 0, extra)), queries.x[0, part])
            scores[len(y) :] = -torch.inf
            self.found.visit(queries[part], self.keys.index[None, first:last], scores[None])


def _spans(starts: list[int], counts: list[int], columns: int, scores: int) -> Iterator[tuple[int, int, slice]]:
    """Join neighbouring tiles that few queries need: first and last key, and the queries, of each span."""
    row = stop = 0
    first = starts[0] if starts else 0
    last = first
    for start, count in zip(starts, counts, strict=True):
        if stop > row and (start + columns - first) * (stop + count - row) > scores:
            yield first, last, slice(row, stop)
            row, first = stop, start
        stop, last = stop + count, start + columns
    if stop > row:
        yield first, last, slice(row, stop)
