"""One bound for every mask: rows that choose independently, none of them too sure of its choice."""

from __future__ import annotations

import math

from attnrank import _check


def mask_bound(p: float, n: int, *, keys: int | None = None, uncapped: int = 0) -> float:
    """The most keys that n independent rows attend to, on average, if no row chooses any key with a chance above p.

    Any mask, any keys, queries of any laws, not necessarily the same: with m keys and k = floor(1/p),

        E D <= m (1 - (1-p)^k (1 - r)),  r = 1 - k p,   for m = n, at most n (1 - (1-p)^{1/p}) <= n (1 - 1/e + p/e),

    and no smaller bound holds for all such rows when m = n. For other m the mean load n / m of a key takes the place of
    the 1 in k and r. Symmetric queries prefer no key with a chance above 1/2: p = 1/2 gives 3n/4.

    Parameters
    ----------
    p : largest chance with which a row chooses a key, in (0, 1]; at least 1 / m.
    n : number of rows (queries), 1 to 1e150.
    keys : number of keys m, 1 to 1e150; n when None.
    uncapped : number of rows, 0 to n, that may be surer than p of their choice, like the first row of a causal mask,
        which sees one key. Each adds about (1-p)^{1/p} of a token to the bound.

    Returns
    -------
    float, in units of rank.

    Raises
    ------
    ValueError : an argument out of its range, or p < 1 / m although some row is capped.

    Examples
    --------
    >>> from attnrank import theory
    >>> round(theory.mask_bound(0.5, 1024), 3)
    768.0

    Source: chapter masks, the theorem on any mask.
    """
    p, n = _check.real("p", p, above=0.0, maximum=1.0), _check.whole("n", n, minimum=1, maximum=1e150)
    m = n if keys is None else _check.whole("keys", keys, minimum=1, maximum=1e150)
    uncapped = _check.whole("uncapped", uncapped, minimum=0)
    if uncapped > n:
        raise ValueError(f"uncapped must be at most n = {n}, got {uncapped}")
    if uncapped < n and p * m < 1.0 - 1e-12:
        raise ValueError(
            f"p must be at least 1 / keys = {1.0 / m:.4g}, since the chances of a row add up to 1, got {p:g}"
        )
    left = m - uncapped
    if left <= 0:
        return float(m)
    load = (n - uncapped) / left
    whole = math.floor(load / p)
    rest = max(load - whole * p, 0.0)
    missed = math.exp(whole * math.log1p(-p)) if p < 1.0 else float(whole == 0)
    return m - left * missed * (1.0 - rest)
