"""The mode that sees a model attend, and what it refuses."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from attnrank.probe._attention import Attention, four, from_softmax
from attnrank.probe._layers import Layers
from attnrank.probe._masks import Mask
from attnrank.probe._products import FACTORS, factors, queries_keys, values_of
from attnrank.probe._traces import Traces, tensors, wrapped

#: Operations whose names say that they attend and that show neither scores nor queries and keys in a known place.
UNSEEN = re.compile(r"attention|attn|mha_|_transformer_encoder_layer_fwd", re.IGNORECASE)
REMEDY = "reload the model with sdpa or eager attention"
PRODUCTS = {*FACTORS, "einsum"}


@dataclass
class Softmax:
    """A softmax that may belong to an attention: its input, and the factors of the product that this came from."""

    scores: Tensor
    product: tuple[Tensor, Tensor]
    note: Note


@dataclass
class Note:
    """What is remembered of a softmax of scores when its tensors are gone."""

    layer: str
    used: bool = False


class Watch(TorchFunctionMode):
    """Hands every attention that runs to ``found``.

    ``scaled_dot_product_attention`` shows all that is needed. An attention written out is recognised by its products:
    the softmax of something that came from a product of two activations, multiplied with values. What came from what is
    followed through operations that keep the shape of the scores.
    """

    def __init__(
        self, layers: Layers, found: Callable[[Attention], None], refuse: Callable[[str, str], None], batch: int | None,
        traces: Traces,
    ):  # fmt: skip
        super().__init__()
        self._traces = traces
        self._layers, self._found, self._refuse, self._batch = layers, found, refuse, batch
        self._products = WeakTensorKeyDictionary()
        self._softmaxes = WeakTensorKeyDictionary()
        self._notes: list[Note] = []
        self._heads: int | None = None

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(func, "__name__", type(func).__name__).partition(".")[0]
        if name == "__get__":
            result = func(*args, **kwargs)
            if isinstance(result, Tensor):
                self._traces.follow(name, args, kwargs, result)
            return result
        special = SPECIAL.get(name)
        if special is not None:
            if wrapped(*args[:3]):
                self._refused(f"{name} inside of torch.func.vmap or another transformation of torch.func; call it "
                              "without")  # fmt: skip
                return func(*args, **kwargs)
            return special(self, func, args, kwargs)
        if name in PRODUCTS:
            return self._product(name, func, args, kwargs)
        unknown = self._traces.unknown(name, func, args, kwargs)
        if UNSEEN.search(name):
            self._refused(f"{_qualified(func, name)} is an attention that the probe cannot see; {REMEDY}")
        elif unknown:
            self._refused(unknown)
        result = func(*args, **kwargs)
        self._traces.follow(name, args, kwargs, result)
        if self._products or self._softmaxes:
            self._follow(args, kwargs, result)
        return result

    def finish(self) -> None:
        """Refuse a softmax of queries and keys that was never multiplied with values."""
        for note in self._notes:
            if not note.used:
                self._refuse(note.layer, "its softmax of queries and keys is not multiplied with values as it is: the "
                             "probe does not know attention that is changed after the softmax")  # fmt: skip

    def _refused(self, what: str) -> None:
        layer = self._layers.next_name()
        self._refuse(layer, what)

    def _sdpa(self, func, args, kwargs):
        result = func(*args, **kwargs)
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        given = dict(zip(names, args, strict=False)) | kwargs
        q, k, v = (given[name] for name in names[:3])
        if q.is_nested:
            self._refused(f"nested tensors in scaled_dot_product_attention; {REMEDY} and pad the batch")
            return result
        heads = self._number_of_heads(q)
        q, k, v, output = (four(x.detach(), heads) for x in (q, k, v, result))
        mask = given.get("attn_mask")
        if mask is not None:
            mask = four(mask.detach(), heads if mask.ndim == 3 and mask.shape[0] % heads == 0 else 1)
        if given.get("dropout_p"):
            self._refused("weights of attention are dropped in evaluation mode, by scaled_dot_product_attention")
            return result
        scale = given.get("scale")
        self._record(
            q=q, k=k, v=v, output=output, head_dim=q.shape[-1],
            scale=q.shape[-1] ** -0.5 if scale is None else float(scale),
            mask=Mask.of(mask, q.shape[-2], k.shape[-2], causal=bool(given.get("is_causal", False))),
        )  # fmt: skip
        return result

    def _multi_head(self, func, args, kwargs):
        """Run the body of torch's function under this mode: its own check, which hides the inside, is left out."""
        inside = FunctionType(
            func.__code__, func.__globals__ | {"has_torch_function": lambda _: False}, func.__name__, func.__defaults__
        )
        inside.__kwdefaults__ = func.__kwdefaults__
        before, self._heads = self._heads, kwargs["num_heads"] if "num_heads" in kwargs else args[4]
        try:
            with self:
                return inside(*args, **kwargs)
        finally:
            self._heads = before

    def _flex(self, func, args, kwargs):
        names = ("query", "key", "value", "score_mod", "block_mask", "scale", "enable_gqa")
        given = dict(zip(names, args, strict=False)) | kwargs
        score_mod, block_mask = given.get("score_mod"), given.get("block_mask")
        plain = getattr(score_mod, "__name__", "") == "_identity" or score_mod is None
        if isinstance(block_mask, tuple):
            plain = plain and getattr(block_mask[-1], "__name__", "") == "noop_mask"
        elif block_mask is not None:
            plain = False
        if not plain:
            self._refused(f"flex_attention with a score_mod or a block_mask; {REMEDY}")
            return func(*args, **kwargs)
        result = func(*args, **kwargs)
        q, k, v, output = (four(x.detach(), 1) for x in (*args[:3], result[0] if isinstance(result, tuple) else result))
        scale = given.get("scale")
        self._record(
            q=q, k=k, v=v, output=output, head_dim=q.shape[-1],
            scale=q.shape[-1] ** -0.5 if scale is None else float(scale), mask=Mask.of(None, q.shape[-2], k.shape[-2]),
        )  # fmt: skip
        return result

    def _record(self, **attention) -> None:
        self._found(Attention(
            layer=self._layers.next_name(), crosses=self._layers.crosses(attention["k"].shape[-2]),
            rotary_dim=self._rotary(), **attention,
        ))  # fmt: skip

    def _dropout(self, func, args, kwargs):
        given = {"p": 0.5, "train": True} | dict(zip(("input", "p", "train"), args, strict=False)) | kwargs
        if given["input"] in self._softmaxes and given["p"] and given.get("training", given["train"]):
            self._refused("weights of attention are dropped in evaluation mode")
        result = func(*args, **kwargs)
        self._traces.follow("dropout", args, kwargs, result)
        self._follow(args, kwargs, result)
        return result

    def _softmax(self, func, args, kwargs):
        result = func(*args, **kwargs)
        scores = args[0] if args else kwargs.get("input")
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        if not isinstance(result, Tensor):
            return result
        product = self._products.get(scores)
        if product is None and scores in self._traces:
            self._refused("a softmax of what came from a product of two activations, in a form that the probe cannot "
                          "follow")  # fmt: skip
            return result
        if scores.ndim < 2 or dim not in (-1, scores.ndim - 1):
            if product is not None:
                self._refused(f"a softmax of queries and keys over dimension {dim}, which is not that of the keys")
            return result
        note = Note(self._layers.here())
        if product is not None:
            self._notes.append(note)
        self._softmaxes[result] = Softmax(scores, product, note)
        return result

    def _product(self, name, func, args, kwargs):
        result = func(*args, **kwargs)
        if wrapped(*args):
            return result
        left, right = factors(name, args, kwargs)
        if not (isinstance(left, Tensor) and isinstance(right, Tensor) and isinstance(result, Tensor)):
            unknown = self._traces.unknown(name, func, args, kwargs)
            if unknown:
                self._refused(unknown)
            self._traces.follow(name, args, kwargs, result)
            return result
        for one, weights_left in ((left, True), (right, False)) if name == "einsum" else ((left, True),):
            softmax = self._softmaxes.get(one)
            if softmax is not None:
                self._attended(softmax, values_of(name, args, left, right, result, weights_left))
                return result
            if one in self._products and not (_weight_like(right) and weights_left):
                self._refused("a product of queries and keys is multiplied with values and no softmax over the keys "
                "was "
                              "seen in between: linear attention, or a softmax written by hand")  # fmt: skip
                return result
        unknown = self._traces.unknown(name, func, args, kwargs)
        if unknown:
            self._refused(unknown)
            return result
        self._traces.follow(name, args, kwargs, result)
        if left.is_floating_point() and result.ndim >= 2:
            pair = queries_keys(name, args, left, right)
            if pair is not None:
                self._products[result] = pair
        return result

    def _attended(self, softmax: Softmax, values: tuple[Tensor, Tensor] | None) -> None:
        scores = softmax.scores
        if softmax.product is None:
            if scores.ndim < 3 or scores.shape[-2] == 1:
                return  # pooling by learned scores, or a router
            self._refused("a softmax is multiplied with values whose scores are no product of queries and keys that "
            "the "
                          "probe could follow (additive attention, or products written as sums)")  # fmt: skip
            return
        if softmax.note.used:
            return
        softmax.note.used = True
        if values is None:
            self._refused("the product of the softmax with the values has a form that the probe does not know")
            return
        q, k = softmax.product
        if scores.ndim == q.ndim:
            heads = self._number_of_heads(scores)
            q, k = (
                x if x.ndim != 3 or x.shape[0] == scores.shape[0] else x.expand(scores.shape[0], -1, -1) for x in (q, k)
            )
        else:
            heads = self._number_of_heads(q) if q.ndim == 3 else scores.shape[-3]
        v, output = values
        self._found(from_softmax(
            scores, (q, k), v, output, heads, layer=self._layers.next_name(),
            crosses=self._layers.crosses(k.shape[-2]), rotary_dim=self._rotary(),
        ))  # fmt: skip

    def _follow(self, args: tuple, kwargs: dict, result: object) -> None:
        """What has the shape of scores, and was computed from them, is taken for them; numbers decide later."""
        results = result if isinstance(result, (tuple, list)) else (result,)
        if not any(isinstance(x, Tensor) and x.is_floating_point() and x.ndim >= 2 for x in results):
            return
        for source in tensors((*args, *kwargs.values())):
            for known in (self._products, self._softmaxes):
                if source not in known:
                    continue
                rows, columns = source.shape[-2:]
                for x in results:
                    if (
                        isinstance(x, Tensor) and x.is_floating_point() and x.ndim >= 2 and x is not source
                        and x.shape[-2] == rows and abs(x.shape[-1] - columns) <= 1
                    ):  # fmt: skip
                        known[x] = known[source]

    def _number_of_heads(self, x: Tensor) -> int:
        if x.ndim != 3:
            return 1
        return self._heads or self._layers.heads(x.shape[0], self._batch)

    def _rotary(self) -> int | None:
        rotary = self._layers.attribute("qk_rope_head_dim")
        return rotary if isinstance(rotary, int) else None


SPECIAL = {
    "scaled_dot_product_attention": Watch._sdpa,
    "multi_head_attention_forward": Watch._multi_head,
    "flex_attention": Watch._flex,
    "softmax": Watch._softmax,
    "_softmax": Watch._softmax,
    "_safe_softmax": Watch._softmax,
    "dropout": Watch._dropout,
}


def _weight_like(x: Tensor) -> bool:
    return isinstance(x, torch.nn.Parameter) or isinstance(x._base, torch.nn.Parameter) or x.ndim == 2


def _qualified(func: object, name: str) -> str:
    return (
        str(func)
        if hasattr(func, "overloads") or hasattr(func, "_schema")
        else f"{getattr(func, '__module__', None) or 'torch'}.{name}"
    )
