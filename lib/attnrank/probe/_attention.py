"""One attention as a model computed it: queries, keys, values, scores and output, in one layout."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from attnrank.probe._masks import HIDDEN, Mask


@dataclass
class Attention:
    """S samples, H heads: ``softmax(scale q k^T + mask) v = output``.

    Attributes
    ----------
    layer : qualified name.
    q, k : (S, H, n, d_h) and (S, H_k, m, d_h), H_k a divisor of H; None where scores stand in their place.
    v, output : (S, H_v, m, d_v) and (S, H, n, d_v), H_v a divisor of H.
    scale : the factor of the products.
    mask : see :class:`Mask`.
    scores : (S, H, n, m), given where they are no multiple of ``q k^T`` (a bias, soft-capping) or where there is a
        sink.
    sink : (S, H, n), a score without a key and a value; None without one.
    crosses : whether queries and keys belong to different tokens, as far as the arguments of the module tell.
    rotary_dim : how much of the head dimension carries positions in latent attention.
    tokens_first : whether the module says that the tokens, and not the samples, are its input's first dimension.
    """

    layer: str
    q: Tensor | None
    k: Tensor | None
    v: Tensor
    output: Tensor
    scale: float
    mask: Mask
    crosses: bool
    scores: Tensor | None = None
    sink: Tensor | None = None
    rotary_dim: int | None = None
    tokens_first: bool = False
    head_dim: int | None = None

    @property
    def exact(self) -> bool:
        """Whether the order of the scores is that of ``q k^T``."""
        return self.q is not None and self.mask.bias is None and self.scale > 0

    @property
    def kv_heads(self) -> int:
        """Number of different key heads: those repeated in every sample, as for grouped queries, count once."""
        if self.k is None:
            return self.v.shape[1]
        distinct: list[Tensor] = []
        for one in self.k.unbind(1):
            if not any(torch.equal(one, other) for other in reversed(distinct)):
                distinct.append(one)
        return len(distinct)


def four(x: Tensor, heads: int, grouped: bool = False) -> Tensor:
    """x (..., rows, columns) as (S, H, rows, columns); three dimensions hold S x H matrices, the heads of a sample
    together, and five that are ``grouped`` the groups of S x H_k key heads."""
    if grouped:
        return x.flatten(1, 2)
    if x.ndim == 2:
        return x[None, None]
    if x.ndim == 3:
        return x.unflatten(0, (-1, heads))
    return x.flatten(0, -4) if x.ndim > 4 else x


def from_softmax(
    scores: Tensor,
    product: tuple[Tensor, Tensor],
    v: Tensor,
    output: Tensor,
    heads: int,
    *,
    grouped: bool,
    **others,
) -> Attention:
    """An attention that a model wrote out: the input of its softmax, and the factors of the product before."""
    q, k, v, output, scores = (four(x.detach(), heads, grouped) for x in (*product, v, output, scores))
    sink = None
    if scores.shape[-1] == k.shape[-2] + 1:
        scores, sink = scores[..., :-1], scores[..., -1]
    samples = max(x.shape[0] for x in (q, k, v, output, scores))
    q, k, v, output, scores = (x.expand(samples, *x.shape[1:]) for x in (q, k, v, output, scores))
    mask, scale = read_off(scores, q, k)
    if scale is None:
        mask = Mask(mask.n, mask.m, visible=mask.visible, bias=scores)
    kept = scores if scale is None or sink is not None else None
    return Attention(q=q, k=k, v=v, output=output, scale=scale or 1.0, mask=mask, scores=kept, sink=sink,
                     head_dim=q.shape[-1], **others)  # fmt: skip


def read_off(scores: Tensor, q: Tensor, k: Tensor) -> tuple[Mask, float | None]:
    """Which keys scores (S, H, n, m) hide, and the c > 0 for which the others are ``c q k^T``, None if there is none.

    Low scores hide keys, unless a low temperature explains them: unless all scores that are finite, or larger than the
    least, are multiples of ``q k^T``. NaN hides nothing: its softmax is refused.
    """
    low = scores <= HIDDEN
    if not low.any():
        mask = Mask(*scores.shape[-2:])
        return mask, fitted_scale(scores, q, k, mask)
    for hidden in (scores == -torch.inf, scores == scores.amin()):
        if not torch.equal(hidden, low):
            mask = Mask.of(~hidden, *scores.shape[-2:])
            scale = fitted_scale(scores, q, k, mask, as_is=low.all(-1, keepdim=True))
            if scale is not None:
                return mask, scale
    mask = Mask.of(~low, *scores.shape[-2:])
    return mask, fitted_scale(scores, q, k, mask)


def fitted_scale(scores: Tensor, q: Tensor, k: Tensor, mask: Mask, *, as_is: Tensor | None = None) -> float | None:
    """The c > 0 for which the visible scores are ``c q k^T`` plus a number for each row, None if there is none.

    "Are" means up to rounding, see :func:`_rounding`. A number for each row changes no softmax; in the rows that are
    taken ``as_is`` (S, H, n, 1) it is 0.
    """
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    c, doubt = None, 0.0
    coarsest = max((torch.finfo(x.dtype) for x in (scores, q, k)), key=lambda info: info.eps)
    for s in range(q.shape[0]):
        for h in range(q.shape[1]):
            visible = mask.rows(s, h, 0, mask.n, q.device)
            product = q[s, h].double() @ k[s, h].double().mT
            centred = visible if as_is is None else visible & ~as_is[s, h]
            one, two = (_centred(x, visible, centred) for x in (product, scores[s, h].double()))
            sizes, square = _norms(q[s, h]) * _norms(k[s, h]).mT, one.square().sum().item()
            first = c is None
            if c is None:
                c = (one * two).sum().item() / square if square > 0 else q.shape[-1] ** -0.5
                if not c > 0 or not math.isfinite(c):
                    return None
            slack = _rounding(c * sizes, scores[s, h].double(), q.shape[-1], coarsest).masked_fill(~visible, 0)
            slack += _means(slack, visible)
            if first and square > 0:  # what independent roundings in this head do to c, for the heads that follow
                doubt = torch.linalg.vector_norm(one * slack).item() / square
            if not ((two - c * one).abs() <= slack + doubt * one.abs()).all():
                return None
    return c


def _centred(x: Tensor, visible: Tensor, rows: Tensor) -> Tensor:
    """The visible entries, others 0, less their mean in the rows where ``rows`` (n, m) has some."""
    x = x.masked_fill(~visible, 0)
    return (x - _means(x.masked_fill(~rows, 0), rows)).masked_fill(~visible, 0)


def _means(x: Tensor, visible: Tensor) -> Tensor:
    """The means of the rows over their visible entries, where the others are 0."""
    return x.sum(-1, keepdim=True) / visible.sum(-1, keepdim=True).clamp(min=1)


def _norms(x: Tensor) -> Tensor:
    """The norms of the rows as a column; padded ones may be NaN."""
    return torch.linalg.vector_norm(x.double(), dim=-1, keepdim=True).nan_to_num(0.0)


def _rounding(sizes: Tensor, scores: Tensor, head_dim: int, coarsest: torch.finfo) -> Tensor:
    """How far rounding moves scores at most, where ``sizes`` = c |q_i| |k_j|, which no product exceeds.

    Four roundings to the coarsest format at hand, each by eps / 2, are allowed for: of the product and of its multiple,
    relative to ``sizes``, and of two additions, relative to the scores. Half formats sum a product in float32: only
    there errors add up along the head dimension.
    """
    summed = head_dim * min(coarsest.eps, torch.finfo(torch.float32).eps)
    return coarsest.eps * (sizes + scores.abs() + 2 * coarsest.tiny) + summed * sizes
