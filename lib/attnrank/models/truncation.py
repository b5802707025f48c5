"""Heads of a smaller dimension from trained ones: the best approximation of W_q W_k^T by a matrix of lower rank."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from attnrank import _check


def truncate_query_key(
    w_q: Float[Tensor, "*heads d d_h"], w_k: Float[Tensor, "*heads d d_h"], rank: int
) -> tuple[Float[Tensor, "*heads d r"], Float[Tensor, "*heads d r"], Float[Tensor, "*heads d_h"]]:
    """Query and key weights of head dimension ``rank`` whose product is nearest to ``w_q w_k^T``.

    A head's scores are X W_q W_k^T X^T. The matrix of rank r nearest to W_q W_k^T, in the Frobenius and in the spectral
    norm, keeps its r largest singular values (Eckart and Young 1936). A bias is one more row of the weights, of tokens
    with a 1 in that place; positions that act between W_q and W_k, such as rotary ones, leave no such matrix.

    Parameters
    ----------
    w_q, w_k : floating-point tensors (..., d, d_h), d >= d_h.
    rank : 1 <= rank <= d_h.

    Returns
    -------
    w_q, w_k : tensors (..., d, rank) of the dtype given, with ``w_q w_k^T`` the approximation. A temperature that
        follows the head dimension is to be kept at that of d_h, for instance by filling up with zeros.
    sigma : float64 tensor (..., d_h), all singular values of W_q W_k^T, largest first.

    Raises
    ------
    ValueError : shapes that differ or have d < d_h, NaN or infinite weights, ``rank`` out of range.
    """
    for name, value in (("w_q", w_q), ("w_k", w_k)):
        _check.finite(name, _check.with_arithmetic(name, _check.matrices(name, value)))
    if w_q.shape != w_k.shape or w_q.shape[-2] < w_q.shape[-1]:
        raise ValueError(
            f"w_q and w_k must have one shape (..., d, d_h) with d >= d_h, got {tuple(w_q.shape)} and "
            f"{tuple(w_k.shape)}"
        )
    if _check.integer("rank", rank, minimum=1) > w_q.shape[-1]:
        raise ValueError(f"rank must be at most the head dimension {w_q.shape[-1]}, got {rank}")
    (basis_q, r_q), (basis_k, r_k) = (torch.linalg.qr(w.double()) for w in (w_q, w_k))
    left, sigma, right = torch.linalg.svd(r_q @ r_k.mT)
    root = sigma[..., None, :rank].sqrt()
    return (
        (basis_q @ left[..., :rank] * root).to(w_q.dtype),
        (basis_k @ right.mT[..., :rank] * root).to(w_k.dtype),
        sigma,
    )
