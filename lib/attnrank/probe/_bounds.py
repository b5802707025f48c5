"""The bound that fits a mask: the barrier, resolved by head dimension where theory has it."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from attnrank import theory
from attnrank.probe._masks import Structure

#: Lengths at which the causal bound, half a second each, is computed; between them it is interpolated.
NODES = 4


@lru_cache(maxsize=4096)
def _causal(n: int, head_dim: int) -> float:
    return theory.causal_head_dim_bound(n, head_dim)


@lru_cache(maxsize=4096)
def _full(n: int, head_dim: int) -> float:
    return theory.head_dim_bound(n, head_dim)


def bounds(structures: list[Structure], head_dim: int | None) -> list[float]:
    """The expected rank at most, for each sample of a layer, in units of rank.

    - every key seen, n = m: ``theory.head_dim_bound(n, d_h)``; n queries at m other keys: ``theory.occupancy_bound``;
    - causal: ``theory.causal_head_dim_bound(n, d_h)``, interpolated where samples have more than four lengths (rank / n
      as a polynomial in log n, good to a thousandth);
    - windows and other masks: the expected rank of queries that pick uniformly among the keys they see, which random
      heads approach as d_h grows (a conjecture at finite d_h, measured in chapter masks).
    """
    lengths = sorted({s.n for s in structures if s.kind == "causal" and s.n == s.m and head_dim})
    causal = _interpolated(lengths, head_dim)
    return [_bound(s, head_dim, causal) for s in structures]


def _bound(structure: Structure, head_dim: int | None, causal: dict[int, float]) -> float:
    n, m = structure.n, structure.m
    if n == 0 or m == 0:
        return float("nan")
    if structure.kind == "none":
        return _full(n, head_dim) if n == m and head_dim else theory.occupancy_bound(n, m)
    if structure.kind == "causal" and n == m:
        return causal[n] if head_dim else theory.causal_bound(n)
    assert structure.uniform is not None  # as it is for these kinds
    return structure.uniform


def _interpolated(lengths: list[int], head_dim: int | None) -> dict[int, float]:
    if len(lengths) <= NODES:
        return {n: _causal(n, head_dim) for n in lengths}
    nodes = np.unique(np.geomspace(max(lengths[0], 2), lengths[-1], NODES).round().astype(int))
    shares = [_causal(int(n), head_dim) / n for n in nodes]
    line = np.polynomial.Polynomial.fit(np.log(nodes), shares, len(nodes) - 1)
    return {n: 1.0 if n == 1 else float(line(np.log(n)) * n) for n in lengths}
