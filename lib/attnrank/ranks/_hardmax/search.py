"""Hardmax ranks of large matrices: tiles of keys, the longest first, until no further key can be the best."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from attnrank.ranks._hardmax.repeated import distinct_rows
from attnrank.ranks._hardmax.tiles import shared, threads, tile_scores
from attnrank.ranks._hardmax.undecided import best_by_matrix, best_of_pairs, hide
from attnrank.ranks._hardmax.working import Heads

#: Keys of a tile: few, so that queries are found finished early and looking at one tile twice costs little, but so many
#: that a product is worth its call; on a GPU more.
KEYS, GPU_KEYS = (128, 512), (1024, 8192)

#: Scores held at once on a GPU: with so many the calls weigh little. No key is close to more than ``QUERIES`` queries,
#: which float32 counts exactly; other counts are only asked whether they exceed 1 or ``QUERIES`` at most.
GPU_SCORES = 1 << 26

#: The share of the keys that a tile has between these.
SHARE = 1 / 16

#: Queries that are searched together; this bounds what is held in memory.
QUERIES = 1 << 16

#: Scores held at once where queries are undecided; what share of a matrix, of its queries or of its scores, is many.
DECIDED, MANY = 1 << 22, 1 / 16


def search_rank(heads: Heads, *, causal: bool, tile: int | None, prune: bool = True) -> Tensor:
    """Rank, int64 (), of one matrix. With ``prune`` keys that are too short are left out, unless the mask is causal."""
    (n, _), (m, _) = heads.q.shape[-2:], heads.k.shape[-2:]
    queries, keys = (torch.arange(count, device=heads.q.device) for count in (n, m))
    chosen = torch.zeros(m, dtype=torch.bool, device=keys.device)
    if heads.zero is not None:
        chosen[0] = heads.zero.any()
        queries = queries[~heads.zero[0]]
    undecided = Search(heads, keys, chosen, causal, tile, prune).choose(queries)
    if len(undecided) > MANY * n:
        distinct, _ = distinct_rows(heads.k[0])
        if len(distinct) <= 0.75 * m:
            keys = distinct
            undecided = Search(heads, keys, chosen, causal, tile, prune).choose(undecided)
    rows = max(1, (tile * tile if tile else DECIDED) // len(keys))
    for some in undecided.split(rows):
        _decide(heads, keys, some, causal, chosen)
    return chosen.sum()


def _decide(heads: Heads, keys: Tensor, queries: Tensor, causal: bool, chosen: Tensor) -> None:
    """Mark the best of the ``keys`` (indices, ascending) for each of the ``queries`` (indices)."""
    scores = heads.y[0, keys] @ heads.x[0, queries].T
    if causal:
        hide(scores, keys, queries)
    close = scores >= scores.amax(0) - heads.slack[0, queries]
    if close.sum() > MANY * close.numel():
        seen = (keys, queries) if causal else None
        chosen[keys[best_by_matrix(heads.q[:, queries], heads.k[:, keys], seen)]] = True
    else:
        query, key = close.T.nonzero().unbind(1)
        key = keys[key]
        chosen[key[best_of_pairs(heads.q[0, queries], heads.k[0], query, key)]] = True


@dataclass
class Queries:
    """Queries, and the best score of each so far: in the tile that begins with key ``left``, next best ``second``."""

    index: Tensor
    x: Tensor
    norm: Tensor
    slack: Tensor
    best: Tensor
    second: Tensor
    left: Tensor

    @classmethod
    def of(cls, heads: Heads, index: Tensor) -> Queries:
        """Queries that have seen no key."""
        x, norm, slack = (values[0, index] for values in (heads.x, heads.norm, heads.slack))
        worst = torch.full_like(norm, -torch.inf)
        return cls(index, x, norm, slack, worst, worst, torch.zeros_like(index))

    def __getitem__(self, part: slice | Tensor) -> Queries:
        return Queries(*(values[part] for values in vars(self).values()))

    def __len__(self) -> int:
        return len(self.index)

    def update(self, place: Tensor, later: Queries) -> None:
        """Take over what has been found since for the queries at ``place``."""
        for name in ("best", "second", "left"):
            setattr(self, name, getattr(self, name).index_copy(0, place, getattr(later, name)))


class Search:
    """Tiles of the ``keys`` (indices, ascending) of one matrix, and what is held at once.

    First only the best score of each query in each tile is computed. Then, once the best tile of a query is known, its
    scores are computed again, and the best key, or that there are several, is found among them.
    """

    def __init__(
        self, heads: Heads, keys: Tensor, chosen: Tensor, causal: bool, tile: int | None, prune: bool
    ) -> None:
        self.heads, self.chosen, self.causal, self.prune = heads, chosen, causal, prune and not causal
        device = keys.device
        self.norm, order = heads.key_norm[0, keys].sort(descending=True)
        self.keys = keys[order] if self.prune else keys
        least, most = KEYS if device.type == "cpu" else GPU_KEYS
        self.columns = min(tile or max(least, min(int(SHARE * len(keys)), most)), len(keys))
        self.threads = threads(device)
        held = tile_scores(device) if device.type == "cpu" else GPU_SCORES
        self.scores = self.columns * tile if tile else max(self.columns, held)
        self.scratch = torch.empty(self.scores, dtype=torch.float32, device=device)

    def choose(self, queries: Tensor) -> Tensor:
        """Mark the keys that are the best of ``queries`` (indices); return those of them that remain undecided."""
        undecided = [queries[:0]]
        for part in queries.split(QUERIES):
            some = Queries.of(self.heads, part)
            self._find_best_tiles(some)
            once = some.second < some.best - some.slack
            undecided += [part[~once], *self._look_again(some[once])]
        return torch.cat(undecided)

    def _find_best_tiles(self, queries: Queries) -> None:
        active, place = queries[:], torch.arange(len(queries), device=queries.index.device)
        for start in range(0, len(self.keys), self.columns):
            highest = self._highest(active, slice(start, start + self.columns))
            active.second = torch.maximum(active.second, torch.minimum(active.best, highest))
            active.left = torch.where(highest > active.best, start, active.left)
            active.best = torch.maximum(active.best, highest)
            unfinished = self._unfinished(active, start + self.columns)
            if unfinished is not None and unfinished.sum() < 0.9 * len(active):
                queries.update(place, active)
                active, place = active[unfinished], place[unfinished]
                if not len(active):
                    return
        queries.update(place, active)

    def _unfinished(self, queries: Queries, start: int) -> Tensor | None:
        """Whether a key from ``start`` on may serve a query better or as well; None if that is so for all."""
        if not self.prune or start >= len(self.keys):
            return None
        return queries.norm * self.norm[start] + 2 * queries.slack >= queries.best

    def _highest(self, queries: Queries, keys: slice) -> Tensor:
        """The best score of each query among the keys of a tile."""
        y, highest = self.heads.y[0].index_select(0, self.keys[keys]), torch.empty_like(queries.norm)
        for part in self._slices(len(queries), len(y)):
            some = queries[part]
            if self.causal and self.keys[keys][0] > some.index.amax():
                highest[part] = -torch.inf
            else:
                scores = self._product(y, keys, some)
                torch.amax(scores, 1, out=highest[part].view(len(scores), -1))
        return highest

    def _product(self, y: Tensor, keys: slice, queries: Queries) -> Tensor:
        """Scores (parts, keys, queries of a part), one part for each thread where that divides the queries: every pass
        over them runs along the memory, and a thread goes over the scores that it has computed itself."""
        parts = self.threads if len(queries) % self.threads == 0 else 1
        x = queries.x.view(parts, -1, y.shape[1])
        out = self.scratch[: len(y) * len(queries)].view(parts, len(y), -1)
        scores = torch.bmm(y.expand(parts, -1, -1), x.mT, out=out)
        if self.causal and self.keys[keys][-1] > queries.index.amin():
            hide(scores, self.keys[keys], queries.index.view(parts, 1, -1))
        return scores

    def _slices(self, queries: int, keys: int) -> Iterator[slice]:
        """Slices of the queries whose scores with so many keys are held at once."""
        rows = shared(self.scores // keys, self.scratch.device)
        return (slice(start, start + rows) for start in range(0, queries, rows))

    def _look_again(self, queries: Queries) -> Iterator[Tensor]:
        """Mark the best key of each query, in its best tile; yield the queries that have several close keys there."""
        order = queries.left.argsort(stable=True)
        queries, (starts, counts) = queries[order], queries.left[order].unique_consecutive(return_counts=True)
        for first, last, rows in _spans(starts.tolist(), counts.tolist(), self.columns, self.scores):
            keys = slice(first, min(last, len(self.keys)))
            y = self.heads.y[0].index_select(0, self.keys[keys])
            for part in self._slices(rows.stop - rows.start, len(y)):
                some = queries[rows][part]
                close = self._product(y, keys, some)
                torch.ge(close, (some.best - some.slack).view(len(close), 1, -1), out=close)
                marks = close.sum((0, 2))
                if marks.sum() > len(some):
                    several = close.sum(1) > 1
                    marks -= close.mT[several].sum(0)
                    yield some.index[several.flatten()]
                self.chosen[self.keys[keys][marks > 0]] = True


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
