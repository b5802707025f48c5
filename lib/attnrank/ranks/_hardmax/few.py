"""Few undecided queries, one by one without torch, whose calls would cost more."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from attnrank.ranks._hardmax.rounding import sum_error

#: Numbers, d_h for each pair of a query and a key, up to which that is so.
NUMBERS = 1 << 10


def decide_few(q: Tensor, k: Tensor, close: Tensor, counts: Tensor, least: int) -> bool:
    """Count for each query only the best of its close keys; False, and no change, where rounding might decide.

    Parameters
    ----------
    q, k : floating-point tensors (batch, n, d_h) and (batch, m, d_h), as given; all tensors are on the CPU.
    close : (batch, keys, n), 1 for the close keys of a query and 0 for others.
    counts : (batch, keys), sums of ``close`` over the queries; changed.
    least : how many queries of each matrix surely have a close key.
    """
    flags, sums, decided = close.numpy(), counts.numpy(), list[Any]()
    queries, rows = (x.float().numpy() if x.dtype == torch.bfloat16 else x.numpy() for x in (q, k))
    for matrix in (sums.sum(1) > least).nonzero()[0]:
        for query in (flags[matrix].sum(0) > 1).nonzero()[0]:
            keys = flags[matrix, :, query].nonzero()[0]
            best = best_row(queries[matrix, query].tolist(), rows[matrix, keys].tolist(), q.dtype == torch.float64)
            if best is None:
                return False
            decided.append((matrix, keys, best))
    for matrix, keys, best in decided:
        sums[matrix, keys] -= 1
        sums[matrix, keys[best]] += 1
    return True


def best_row(x: list[float], rows: Sequence[list[float]], rounded: bool) -> int | None:
    """Which row has the largest product with ``x``, the first of several; None where rounding might decide.

    Float64 holds products of numbers of 24 bits, and ``fsum`` has the sign of their exact sum; of longer numbers the
    products are ``rounded``.
    """
    best, highest = 0, list(map(operator.mul, x, rows[0]))
    for place, row in enumerate(rows[1:], 1):
        terms = list(map(operator.mul, x, row))
        both = terms + list(map(operator.neg, highest))
        doubt = sum_error(len(terms), sum(map(abs, both))) if rounded else 0.0
        above = math.fsum(both) if doubt < math.inf else 0.0
        if doubt and abs(above) <= doubt:
            return None
        if above > 0:
            best, highest = place, terms
    return best
