"""The mode that sees a model attend."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from types import FunctionType

from torch import Tensor
from torch.overrides import TorchFunctionMode

from attnrank.probe._fused import flex, sdpa
from attnrank.probe._products import FACTORS
from attnrank.probe._reporter import NULL_KEYS, REMEDY, Reporter
from attnrank.probe._traces import Traces, wrapped
from attnrank.probe._written import Written

#: Operations whose names say that they attend and that show neither scores nor queries and keys in a known place.
UNSEEN = re.compile(r"attention|attn|mha_|_transformer_encoder_layer_fwd", re.IGNORECASE)
PRODUCTS = {*FACTORS, "einsum"}


class Watch(TorchFunctionMode):
    """Reports every attention that runs.

    ``scaled_dot_product_attention`` shows all that is needed. An attention written out is recognised by its products:
    the softmax of something that came from a product of two activations, multiplied with values. Every operation goes
    either to the routine that knows it, or by the names of those that are known to attend, and is then followed.
    """

    def __init__(self, report: Reporter, traces: Traces) -> None:
        super().__init__()
        self._report, self._traces = report, traces
        self._written = written = Written(report, traces)
        self._special: dict[str, Callable] = {
            "scaled_dot_product_attention": partial(sdpa, report),
            "flex_attention": partial(flex, report),
            "softmax": written.softmax,
            "_softmax": written.softmax,
            "_safe_softmax": written.softmax,
            "dropout": written.dropout,
        }

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(func, "__name__", type(func).__name__).partition(".")[0]
        if name == "__get__":
            result = func(*args, **kwargs)
            if isinstance(result, Tensor):
                self._traces.follow(name, args, kwargs, result)
            return result
        special = self._multi_head if name == "multi_head_attention_forward" else self._special.get(name)
        if special is not None:
            if wrapped(*args[:3]):
                self._report.refused(
                    f"{name} inside of torch.func.vmap or another transformation of torch.func; call it without"
                )
                return func(*args, **kwargs)
            return special(func, args, kwargs)
        if name in PRODUCTS:
            return self._written.product(name, func, args, kwargs)
        unknown = self._traces.unknown(name, func, args, kwargs)
        if UNSEEN.search(name):
            self._report.refused(f"{_qualified(func, name)} is an attention that the probe cannot see; {REMEDY}")
        elif unknown:
            self._report.refused(unknown)
        result = func(*args, **kwargs)
        self._traces.follow(name, args, kwargs, result)
        self._written.follow(args, kwargs, result)
        return result

    def finish(self) -> None:
        """Refuse a softmax of queries and keys that was never multiplied with values."""
        self._written.finish()

    def _multi_head(self, func, args, kwargs):
        """Run the body of torch's function under this mode: its own check, which hides the inside, is left out."""
        inside = FunctionType(
            func.__code__, func.__globals__ | {"has_torch_function": lambda _: False}, func.__name__, func.__defaults__
        )
        inside.__kwdefaults__ = func.__kwdefaults__
        report, given = self._report, dict(zip(func.__code__.co_varnames, args, strict=False)) | kwargs
        if given.get("bias_k") is not None or given.get("add_zero_attn"):
            report.refused(f"{func.__name__} with bias_k or add_zero_attn: {NULL_KEYS}")
            return func(*args, **kwargs)
        before, report.heads = report.heads, given["num_heads"]
        try:
            with self:
                return inside(*args, **kwargs)
        finally:
            report.heads = before


def _qualified(func: object, name: str) -> str:
    return (
        str(func)
        if hasattr(func, "overloads") or hasattr(func, "_schema")
        else f"{getattr(func, '__module__', None) or 'torch'}.{name}"
    )
