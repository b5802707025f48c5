"""Scaling by powers of two: it rounds nothing but what is so far below the largest number that it underflows."""

from __future__ import annotations

import torch
from torch import Tensor

#: For each precision the exponents beyond which nothing is scaled.
_EXPONENTS = {torch.float32: 100, torch.float64: 1000}


def power_of_two(largest: Tensor) -> Tensor:
    """Powers of two that bring ``largest`` >= 0 to between 1/2 and 1; less at the ends of the range of exponents."""
    exponent = _EXPONENTS[largest.dtype]
    largest = largest.clamp(2.0**-exponent, 2.0**exponent)
    return torch.frexp(largest).mantissa / largest


def scaled(x: Tensor, over: int | tuple[int, int]) -> Tensor:
    """``x``, float32 or float64, times a power of two for all numbers ``over`` some dimensions."""
    return x * power_of_two(x.abs().amax(over, keepdim=True))
