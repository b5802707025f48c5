"""Rigorous bounds of the rounding errors of scores."""

from __future__ import annotations

import math
from typing import TypeVar

import torch
from torch import Tensor

Number = TypeVar("Number", Tensor, float)

#: For each precision the unit roundoff and the smallest normal number.
_FORMATS = {torch.float32: (2.0**-24, 2.0**-126), torch.float64: (2.0**-53, 2.0**-1022)}

#: Added to norms for every coordinate, where squares underflow.
FLOOR = 2.0**-49

#: Where torch keeps what it may do with float32 factors; older versions lack some.
PLACES = (
    torch.backends, torch.backends.mkldnn, getattr(torch.backends.mkldnn, "matmul", None), torch.backends.cuda.matmul
)


def centred(k: Tensor) -> Tensor:
    """Keys from their mean, or nearly: one vector less for all changes no argmax, and rounding errors are then relative
    to differences of keys."""
    return k - k.mean(-2, keepdim=True)


def norms(x: Tensor) -> Tensor:
    """Euclidean norms of the rows of ``x``, with a floor."""
    return torch.linalg.vector_norm(x, dim=-1).add_(math.sqrt(x.shape[-1]) * FLOOR)


def score_error(d_h: int, query_norms: Tensor, key_norms: Tensor, *, scores: int = 1) -> Tensor:
    """Bound of the error of a product of a query and a key, in any order of summation, in the precision of their norms;
    or of so many ``scores`` together.

    It covers the conversion of both to that precision after scaling and centring; the product, also where the user
    allows torch to round factors in float32 further; and the errors of the norms themselves, which are :func:`norms`.
    Numbers that underflow lose at most 4 d_h tiny (1 + q + k) where the norms are q and k: less than a rounding of q k,
    since both are at least d_h^(1/2) FLOOR, and FLOOR^2 >= 16 tiny / unit.
    """
    unit, _ = _FORMATS[query_norms.dtype]
    relative = _growth(d_h, unit)
    if query_norms.dtype == torch.float32 and _factors_may_be_rounded():
        relative += 2.0**-6  # to 8 bits, or cut to them
    return query_norms * (scores * relative * (1 + relative) ** 3 * key_norms)


def _factors_may_be_rounded() -> bool:
    """Whether the user allows torch to multiply float32 matrices in less precision, for this or another device."""
    return any(_setting(x) not in ("none", "ieee") for x in PLACES) or torch.get_float32_matmul_precision() != "highest"


def _setting(place: object) -> str:
    try:
        return getattr(place, "fp32_precision", "none")
    except AssertionError:  # what torch before 2.9 raises for settings it does not have
        return "none"


def sum_error(d_h: int, sizes: Number) -> Number:
    """Bound of the error of a float64 sum of d_h products of rounded differences; ``sizes`` sums their sizes."""
    unit, tiny = _FORMATS[torch.float64]
    relative = _growth(d_h, unit)
    return relative * (1 + relative) ** 3 * sizes + 4 * d_h * tiny


def _growth(d_h: int, unit: float) -> float:
    """Relative error of a sum of d_h products: gamma of Higham (2002), with nine more roundings than a product has.

    Infinite where the roundings add up to 1: nothing is known then.
    """
    roundings = (d_h + 9) * unit
    return roundings / (1 - roundings) if roundings < 1 else math.inf
