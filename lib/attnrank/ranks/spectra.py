"""Ranks from singular values, in float64: numerical rank at a tolerance, stable rank, effective rank."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from attnrank import _check
from attnrank.ranks._context import one_thread, outside_compilation, widened
from attnrank.ranks._inertia import count, count_relative

#: Entries times smaller side up to which a batch is so little work that its SVD is as fast as counting.
SMALL = 1 << 21

#: Exponents between which LAPACK takes a largest entry as it is; beyond, it would divide by a number of its own.
MODERATE = 450


@outside_compilation
def numerical_rank(
    a: Float[Tensor, "*batch n m"], tol: float | None = None, *, relative: bool = False
) -> Int64[Tensor, "*batch"]:
    """Number of singular values of ``a`` that are at least ``tol`` (or ``tol`` times the largest).

    The answer has the precision of a float64 SVD; large matrices are counted without one where that is certain, see
    :func:`attnrank.ranks.certified_rank`. Where the processor is told to flush subnormal numbers to zero
    (``torch.set_flush_denormal``), those in ``a`` may count as zero.

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
    ValueError : empty, NaN or infinite ``a``, or no ``tol`` >= 0.

    Examples
    --------
    >>> import attnrank, torch
    >>> attnrank.numerical_rank(torch.diag(torch.tensor([1.0, 0.1, 1e-3])), 0.01).item()
    2

    Source: the first paper's rank(A, delta); chapter attention_rank, "Numerical rank".
    """
    tol, relative = _tolerance(tol), _check.flag("relative", relative)
    if tol > 0 and _check.matrices("a", a).numel() * min(a.shape[-2:]) < SMALL:
        return _count_by_svd(a, tol, relative)
    return certified_rank(a, tol, relative=relative)[0]


@outside_compilation
def certified_rank(
    a: Float[Tensor, "*batch n m"], tol: float | None = None, *, relative: bool = False
) -> tuple[Int64[Tensor, "*batch"], Bool[Tensor, "*batch"]]:
    """The numerical rank, and which matrices of the batch needed a singular value decomposition for it.

    The count is first taken from the inertia of ``a^T a - tol^2`` with bounds of all rounding errors. Where they
    certify it, the exact singular values have that count, and so have those of a float64 SVD. Where some singular value
    is too near the tolerance, or the tolerance too small for the product (below about 1e-6 times the Frobenius norm),
    float64 singular values decide. On a singular value within rounding of ``tol`` the answer is therefore theirs. They
    are computed on the CPU by one thread, so that the answer depends neither on the device nor on the number of
    threads.

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
    tol, relative = _tolerance(tol), _check.flag("relative", relative)
    batch, (n, m) = _check.matrices("a", a).shape[:-2], a.shape[-2:]
    a = widened(a.detach())
    largest = _largest(a).reshape(-1)
    if tol == 0:  # every singular value counts, but those of a zero matrix beside their largest, by definition
        rank = torch.full_like(largest, min(n, m), dtype=torch.int64)
        rank = rank * (largest > 0) if relative else rank
        return rank.reshape(batch), torch.zeros_like(rank, dtype=torch.bool).reshape(batch)
    a = a.double().reshape(-1, n, m)
    if n < m:
        a = a.mT
    scaled, scale = _without_overflow(a, largest)
    if relative:
        rank, certain = count_relative(scaled, tol)
    else:
        rank, certain = count(scaled, torch.full_like(scale, tol) / scale)
    for i in (~certain).nonzero().squeeze(-1).tolist():  # one at a time: the same answer in every batch
        rank[i] = _count_by_svd(a[i].mT if n < m else a[i], tol, relative)
    return rank.reshape(batch), ~certain.reshape(batch)


def _tolerance(tol: float | None) -> float:
    if tol is None:
        raise ValueError("tol must be given: 1e-3, say, or with relative=True a fraction of the largest singular value")
    return _check.real("tol", tol, minimum=0.0)


