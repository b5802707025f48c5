"""What becomes of an attention that was seen: it gets its layer's name and is handed on, or is refused by that name."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from attnrank.probe._attention import Attention, from_softmax
from attnrank.probe._layers import Layers

REMEDY = "reload the model with sdpa or eager attention"
NULL_KEYS = "the probe does not know keys or values that are added or left out (null keys)"


class Reporter:
    """Hands attentions to ``found``, and what the probe cannot see to ``refuse(layer, what)``.

    ``sizes`` are those of the batch: see :func:`attnrank.probe._arguments.sizes`. ``heads`` is the number of heads
    while a routine runs that was told it.
    """

    def __init__(
        self,
        layers: Layers,
        found: Callable[[Attention], None],
        refuse: Callable[[str, str], None],
        sizes: tuple[int, ...],
    ) -> None:
        self._layers, self._found, self.refuse, self._sizes = layers, found, refuse, sizes
        self.heads: int | None = None

    def here(self) -> str:
        """Qualified name of the module at work."""
        return self._layers.here()

    def refused(self, what: str) -> None:
        """Refuse what runs now, as an attention of its own."""
        self.refuse(self._layers.next_name(), what)

    def shared(self, left: Tensor, right: Tensor) -> frozenset[object]:
        """The marks of arguments that went into both: see :class:`attnrank.probe._origins.Origins`."""
        return self._layers.origins.of(left) & self._layers.origins.of(right)

    def fused(self, shared: frozenset[object], **attention) -> None:
        """An attention that one routine computed: what queries and keys share, and the fields of :class:`Attention` but
        for those of its place."""
        self._found(Attention(**attention, **self._place(attention["q"].shape[-2], attention["k"], shared)))

    def written(self, shared: frozenset[object], scores: Tensor, product: tuple[Tensor, Tensor], *others) -> None:
        """An attention written out as product, softmax, product; others: see :func:`from_softmax`."""
        place = self._place(scores.shape[-2], product[1], shared)
        self._found(from_softmax(scores, product, *others, grouped=self.grouped(*product), **place))

    def number_of_heads(self, x: Tensor) -> int:
        """How many heads three dimensions hold, samples and heads in the first; 1 for other tensors."""
        if x.ndim != 3:
            return 1
        return self.heads or self._layers.heads(x.shape[0], x.shape[1], self._sizes)

    def grouped(self, q: Tensor, k: Tensor) -> bool:
        """Whether five dimensions hold (S, H_k, group, rows, columns): queries in groups that share a key head.

        Else they are (S, windows, H, rows, columns), whose heads share their keys where the modules at work say that
        they have so many heads.
        """
        if not q.ndim == k.ndim == 5 or q.shape[2] == 1 or q.shape[2] in self._layers.told_heads():
            return False
        return k.shape[2] == 1 or torch.equal(k, k[:, :, :1].expand_as(k))

    def _place(self, n: int, k: Tensor, shared: frozenset[object]) -> dict:
        rotary = self._layers.attribute("qk_rope_head_dim")
        return {
            "layer": self._layers.next_name(), "crosses": self._layers.crosses(n, k, shared),
            "rotary_dim": rotary if isinstance(rotary, int) else None,
            "tokens_first": self._layers.attribute("batch_first") is False,
        }  # fmt: skip
