"""Queries and keys in the precision of the bulk of the work, and how far their scores can be from the exact ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attnrank._scaling import scaled
from attnrank.ranks._hardmax.range import check_range
from attnrank.ranks._hardmax.rounding import FLOOR, centred, norms, score_error

#: Where the longest rows are between these, nothing needs scaling: products of two stay in the range of float32.
MODERATE = (2.0**-20, 2.0**20)

#: Keys whose mean length is more than this share of the longest may lie far from the origin and close to one another:
#: measured from their mean they are then much shorter, and so are the rounding errors.
ALIKE = 0.9


@dataclass
class Heads:
    """Matrices of one batch: ``q`` (batch, n, d_h) and ``k`` (batch, m, d_h) as given, ``x`` and ``y`` to work with.

    ``x`` and ``y`` are float32, or float64 if asked for. A key whose score in ``x y^T`` is more than ``slack``
    (batch, n) below the best is not the best key. ``norm`` (batch, n) and ``key_norm`` (batch, m) bound the lengths of
    their rows. ``zero`` (batch, n) marks queries that are zero; None if there are none: all keys tie for them.
    """

    q: Tensor
    k: Tensor
    x: Tensor
    y: Tensor
    norm: Tensor
    key_norm: Tensor
    slack: Tensor
    zero: Tensor | None

    @classmethod
    def of(
        cls, q: Tensor, k: Tensor, causal: bool, dtype: torch.dtype = torch.float32, *, centre: bool = True
    ) -> Heads:
        """Of ``q`` (..., n, d_h) and ``k``; raises ValueError for NaN, infinite numbers, and scores that overflow.

        Without ``centre``, keys are measured from their mean only where that may matter: they are of nearly one length,
        or numbers are extreme.
        """
        given = q, k
        q, k = (x.flatten(0, -3) if x.ndim > 2 else x[None] for x in given)
        x, y = q.to(dtype), k.to(dtype)
        norm, key_norm = norms(x), norms(y)
        shortest, longest, usual, longest_key = _numbers(norm.amin(), norm.amax(), key_norm.mean(), key_norm.amax())
        if centre or usual > ALIKE * longest_key:
            y = centred(_float(k, dtype)).to(dtype)
            key_norm = norms(y)
            longest_key = key_norm.amax().item()
        if not (MODERATE[0] <= longest <= MODERATE[1] and MODERATE[0] <= longest_key <= MODERATE[1]):  # NaN, too
            if not centre:
                return cls.of(*given, causal, dtype)
            check_range(*given, causal)
            x, y = scaled(_float(q, dtype), (-2, -1)).to(dtype), centred(scaled(_float(k, dtype), (-2, -1))).to(dtype)
            norm, key_norm = norms(x), norms(y)
            shortest = norm.amin().item()
        most = key_norm.amax(-1, keepdim=True)
        slack = score_error(x.shape[-1], norm, most, scores=2)
        zero = None
        if shortest <= 1.01 * FLOOR * x.shape[-1] ** 0.5:
            zero = ~q.any(-1)
            slack = slack.masked_fill(zero, -torch.inf)  # so that no key is close
        return cls(q, k, x, y, norm, key_norm, slack, zero)

    def __getitem__(self, part: slice) -> Heads:
        """Some of the matrices."""
        return Heads(*(None if values is None else values[part] for values in vars(self).values()))  # type: ignore[arg-type]


def _float(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Numbers of less precision than ``dtype`` converted to it, without error."""
    return x if x.dtype == torch.float64 else x.to(dtype)


def _numbers(*values: Tensor) -> list[float]:
    """Tensors of one number each as Python's numbers; a GPU is waited for once."""
    return [value.item() for value in values] if values[0].is_cpu else torch.stack(values).tolist()
