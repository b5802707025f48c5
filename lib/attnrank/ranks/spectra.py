"""Ranks from singular values, in float64: numerical rank at a tolerance, stable rank, effective rank."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from attnrank import _check
from attnrank.ranks._inertia import count, count_relative

#: Entries times smaller side up to which a batch is so little work that its SVD is as fast as counting.
SMALL = 1 << 21


def numerical_rank(a: Float[Tensor, "*batch n m"], tol: float, *, relative: bool = False) -> Int64[Tensor, "*batch"]:
    """Number of singular values of ``a`` that are at least ``tol`` (or ``tol`` times the largest).

    The answer has the precision of a float64 SVD; large matrices are counted without one where that is certain, see
    :func:`certified_rank`.

    Parameters
    ----------
    a : floating-point tensor (..., n, m); lower precisions are converted to float64 first, which is exact.
    tol : tolerance >= 0, in the units of the singular values (or as a fraction of the largest). With 0 every singular
        value counts and the answer is min(n, m), unless ``relative`` meets a zero matrix.
    relative : compare with ``tol`` times the largest singular value of each matrix. A zero matrix has rank 0.

    Returns
    -------
    int64 tensor (...).

    Raises
    ------
    ValueError : empty, NaN or infinite ``a``, or negative ``tol``.

    Source: the first paper's rank(A, delta); chapter 01, "Numerical rank".
    """
    tol = _check.real("tol", tol, minimum=0.0)
    if _check.matrices("a", a).numel() * min(a.shape[-2:]) < SMALL:
        return _count_by_svd(a, tol, relative)
    return certified_rank(a, tol, relative=relative)[0]


def certified_rank(
    a: Float[Tensor, "*batch n m"], tol: float, *, relative: bool = False
) -> tuple[Int64[Tensor, "*batch"], Bool[Tensor, "*batch"]]:
    """The numerical rank, and which matrices of the batch needed a singular value decomposition for it.

    The count is first taken from the inertia of ``a^T a - tol^2`` with bounds of all rounding errors. Where they certify
    it, the exact singular values have that count, and so have those of a float64 SVD. Where some singular value is too
    near the tolerance, or the tolerance too small for the product (below about 1e-6 times the Frobenius norm), float64
    singular values decide. On a singular value within rounding of ``tol`` the answer is therefore theirs. They are
    computed on the CPU, so that the answer does not depend on the device.

    Parameters
    ----------
    a, tol, relative : as in :func:`numerical_rank`.

    Returns
    -------
    rank : int64 tensor (...).
    by_svd : boolean tensor (...), True where the SVD decided.

    Raises
    ------
    ValueError : as :func:`numerical_rank`.

    Source: Sylvester's law of inertia; theorem and proof in the chapter "Measuring speed".
    """
    tol = _check.real("tol", tol, minimum=0.0)
    batch, (n, m) = _check.matrices("a", a).shape[:-2], a.shape[-2:]
    largest = torch.maximum(a.amax((-2, -1)), -a.amin((-2, -1))).detach().double().reshape(-1)
    if not torch.isfinite(largest).all():
        _check.finite("a", a)
    a = a.detach().double().reshape(-1, n, m)
    if n < m:
        a = a.mT
    scaled, scale = _without_overflow(a, largest)
    if relative:
        rank, certain = count_relative(scaled, tol)
    elif tol == 0:
        rank, certain = torch.full_like(scale, min(n, m), dtype=torch.int64), torch.ones_like(scale, dtype=torch.bool)
    else:
        rank, certain = count(scaled, torch.full_like(scale, tol) / scale)
    for i in (~certain).nonzero().squeeze(-1).tolist():  # one at a time: the same answer in every batch
        rank[i] = _count_by_svd(a[i].mT if n < m else a[i], tol, relative)
    return rank.reshape(batch), ~certain.reshape(batch)


def _count_by_svd(a: Tensor, tol: float, relative: bool) -> Tensor:
    """Counted on the CPU: near the tolerance the libraries of two devices might disagree."""
    sigma, scale = _scaled_singular_values(a.cpu())
    counted = (sigma >= tol * sigma[..., :1]) & (sigma[..., :1] > 0) if relative else sigma * scale >= tol
    return counted.sum(-1).to(a.device)


def stable_rank(a: Float[Tensor, "*batch n m"]) -> Float[Tensor, "*batch"]:
    """Stable rank ``|a|_F^2 / |a|_2^2``: the squared singular values summed, in units of the largest.

    Parameters
    ----------
    a : floating-point tensor (..., n, m).

    Returns
    -------
    float64 tensor (...), between 1 and the rank; 0 for a zero matrix.

    Raises
    ------
    ValueError : empty, NaN or infinite ``a``.

    Source: Rudelson and Vershynin (2007). For a hardmax matrix it is n / (largest column count): chapter 01.
    """
    share = _relative_to_largest(a)
    return share.square().sum(-1)


def effective_rank(a: Float[Tensor, "*batch n m"]) -> Float[Tensor, "*batch"]:
    """Effective rank ``exp(H)``, H the entropy of the singular values normalised to sum 1.

    Parameters
    ----------
    a : floating-point tensor (..., n, m).

    Returns
    -------
    float64 tensor (...), between 1 and the rank; 0 for a zero matrix.

    Raises
    ------
    ValueError : empty, NaN or infinite ``a``.

    Source: Roy and Vetterli (2007).
    """
    share = _relative_to_largest(a)
    total = share.sum(-1, keepdim=True)
    p = share / total.where(total > 0, 1.0)
    entropy = -torch.special.xlogy(p, p).sum(-1)
    return entropy.exp().where(total.squeeze(-1) > 0, 0.0)


def singular_values(a: Float[Tensor, "*batch n m"]) -> Float[Tensor, "*batch k"]:
    """Singular values in float64, largest first.

    Parameters
    ----------
    a : floating-point tensor (..., n, m).

    Returns
    -------
    float64 tensor (..., min(n, m)); infinite where a singular value exceeds the largest float64.

    Raises
    ------
    ValueError : empty, NaN or infinite ``a``.
    """
    sigma, scale = _scaled_singular_values(a)
    return sigma * scale


def _scaled_singular_values(a: Tensor) -> tuple[Tensor, Tensor]:
    """Singular values in units of a scale (..., 1): 1, except where squares of entries would over- or underflow."""
    a = _check.finite("a", _check.matrices("a", a)).double()
    largest = a.abs().amax((-2, -1), keepdim=True)
    scale = torch.where(largest > 0, largest / largest.clamp(2.0**-460, 2.0**460), 1.0)
    return torch.linalg.svdvals(a / scale), scale.squeeze(-1)


def _without_overflow(a: Tensor, largest: Tensor) -> tuple[Tensor, Tensor]:
    """``a`` (b, n, m) divided by powers of two (b), 1 but for extreme entries, so that its squares are harmless."""
    usual = (largest > 2.0**-300) & (largest < 2.0**300) | (largest == 0)
    scale = torch.where(usual, 1.0, torch.ldexp(torch.ones_like(largest), torch.frexp(largest).exponent - 1))
    return a if usual.all() else a / scale[:, None, None], scale


def _relative_to_largest(a: Tensor) -> Tensor:
    sigma, _ = _scaled_singular_values(a)
    largest = sigma[..., :1]
    return sigma / largest.where(largest > 0, 1.0)
