"""What the probe is compared with: ranks of attention matrices that were computed explicitly, with numpy, in
float64."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

TOL = 1e-2


def explicit_ranks(a: Tensor, queries: Tensor | None = None) -> dict[str, float]:
    """The four ranks of one attention matrix (n, m); rows that are no queries, and columns all zero, are left out."""
    a = a.detach().double().numpy()
    if queries is not None:
        a = a[queries.bool().numpy()]
    a = a[:, (a > 0).any(0)]
    sigma = np.linalg.svd(a, compute_uv=False)
    p = sigma / sigma.sum()
    p = p[p > 0]
    return {
        "n": a.shape[0],
        "m": a.shape[1],
        "hardmax_rank": len(set(a.argmax(1))),
        "numerical_rank": int((sigma >= TOL).sum()),
        "stable_rank": (sigma**2).sum() / sigma[0] ** 2,
        "effective_rank": np.exp(-(p * np.log(p)).sum()),
    }


def softmax(scores: np.ndarray) -> np.ndarray:
    """Row-wise softmax in plain numpy."""
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def assert_frame(frame, layer: str, attention: Tensor, queries: Tensor | None = None) -> None:
    """The rows of a layer, one a sample and head, equal the explicit ranks of ``attention`` (S, H, n, m)."""
    rows = frame[frame["layer"] == layer]
    samples, heads = attention.shape[:2]
    assert len(rows) == samples * heads, layer
    for row in rows.to_dict("records"):
        s, h = row["sample"], row["head"]
        expected = explicit_ranks(attention[s, h], None if queries is None else queries[s])
        for name in ("n", "m", "hardmax_rank", "numerical_rank"):
            assert row[name] == expected[name], (layer, s, h, name)
        for name in ("stable_rank", "effective_rank"):
            assert abs(row[name] - expected[name]) <= 1e-6 * expected[name], (layer, s, h, name)
    assert torch.tensor(rows["deviation"].to_numpy()).max() < 1e-6