def _count_by_svd(a: Tensor, tol: float, relative: bool) -> Tensor:
    """Counted on the CPU, by one thread: near the tolerance two devices, or two numbers of threads, might disagree."""
    with one_thread():
        sigma, scale = _scaled_singular_values(a.cpu())
    if relative:
        counted = (sigma >= tol * sigma[..., :1]) & (sigma[..., :1] > 0)
    else:  # each product by a power of two where it can only overflow: then the comparison is right, too
        counted = torch.where(scale < 1, sigma >= tol / scale, sigma * scale >= tol)
    return counted.sum(-1).to(a.device)


def stable_rank(a: Float[Tensor, "*batch n m"]) -> Float[Tensor, "*batch"]:
    """Stable rank ``|a|_F^2 / |a|_2^2``: the squared singular values summed, in units of the largest.

    Parameters
    ----------
    a : floating-point tensor (..., n, m).

    Returns
    -------
    float64 tensor (...), between 1 and the rank, up to rounding; 0 for a zero matrix.

    Raises
    ------
    ValueError : empty, NaN or infinite ``a``.

    Examples
    --------
    >>> import attnrank, torch
    >>> attnrank.stable_rank(torch.diag(torch.tensor([2.0, 1.0, 1.0]))).item()
    1.5

    Source: Rudelson and Vershynin (2007). Of a hardmax matrix it is n / (largest column count): chapter attention_rank.
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
    float64 tensor (...), between 1 and the rank, up to rounding; 0 for a zero matrix.

    Raises
    ------
    ValueError : empty, NaN or infinite ``a``.

    Examples
    --------
    >>> import attnrank, torch
    >>> round(attnrank.effective_rank(torch.eye(5)).item(), 6)
    5.0

    Source: Roy and Vetterli (2007).
    """
    share = _relative_to_largest(a)
    total = share.sum(-1, keepdim=True)
    p = share / total.where(total > 0, 1.0)
    entropy = -torch.special.xlogy(p, p).sum(-1)
    return entropy.exp().clamp(max=p.shape[-1]).where(total.squeeze(-1) > 0, 0.0)


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

    Examples
    --------
    >>> import attnrank, torch
    >>> attnrank.singular_values(torch.tensor([[3.0, 0.0], [0.0, -4.0]])).tolist()
    [4.0, 3.0]
    """
    sigma, scale = _scaled_singular_values(a)
    return sigma * scale


def _scaled_singular_values(a: Tensor) -> tuple[Tensor, Tensor]:
    """Singular values in units of a power of two (..., 1): 1, except where squares of entries would over- or underflow.

    Without gradients.
    """
    a = widened(_check.matrices("a", a).detach())
    scale = _power_of_two(_largest(a), MODERATE, to=MODERATE)  # and no further: the small entries shall stay
    return torch.linalg.svdvals(_divided(a.double(), scale)), scale[..., None]


def _without_overflow(a: Tensor, largest: Tensor) -> tuple[Tensor, Tensor]:
    """``a`` (b, n, m) divided by powers of two (b), 1 but for extreme entries, so that its squares are harmless."""
    scale = _power_of_two(largest, 300, to=0)
    return _divided(a, scale), scale


def _largest(a: Tensor) -> Tensor:
    """The largest absolute value of each matrix (...), float64; ValueError where one is not finite."""
    largest = torch.maximum(a.amax((-2, -1)), -a.amin((-2, -1))).double()
    if not _check.all_finite(largest):
        _check.finite("a", a)
    return largest


def _divided(a: Tensor, scale: Tensor) -> Tensor:
    return a if (scale == 1).all() else a / scale[..., None, None]


def _power_of_two(largest: Tensor, moderate: int, to: int) -> Tensor:
    """1 where the exponent of ``largest`` >= 0 is moderate, or a power of two that divides it to one of about +-to."""
    mantissa, exponent = torch.frexp(largest)
    scale = largest / (2 * mantissa)  # exact, as is the next line
    scale = torch.where(exponent > 0, scale * 2.0**-to, scale * 2.0**to)
    return scale.masked_fill((exponent.abs() <= moderate) | (largest == 0), 1.0)


def _relative_to_largest(a: Tensor) -> Tensor:
    sigma, _ = _scaled_singular_values(a)
    largest = sigma[..., :1]
    return sigma / largest.where(largest > 0, 1.0)
