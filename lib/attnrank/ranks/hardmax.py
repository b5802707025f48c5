"""The rank of hardmax attention, counted: its one-hot rows make the rank the number of distinct columns chosen."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from attnrank import _check
from attnrank.ranks._context import outside_compilation, widened, without_autocast
from attnrank.ranks._hardmax import Heads, block_dtype, block_ranks, cached_numbers, search_rank

#: Scores of a matrix up to which all are computed, block by block. Beyond, tiles of keys are searched.
SMALL = 1 << 22

#: Coordinates of a head at which that pays: with more, few keys can be left out, and larger matrices are small, too.
LEFT_OUT = 4


@outside_compilation
def hardmax_rank(
    q: Float[Tensor, "*batch n d_h"],
    k: Float[Tensor, "*batch m d_h"],
    *,
    causal: bool = False,
    tile: int | None = None,
) -> Int64[Tensor, "*batch"]:
    """Rank of ``hardmax(q k^T)``: the number of distinct keys that are the best key of some query. Exact.

    The answer is that of exact arithmetic on ``q`` and ``k`` as given, whatever their precision: products in float32,
    or in float64 on a GPU that is fast in it, leave for nearly every query one key that can be the best within
    rigorous bounds of the rounding errors; where they leave several, exact arithmetic decides. So the answer does not
    depend on the tile, the split of a batch, the threads or the device. Exactly equal scores go to the first key, as in
    ``argmax``. The temperature does not matter: the argmax of a row does not depend on it. Where the processor is told
    to flush subnormal numbers to zero (``torch.set_flush_denormal``), those in ``q`` and ``k`` may count as zero.

    The extra memory is O(n + m), unless a ``tile`` asks for more. Large matrices are searched from the longest key, and
    queries whose best score no shorter key can reach are left out: at small d_h few scores are computed.

    Parameters
    ----------
    q : floating-point tensor (..., n, d_h), queries. Every shape is taken as it stands: :func:`attnrank.head_ranks`
        is the one that warns where tokens and heads look exchanged, and refuses an attention matrix given twice.
    k : floating-point tensor (..., m, d_h), keys; same leading dimensions, device and dtype as ``q``.
    causal : query i may choose keys 0..i only; needs m = n.
    tile : rows of a square tile of scores, which is held whole; n or m, whichever is larger, if it is more, and chosen
        from the shapes when None. It does not change the result.

    Returns
    -------
    int64 tensor (...), between 1 and min(n, m).

    Raises
    ------
    ValueError : empty, NaN or infinite ``q`` or ``k``, shapes that do not fit, a mask in the place of ``causal``,
        ``tile`` < 1; and where the longest query, or the longest key from the mean of the keys, is beyond 2^20 or below
        2^-20, scores that overflow: those whose positive terms add up to more than the largest number of float64, for
        float64 input, or float32.

    Examples
    --------
    >>> import attnrank, torch
    >>> generator = torch.Generator().manual_seed(0)
    >>> q, k = torch.randn(2, 8, 100, 16, generator=generator, dtype=torch.float64)    # 8 heads, n = 100, d_h = 16
    >>> attnrank.hardmax_rank(q, k)
    tensor([48, 48, 49, 49, 50, 53, 47, 51])

    Source: chapter attention_rank, "The rank of a hardmax matrix is a count".
    """
    _check_arguments(q, k, causal)
    if tile is not None:
        tile = min(_check.integer("tile", tile, minimum=1), max(q.shape[-2], k.shape[-2]))
    batch = q.shape[:-2]
    with without_autocast(q.device.type):
        small = tile is None and _is_small(q, k)
        dtype = block_dtype(q.device) if small else torch.float32
        heads = Heads.of(widened(q.detach()), widened(k.detach()), causal, dtype, centre=not small)
        if small:
            return block_ranks(heads, causal=causal).reshape(batch)
        ranks = [search_rank(heads[i : i + 1], causal=causal, tile=tile) for i in range(len(heads.q))]
        return torch.stack(ranks).reshape(batch)


def _is_small(q: Tensor, k: Tensor) -> bool:
    """Whether all scores are computed, of each block of queries with all keys; these have to stay in the cache."""
    n, (m, d_h) = q.shape[-2], k.shape[-2:]
    return n * m <= SMALL or (n * m <= SMALL * d_h / LEFT_OUT and m * d_h <= cached_numbers(q.device))


def _check_arguments(q: Tensor, k: Tensor, causal: bool) -> None:
    _check.matrices("q", q)
    _check.matrices("k", k)
    if q.shape[:-2] != k.shape[:-2] or q.shape[-1] != k.shape[-1]:
        raise ValueError(
            "q and k must have the same leading and last dimensions, "
            f"got q of shape {tuple(q.shape)} and k of shape {tuple(k.shape)}{_remedy(q.shape, k.shape)}"
        )
    _check.same_dtype_and_device(q=q, k=k)
    if _check.flag("causal", causal) and q.shape[-2] != k.shape[-2]:
        raise ValueError(f"causal needs as many keys as queries, got {q.shape[-2]} queries and {k.shape[-2]} keys")


def _remedy(q: torch.Size, k: torch.Size) -> str:
    """What to do about leading dimensions that could be broadcast, or about grouped queries."""
    if q[-1] != k[-1] or q[:-2] == k[:-2]:
        return ""
    some_for_several = ": to use some for several, expand them, as in k.expand(*q.shape[:-2], *k.shape[-2:])"
    return _check.advice_on_groups(q, k) or some_for_several
