"""Attention that a model writes out as product, softmax, product: recognised by what came from what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from attnrank.probe._products import as_queries_keys, factors, is_weight, values_of
from attnrank.probe._reporter import NULL_KEYS, Reporter
from attnrank.probe._traces import Traces, tensors, wrapped


@dataclass
class Note:
    """What is remembered of a softmax of scores when its tensors are gone."""

    layer: str
    used: bool = False


@dataclass
class Product:
    """A product that may be that of queries and keys, and what these share: see :meth:`Reporter.shared`."""

    q: Tensor
    k: Tensor
    shared: frozenset[object]


@dataclass
class Softmax:
    """A softmax that may belong to an attention: its input, and the product that this came from."""

    scores: Tensor
    product: Product | None
    note: Note


class Written:
    """Follows products of two activations through operations that keep the shape of scores, and softmaxes of these.

    Such a softmax, multiplied with values, is an attention. One that is never multiplied is refused, and what came
    from a product in a form that cannot be followed.
    """

    def __init__(self, report: Reporter, traces: Traces) -> None:
        self._report, self._traces = report, traces
        self._products = WeakTensorKeyDictionary()
        self._softmaxes = WeakTensorKeyDictionary()
        self._notes: list[Note] = []

    def finish(self) -> None:
        """Refuse a softmax of queries and keys that was never multiplied with values."""
        for note in self._notes:
            if not note.used:
                self._report.refuse(
                    note.layer,
                    "its softmax of queries and keys is not multiplied with values as it is: the probe does not know "
                    "attention that is changed after the softmax",
                )

    def softmax(self, func: Callable, args: tuple, kwargs: dict) -> object:
        result = func(*args, **kwargs)
        scores: Tensor = args[0] if args else kwargs["input"]
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        if not isinstance(result, Tensor):
            return result
        product = self._products.get(scores)
        if product is None and scores in self._traces:
            self._report.refused(
                "a softmax of what came from a product of two activations, in a form that the probe cannot follow"
            )
            return result
        if scores.ndim < 2 or dim not in (-1, scores.ndim - 1):
            if product is not None:
                self._report.refused(
                    f"a softmax of queries and keys over dimension {dim}, which is not that of the keys"
                )
            return result
        note = Note(self._report.here())
        if product is not None:
            self._notes.append(note)
        self._softmaxes[result] = Softmax(scores, product, note)
        return result

    def dropout(self, func: Callable, args: tuple, kwargs: dict) -> object:
        given = {"p": 0.5, "train": True} | dict(zip(("input", "p", "train"), args, strict=False)) | kwargs
        if given["input"] in self._softmaxes and given["p"] and given.get("training", given["train"]):
            self._report.refused("weights of attention are dropped in evaluation mode")
        result = func(*args, **kwargs)
        self._traces.follow("dropout", args, kwargs, result)
        self.follow(args, kwargs, result)
        return result

    def product(self, name: str, func: Callable, args: tuple, kwargs: dict) -> object:
        """A product: of queries and keys, of a softmax of theirs with values, or another."""
        result = func(*args, **kwargs)
        if wrapped(*args):
            return result
        left, right = factors(name, args, kwargs)
        if not (isinstance(left, Tensor) and isinstance(right, Tensor) and isinstance(result, Tensor)):
            self._refuse_unknown(name, func, args, kwargs)
            self._traces.follow(name, args, kwargs, result)
            return result
        if self._is_last(name, args, left, right, result) or self._refuse_unknown(name, func, args, kwargs):
            return result
        self._traces.follow(name, args, kwargs, result)
        if left.is_floating_point() and result.ndim >= 2:
            pair = as_queries_keys(name, args, left, right)
            if pair is not None:
                self._products[result] = Product(*pair, self._report.shared(left, right))
        return result

    def _is_last(self, name: str, args: tuple, left: Tensor, right: Tensor, result: Tensor) -> bool:
        """Whether a product has a softmax as a factor, or scores as they are: then it is an attention, or refused."""
        for one, weights_left in ((left, True), (right, False)) if name == "einsum" else ((left, True),):
            softmax = self._softmaxes.get(one)
            if softmax is not None:
                self._attended(softmax, values_of(name, args, left, right, result, weights_left))
                return True
            if one in self._products and not ((is_weight(right) or right.ndim == 2) and weights_left):
                self._report.refused(
                    "a product of queries and keys is multiplied with values and no softmax over the keys was seen in "
                    "between: linear attention, or a softmax written by hand"
                )
                return True
        return False

    def _refuse_unknown(self, name: str, func: Callable, args: tuple, kwargs: dict) -> bool:
        unknown = self._traces.unknown(name, func, args, kwargs)
        if unknown:
            self._report.refused(unknown)
        return bool(unknown)

    def _attended(self, softmax: Softmax, values: tuple[Tensor, Tensor] | None) -> None:
        scores = softmax.scores
        if softmax.product is None:
            if scores.ndim < 3 or scores.shape[-2] == 1:
                return  # pooling by learned scores, or a router
            self._report.refused(
                "a softmax is multiplied with values whose scores are no product of queries and keys that the probe "
                "could follow (additive attention, or products written as sums)"
            )
            return
        if softmax.note.used:
            return
        softmax.note.used = True
        if values is None:
            self._report.refused("the product of the softmax with the values has a form that the probe does not know")
            return
        q, k = softmax.product.q, softmax.product.k
        columns, keys, rows = scores.shape[-1], k.shape[-2], values[0].shape[-2]
        if rows != keys or columns - keys not in (0, 1):  # one more is a sink
            self._report.refused(
                f"a softmax over {columns} scores of {keys} keys is multiplied with {rows} values: {NULL_KEYS}"
            )
            return
        if scores.ndim == q.ndim:
            heads = self._report.number_of_heads(scores)
            q, k = (
                x if x.ndim != 3 or x.shape[0] == scores.shape[0] else x.expand(scores.shape[0], -1, -1) for x in (q, k)
            )
        else:
            heads = self._report.number_of_heads(q) if q.ndim == 3 else scores.shape[-3]
        self._report.written(softmax.product.shared, scores, (q, k), *values, heads)

    def follow(self, args: tuple, kwargs: dict, result: object) -> None:
        """What has the shape of scores, and was computed from them, is taken for them; numbers decide later."""
        if not (self._products or self._softmaxes):
            return
        results = [
            x for x in (result if isinstance(result, (tuple, list)) else (result,))
            if isinstance(x, Tensor) and x.is_floating_point() and x.ndim >= 2
        ]  # fmt: skip
        if not results:
            return
        for source in tensors((*args, *kwargs.values())):
            for known in (self._products, self._softmaxes):
                if source not in known:
                    continue
                rows, columns = source.shape[-2:]
                for x in results:
                    if x is not source and x.shape[-2] == rows and abs(x.shape[-1] - columns) <= 1:
                        known[x] = known[source]
