"""Which module of a model is running, by its qualified name."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeGuard

import torch
from torch import Tensor, nn

from attnrank.probe._origins import Origins

#: Classes whose name ends so are expected to attend.
ATTENTION = re.compile(r"(attention|attn)(block|layer)?(v?\d+)?$", re.IGNORECASE)

#: Modules that are a step of an attention and never the attention itself.
STEPS = (nn.Softmax, nn.Dropout, nn.Identity)

#: Attributes under which modules keep their number of heads.
HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "heads", "nhead", "nheads")

#: Arguments by which modules are given other tokens to attend to.
OTHER_TOKENS = ("key_value_states", "encoder_hidden_states", "memory", "context")


@dataclass
class Running:
    """A module at work: what it was called with, and how many attentions had been seen before.

    ``marks`` are those of its first two arguments where both are tensors: see :class:`Origins`.
    """

    module: nn.Module
    name: str
    args: tuple
    kwargs: dict
    seen: int
    marks: frozenset[object] = frozenset()

    @property
    def first_two(self) -> tuple[object, object]:
        """What may be tokens: the first two arguments, named or not; None for one that is missing."""
        given = [*self.args, *(self.kwargs[name] for name in ("query", "key") if name in self.kwargs)]
        one, two = [*given, None, None][:2]
        return one, two


class Layers:
    """The modules at work, outermost first, and the attentions seen so far; one object a forward pass.

    Raises ValueError where a module with the name of an attention ends without one having been seen in it.
    """

    def __init__(self, model: nn.Module, origins: Origins) -> None:
        self.origins = origins
        self._names = {module: name.replace("_orig_mod.", "") for name, module in model.named_modules()}
        self._root = type(model).__name__
        self._running: list[Running] = []
        self._calls: Counter[str] = Counter()
        self.seen = 0

    @contextmanager
    def followed(self, refuse) -> Iterator[None]:
        """Hooks on every module while the model runs; ``refuse(layer, what)`` is called for an attention unseen."""

        def enter(module: nn.Module, args: tuple, kwargs: dict) -> None:
            running = Running(module, self._names[module], args, kwargs, self.seen)
            one, two = running.first_two
            if isinstance(one, Tensor) and isinstance(two, Tensor) and one is not two:
                running.marks = frozenset(map(self.origins.mark, (one, two)))
            self._running.append(running)

        def leave(module: nn.Module, args: tuple, output: object) -> None:
            running = self._running[-1]
            if self.seen == running.seen and ATTENTION.search(type(module).__name__):
                self.seen += 1  # its parents are not to be refused too
                refuse(running.name or self._root, f"{type(module).__name__} ran without a softmax or a call of "
                       "scaled_dot_product_attention that the probe could see")  # fmt: skip

        def end(module: nn.Module, args: tuple, output: object) -> None:
            self._running.pop()

        handles = []
        try:
            for module in self._names:
                handles.append(module.register_forward_pre_hook(enter, prepend=True, with_kwargs=True))
                handles.append(module.register_forward_hook(leave))
                handles.append(module.register_forward_hook(end, always_call=True))  # also where the module raises
            yield
        finally:
            for handle in handles:
                handle.remove()

    def here(self) -> str:
        """Qualified name of the module at work."""
        inner = [running for running in self._running if not isinstance(running.module, STEPS)]
        return inner[-1].name.removeprefix("_orig_mod") or self._root if inner else self._root

    def next_name(self) -> str:
        """Name of the attention that was just seen: that of its module, numbered from the second call on."""
        name = self.here()
        self.seen += 1
        self._calls[name] += 1
        return name if self._calls[name] == 1 else f"{name}#{self._calls[name]}"

    def heads(self, leading: int, rows: int, sizes: tuple[int, ...]) -> int:
        """How many heads there are among ``leading`` matrices, by what the modules at work say of themselves.

        A batch whose first sizes are (leading, rows) holds samples with a head each. Where the first alone is as large,
        and as large as ``rows``, it holds tokens first, or has no samples.
        """
        batch = sizes[0] if sizes else None
        if leading == batch and (rows != batch or sizes[1:] == (rows,)):
            return 1
        for heads in self.told_heads():
            if leading % heads == 0:
                return heads
        return leading // batch if batch and leading % batch == 0 else 1

    def told_heads(self) -> Iterator[int]:
        """The numbers of heads that the modules at work keep, that of the innermost first."""
        for running in reversed(self._running):
            for attribute in HEADS:
                heads = getattr(running.module, attribute, None)
                if isinstance(heads, int) and heads > 0:
                    yield heads

    def crosses(self, n: int, k: Tensor, shared: frozenset[object]) -> bool:
        """Whether n queries and the keys k (..., m, d_h) belong to different tokens, by what modules were given.

        The innermost module decides, unless its argument is the keys themselves: then the one that called it. Equal
        tokens are the same: models normalise them, or add positions, once for the queries and again for the keys. They
        are the same, too, where an argument, whose mark is ``shared``, went into both: the other one is a residual, or
        positions.
        """
        m, found = k.shape[-2], False
        for running in reversed(self._running):
            if isinstance(running.module, STEPS):
                continue
            if any(running.kwargs.get(name) is not None for name in OTHER_TOKENS):
                return True
            one, two = running.first_two
            if type(running.module) is nn.MultiheadAttention:  # whose first two arguments are queries and keys
                found = not _equal(one, two)
            else:
                found = _are_others(one, two, n, m) and not shared & running.marks
            if not (found and isinstance(two, Tensor) and _same_memory(two, k)):
                return found
        return found

    def attribute(self, name: str) -> object:
        """An attribute of the innermost module that has it, or None."""
        for running in reversed(self._running):
            value = getattr(running.module, name, None)
            if value is not None:
                return value
        return None


def _are_others(one: object, two: object, n: int, m: int) -> bool:
    """Whether the second argument may be m tokens that n queries, of the first, attend to."""
    return _tokens(two, one, m) and not _is_mask(two, one, n, m) and not _equal(one, two)


def _is_mask(x: Tensor, tokens: object, n: int, m: int) -> bool:
    """Numbers for n x m scores; where tokens have width m, too, a mask is told by having nothing above zero."""
    width = tokens.shape[-1] if isinstance(tokens, Tensor) and tokens.ndim else None
    return x.shape[-2:] == (n, m) and (width != m or not bool((x > 0).any()))


def _same_memory(x: Tensor, y: Tensor) -> bool:
    return x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()


def _equal(x: object, y: object) -> bool:
    """Whether two arguments are one, or tensors of the same numbers."""
    if not (isinstance(x, Tensor) and isinstance(y, Tensor)) or x is y:
        return x is y
    return (x.shape, x.dtype, x.device) == (y.shape, y.dtype, y.device) and torch.equal(x, y)


def _tokens(x: object, queries: object, count: int) -> TypeGuard[Tensor]:
    """Numbers for ``count`` tokens: of a batch, or of one sequence beside queries that are one, and as wide."""
    if not (isinstance(x, Tensor) and x.is_floating_point()):
        return False
    if x.ndim == 2 and isinstance(queries, Tensor) and queries.ndim == 2:
        return x.shape == (count, queries.shape[1])
    return x.ndim == 3 and count in x.shape[:2]
