"""The rank of hardmax attention, counted: its one-hot rows make the rank the number of distinct columns chosen."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from attnrank import _check

#: Scores held at once by :func:`hardmax_rank`, per tile of queries x keys (float32: 16 MiB, which a CPU cache likes).
TILE_SCORES = 1 << 22


def hardmax_rank(
    q: Float[Tensor, "*batch n d_h"],
    k: Float[Tensor, "*batch m d_h"],
    *,
    causal: bool = False,
    tile: int | None = None,
) -> Int64[Tensor, "*batch"]:
    """Rank of ``hardmax(q k^T)``: the number of distinct keys that are the best key of some query.

    Scores are computed tile by tile, so the extra memory is O(n + m) and not O(n m). They are computed in float64 for
    float64 input and in float32 otherwise (half precision is converted, which is exact). The temperature does not
    matter: the argmax of a row does not depend on it.

    Ties (exactly equal scores) go to the first key, as in ``argmax``. Equal key rows tie for every query, even where
    rounding separates their computed scores: they always count as the first of them.

    Parameters
    ----------
    q : floating-point tensor (..., n, d_h), queries.
    k : floating-point tensor (..., m, d_h), keys; same leading dimensions, device and dtype as ``q``.
    causal : query i may choose keys 0..i only; needs m = n.
    tile : rows of a square tile of scores; chosen from the shapes when None. It does not change the result, up to
        rounding: scores that differ only by rounding errors may be ordered otherwise in tiles of another shape.

    Returns
    -------
    int64 tensor (...), between 1 and min(n, m).

    Raises
    ------
    ValueError : empty, NaN or infinite ``q`` or ``k``, shapes that do not fit, scores that overflow, ``tile`` < 1.

    Source: chapter 01, "The rank of a hardmax matrix is a count".
    """
    q, k = _queries_and_keys(q, k, causal)
    batch, n, m = q.shape[:-2], q.shape[-2], k.shape[-2]
    rows, columns = _tile_shape(n, m, tile)
    together = max(1, TILE_SCORES // (rows * columns))  # small matrices go through in one product
    counts = []
    q, k = q.reshape(-1, *q.shape[-2:]), k.reshape(-1, *k.shape[-2:])
    for queries, keys in zip(q.split(together), k.split(together), strict=True):
        chosen = torch.zeros(keys.shape[:-1], dtype=torch.bool, device=q.device)
        first = _first_equal_row(keys)
        for start in range(0, n, rows):
            best = _best_keys(queries[:, start : start + rows], keys, columns, start if causal else None)
            chosen.scatter_(-1, first.gather(-1, best), True)
        counts.append(chosen.sum(-1))
    return torch.cat(counts).reshape(batch)


def _queries_and_keys(q: Tensor, k: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """Check ``q`` and ``k`` and bring them to the precision in which the scores are computed."""
    _check.matrices("q", q)
    _check.matrices("k", k)
    if q.shape[:-2] != k.shape[:-2] or q.shape[-1] != k.shape[-1]:
        raise ValueError(
            "q and k must have the same leading and last dimensions, "
            f"got q of shape {tuple(q.shape)} and k of shape {tuple(k.shape)}"
        )
    _check.same_dtype_and_device(q=q, k=k)
    if causal and q.shape[-2] != k.shape[-2]:
        raise ValueError(f"causal needs as many keys as queries, got {q.shape[-2]} queries and {k.shape[-2]} keys")
    precision = torch.float64 if q.dtype == torch.float64 else torch.float32
    return _check.finite("q", q.detach()).to(precision), _check.finite("k", k.detach()).to(precision)


def _tile_shape(n: int, m: int, tile: int | None) -> tuple[int, int]:
    if tile is not None:
        tile = _check.integer("tile", tile, minimum=1)
        return min(tile, n), min(tile, m)
    columns = min(m, 4096)
    return min(n, max(1, TILE_SCORES // columns)), columns


def _best_keys(queries: Tensor, keys: Tensor, columns: int, causal_start: int | None) -> Tensor:
    """Index of the best key of each query, the first one on ties; ``causal_start`` is the position of queries[:, 0]."""
    stop = keys.shape[-2] if causal_start is None else causal_start + queries.shape[-2]
    best, index = _tile_maximum(queries, keys, 0, min(columns, stop), causal_start)
    for start in range(columns, stop, columns):
        value, position = _tile_maximum(queries, keys, start, min(start + columns, stop), causal_start)
        better = value > best  # strictly: an equal score later on does not displace the first
        best = torch.maximum(best, value)  # keeps a NaN
        index = torch.where(better, position, index)
    if not torch.isfinite(best).all():
        raise ValueError(f"q and k must have finite scores: q k^T overflows {best.dtype}; rescale or use float64")
    return index


def _tile_maximum(
    queries: Tensor, keys: Tensor, start: int, stop: int, causal_start: int | None
) -> tuple[Tensor, Tensor]:
    scores = queries @ keys[:, start:stop].mT
    if causal_start is not None and stop > causal_start:
        row = torch.arange(causal_start, causal_start + queries.shape[-2], device=queries.device)
        column = torch.arange(start, stop, device=queries.device)
        scores.masked_fill_(column > row[:, None], -torch.inf)
    value, position = scores.max(-1)
    return value, position + start


def _first_equal_row(k: Tensor) -> Tensor:
    """For every key the index of the first key equal to it, (..., m); found by hashing, confirmed by comparison."""
    m = k.shape[-2]
    itself = torch.arange(m, device=k.device).expand(k.shape[:-1])
    hashes, order = _row_hashes(k).sort(dim=-1)
    fresh = torch.ones_like(hashes, dtype=torch.bool)
    fresh[..., 1:] = hashes[..., 1:] != hashes[..., :-1]
    if fresh.all():
        return itself
    group = torch.empty_like(order).scatter_(-1, order, fresh.cumsum(-1) - 1)  # keys of one hash
    first, unsettled = itself, torch.ones_like(fresh)
    while unsettled.any():  # once, unless different keys share a hash
        earliest = torch.full_like(group, m - 1)
        earliest.scatter_reduce_(-1, group, torch.where(unsettled, itself, m - 1), "amin")
        candidate = earliest.gather(-1, group)
        equal = unsettled & (k == k.gather(-2, candidate.unsqueeze(-1).expand_as(k))).all(-1)
        first = torch.where(equal, candidate, first)
        unsettled &= ~equal
    return first


def _row_hashes(k: Tensor) -> Tensor:
    """A 64-bit hash of every row of ``k``, equal for equal rows; in slices of columns, so that memory stays O(m)."""
    integer = torch.int64 if k.dtype == torch.float64 else torch.int32
    odd = torch.randint(-(2**62), 2**62, (k.shape[-1],), generator=torch.Generator().manual_seed(0)) * 2 + 1
    hashes = torch.zeros(k.shape[:-1], dtype=torch.int64, device=k.device)
    width = max(1, TILE_SCORES // hashes.numel())
    for columns, factors in zip(k.split(width, -1), odd.to(k.device).split(width), strict=True):
        bits = (columns + 0.0).view(integer).long()  # + 0.0 turns -0.0 into 0.0
        mixed = (bits ^ (bits >> 29)) * factors
        hashes += (mixed ^ (mixed >> 32)).sum(-1)
    return hashes
