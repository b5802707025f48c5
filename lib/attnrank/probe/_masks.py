"""Masks: which keys a query sees, what is padding, and what kind of mask the rest is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

#: An added number from here down hides a key: models write -10000, -1e9, the least number of a format, or -infinity.
HIDDEN = -5e3

#: Entries of a mask that are looked at together.
BLOCK = 1 << 22

#: From the most open to the least: what the samples of a batch have in common is the last of theirs.
KINDS = ("none", "causal", "window", "other")


@dataclass(frozen=True)
class Mask:
    """``visible`` (S or 1, H or 1, n, m), or None where all keys are seen or, with ``causal``, query i sees 0..i.

    ``bias`` is what is added to the scores of visible keys, None for nothing.
    """

    n: int
    m: int
    causal: bool = False
    visible: Tensor | None = None
    bias: Tensor | None = None

    @classmethod
    def of(cls, given: Tensor | None, n: int, m: int, *, causal: bool = False) -> Mask:
        """A mask as models give it: boolean (True is seen), or numbers to be added to the scores."""
        if given is None:
            return cls(n, m, causal=causal)
        given = given[(None,) * (4 - given.ndim)] if given.ndim < 4 else given.flatten(0, -4)
        given = given.expand(*given.shape[:2], n, m)
        if given.dtype == torch.bool:
            return cls(n, m, visible=_shared(given))
        visible = ~(given <= HIDDEN)  # NaN hides nothing: it shows in the output
        bias = None if not (given.masked_fill(~visible, 0) != 0).any() else given
        return cls(n, m, visible=None if visible.all() else _shared(visible), bias=bias)

    def rows(self, sample: int, head: int, start: int, stop: int, device: torch.device) -> Tensor:
        """Which keys the queries from ``start`` to ``stop`` see: boolean (rows, m)."""
        stop = min(stop, self.n)
        if self.visible is None:
            if not self.causal:
                return torch.ones(stop - start, self.m, dtype=torch.bool, device=device)
            return torch.arange(self.m, device=device) <= torch.arange(start, stop, device=device)[:, None]
        sample, head = (i if size > 1 else 0 for i, size in zip((sample, head), self.visible.shape[:2], strict=True))
        return self.visible[sample, head, start:stop]

    @property
    def shared(self) -> tuple[bool, bool]:
        """Whether all samples, and whether all heads, have one mask."""
        if self.visible is None:
            return True, True
        samples, heads = self.visible.shape[:2]
        return samples == 1, heads == 1


@dataclass(frozen=True)
class Structure:
    """What is left of a mask without padding: queries and keys that stay (None for all), the kind, and its limit.

    ``padded`` says whether what was left out is padding, and not beyond the reach of a window.

    ``uniform`` is the expected rank of queries that each pick one of the keys they see uniformly and independently; it
    is computed for windows and for masks of no named kind.
    """

    queries: Tensor | None
    keys: Tensor | None
    n: int
    m: int
    kind: str
    uniform: float | None
    padded: bool = False

    @property
    def trivial(self) -> bool:
        """Whether every query sees every key."""
        return self.kind == "none"


def structure(mask: Mask, sample: int, head: int, *, crosses: bool, device: torch.device) -> Structure:
    """What kind of mask one sample and head have, read off the mask in blocks of rows."""
    n, m = mask.n, mask.m
    if mask.visible is None:
        kind = "causal" if mask.causal and n > 1 else "none"
        if mask.causal and n == 1 < m:  # aligned with the first key
            return Structure(None, torch.arange(m, device=device) == 0, 1, 1, "none", None)
        return Structure(
            None, None, n, m, kind, None if kind == "none" or n == m else _uniform(mask, sample, head, device)
        )
    queries, keys = _unpadded(mask, sample, head, crosses, device)
    kept = Mask(int(queries.sum()), int(keys.sum()), visible=mask.visible)
    if kept.n == 0 or kept.m == 0:
        return Structure(queries, keys, 0, 0, "none", None)
    padded = kept.n < n or kept.m < m
    if padded:
        kept = Mask(kept.n, kept.m, visible=mask.rows(sample, head, 0, n, device)[queries][:, keys][None, None])
    kind = _kind(kept, sample, head, device)
    uniform = (
        _uniform(kept, sample, head, device)
        if kind not in ("none", "causal") or kind == "causal" and kept.n != kept.m
        else None
    )
    beyond = kind == "window" and kept.n == n < m  # keys that a cache has and no window reaches are no padding
    return Structure(
        queries if padded else None, keys if padded else None, kept.n, kept.m, kind, uniform, padded and not beyond
    )


def _unpadded(mask: Mask, sample: int, head: int, crosses: bool, device: torch.device) -> tuple[Tensor, Tensor]:
    """Queries and keys that are no padding (n), (m).

    A key that no query sees is padding, and a query that sees no key. In self-attention a query is padding, too, if
    nobody sees its own key, and the keys that stay are those that the other queries see. Where every query sees its own
    key, padding is what no other one sees: see :func:`_seen_by_all`. On the left padding is harder to see, since models
    let a padded query see all keys where it would see none: see :func:`_without_left`.
    """
    n, m = mask.n, mask.m
    count = torch.cat([rows.sum(1) for _, rows in _blocks(mask, sample, head, device)])
    queries = count > 0
    keys = _seen_by(queries, mask, sample, head, device)
    if n != m or crosses:
        return queries, keys
    if count.max() - count.min() == 1 and (real := _seen_by_all(mask, sample, head, device)) is not None:
        return real, real
    if (rest := _without_left(count, mask, sample, head, device)) is not None:
        queries, keys = rest
    if n > 1 and not keys[-1] and _is_strict(queries, mask, sample, head, device):
        keys[-1] = keys[-2]  # nobody could see the last key: its token is taken for padding if the one before is
    queries = queries & keys
    return queries, _seen_by(queries, mask, sample, head, device)


def _seen_by_all(mask: Mask, sample: int, head: int, device: torch.device) -> Tensor | None:
    """Tokens (n), at least two, that every query sees, while it sees its own key beside them and no other one.

    None where the mask is another, and where a single token is left that has one place in all samples: it may be one
    that reads the others. A single token that all see may as well be one for all to rest on.
    """
    seen = torch.zeros(mask.m, dtype=torch.bool, device=device)
    own = torch.eye(mask.n, dtype=torch.bool, device=device)
    for start, rows in _blocks(mask, sample, head, device):
        seen |= (rows & ~own[start : start + len(rows)]).any(0)
    alone = mask.n - seen.sum() == 1 and mask.shared[0]
    if alone or seen.sum() < 2:
        return None
    same = (
        torch.equal(rows, seen | own[start : start + len(rows)]) for start, rows in _blocks(mask, sample, head, device)
    )
    return seen if all(same) else None


def _without_left(
    count: Tensor, mask: Mask, sample: int, head: int, device: torch.device
) -> tuple[Tensor, Tensor] | None:
    """Queries and keys (n), (m) without padding on the left; None where there is none.

    Queries that see all keys or none, as ``count`` (n) has it, are padding if the others see none of their keys. The
    last query is one of the others: under a causal mask it may see all. And a query that sees all must be so far on the
    left that no other query sees as far ahead as from there to the tokens: else it would see some, and nobody would
    have let it see all. It is a token that reads the others, then.
    """
    idle = (count == 0) | (count == mask.m)
    if idle[-1] or not idle.any():
        return None
    keys = _seen_by(~idle, mask, sample, head, device)
    if keys[idle].any():
        return None
    opened = (count == mask.m).nonzero()
    if len(opened) and opened[-1] + _ahead(~idle, mask, sample, head, device) >= keys.nonzero()[0]:
        return None
    return ~idle, keys


def _ahead(queries: Tensor, mask: Mask, sample: int, head: int, device: torch.device) -> int:
    """How far beyond their own keys some of the queries (n) see at most."""
    last = [mask.m - 1 - rows.flip(1).byte().argmax(1) for _, rows in _blocks(mask, sample, head, device)]
    return int((torch.cat(last) - torch.arange(mask.n, device=device))[queries].max())


def _seen_by(queries: Tensor, mask: Mask, sample: int, head: int, device: torch.device) -> Tensor:
    """Which keys (m) some of the queries (n) see."""
    seen = torch.zeros(mask.m, dtype=torch.bool, device=device)
    for start, rows in _blocks(mask, sample, head, device):
        seen |= rows[queries[start : start + len(rows)]].any(0)
    return seen


def _is_strict(queries: Tensor, mask: Mask, sample: int, head: int, device: torch.device) -> bool:
    """Whether none of the queries (n) sees its own key or a later one."""
    return not any(
        rows.triu(start)[queries[start : start + len(rows)]].any()
        for start, rows in _blocks(mask, sample, head, device)
    )


def _kind(mask: Mask, sample: int, head: int, device: torch.device) -> str:
    n, m = mask.n, mask.m
    found = [
        (rows.byte().argmax(1), m - 1 - rows.flip(1).byte().argmax(1), rows.sum(1))
        for _, rows in _blocks(mask, sample, head, device)
    ]
    low, high, count = (torch.cat(parts) for parts in zip(*found, strict=True))
    if (count == m).all():
        return "none"
    if (high - low + 1 != count).any():
        return "other"
    place = torch.arange(n, device=device) + m - n
    if (low == 0).all() and (high == place).all():
        return "causal"
    before, after = int((place - low).max()), int((high - place).max())
    inside = (low == (place - before).clamp(min=0)).all() and (high == (place + after).clamp(max=m - 1)).all()
    return "window" if inside and m >= n else "other"


def _uniform(mask: Mask, sample: int, head: int, device: torch.device) -> float:
    missed = torch.zeros(mask.m, dtype=torch.float64, device=device)
    for _, rows in _blocks(mask, sample, head, device):
        count = rows.sum(1, keepdim=True).double().clamp(min=1)
        missed += torch.where(rows, torch.log1p(-1 / count), 0.0).sum(0)
    return float(-torch.expm1(missed).sum())


def _blocks(mask: Mask, sample: int, head: int, device: torch.device) -> Iterator[tuple[int, Tensor]]:
    """The rows of a mask in blocks, each with the number of its first row."""
    step = max(1, BLOCK // mask.m)
    return ((start, mask.rows(sample, head, start, start + step, device)) for start in range(0, mask.n, step))


def _shared(visible: Tensor) -> Tensor:
    """The same mask with one sample or one head where all have the same."""
    for dim in (0, 1):
        if visible.shape[dim] > 1:
            first = visible.narrow(dim, 0, 1)
            if visible.stride(dim) == 0 or (visible == first).all():
                visible = first
    return visible
