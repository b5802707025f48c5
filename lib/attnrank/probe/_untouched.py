"""A model is run and left as it was found, its batch and the random numbers too."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Evaluation without gradients or compilation; then training modes, buffers and random states are set back."""
    modes = [(module, module.training) for module in model.modules()]
    buffers = [
        (module, name, value, value.clone())
        for module in model.modules()
        for name, value in module._buffers.items()
        if value is not None
    ]
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
            for module, name, value, before in buffers:
                module._buffers[name] = value
                if not torch.equal(value, before):
                    value.copy_(before)
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
