"""Dense products that BLAS does fastest: NumPy's on the CPU, where a a^T costs half a product; PyTorch's on a GPU."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor


def times_own_transpose(a: Float64[Tensor, "rows columns"], out: Tensor | None = None) -> Float64[Tensor, "rows rows"]:
    """a a^T; ``a`` may be a strided view."""
    if a.device.type != "cpu":
        return torch.matmul(a, a.mT) if out is None else torch.matmul(a, a.mT, out=out)
    view = a.numpy()
    return torch.from_numpy(np.matmul(view, view.T, out=None if out is None else out.numpy()))


def own_transpose_times(a: Float64[Tensor, "rows columns"]) -> Float64[Tensor, "columns columns"]:
    """a^T a."""
    if a.device.type != "cpu":
        return a.mT @ a
    view = a.numpy()
    return torch.from_numpy(view.T @ view)


def token_products(
    a: Float64[Tensor, "samples tokens d"], tokens: Int64[Tensor, "some"], c: Float64[Tensor, "some d"]
) -> Float64[Tensor, "samples some"]:
    """<a_i,t, c_t> for each sample i and each of some tokens t."""
    if a.device.type != "cpu":
        return torch.einsum("itd,td->it", a[:, tokens], c)
    every = torch.equal(tokens, torch.arange(a.shape[1]))  # then no copy is needed
    chosen = (a.numpy() if every else a.numpy()[:, tokens.numpy()]).transpose(1, 0, 2)
    return torch.from_numpy(np.matmul(chosen, c.numpy()[:, :, None])[:, :, 0]).mT


def columns(
    a: Float64[Tensor, "samples tokens d"], tokens: Int64[Tensor, "some"]
) -> Float64[Tensor, "samples columns"]:
    """The columns of some tokens, side by side."""
    return a.index_select(1, tokens).flatten(1)
