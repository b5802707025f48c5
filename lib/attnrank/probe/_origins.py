"""Which arguments of the modules at work a tensor was made of."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary


class Origins:
    """Marks of arguments, and what operations pass on of them.

    Attention itself passes nothing on: a row that it returns belongs to the token that asked, whose marks it gets from
    the residual beside it, and not to the tokens that were seen.
    """

    def __init__(self) -> None:
        self._marks = WeakTensorKeyDictionary()

    def mark(self, x: Tensor) -> object:
        """A mark of its own for x and all that is made of it."""
        mark = object()
        self._marks[x] = self._marks.get(x, frozenset()) | {mark}
        return mark

    def of(self, x: Tensor) -> frozenset[object]:
        """The marks of what x was made of; a view has those of the tensor that it shows."""
        marks = self._marks.get(x, frozenset())
        return marks if x._base is None else marks | self._marks.get(x._base, frozenset())

    def follow(self, given: Iterable[Tensor], made: Iterable[Tensor]) -> None:
        """Pass the marks of an operation's operands on to what it made, or wrote into."""
        marks = frozenset().union(*map(self.of, given))
        if marks:
            for x in made:
                self._marks[x] = self._marks.get(x, frozenset()) | marks
