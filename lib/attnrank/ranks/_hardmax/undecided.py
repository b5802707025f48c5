"""The best key of queries that float32 leaves undecided, exactly; the first of several best keys."""

from __future__ import annotations

import itertools
import math
import operator
from dataclasses import dataclass

import torch
from torch import Tensor

from attnrank._scaling import scaled
from attnrank.ranks._hardmax import few
from attnrank.ranks._hardmax.exact import exact_scores, exponents, first_best
from attnrank.ranks._hardmax.repeated import distinct_rows
from attnrank.ranks._hardmax.rounding import centred, norms, score_error, sum_error

#: Numbers that are gathered for pairs at once, and exact scores of a matrix.
GATHERED, SCORES = 1 << 20, 1 << 17

#: Scores of a matrix from which equal rows are looked for.
DISTINCT = 1 << 14

#: A matrix with more than this share of its scores close to the best is decided by the matrix, not pair by pair.
MANY = 1 / 16


def hide(scores: Tensor, keys: Tensor, queries: Tensor) -> Tensor:
    """Hide from each query the keys after it: ``scores`` (..., keys, queries), changed in place; indices of both."""
    return scores.masked_fill_(keys[:, None] > queries, -torch.inf)


def best_of_pairs(q: Tensor, k: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Which pairs are a query and its best key, of those it is paired with.

    Parameters
    ----------
    q, k : floating-point tensors (queries, d_h) and (keys, d_h).
    query, key : int64 tensors (pairs), indices; queries ascending, and of each query its keys.

    Returns
    -------
    bool tensor (pairs), true once for each query.
    """
    if len(query) * q.shape[-1] <= few.NUMBERS and (alone := _best_of_few(q, k, query, key)) is not None:
        return alone
    limit = max(1, GATHERED // q.shape[-1])
    if len(query) <= limit:
        return _best_of_some(q, k, query, key)
    _, counts = query.unique_consecutive(return_counts=True)
    ends = counts.cumsum(0)
    best, first, start = [], 0, 0
    while first < len(ends):  # as many queries as have few pairs together
        last = max(first + 1, int(torch.searchsorted(ends, start + limit, right=True)))
        stop = int(ends[last - 1])
        best.append(_best_of_some(q, k, query[start:stop], key[start:stop]))
        first, start = last, stop
    return torch.cat(best)


def _best_of_few(q: Tensor, k: Tensor, query: Tensor, key: Tensor) -> Tensor | None:
    """Query by query; None where rounding might decide."""
    best, first = [False] * len(query), 0
    pairs = zip(query.tolist(), q[query].tolist(), k[key].tolist(), strict=True)
    for _, group in itertools.groupby(pairs, operator.itemgetter(0)):
        _, xs, rows = zip(*group, strict=True)
        place = few.best_row(xs[0], rows, q.dtype == torch.float64)
        if place is None:
            return None
        best[first + place] = True
        first += len(rows)
    return torch.tensor(best, dtype=torch.bool).to(query.device)


def _best_of_some(q: Tensor, k: Tensor, query: Tensor, key: Tensor) -> Tensor:
    keys, first = k[key], torch.searchsorted(query, query)  # of each pair the first one of its query
    other = (keys != keys[first]).any(-1)  # than the first key, whose equals tie with it: they need no arithmetic
    other[first] = True
    best = torch.zeros_like(other)
    query = query[other]
    best[other] = _best_of_different(q[query].double(), keys[other].double(), query, key[other])
    return best


def _best_of_different(q: Tensor, k: Tensor, query: Tensor, key: Tensor) -> Tensor:
    first = torch.searchsorted(query, query)
    best = _close_in_float64(q, k, first)
    ties = best & (torch.zeros_like(first).index_add_(0, first, best.long())[first] > 1)
    if ties.any():
        some = torch.searchsorted(first[ties], first[ties])
        best[ties] = _exactly_best(q[ties], k[ties], some, key[ties])
    return best


def _exactly_best(q: Tensor, k: Tensor, first: Tensor, keys: Tensor) -> Tensor:
    def highest(values: Tensor) -> Tensor:
        return values.new_zeros(len(first)).scatter_reduce_(0, first, values, "amax", include_self=False)

    short = _short(q, k)
    if short:
        digits = [(short[0] * short[1]).sum(-1)]
    else:
        k_top = highest(exponents(k).amax(-1))[first, None]
        digits = exact_scores(q, k, exponents(q).amax(-1, keepdim=True), k_top, lambda a, b: (a * b).sum(-1))
    return first_best(digits, keys.double(), highest, lambda x: x[first])[first] == keys


def _close_in_float64(q: Tensor, k: Tensor, first: Tensor) -> Tensor:
    """Which pairs float64 leaves undecided, or are the best of their query; ``first`` is the first pair of each."""
    terms = q * (k - k[first])  # what a key scores above the first of the query
    score, error = terms.sum(-1), sum_error(q.shape[-1], terms.abs().sum(-1))
    low = (score - error).nan_to_num_(nan=-torch.inf, neginf=-torch.inf)  # where terms or their sum overflow
    best = torch.full_like(low, -torch.inf).scatter_reduce_(0, first, low, "amax")
    return ~(score + error < best[first])  # undecided where that is not a number


def best_by_matrix(q: Tensor, k: Tensor, seen: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """The best of all keys ``k`` (batch, m, d_h) of each of the queries ``q`` (batch, n, d_h): int64 (batch, n).

    With ``seen``, the indices of keys and of queries among all, a query sees the keys up to its own index only.
    """
    if q.shape[1] * k.shape[1] < DISTINCT:
        return _best_of_all(q, k, seen)
    return torch.stack([_best_of_distinct(*pair, seen) for pair in zip(q, k, strict=True)])


def _best_of_distinct(q: Tensor, k: Tensor, seen: tuple[Tensor, Tensor] | None) -> Tensor:
    """The best keys of one matrix; what ties has often many equal rows."""
    keys, _ = distinct_rows(k)
    if seen:  # equal queries do not see the same keys
        return keys[_best_of_all(q[None], k[None, keys], (seen[0][keys], seen[1]))[0]]
    queries, same = distinct_rows(q)
    return keys[_best_of_all(q[None, queries], k[None, keys], None)[0, same]]


def _best_of_all(q: Tensor, k: Tensor, seen: tuple[Tensor, Tensor] | None) -> Tensor:
    rows = max(1, SCORES // k[..., 0].numel())
    q, k = q.double(), k.double()
    short = _short(q, k)
    rounded = None if short else _Rounded.of(k)
    best = []
    for start in range(0, q.shape[1], rows):
        part = slice(start, start + rows)
        visible = (seen[0], seen[1][part]) if seen else None
        found = rounded.best(q[:, part], visible) if rounded else None
        if found is None:
            digits = [short[1] @ short[0][:, part].mT] if short else _digits_of_all(q[:, part], k)
            found = _first(digits, visible)
        best.append(found)
    return torch.cat(best, 1)


def _short(*both: Tensor) -> tuple[Tensor, Tensor] | None:
    """Float64 matrices (..., rows, d_h), each times a power of two, as integers so short that products of the ones with
    the others, and sums of d_h products, are exact; None where numbers have more bits."""
    bits = (53 - math.ceil(math.log2(both[0].shape[-1]))) // 2
    whole = [scaled(x, (-2, -1)) * 2.0**bits for x in both]
    for x, y in zip(both, whole, strict=True):
        if not ((y == y.round()) & ((y == 0) == (x == 0))).all():  # scaling may underflow
            return None
    return whole[0], whole[1]


def _digits_of_all(q: Tensor, k: Tensor) -> list[Tensor]:
    k_top = exponents(k).amax((-2, -1), keepdim=True)
    return exact_scores(q, k, exponents(q).amax(-1, keepdim=True), k_top, lambda a, b: b @ a.mT)


def _first(digits: list[Tensor], seen: tuple[Tensor, Tensor] | None) -> Tensor:
    """The first of the best keys by exact scores (batch, keys, queries)."""
    if seen:
        hide(digits[0], *seen)
    keys = torch.arange(digits[0].shape[1], device=digits[0].device, dtype=torch.float64)[:, None]
    return first_best(digits, keys, lambda x: x.amax(1, keepdim=True), lambda x: x)[:, 0].long()


@dataclass
class _Rounded:
    """Keys ``k`` (batch, m, d_h) float64; scaled and centred, ``y``, for rounded scores; and the norms of these.

    In float32 one long key leaves nearly all queries undecided, as its rounding error is allowed for in every score.
    Here each key has its own.
    """

    k: Tensor
    y: Tensor
    norm: Tensor

    @classmethod
    def of(cls, k: Tensor) -> _Rounded:
        y = centred(scaled(k, (-2, -1)))
        return cls(k, y, norms(y)[..., None])

    def best(self, q: Tensor, seen: tuple[Tensor, Tensor] | None) -> Tensor | None:
        """The best keys of ``q`` (batch, n, d_h), float64; None where too many of them are left undecided."""
        x = scaled(q, -1)
        scores = self.y @ x.mT
        if seen:
            hide(scores, *seen)
        error = score_error(x.shape[-1], norms(x)[:, None], self.norm)
        close = scores + error >= (scores - error).amax(1, keepdim=True)
        close[:, 1:] &= x.any(-1)[:, None]  # of a query that is zero the first key is the best
        best, doubtful = close.to(torch.uint8).argmax(1), close.sum(1) > 1
        which, key = close.mT[doubtful].nonzero().unbind(1)
        if len(which) > MANY * close.numel():
            return None
        if len(which):
            query = doubtful.flatten().nonzero()[which, 0]
            of_all = key + query // q.shape[1] * self.k.shape[1]
            chosen = best_of_pairs(q.flatten(0, 1), self.k.flatten(0, 1), query, of_all)
            best.view(-1)[query[chosen]] = key[chosen]
        return best
