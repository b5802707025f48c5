"""Few undecided queries, one by one without torch, whose calls would cost more."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from attnrank.ranks._hardmax.rounding import sum_error

#: Numbers, d_h for each pair of a query and a key, up to which that is so.
NUMBERS = 1 << 10

#: Keys for each query of a block from which most keys are close to no query, and left out first.
MOST_ARE_FAR = 4


def decide_few(q: Tensor, k: Tensor, start: int, first: int, close: Tensor, counts: Tensor, least: int) -> bool:
    """Count for each query only the best of its close keys; False, and no change, where rounding might decide.

    A query whose close keys all count for other queries, whichever is the best, is left as it is.

    Parameters
    ----------
    q, k : floating-point tensors (batch, n, d_h) and (batch, m, d_h), as given; all tensors are on the CPU.
    start, first : matrix and query with which the block begins.
    close : (matrices, keys, queries) of the block, 1 for the close keys of a query and 0 for others.
    counts : (matrices, keys), sums of ``close`` over the queries; changed.
    least : how many queries of each matrix surely have a close key.
    """
    flags, sums, decided = close.numpy(), counts.numpy(), list[tuple[int, int]]()
    queries, rows = (x.float().numpy() if x.dtype == torch.bfloat16 else x.numpy() for x in (q, k))
    for matrix, total in enumerate(counts.sum(1).tolist()):
        if total <= least:
            continue
        for query, keys in _several(flags[matrix], sums[matrix]):
            if all(sums[matrix, key] > total - least for key in keys):  # than queries can be undecided
                continue
            x, some = queries[start + matrix, first + query], [rows[start + matrix, key].tolist() for key in keys]
            best = best_row(x.tolist(), some, q.dtype == torch.float64)
            if best is None:
                return False
            decided += [(matrix, key) for key in keys if key != keys[best]]
    for place in decided:
        sums[place] -= 1
    return True


def _several(flags: np.ndarray, sums: np.ndarray) -> Iterator[tuple[int, list[int]]]:
    """Queries with several close keys, and these keys: ``flags`` (keys, queries) and its ``sums`` over the queries."""
    chosen = None
    if flags.shape[0] > MOST_ARE_FAR * flags.shape[1]:
        chosen = sums.nonzero()[0]
        flags = flags[chosen]
    for query in (np.add.reduce(flags) > 1).nonzero()[0].tolist():
        keys = flags[:, query].nonzero()[0]
        yield query, (keys if chosen is None else chosen[keys]).tolist()


def best_row(x: list[float], rows: Sequence[list[float]], rounded: bool) -> int | None:
    """Which row has the largest product with ``x``, the first of several; None where rounding might decide.

    Float64 holds products of numbers of 24 bits, and ``fsum`` has the sign of their exact sum; of longer numbers the
    products are ``rounded``.
    """
    best, opposite = 0, list(map(operator.neg, x))
    for place, row in enumerate(rows[1:], 1):
        terms = list(map(operator.mul, x + opposite, row + rows[best]))
        doubt = sum_error(len(x), sum(map(abs, terms))) if rounded else 0.0
        above = math.fsum(terms) if doubt < math.inf else 0.0
        if doubt and abs(above) <= doubt:
            return None
        if above > 0:
            best = place
    return best
