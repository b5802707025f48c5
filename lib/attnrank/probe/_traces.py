"""What came from products of two activations, in whatever form: so that no attention is passed over unseen."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from attnrank.probe._origins import Origins

#: Operations that sum over products of their operands.
PRODUCTS = {
    "matmul", "__matmul__", "__rmatmul__", "bmm", "mm", "baddbmm", "addmm", "addbmm", "einsum", "inner", "tensordot",
    "linear", "multi_dot", "linalg_multi_dot", "chain_matmul",
}  # fmt: skip
#: Operations that multiply entry by entry; where that makes more entries, a sum over some of them is a product.
TIMES = {"mul", "multiply", "__mul__", "__rmul__"}
#: Operations after which nothing is left of a product.
MIXES = {"conv1d", "conv2d", "conv3d", "embedding"}


class Traces:
    """Which tensors of a forward pass are made of weights and constants, and which came from a product of two others.

    The others are called activations. ``origins`` is told of every operation.
    """

    def __init__(self, model: nn.Module, origins: Origins) -> None:
        self._origins = origins
        self._weights = WeakTensorKeyDictionary()
        for x in (*model.parameters(), *model.buffers()):
            self._weights[x] = True
        self._traced = WeakTensorKeyDictionary()
        self._fresh = WeakTensorKeyDictionary()

    def is_weight(self, x: Tensor) -> bool:
        """Is this a parameter, a buffer, a constant, or computed from such alone?"""
        return x in self._weights or (x._base is not None and x._base in self._weights)

    def __contains__(self, x: Tensor) -> bool:
        """Did this come from a product of two activations?"""
        return x in self._traced

    def unknown(self, name: str, func: object, args: tuple, kwargs: dict) -> str | None:
        """What is wrong with an operation that may attend in one step, before it runs; None for nothing."""
        space = getattr(func, "namespace", None) or getattr(func, "_qualified_op_name", "aten::").partition("::")[0]
        if space not in ("aten", "prim", "prims", "_") and len(self._activations(args, kwargs, least=3)) >= 3:
            return f"{space}::{name} is an operation of three activations that the probe cannot see into"
        if name in PRODUCTS and name not in ("baddbmm", "addmm", "addbmm"):
            given = self._activations(args, kwargs)
            if len(given) >= 3:
                return f"{name} of three activations: linear attention, or an attention without softmax"
            if len(given) == 2 and any(x in self._fresh for x in given):
                return ("a product of two activations is multiplied with a third and no softmax was seen in between: "
                        "linear attention, or an attention without softmax")  # fmt: skip
        return None

    def follow(self, name: str, args: tuple, kwargs: dict, result: object) -> None:
        """Remember what an operation made of its operands, or wrote into the first of them."""
        given = list(tensors((*args, *kwargs.values())))
        constant = all(map(self.is_weight, given)) or name.endswith("_like") or name.startswith("new_")
        written = _written(name, args, kwargs)
        if written:
            if not constant:
                self._forget(written)
            result = written
        made = [x for x in tensors((result,)) if x.is_floating_point()]
        if not made:
            return
        if not constant:
            self._origins.follow(given, made)
        if constant:
            self._mark(self._weights, made)
        elif name in PRODUCTS:
            if len(self._activations(args, kwargs)) >= 2:
                self._mark(self._traced, made)
                self._mark(self._fresh, made)
        elif name in TIMES:
            two = self._activations(args, kwargs)
            outer = len(two) == 2 and made[0].numel() > max(x.numel() for x in two)
            if outer or any(x in self._traced for x in given):
                self._mark(self._traced, made)
        elif name not in MIXES and any(x in self._traced for x in given):
            self._mark(self._traced, made)
        if given and given[0] in self._fresh and made[0].shape == given[0].shape and name not in PRODUCTS:
            self._mark(self._fresh, made[:1])

    def _activations(self, args: tuple, kwargs: dict, least: int = 1) -> list[Tensor]:
        return [x for x in tensors((*args, *kwargs.values()))
                if x.is_floating_point() and x.ndim >= least and not self.is_weight(x)]  # fmt: skip

    def _forget(self, written: list[Tensor]) -> None:
        for x in written:
            self._weights.pop(x, None)

    @staticmethod
    def _mark(known: WeakTensorKeyDictionary, made: list[Tensor]) -> None:
        for x in made:
            known[x] = True


def _written(name: str, args: tuple, kwargs: dict) -> list[Tensor]:
    """What an operation writes into, a tensor or a list of them, and what these are views of; empty for nothing."""
    place = kwargs.get("out")
    if name == "__setitem__" or (name.endswith("_") and not name.endswith("__")):
        place = args[0] if args else next(iter(kwargs.values()), None)
    return [y for x in tensors((place,)) for y in (x, x._base) if y is not None]


def tensors(values: tuple) -> Iterator[Tensor]:
    """The tensors among values, and in lists and tuples among these."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from (x for x in value if isinstance(x, Tensor))


def wrapped(*values: object) -> bool:
    """Is one of these a tensor inside of a transformation of torch.func, such as vmap?"""
    return any(isinstance(x, Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(x) for x in values)
