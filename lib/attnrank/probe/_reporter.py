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

    def fused(self, **attention) -> None:
        """An attention that one routine computed: the fields of :class:`Attention` but for those of its place."""
        self._found(Attention(**attention, **self._place(attention["q"].shape[-2], attention["k"])))

    def written(
        self, scores: Tensor, product: tuple[Tensor, Tensor], v: Tensor, output: Tensor, heads: int
    ) -> None:
        """An attention written out as product, softmax, product."""
        self._found(from_softmax(scores, product, v, output, heads, **self._place(scores.shape[-2], product[1])))

    def number_of_heads(self, x: Tensor) -> int:
        """How many heads three dimensions hold, samples and heads in the first; 1 for other tensors."""
        if x.ndim != 3:
            return 1
        return self.heads or self._layers.heads(x.shape[0], self._batch)

    def _place(self, n: int, k: Tensor) -> dict:
        rotary = self._layers.attribute("qk_rope_head_dim")
        return {
            "layer": self._layers.next_name(), "crosses": self._layers.crosses(n, k),
            "rotary_dim": rotary if isinstance(rotary, int) else None,
        }  # fmt: skip
