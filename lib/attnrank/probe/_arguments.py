"""What the probe is asked: which model, batches, ranks and layers; and what is refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase

import numpy as np
import torch
from torch import Tensor, nn

from attnrank import _check

RANKS = ("hardmax", "numerical", "stable", "effective")


class Choice:
    """Which layers are measured: by name or pattern, or by place, which is known for all only after the last."""

    def __init__(self, layers: object) -> None:
        if isinstance(layers, (str, int)):
            layers = [layers]
        if layers is not None:
            layers = list(layers) if isinstance(layers, Iterable) else None
            if not layers or not all(isinstance(x, (str, int)) and not isinstance(x, bool) for x in layers):
                raise ValueError(f"layers must be names, patterns or integers, at least one, got {layers!r}")
        self.layers = layers
        self.late = layers is not None and any(isinstance(x, int) and x < 0 for x in layers)

    def named(self, name: str) -> bool:
        """Whether a layer is chosen whatever its place."""
        return self.layers is None or any(
            isinstance(x, str) and (x == name or fnmatchcase(name, x)) for x in self.layers
        )

    def takes(self, name: str, place: int, total: int | None) -> bool:
        """Whether a layer is chosen; while ``total`` is unknown, whether it may be."""
        if self.named(name) or place in (self.layers or ()):
            return True
        return self.late and (total is None or place - total in (self.layers or ()))

    def check(self, seen: list[str]) -> None:
        """Raise ValueError for what matches none of the layers that attended."""
        for x in self.layers or ():
            if not (
                any(x == n or fnmatchcase(n, x) for n in seen) if isinstance(x, str) else -len(seen) <= x < len(seen)
            ):
                raise ValueError(f"layers has no match for {x!r}; the model attends in {', '.join(seen)}")


def batches_of(batch: object) -> tuple[Iterator[Mapping | tuple], int | None]:
    """What the model is called with, one after the other, and how often where that is known."""
    if isinstance(batch, (Tensor, Mapping, tuple)):
        given: Iterable = [batch]
    elif isinstance(batch, np.ndarray):
        raise ValueError("batch must hold torch tensors, got a numpy array: convert it with torch.from_numpy(batch)")
    elif isinstance(batch, Iterable) and not isinstance(batch, (str, bytes)):
        given = batch
    else:
        raise ValueError(
            f"batch must be a tensor, a tuple, a mapping or an iterable of these, got {type(batch).__name__}"
        )
    try:
        total = len(given)  # type: ignore[arg-type]
    except TypeError:  # a generator, or a DataLoader, which has a length even where its data set has none
        total = None
    return (
        one if isinstance(one, Mapping) else tuple(one) if isinstance(one, (tuple, list)) else (one,) for one in given
    ), total


def sizes(batch: Mapping | tuple) -> tuple[int, ...]:
    """The first two sizes of the first tensor, the first of which is mostly the number of samples; () without one."""
    values = batch.values() if isinstance(batch, Mapping) else batch
    return next((tuple(value.shape[:2]) for value in values if isinstance(value, Tensor) and value.ndim), ())


def ranks_wanted(ranks: object) -> frozenset[str] | None:
    """The names of ``ranks`` as a set; None, for those that suit the length, stays None."""
    if ranks is None:
        return None
    names = [ranks] if isinstance(ranks, str) else list(ranks) if isinstance(ranks, Iterable) else [ranks]
    if not names:
        raise ValueError(f"ranks must name at least one of {', '.join(RANKS)}")
    return frozenset(_check.choice("ranks", name, RANKS) for name in names)


def check_model(model: object) -> None:
    """Raise ValueError for what is no module, has no numbers, or a part that no mode of PyTorch can see into."""
    if not isinstance(model, nn.Module):
        raise ValueError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if isinstance(model, nn.DataParallel):
        raise ValueError("model is wrapped in DataParallel, whose threads the probe cannot see: pass model.module")
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise ValueError(
                f"model has TorchScript in {name or 'itself'}, which the probe cannot see into: pass the original "
                "module"
            )
        # those that accelerate has laid aside, to load them while the module runs, are on no device either
        if not hasattr(module, "_hf_hook"):
            for key, value in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
                _check_numbers(f"model has {f'{name}.{key}'.lstrip('.')}", value)


def check_batch(batch: Mapping | tuple) -> None:
    """Raise ValueError for tensors without numbers."""
    for value in batch.values() if isinstance(batch, Mapping) else batch:
        if isinstance(value, Tensor):
            _check_numbers("batch is", value)


def _check_numbers(what: str, x: Tensor) -> None:
    if x.is_meta:
        raise ValueError(f"{what} on the meta device, which holds no numbers")
