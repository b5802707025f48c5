"""Scores without rounding: numbers cut into slices of few bits, whose products and their sums float64 holds exactly."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Slices = dict[int, Tensor]

#: Bits of float64, one of them left for a carry; and how many products of slices may have to be added to a level: few
#: for numbers of like size, and as many as its exponents can ask for.
BITS, TERMS = 52, (4, 128)


def exponents(x: Tensor) -> Tensor:
    """Exponents of two that numbers are below in size, int32; of zeros a very small one."""
    return torch.frexp(x).exponent.masked_fill(x == 0, -2000)


def exact_scores(
    q: Tensor, k: Tensor, q_top: Tensor, k_top: Tensor, product: Callable[[Tensor, Tensor], Tensor]
) -> list[Tensor]:
    """Scores as digits, the most significant first: of two equal-shaped lists the larger score is first in the lexicon.

    Parameters
    ----------
    q, k : float64 (..., d_h).
    q_top, k_top : bounds of :func:`exponents`, of shapes that fit; scores are compared only if they share both.
    product : sums of d_h products, of a slice of ``q`` and one of ``k``.

    Source: Ozaki, Ogita, Oishi and Rump (2012), Error-free transformations of matrix multiplication.
    """
    levels: Slices = {}
    for terms in TERMS:
        width = (BITS - math.ceil(math.log2(q.shape[-1] * terms))) // 2
        of_q, of_k = slices(q, q_top, width), slices(k, k_top, width)
        if min(len(of_q), len(of_k)) <= terms:
            break
    for i, a in of_q.items():
        for j, b in of_k.items():
            levels[i + j] = levels[i + j] + product(a, b) if i + j in levels else product(a, b)
    return _digits(levels, width)


def slices(x: Tensor, top: Tensor, width: int) -> Slices:
    """Whole numbers below 2^width in size; that of slice i, times 2^(top - width (i + 1)), add up to ``x``.

    At least one; others only if some number is not zero.
    """
    mantissa, exponent = torch.frexp(x)
    whole = (mantissa.abs() * 2.0**53).long()
    place = (top - exponent).long() + 53  # of the last bit, counted from the top
    place = place.where(x != 0, 0)
    sign = x.sign()
    found: Slices = {}
    for i in range(max(1, math.ceil(place.amax().item() / width))):
        right = place - (i + 1) * width
        shifted = (whole >> right.clamp(0, 63)) << (-right).clamp(0, 63)
        part = (shifted & (2**width - 1)).double() * sign
        if i == 0 or part.any():
            found[i] = part
    return found


def _digits(levels: Slices, width: int) -> list[Tensor]:
    """Sums of levels, of which each counts 2^-width of the one before, as whole numbers below 2^width but the first."""
    base, digits = 2.0**width, []
    carry: Any = 0.0
    for level in range(max(levels), 0, -1):
        total = levels[level] + carry if level in levels else carry
        carry = torch.floor(total / base)
        digits.append(total - carry * base)
    return [levels[0] + carry, *reversed(digits)]


def first_best(
    digits: list[Tensor], keys: Tensor, highest: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]
) -> Tensor:
    """The least of the ``keys``, float64, whose digits are first in the lexicon, for every query.

    ``highest`` reduces scores to the maximum of each query, and ``back`` brings these to the shape of scores again.
    """
    best = digits[0] == back(highest(digits[0]))
    for digit in digits[1:]:
        digit = (digit + 1) * best
        best = digit == back(highest(digit))
    return -highest(torch.where(best, -keys, -torch.inf))
