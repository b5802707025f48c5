"""Hardmax ranks on the accelerator, if there is one."""

from __future__ import annotations

from jaxtyping import Float, Int64
from torch import Tensor

from attnrank.ranks import hardmax_rank
from attnrank.sweep import device


def hardmax_rank_on_device(
    q: Float[Tensor, "*batch n d_h"], k: Float[Tensor, "*batch m d_h"], *, causal: bool = False
) -> Int64[Tensor, "*batch"]:
    """`hardmax_rank` of queries and keys that were drawn on the CPU, counted on the `device` of this process.

    The result is on the CPU. It is exact, so every device gives the same one. Spectra stay on the CPU: those of the
    tables are small, and their last digits would depend on the device.
    """
    where = device()
    return hardmax_rank(q.to(where), k.to(where), causal=causal).cpu()
