"""Where batches come from, and what their randomness comes from."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

Kind = TypeVar("Kind")


@runtime_checkable
class Source(Protocol):
    """Batches of one task. ``steps`` is their number in an epoch of batches of this size.

    ``batch`` must depend on its arguments only: that is what lets a run go on where it was killed. ``test`` gives the
    loss and the accuracy of the model on what it is tested on. ``describe`` says in plain values what the data are, so
    that a checkpoint of other data is refused.
    """

    def steps(self, batch: int) -> int: ...

    def batch(self, seed: int, epoch: int, step: int, batch: int) -> tuple[Tensor, Tensor]: ...

    def test(self, model: Any) -> dict[str, float]: ...

    def describe(self) -> dict[str, object]: ...

    def to(self: Kind, device: torch.device) -> Kind: ...


def generator_of(*numbers: int) -> torch.Generator:
    """A generator on the CPU whose seed is a mixture of these numbers, in this order."""
    mixed = 0
    for number in numbers:
        mixed = (mixed * 6364136223846793005 + number + 1442695040888963407) % 2**64
        mixed ^= mixed >> 29
    return torch.Generator().manual_seed(mixed)
