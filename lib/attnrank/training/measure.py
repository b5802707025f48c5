"""Ranks of every layer and head of a model on a fixed batch."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from attnrank import _check
from attnrank.ranks import hardmax_rank, singular_values
from attnrank.scores import attention

#: Tolerances of the numerical rank, by the name of its column.
TOLERANCES = {"rank_at_tenth": 1e-1, "rank_at_hundredth": 1e-2}


@torch.no_grad()
def attention_ranks(
    model: nn.Module, inputs: Tensor, *, spectra: int = 8, tolerances: Mapping[str, float] = TOLERANCES
) -> list[dict[str, float]]:
    """Ranks divided by n, averaged over the inputs, for each layer (from 1) and head (from 0) of a model.

    ``hardmax`` over all inputs; of the softmax at the model's own temperatures the numerical rank at each tolerance
    and the ``stable`` rank, over the first ``spectra`` inputs. Computed on the CPU in float64 from a copy of the
    weights as they are; the model is left alone. Raises ValueError for a model without ``queries_keys``, for texts with
    padding, which is no token, and for tolerances that are negative, no numbers, or named as another column.
    """
    _check.integer("spectra", spectra, minimum=1)
    for name, tol in tolerances.items():
        _check.real(f"tolerances[{name!r}]", tol, minimum=0.0)
        if name in ("layer", "head", "hardmax", "stable"):
            raise ValueError(f"tolerances must not be named as another column, got {name!r}")
    if not hasattr(model, "queries_keys"):
        raise ValueError(f"model must have queries_keys(inputs, scaled=True), got {type(model).__name__}")
    inputs = inputs.cpu()
    exact: Any = copy.deepcopy(model).cpu().double().eval()
    if hasattr(exact, "keys") and exact.keys(inputs) is not None:
        raise ValueError("inputs must have no padding: take texts that fill the length")
    rows = []
    pairs = exact.queries_keys(inputs.double() if inputs.is_floating_point() else inputs, scaled=True)
    for layer, (q, k) in enumerate(pairs, start=1):
        n = q.shape[-2]
        hard = hardmax_rank(q, k).double().mean(0) / n
        sigma = singular_values(attention(q[:spectra], k[:spectra]))
        shares = {name: (sigma >= tol).double().sum(-1).mean(0) / n for name, tol in tolerances.items()}
        shares["stable"] = ((sigma / sigma[..., :1]).square().sum(-1)).mean(0) / n
        for head in range(q.shape[-3]):
            row = {"layer": layer, "head": head, "hardmax": hard[head].item()}
            rows.append(row | {name: share[head].item() for name, share in shares.items()})
    return rows
