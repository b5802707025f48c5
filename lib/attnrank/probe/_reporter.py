"""What becomes of an attention that was seen: it gets its layer's name and is handed on, or is refused by that name."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from attnrank.probe._attention import Attention, from_softmax
from attnrank.probe._layers import Layers

REMEDY = "reload the model with sdpa or eager attention"
NULL_KEYS = "the probe does not know keys or values that are added or left out (null keys)"


class Reporter:
    """Hands attentions to ``found``, and what the probe cannot see to ``refuse(layer, what)``.

    ``batch`` is the number of samples where it is known; ``heads`` that of heads while a routine runs that was told it.
    """

    def __init__(
        self, layers: Layers, found: Callable[[Attention], None], refuse: Callable[[str, str], None], batch: int | None
    ) -> None:
        self._layers, self._found, self.refuse, self._batch = layers, found, refuse, batch
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
        self._found(from_softmax(scores, product, *others, **place))

    def number_of_heads(self, x: Tensor) -> int:
        """How many heads three dimensions hold, samples and heads in the first; 1 for other tensors."""
        if x.ndim != 3:
            return 1
        return self.heads or self._layers.heads(x.shape[0], self._batch)

    def _place(self, n: int, k: Tensor, shared: frozenset[object]) -> dict:
        rotary = self._layers.attribute("qk_rope_head_dim")
        return {
            "layer": self._layers.next_name(), "crosses": self._layers.crosses(n, k, shared),
            "rotary_dim": rotary if isinstance(rotary, int) else None,
        }  # fmt: skip
