"""How the rank routines run: outside torch.compile, decompositions on one thread, 8-bit numbers widened."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")

#: Every 8-bit format with a sign and a zero; torch has no arithmetic in them.
EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz)


def outside_compilation(function: Callable[P, R]) -> Callable[P, R]:
    """The function, left alone by torch.compile: bounds of rounding errors hold for the operations as written."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling():
            return torch.compiler.disable(function)(*args, **kwargs)
        return function(*args, **kwargs)

    return call


def widened(x: Tensor) -> Tensor:
    """8-bit numbers as float32, which is exact; a copy of a view that negates, which numpy cannot read; others as they
    are."""
    return x.float() if x.dtype in EIGHT_BITS else x.resolve_neg()


def without_autocast(device: str) -> AbstractContextManager[object]:
    """Products on devices of this type in the precision of their factors; nothing to do where they are so anyway."""
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


@contextmanager
def one_thread() -> Iterator[None]:
    """Lets torch use one thread, so that no rounding error depends on how many there are. Threads that call do not mix:
    torch keeps the number for each of them; but one that first uses torch meanwhile begins, and stays, with one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
