"""A model is run and left as it was found, its batch and the random numbers too."""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


class Kept:
    """The parameters and buffers of a module, to be set back: the objects, and the numbers of buffers.

    Parameters have too many numbers for a copy: one that is written into, and not replaced, stays as it is then.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._parameters, self._buffers = dict(module._parameters), dict(module._buffers)
        self._passing = set(module._non_persistent_buffers_set)
        # and none of a kind of its own, lazy, quantised or distributed, that may have no place in memory
        self._data = [(x, x.data) for x in self._parameters.values() if type(x) is nn.Parameter]
        self._versions = [(name, x, x._version) for name, x in self._parameters.items() if _counts_writes(x)]
        self._numbers = [(x, x.clone()) for x in self._buffers.values() if x is not None]

    def restore(self) -> list[str]:
        """Set everything back; returns the names of the parameters that were written into."""
        module = self._module
        kept: tuple[tuple[Any, Any], ...] = (
            (module._parameters, self._parameters),
            (module._buffers, self._buffers),
            (module._non_persistent_buffers_set, self._passing),
        )
        for now, before in kept:
            now.clear()
            now.update(before)
        for x, numbers in self._numbers:
            if not torch.equal(x, numbers):
                x.copy_(numbers)
        changed = [name for name, x, version in self._versions if x._version != version]
        for x, data in self._data:
            if x.data_ptr() != data.data_ptr():
                x.data = data
        return changed


def _counts_writes(x: Tensor | None) -> TypeGuard[Tensor]:
    return x is not None and not x.is_inference()


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Evaluation without gradients or compilation; then modes, parameters, buffers and random states are set back.

    Warns of parameters that the model has written into.
    """
    modes = [(module, module.training) for module in model.modules()]
    kept = [(name, Kept(module)) for name, module in model.named_modules()]
    tensors = [*model.parameters(), *model.buffers()]
    devices = sorted({tensor.device.index or 0 for tensor in tensors if tensor.device.type == "cuda"})
    states = random.getstate(), np.random.get_state()
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices))
        stack.enter_context(torch.no_grad())
        if hasattr(torch.compiler, "set_stance"):  # torch >= 2.6: compiled models run as they were written
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        try:
            for module, _ in modes:
                module.training = False  # not eval(), which a model may have overridden to change its weights
            yield
        finally:
            for module, training in modes:
                module.training = training
            changed = [f"{name}.{x}".lstrip(".") for name, one in kept for x in one.restore()]
            if changed:
                warnings.warn(f"model has changed its own {', '.join(changed)} in place: it stays so", stacklevel=2)
            random.setstate(states[0])
            np.random.set_state(states[1])


def own(value: Any) -> Any:
    """A batch that a model may change: caches of keys and values are copied, tensors are not."""
    if value is None or isinstance(value, (Tensor, str, int, float, bool)):
        return value
    if isinstance(value, Mapping):
        return {key: own(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(own(item) for item in value)
    with _Copies():
        return copy.deepcopy(value)


class _Copies(TorchFunctionMode):
    """Copies of tensors that carry gradients, too, which deepcopy refuses: as numbers, without their history."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is Tensor.__deepcopy__:
            return args[0].detach().clone()
        return func(*args, **(kwargs or {}))
