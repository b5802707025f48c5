"""Functions of TorchScript, into which no mode of PyTorch sees: those that may attend inside are refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from attnrank.probe._reporter import Reporter

#: Operations in the text of a graph.
OPERATIONS = re.compile(r"\w+::(\w+)\(")
ATTENDS = re.compile(r"softmax|attention|attn", re.IGNORECASE)
PRODUCTS = {"matmul", "bmm", "mm", "baddbmm", "einsum"}


@contextmanager
def scripted(report: Reporter) -> Iterator[None]:
    """Refuse functions of TorchScript, as they are called, whose graph holds a softmax, an attention or two products.

    All others, as activations that are scripted for speed, run as they are; that queries and keys were multiplied in
    one of them is seen by the softmax that follows, whose scores came from nowhere.
    """
    kind: Any = torch.jit.ScriptFunction
    call = kind.__call__

    def checked(function: torch.jit.ScriptFunction, *args: object, **kwargs: object) -> object:
        if _may_attend(function):
            report.refused(
                f"{function.name} is TorchScript that attends, or may, where the probe cannot see: "
                "call the original function"
            )
        return call(function, *args, **kwargs)

    kind.__call__ = checked
    try:
        yield
    finally:
        kind.__call__ = call


def _may_attend(function: torch.jit.ScriptFunction) -> bool:
    operations = OPERATIONS.findall(str(function.inlined_graph))
    return any(map(ATTENDS.search, operations)) or sum(name in PRODUCTS for name in operations) > 1
