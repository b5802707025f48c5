"""Pairs of a query and a key whose float32 score is within rounding errors of the best score of the query."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attnrank.ranks._resolve import best_of_each
from attnrank.ranks._rounding import norms, score_error

#: Pairs above which those that a better score has outdone since are dropped.
PAIRS = 1 << 20


class ManyTies(Exception):
    """Scores tie, or nearly so, as often as not: another method is better."""


@dataclass
class Queries:
    """A block of queries in float32, (batch, queries, d_h), and what is known about them, (batch, queries)."""

    x: Tensor
    norm: Tensor
    slack: Tensor  # a key whose score is within slack of the best may be better than it
    best: Tensor  # the best score so far
    index: Tensor  # among all queries

    @classmethod
    def of(cls, x: Tensor, key_norm: Tensor, index: Tensor, zero: Tensor) -> Queries:
        """Queries that have seen no key; ``key_norm`` (batch, 1) bounds the norms of the keys; ``zero`` needs none."""
        norm = norms(x)
        best = torch.where(zero, torch.inf, -torch.inf)
        return cls(x, norm, 2 * score_error(x.shape[-1], norm, key_norm), best, index)

    def __getitem__(self, part: slice | Tensor) -> Queries:
        return Queries(*(values[:, part] for values in vars(self).values()))

    def __len__(self) -> int:
        return self.norm.shape[1]


class Found:
    """Collects the pairs, tile by tile. Queries and keys are rows of ``q`` and ``k``, the numbers as given."""

    def __init__(self, q: Tensor, k: Tensor, *, patient: bool) -> None:
        self._q, self._k, self._patient = q, k, patient
        self._floor = torch.full(q.shape[:1], -torch.inf, device=q.device)
        none = torch.zeros(0, dtype=torch.int64, device=q.device)
        self._parts = [(none, none, none.float())]
        self._pairs = self._examined = 0

    def visit(self, queries: Queries, keys: Tensor, scores: Tensor) -> None:
        """Add the close pairs of a tile: ``keys`` (batch, keys) are indices, ``scores`` (batch, keys, queries)."""
        size = _group_size(scores.shape[1])
        tops = scores.unflatten(1, (-1, size)).amax(2)
        highest = tops.amax(1)
        hits = (highest >= queries.best - queries.slack).flatten().nonzero().flatten()
        torch.maximum(queries.best, highest, out=queries.best)
        self._examined += scores.numel()
        if len(hits):
            self._add_hits(queries, keys, scores, tops, hits)
        if self._pairs > PAIRS:
            self._thin_out()

    def _add_hits(self, queries: Queries, keys: Tensor, scores: Tensor, tops: Tensor, hits: Tensor) -> None:
        size = scores.shape[1] // tops.shape[1]
        index, floor = queries.index.flatten()[hits], (queries.best - queries.slack).flatten()[hits]
        self._floor[index] = floor
        batch, column = hits // len(queries), hits % len(queries)
        score, group, several = _best_of_columns(_columns(tops, batch * tops.shape[1], column, tops.shape[1]), floor)
        inside = _columns(scores, batch * scores.shape[1] + group * size, column, size)
        _, place, more = _best_of_columns(inside, floor)
        place += group * size
        self._add(index, keys[batch, place], score)
        several = (several | more).nonzero().flatten()
        if len(several):
            batch, column, index, floor = batch[several], column[several], index[several], floor[several]
            others = _columns(scores, batch * scores.shape[1], column, scores.shape[1])
            others.scatter_(0, place[several][None], -torch.inf)
            place, which = (others >= floor).nonzero().unbind(1)
            self._add(index[which], keys[batch[which], place], others[place, which])

    def _add(self, rows: Tensor, keys: Tensor, scores: Tensor) -> None:
        self._parts.append((rows, keys, scores))
        self._pairs += len(rows)

    def close(self) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and scores of the pairs that are close now."""
        rows, keys, scores = (torch.cat(parts) for parts in zip(*self._parts, strict=True))
        close = scores >= self._floor[rows]
        return rows[close], keys[close], scores[close]

    def _thin_out(self) -> None:
        rows, keys, scores = self.close()
        if len(rows) > PAIRS // 2:
            self._refuse(len(rows))
            rows, keys = best_of_each(self._q, self._k, rows, keys)
            scores = torch.full(rows.shape, torch.inf, device=rows.device)
        self._parts, self._pairs = [(rows, keys, scores)], len(rows)

    def _refuse(self, pairs: int) -> None:
        if not self._patient and pairs > len(self._q) + self._examined // 32:
            raise ManyTies

    def best_keys(self) -> Tensor:
        """The best key of every query that is not zero, in no particular order."""
        rows, keys, _ = self.close()
        self._refuse(len(rows))
        alone = torch.bincount(rows, minlength=len(self._q))[rows] == 1
        _, best = best_of_each(self._q, self._k, rows[~alone], keys[~alone])
        return torch.cat([keys[alone], best])


def padded(keys: int) -> int:
    """The next number of keys that splits into groups."""
    size = 8 if keys <= 64 else 16 if keys <= 256 else 32
    return -(-keys // size) * size


def _group_size(keys: int) -> int:
    size = 8 if keys <= 64 else 16 if keys <= 256 else 32
    return size if keys % size == 0 else keys


def _columns(x: Tensor, top: Tensor, column: Tensor, height: int) -> Tensor:
    """Pieces of columns of ``x`` (batch, rows, columns), as a matrix (height, pieces); ``top`` counts rows of all."""
    rows = top + torch.arange(height, device=x.device)[:, None]
    return x.flatten().index_select(0, (rows * x.shape[-1] + column).flatten()).view(height, -1)


def _best_of_columns(x: Tensor, floor: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Maximum of each column of ``x``, where it is, and whether another number of the column reaches the floor."""
    value, place = x.max(0)
    return value, place, x.scatter_(0, place[None], -torch.inf).amax(0) >= floor
