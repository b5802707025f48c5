"""Checks of arguments: every message names the argument and shows the value."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Iterable
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

#: Formats without a number an element, or without zero and sign; older versions of torch lack some.
PACKED = {getattr(torch, name, None) for name in ("float4_e2m1fn_x2", "float8_e8m0fnu")}


def integer(name: str, value: Any, *, minimum: int) -> int:
    """Return ``value`` as an int, or raise ValueError if it is not an integer >= ``minimum``."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be an integer, got {_shown(value)}") from None
    if number < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {_shown(number)}")
    return number


def whole(name: str, value: Any, *, minimum: int, maximum: float = sys.float_info.max) -> int:
    """As `integer`, for formulas: a float that is a whole number, such as 1e6, will do, and no number beyond floats."""
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        value = int(value)
    number = integer(name, value, minimum=minimum)
    if number > maximum:
        raise ValueError(f"{name} must be at most {maximum:g}, got {_shown(number)}")
    return number


def flag(name: str, value: Any) -> bool:
    """Return ``value`` if it is True or False, or raise ValueError: a mask or a word is neither."""
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"{name} must be True or False, got {_shown(value)}")
    return bool(value)


def real(
    name: str, value: Any, *, minimum: float = -math.inf, above: float = -math.inf, maximum: float = math.inf
) -> float:
    """Return ``value`` as a finite float in [minimum, maximum] and > ``above``, or raise ValueError."""
    try:
        finite_number = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an integer beyond the range of floats
        finite_number = False
    if not finite_number:
        raise ValueError(f"{name} must be a finite number, got {_shown(value)}")
    number = float(value)  # numpy's narrower numbers would round the bounds
    if number < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {value!r}")
    if number <= above:
        raise ValueError(f"{name} must be greater than {above}, got {value!r}")
    if number > maximum:
        raise ValueError(f"{name} must be at most {maximum}, got {value!r}")
    return number


def choice(name: str, value: Any, allowed: Iterable[str]) -> str:
    """Return ``value`` if it is one of ``allowed``, or raise ValueError that lists them."""
    allowed = sorted(allowed)
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}; got {_shown(value)}")
    return value


def matrices(name: str, value: Any) -> Tensor:
    """Return ``value`` if it is a non-empty floating-point tensor (..., rows, columns), or raise ValueError."""
    if not isinstance(value, Tensor):
        remedy = {"ndarray": "torch.from_numpy", "list": "torch.tensor", "tuple": "torch.tensor"}
        found = type(value).__name__
        convert = f"; {remedy[found]}({name}) makes one" if found in remedy else ""
        raise ValueError(f"{name} must be a torch.Tensor, got {found}{convert}")
    dense(name, value)
    if value.ndim < 2:
        raise ValueError(f"{name} must have shape (..., rows, columns), got {tuple(value.shape)}")
    if value.numel() == 0:
        raise ValueError(f"{name} must not be empty, got shape {tuple(value.shape)}")
    if not value.is_floating_point():
        raise ValueError(f"{name} must be floating point, got {value.dtype}")
    if value.dtype in PACKED:
        raise ValueError(f"{name} must be of a dtype with arithmetic or float8, got {value.dtype}; unpack it first")
    return value


def dense(name: str, value: Tensor) -> Tensor:
    """Return ``value`` if its entries are numbers in memory, or raise ValueError: a sparse, nested or meta tensor."""
    if value.is_nested:
        raise ValueError(f"{name} must be dense, got a nested tensor; pad it, or pass one at a time")
    if value.layout != torch.strided:
        raise ValueError(f"{name} must be dense, got {value.layout}; {name}.to_dense() makes one")
    if value.device.type == "meta":
        raise ValueError(f"{name} must hold numbers, got a tensor on the meta device")
    return value


def with_arithmetic(name: str, value: Tensor) -> Tensor:
    """Return ``value`` if products can be taken in its dtype, or raise ValueError: 8 bits only store numbers."""
    if value.dtype.itemsize < 2:
        raise ValueError(f"{name} must be of a dtype with arithmetic, got {value.dtype}: {name}.to(torch.bfloat16)")
    return value


def advice_on_groups(q: torch.Size, k: torch.Size) -> str:
    """What to do about queries and keys of these shapes where heads share keys; "" where they do not."""
    if len(q) == len(k) > 2 and q[:-3] == k[:-3] and q[-3] % k[-3] == 0 < k[-3] < q[-3]:
        return f": for grouped queries pass k.repeat_interleave({q[-3] // k[-3]}, dim=-3)"
    return ""


def all_finite(value: Tensor) -> bool:
    """Whether ``value`` has no NaN and no infinity: one pass, many times as fast as ``torch.isfinite``."""
    if not value.numel():
        return True
    low, high = torch.aminmax(value.detach())  # of a NaN anywhere, both are NaN
    return math.isfinite(low.item()) and math.isfinite(high.item())


def finite(name: str, value: Tensor) -> Tensor:
    """Return ``value`` if it has no NaN and no infinity, or raise ValueError that says which.

    While a CUDA graph is recorded there are no numbers to look at.
    """
    if value.is_cuda and torch.cuda.is_current_stream_capturing():
        return value
    if not all_finite(value):
        found = "NaN" if torch.isnan(value).any() else "infinite values"
        raise ValueError(f"{name} must be finite, got {found} in a tensor of shape {tuple(value.shape)}")
    return value


def same_dtype_and_device(**tensors: Tensor) -> None:
    """Raise ValueError unless all ``tensors`` share dtype and device."""
    if len({(value.dtype, value.device) for value in tensors.values()}) > 1:
        *names, last = tensors
        found = ", ".join(f"{value.dtype} on {value.device}" for value in tensors.values())
        remedy = ", ".join(f"{name}.to({names[0]})" for name in (*names[1:], last))
        raise ValueError(f"{', '.join(names)} and {last} must share dtype and device, got {found}; take {remedy}")


def generator(name: str, value: Any) -> torch.Generator:
    """Return ``value`` if it is a torch.Generator on the CPU, or raise ValueError."""
    if not isinstance(value, torch.Generator):
        raise ValueError(f"{name} must be a torch.Generator, got {type(value).__name__}")
    if value.device.type != "cpu":
        raise ValueError(f"{name} must be on the CPU (every device then sees the same numbers), got {value.device}")
    return value


def _shown(value: Any) -> str:
    """The value, but of an array its shape alone, and of an integer beyond floats its size: Python may refuse to print
    it."""
    if isinstance(value, int) and abs(value) > sys.float_info.max:
        return f"about {'-' * (value < 0)}1e{math.log10(abs(value)):.0f}"
    if not isinstance(value, Tensor) and type(value).__name__ != "ndarray":
        return repr(value)
    remedy = "; its .item() is a number" if math.prod(value.shape) == 1 else ""
    return f"{type(value).__name__} of shape {tuple(value.shape)}{remedy}"
