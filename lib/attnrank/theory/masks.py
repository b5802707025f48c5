"""Random heads whose rows see some of the keys: causal masks with random keys, sliding windows."""

from __future__ import annotations

import math

import numpy as np
import scipy

from attnrank import _check


def causal_isotropic_bound(n: int) -> float:
    """Bound on the expected rank of causal random heads: (n + 1)/2 + sum_i E|M_i - i| / max(M_i, i), M_i ~ Poisson(i).

    For i.i.d. keys and i.i.d. queries of rotation-invariant laws, at every head dimension. The sum is below 2 sqrt(n).
    Takes time of order n^{3/2}; n at most 1e9.

    Examples
    --------
    >>> from attnrank import theory
    >>> round(theory.causal_isotropic_bound(1024), 3)
    559.445

    Source: chapter masks, the causal theorem for random keys.
    """
    n = _check.whole("n", n, minimum=1, maximum=1e9)
    excess = 0.0
    for i in range(1, n + 1):
        reach = 12 * math.isqrt(i) + 12
        counts = np.arange(max(0, i - reach), i + reach + 28)
        excess += float(np.sum(scipy.stats.poisson.pmf(counts, i) * np.abs(counts - i) / np.maximum(counts, i)))
    return (n + 1) / 2 + excess


def window_limit(n: int, window: int, *, causal: bool) -> float:
    """Expected rank at d_h -> infinity if row i sees the last ``window`` keys, or the keys at distance < ``window``.

    Every row chooses uniformly among the keys that it sees, independently: sum_j 1 - prod_i (1 - 1/m_i), the product
    over the rows i that see key j and m_i the number of keys that row i sees. Away from the ends, with m keys in every
    window, this is 1 - (1 - 1/m)^m a token. Takes time of order n times the window; n at most 1e9.

    Examples
    --------
    >>> from attnrank import theory
    >>> round(theory.window_limit(1024, 128, causal=True), 3)
    628.555

    Source: chapter masks, sliding windows.
    """
    n, causal = _check.whole("n", n, minimum=1, maximum=1e9), _check.flag("causal", causal)
    window = min(_check.whole("window", window, minimum=1), n)
    position = np.arange(n)
    first = np.maximum(position - window + 1, 0)
    last = position if causal else np.minimum(position + window - 1, n - 1)
    with np.errstate(divide="ignore"):
        missed = np.log1p(-1.0 / (last - first + 1))
    # Key j is seen by rows j .. j + window - 1, and in the two-sided case also by the window - 1 rows before it.
    before = 0 if causal else window - 1
    return float(sum(-np.expm1(missed[max(0, j - before) : j + window].sum()) for j in range(n)))
