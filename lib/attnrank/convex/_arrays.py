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
    """<a_i,t, c_t> for each sample i and each of some tokens t, which may repeat."""
    if a.device.type != "cpu":
        return torch.einsum("itd,td->it", a[:, tokens], c)
    if 3 * len(tokens) > a.shape[1] and bool((tokens[1:] > tokens[:-1]).all()):  # cheaper for all than a copy of some
        full = np.zeros(a.shape[1:])
        full[tokens.numpy()] = c.numpy()
        every = np.matmul(a.numpy().transpose(1, 0, 2), full[:, :, None])[:, :, 0]
        return torch.from_numpy(every[tokens.numpy()]).mT
    chosen = a.index_select(1, tokens).numpy().transpose(1, 0, 2)
    return torch.from_numpy(np.matmul(chosen, c.numpy()[:, :, None])[:, :, 0]).mT


def large(a: Tensor, *shape: int) -> Tensor:
    """Memory like that of ``a``, not yet touched; on the CPU from NumPy, which asks for huge pages."""
    return a.new_empty(shape) if a.device.type != "cpu" else torch.from_numpy(np.empty(shape))


def columns(
    a: Float64[Tensor, "samples tokens d"], tokens: Int64[Tensor, "some"]
) -> Float64[Tensor, "samples columns"]:
    """The columns of some tokens, side by side."""
    return a.index_select(1, tokens).flatten(1)
