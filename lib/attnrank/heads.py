"""The heads of a model that one already has: their ranks from queries and keys, or from attention matrices."""

from __future__ import annotations

import itertools
import math
import warnings
from functools import lru_cache

import pandas as pd
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from attnrank import _check, theory
from attnrank.ranks import hardmax_rank

#: More heads than this and than tokens, more batches than this of at most so many tokens, or larger heads look like
#: exchanged dimensions or heads that are not split.
FEW, LARGEST_HEAD = 16, 256
#: Leading dimensions by their number; more are "batch_0", "batch_1", ... before the last two.
_LEADING = {0: [], 1: ["head"], 2: ["batch", "head"]}


class LayoutWarning(UserWarning):
    """A shape that fits, but looks like another order of dimensions than is expected, or like heads not split."""


def head_ranks(
    q: Float[Tensor, "*batch n d_h"], k: Float[Tensor, "*batch m d_h"], *, causal: bool = False
) -> pd.DataFrame:
    """Hardmax rank of every head, beside the bounds that fit.

    ``nn.MultiheadAttention`` keeps the weights of queries and keys in ``in_proj_weight``; from its input x
    (batch, n, embed), with h heads::

        w_q, w_k, _ = layer.in_proj_weight.chunk(3)
        b_q, b_k, _ = layer.in_proj_bias.chunk(3)
        q, k = (torch.nn.functional.linear(x, w, b) for w, b in ((w_q, b_q), (w_k, b_k)))
        q, k = (y.unflatten(-1, (h, -1)).transpose(1, 2) for y in (q, k))      # (batch, h, n, embed / h)
        attnrank.head_ranks(q, k, causal=True)

    Parameters
    ----------
    q : floating-point tensor (..., heads, n, d_h), queries; also (n, d_h) for a single head.
    k : floating-point tensor (..., heads, m, d_h), keys; same leading dimensions, device and dtype as ``q``. Grouped
        keys are repeated first: ``k.repeat_interleave(group, -3)``.
    causal : query i sees keys 0..i only; needs m = n.

    Returns
    -------
    DataFrame with a row a head: its place (``batch``, ``head``), ``n``, ``m``, ``head_dim``, ``causal``;
    ``hardmax_rank``, and ``share``, it over n; ``barrier``, what i.i.d. queries reach at most on average whatever the
    keys; if causal 3 n / 4 (1 for n = 1), which needs queries of a symmetric law with a density and distinct keys that
    are independent of them; ``bound``, what a random head on orthonormal tokens reaches at most on average at this
    head dimension, missing where m differs from n. ``attrs["layout"]`` says which dimension
    was taken for what.

    Raises
    ------
    ValueError : as `hardmax_rank`, and for attention matrices in the place of queries and keys.

    Warns
    -----
    LayoutWarning : once, for a shape that is more often another one. Over 16 heads and more heads than tokens, as in
        (batch, n, heads, d_h) and (n, heads, d_h), or in a model of many heads on a short text; over 16 batches of at
        most 16 tokens, as in (n, batch, heads, d_h), or in many short texts; a last dimension over 256, as in (batch,
        heads, d_h, n), or in (batch, n, embed) and (n, embed) whose heads are not split. Where the shape is meant:
        ``warnings.simplefilter("ignore", attnrank.LayoutWarning)``.

    Examples
    --------
    >>> import attnrank, torch
    >>> generator = torch.Generator().manual_seed(0)
    >>> q, k = torch.randn(2, 8, 100, 16, generator=generator, dtype=torch.float64)    # 8 heads, n = 100, d_h = 16
    >>> table = attnrank.head_ranks(q, k)
    >>> table.columns.tolist()
    ['head', 'n', 'm', 'head_dim', 'causal', 'hardmax_rank', 'share', 'barrier', 'bound']
    >>> round(float(table.share.mean()), 2), round(float(table.bound[0]), 1)
    (0.49, 49.6)

    Source: chapter attention_rank for the rank, barrier, head_dimension and masks for the bounds.
    """
    _check.matrices("q", q), _check.matrices("k", k)
    causal = _check.flag("causal", causal)
    _refuse_attention(q, k)
    ranks = hardmax_rank(q.detach(), k.detach(), causal=causal)
    _warn_of_layout(q)
    n, m, d_h = q.shape[-2], k.shape[-2], q.shape[-1]
    places = _LEADING.get(ranks.ndim) or [f"batch_{i}" for i in range(ranks.ndim - 1)] + ["head"] * (ranks.ndim > 0)
    barrier = theory.causal_bound(n) if causal else theory.occupancy_bound(n, m)
    rows = [
        dict(zip(places, place, strict=True))
        | {"n": n, "m": m, "head_dim": d_h, "causal": causal, "hardmax_rank": rank, "share": rank / n}
        | {"barrier": barrier, "bound": _bound(n, d_h, causal) if m == n else math.nan}
        for place, rank in zip(
            itertools.product(*map(range, ranks.shape)), ranks.flatten().tolist(), strict=True
        )
    ]  # fmt: skip
    table = pd.DataFrame(rows)
    dimensions = zip([*places, "n", "head_dim"], q.shape, strict=True)
    table.attrs["layout"] = ", ".join(f"{name} {size}" for name, size in dimensions)
    return table


