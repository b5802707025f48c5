"""A second device without the hardware: tensors of this machine's memory that may not meet those of the CPU.

Code that forgets to say on which device a tensor is made, or mixes two devices, works on a machine without a GPU and
fails on one with. Here it fails on both: a tensor `to` the device "simulated" is a wrapper, every operation is carried
out on what it wraps, and one that is given tensors of both devices is refused, as CUDA refuses it. What another device
*computes* differently this cannot show.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = "simulated"

#: Operations that carry numbers from one device to another.
CARRIERS = ("aten::copy_", "aten::_to_copy")


class Memory:
    """Bytes of the tensors on the device, now and at most since `reset`. Views share theirs."""

    def __init__(self) -> None:
        self.now = self.peak = 0
        self._owners: Counter[int] = Counter()

    def reset(self) -> int:
        self.peak = self.now
        return self.now

    def watch(self, wrapper: Simulated) -> None:
        storage = wrapper.held.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
        if address not in self._owners:
            self.now += size
            self.peak = max(self.peak, self.now)
        self._owners[address] += 1
        weakref.finalize(wrapper, self._release, address, size)

    def _release(self, address: int, size: int) -> None:
        self._owners[address] -= 1
        if not self._owners[address]:
            del self._owners[address]
            self.now -= size


MEMORY = Memory()


class Simulated(torch.Tensor):
    """A tensor that says it is on the device. Its numbers are in ``held``."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> Simulated:
        form = {"strides": held.stride(), "storage_offset": held.storage_offset(), "dtype": held.dtype}
        wrapper = torch.Tensor._make_wrapper_subclass(cls, held.shape, device=f"{DEVICE}:0", **form)
        wrapper.held = held
        MEMORY.watch(wrapper)
        return wrapper

    def __repr__(self) -> str:
        return f"Simulated({self.held})"

    def tolist(self) -> list:
        return self.held.tolist()

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), kwargs=None):
        return _carry_out(operation, args, kwargs or {})


class _Factories(TorchDispatchMode):
    """Also sees operations that are given no tensor of the device, such as `torch.zeros`."""

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        return _carry_out(operation, args, kwargs or {})


def _carry_out(operation, args, kwargs):
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    here = [x for x in tensors if isinstance(x, Simulated)]
    if here and operation._schema.name not in CARRIERS:
        strangers = [x for x in tensors if not isinstance(x, Simulated) and x.dim()]  # numbers may be on the CPU
        if strangers:
            raise RuntimeError(f"{operation} expected all tensors to be on the same device")
    target = kwargs.get("device")
    on_device = bool(here) if target is None else torch.device(target).type == DEVICE
    held_args, held_kwargs = tree_map(lambda x: x.held if isinstance(x, Simulated) else x, (args, kwargs))
    if target is not None:
        held_kwargs["device"] = "cpu"
    result = operation(*held_args, **held_kwargs)
    if not on_device:
        return result
    result = tree_map(lambda x: Simulated(x) if isinstance(x, torch.Tensor) else x, result)
    return return_and_correct_aliasing(operation, args, kwargs, result) if here else result


#: Whether the device is there. Torch forgets no device, and what runs later in the process must not find one to use.
_there = False


def _register() -> bool:
    """Make the device known to torch, once in a process. False where this version of torch cannot."""
    setup = getattr(backend_registration, "_setup_privateuseone_for_python_backend", None)
    if setup is None:
        return False
    if not hasattr(torch, DEVICE):
        module, hook = backend_registration._DummyBackendModule(), backend_registration._DummyPrivateUse1Hook()
        module.get_amp_supported_dtype = lambda: [torch.float16, torch.bfloat16]
        module.is_available = lambda: _there
        module.device_count = lambda: int(_there)
        hook.is_available = lambda: _there
        setup(DEVICE, module, hook)
    return True


@contextmanager
def activated() -> Iterator[str]:
    """The name of a device that tensors can be moved to; a GPU where there is one."""
    global _there
    if torch.cuda.is_available():
        yield "cuda"
    elif _register():
        _there = True
        try:
            with _Factories():
                yield DEVICE
        finally:
            _there = False
    else:
        pytest.skip("this version of torch has no devices written in Python")


@pytest.fixture
def second_device() -> Iterator[str]:
    """For the whole of a test. Every operation is slow meanwhile, on the CPU too."""
    with activated() as name:
        yield name
