"""Attentions that one routine of PyTorch computes, and that show their queries, keys and values as arguments."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from attnrank.probe._attention import four
from attnrank.probe._masks import Mask
from attnrank.probe._reporter import REMEDY, Reporter


def sdpa(report: Reporter, func: Callable, args: tuple, kwargs: dict) -> Tensor:
    """``scaled_dot_product_attention``."""
    result = func(*args, **kwargs)
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given = dict(zip(names, args, strict=False)) | kwargs
    q, k, v = own = tuple(given[name] for name in names[:3])
    if q.is_nested:
        report.refused(f"nested tensors in scaled_dot_product_attention; {REMEDY} and pad the batch")
        return result
    heads, grouped = report.number_of_heads(q), report.grouped(q, k)
    mask = given.get("attn_mask")
    if mask is not None:
        mask = _mask(mask.detach(), q, heads, grouped)
    q, k, v, output = (four(x.detach(), heads, grouped) for x in (*own, result))
    if given.get("dropout_p"):
        report.refused("weights of attention are dropped in evaluation mode, by scaled_dot_product_attention")
        return result
    report.fused(
        report.shared(*own[:2]), q=q, k=k, v=v, output=output, head_dim=q.shape[-1], scale=_scale(given, q),
        mask=Mask.of(mask, q.shape[-2], k.shape[-2], causal=bool(given.get("is_causal", False))),
    )  # fmt: skip
    return result


def flex(report: Reporter, func: Callable, args: tuple, kwargs: dict) -> Tensor | tuple:
    """``flex_attention`` without a score function and without a block mask; with one it is refused."""
    names = ("query", "key", "value", "score_mod", "block_mask", "scale", "enable_gqa")
    given = dict(zip(names, args, strict=False)) | kwargs
    if not _plain(given.get("score_mod"), given.get("block_mask")):
        report.refused(f"flex_attention with a score_mod or a block_mask; {REMEDY}")
        return func(*args, **kwargs)
    result = func(*args, **kwargs)
    out = result[0] if isinstance(result, tuple) else result
    own = tuple(given[name] for name in names[:3])
    q, k, v, output = (four(x.detach(), 1) for x in (*own, out))
    report.fused(
        report.shared(*own[:2]), q=q, k=k, v=v, output=output, head_dim=q.shape[-1], scale=_scale(given, q),
        mask=Mask.of(None, q.shape[-2], k.shape[-2]),
    )  # fmt: skip
    return result


def _plain(score_mod: object, block_mask: object) -> bool:
    """Whether the two change nothing; inside of ``flex_attention`` they are never None."""
    if score_mod is not None and getattr(score_mod, "__name__", "") != "_identity":
        return False
    if isinstance(block_mask, tuple):
        return getattr(block_mask[-1], "__name__", "") == "noop_mask"
    return block_mask is None


def _mask(mask: Tensor, q: Tensor, heads: int, grouped: bool) -> Tensor:
    """A mask as (S, H, n, m), each 1 where all have the same: torch sets it against the queries from the right."""
    mask = mask[(None,) * (q.ndim - mask.ndim)]
    if grouped:
        return (mask.expand(-1, *q.shape[1:3], -1, -1) if max(mask.shape[1:3]) > 1 else mask).flatten(1, 2)
    if q.ndim > 4:
        mask = mask.expand(*q.shape[:-3], *mask.shape[-3:])
    return four(mask, heads if mask.shape[0] > 1 else 1)


def _scale(given: dict, q: Tensor) -> float:
    scale = given.get("scale")
    return q.shape[-1] ** -0.5 if scale is None else float(scale)