def hardmax_rank_of(attention: Float[Tensor, "*batch n m"]) -> Int64[Tensor, "*batch"]:
    """Hardmax rank of matrices that one already has: the number of distinct columns that hold a largest entry of a row.

    For the weights that ``nn.MultiheadAttention`` returns with ``need_weights=True, average_attn_weights=False``. Equal
    entries go to the first column, as in `hardmax_rank`; but a softmax in low precision makes entries equal that are
    not, so that queries and keys, if at hand, are the better source. Scores will do as well, -inf where masked.

    Parameters
    ----------
    attention : floating-point tensor (..., n, m), attention weights or scores, at least one finite entry in each row.

    Returns
    -------
    int64 tensor (...), between 1 and min(n, m).

    Raises
    ------
    ValueError : not a tensor of matrices, empty, NaN or +inf, or a row that is all -inf.

    Examples
    --------
    >>> import attnrank, torch
    >>> attnrank.hardmax_rank_of(torch.tensor([[0.7, 0.3, 0.0], [0.6, 0.1, 0.3], [0.2, 0.3, 0.5]])).item()
    2

    Source: chapter attention_rank, "The rank of a hardmax matrix is a count".
    """
    _check.matrices("attention", attention)
    a = attention.detach()
    a = a.float() if a.dtype.itemsize < 4 else a  # exact; some devices lack comparisons in small formats
    largest = a.amax(-1, keepdim=True)
    if not _check.all_finite(largest):
        raise ValueError("attention must have a finite largest entry in each row, without NaN")
    m = a.shape[-1]
    column = torch.arange(m, device=a.device)
    first = torch.where(a == largest, column, m).amin(-1)  # argmax need not be the first on every device
    return torch.zeros_like(a[..., 0, :], dtype=torch.bool).scatter_(-1, first, True).sum(-1)


@lru_cache(maxsize=64)
def _bound(n: int, d_h: int, causal: bool) -> float:
    return theory.causal_head_dim_bound(n, d_h) if causal else theory.head_dim_bound(n, d_h)


def _refuse_attention(q: Tensor, k: Tensor) -> None:
    """Refuse rows of probabilities over as many places as there are rows, given twice or with their transpose.

    One-hot rows given twice may be tokens, and have the rank that they have as an attention matrix: they are taken.
    """
    if q.shape != k.shape or q.shape[-1] != q.shape[-2] or q.shape[-1] < 2:
        return
    rows = q.detach().double()
    stochastic = (rows >= 0).all() and ((rows.sum(-1) - 1.0).abs() < 1e-2).all()
    twice = torch.equal(q, k)
    if twice and ((rows == 0) | (rows == 1)).all():
        return
    if stochastic and (twice or torch.equal(q.mT, k)):
        raise ValueError(
            "q and k must be queries and keys, got one attention matrix twice, or it and its transpose; "
            "hardmax_rank_of takes attention matrices"
        )


def _warn_of_layout(q: Tensor) -> None:
    doubt = _doubt(*q.shape)
    if doubt:
        warnings.warn(
            f"q of shape {tuple(q.shape)} is taken as {doubt}, and k likewise; if it is meant, "
            "warnings.simplefilter('ignore', attnrank.LayoutWarning)",
            LayoutWarning,
            stacklevel=3,
        )


def _doubt(*shape: int) -> str:
    """What a shape of two or more dimensions is taken as, what else it may be, and the remedy; "" if it is usual."""
    if len(shape) == 2:
        if shape[-1] <= LARGEST_HEAD:
            return ""
        return (
            f"one head of {shape[0]} tokens and dimension {shape[1]}; if it is (n, embed), split the heads: give "
            "q.unflatten(-1, (heads, -1)).transpose(0, 1)"
        )
    *batch, heads, n, d_h = shape
    if heads > max(FEW, n):
        other = "(batch, n, heads, head_dim)" if batch else "(n, heads, head_dim)"
        return f"{heads} heads of {n} tokens; if it is {other}, give q.transpose(-3, -2)"
    if n <= FEW < max(batch, default=0):
        return (
            f"{' x '.join(map(str, batch))} x {heads} heads of {n} tokens each; if its tokens come first, as in "
            "(n, batch, heads, head_dim), give q.movedim(0, -2)"
        )
    if d_h > LARGEST_HEAD and batch:
        return f"heads of {n} tokens and dimension {d_h}; if it is (batch, heads, head_dim, n), give q.mT"
    if d_h > LARGEST_HEAD:
        return (
            f"{heads} heads of dimension {d_h}; if it is (batch, n, embed), split the heads: give "
            "q.unflatten(-1, (heads, -1)).transpose(1, 2)"
        )
    return ""
