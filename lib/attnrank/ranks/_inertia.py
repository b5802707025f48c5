"""Counting singular values >= tol without computing them: the inertia of a^T a - tol^2, with a certificate.

By Sylvester's law of inertia the factors l d l^T of a symmetric matrix have as many positive eigenvalues as the small
blocks of d. Factorised at both ends of an interval around tol^2 that is wider than every error made on the way, they
bracket the count. Where both ends agree the count is certain: it is that of the exact singular values, and none of them
lies so near the tolerance that a backward stable SVD in float64 could count otherwise. The error bounds are those of
the theorem in the chapter "Measuring speed".
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

UNIT = 2.0**-53  # unit roundoff of float64

#: Columns that weigh together less than this share of tol^2 are left out of the product, and the lower shift follows:
#: at first many, then, for matrices with a singular value too near the tolerance, few.
DROPPED_SHARES = (2.0**-8, 2.0**-14)

#: The same share where eigenvalues of the product are counted.
DROPPED_FROM_EIGENVALUES = 2.0**-10

#: In units of tol^2: squared norms of columns that may be eliminated, and the least eigenvalue of their block.
CANDIDATE, DEFINITE = 400, 64

#: Columns multiplied at a time, so that only the lower triangle of the product is computed.
STRIP = 48

#: Entries of the matrices counted together: what a CPU holds in its cache, or what keeps a GPU busy.
CPU_ENTRIES, GPU_ENTRIES = 1 << 18, 1 << 27


def count(a: Tensor, tol: Tensor) -> tuple[Tensor, Tensor]:
    """Number of singular values >= tol of each matrix, and whether that number is certain.

    ``a`` float64 (b, n, m) with m <= n, squares of its entries neither over- nor underflow; ``tol`` float64 (b).
    Returns int64 (b) and bool (b); a number that is not certain means nothing.
    """
    square = tol * tol
    norms, order, tails = _columns_by_norm(a)
    leading = (norms > CANDIDATE * square[:, None]).sum(-1)
    error = _error_of_product(tails[:, 0], tol, a.shape[-2])
    counts = torch.zeros_like(leading)
    certain = tails[:, 0] <= DROPPED_SHARES[0] * square  # too small to have a singular value of that size
    for share, eliminated in zip(DROPPED_SHARES, (leading, torch.zeros_like(leading)), strict=True):
        kept = (tails > share * square[:, None]).sum(-1)
        for group in _groups(~certain & (4 * error < square), kept, a):
            columns = int(kept[group].max())
            product = _product(a, group, order[:, :columns])
            lost = error[group] + tails[group, columns]
            counts[group], certain[group] = _inertia(product, int(eliminated[group].min()), square[group], lost)
    return counts, certain


def _inertia(product: Tensor, p: int, square: Tensor, lost: Tensor) -> tuple[Tensor, Tensor]:
    """Number of eigenvalues of ``product`` above ``square``; certain if none can cross it by a change of norm ``lost``.

    h = product - square has a leading block b that is clearly positive definite; it is eliminated once. What is left,
    its Schur complement, is factorised at both ends of the doubtful interval.
    """
    h = product  # changed in place
    h.diagonal(dim1=-2, dim2=-1).sub_(square[:, None])
    least = DEFINITE * square  # b has no eigenvalue below, so that x stays small
    b, p = _definite_block(h, min(p, h.shape[-1] - 1), least)
    c, rest = h[:, p:, :p].mT, h[:, p:, p:]
    x = torch.cholesky_solve(c, torch.linalg.cholesky_ex(b)[0])
    schur = torch.baddbmm(rest, x.mT, c, alpha=-1)

    gamma = (p + 3) * UNIT * 1.01
    norm_c, norm_x = _frobenius(c), _frobenius(x)
    residual = _frobenius(torch.baddbmm(c, b, x, alpha=-1)) + gamma * (norm_c + norm_x * _frobenius(b))
    rounding = 1.5 * gamma * (_frobenius(rest) + norm_x * norm_c)  # of the lower triangle, mirrored
    tau = lost + (residual * (1 + norm_x) + rounding) * 1.01
    least = least - gamma * b.diagonal(dim1=-2, dim2=-1).sum(-1)  # as far as Cholesky's own rounding allows to say
    sizes = schur.diagonal(dim1=-2, dim2=-1).abs().sum(-1) + _frobenius(schur.tril())
    allowed = _error_of_factors(schur.shape[-1], 8 * sizes)  # to be confirmed by the factors themselves
    reach = allowed + tau * (1 + 1.1 * norm_x.square())

    shifted = torch.stack([schur, schur])
    shifted.diagonal(dim1=-2, dim2=-1).sub_(torch.stack([reach, -reach]).unsqueeze(-1))
    # on the CPU: the pivots come one after another, and libraries of GPUs take the matrices one after another, too
    (above, near), errors = (x.to(h.device) for x in _positive_pivots(shifted.cpu()))
    return p + above, (above == near) & (errors.amax(0) <= allowed) & (11 * tau < least)


def _definite_block(h: Tensor, p: int, least: Tensor) -> tuple[Tensor, int]:
    """The largest leading block of h, of order at most p, without eigenvalues below ``least``; and its order."""
    block = _mirrored(h[:, :p, :p])
    if p == 0:
        return block, 0
    diagonal = block.diagonal(dim1=-2, dim2=-1)
    diagonal.sub_(least[:, None])
    failed = torch.linalg.cholesky_ex(block)[1]  # order of the first leading minor that is not positive, or 0
    diagonal.copy_(h.diagonal(dim1=-2, dim2=-1)[:, :p])
    p = int(torch.where(failed > 0, failed - 1, p).min())
    return block[:, :p, :p], p


def count_relative(a: Tensor, tol: float) -> tuple[Tensor, Tensor]:
    """As :func:`count`, with the tolerance ``tol`` times the largest singular value: from eigenvalues of a^T a."""
    norms, order, tails = _columns_by_norm(a)
    # the largest squared norm of a column is at most the largest eigenvalue
    dropped_at_most = DROPPED_FROM_EIGENVALUES * min(1.0, tol * tol) * norms[:, 0]
    kept = (tails > dropped_at_most[:, None]).sum(-1)
    error = _error_of_product(tails[:, 0], tails[:, 0].sqrt(), a.shape[-2])
    counts = torch.zeros_like(kept)
    certain = kept == 0
    for group in _groups(~certain & (2 * error < tol * tol * norms[:, 0]), kept, a):
        columns = int(kept[group].max())
        values = torch.linalg.eigvalsh(_product(a, group, order[:, :columns]))
        slack = error[group] + 4 * columns * UNIT * tails[group, 0]  # of the product, of a backward stable eigensolver
        dropped, largest = tails[group, columns], values[:, -1]
        above = tol * tol * (largest + slack + dropped) + slack
        near = tol * tol * (largest - slack) - slack - dropped
        counts[group] = (values > above[:, None]).sum(-1)
        certain[group] = counts[group] == (values > near[:, None]).sum(-1)
    return counts, certain


def _positive_pivots(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Number of positive eigenvalues of d in matrix = l d l^T (lower triangle, Bunch-Kaufman), bound of the error.

    The computed factors are those of a matrix that differs by less than that bound; it is infinite where a block of d
    is not clearly regular.
    """
    factors, pivots = torch.linalg.ldl_factor_ex(matrix)[:2]
    diagonal = factors.diagonal(dim1=-2, dim2=-1).clone()
    beside = torch.zeros_like(diagonal)
    beside[..., :-1] = factors.diagonal(-1, dim1=-2, dim2=-1)
    paired = pivots < 0  # rows of 2 x 2 blocks, which come in adjacent pairs
    first = paired & (paired.cumsum(-1) % 2 == 1)
    beside = beside.where(first, 0.0)
    after = diagonal.roll(-1, -1)
    regular = torch.where(first, diagonal * after < 0.9 * beside.square(), paired | (diagonal != 0)).all(-1)
    positive = ((diagonal > 0) & ~paired).sum(-1) + first.sum(-1)  # a 2 x 2 block is indefinite: one of each sign

    size = torch.where(first, diagonal.abs() + after.abs() + beside.abs(), diagonal.abs())
    size = torch.where(paired & ~first, size.roll(1, -1), size)  # bounds the norm of a block for both its columns
    lower = factors.tril_(-1)
    lower.diagonal(-1, dim1=-2, dim2=-1).mul_(~first[..., :-1])  # what is left of it belongs to l
    weights = 1 + lower.square_().sum(-2)  # squared norms of the columns of l
    bound = _error_of_factors(matrix.shape[-1], (weights * size).sum(-1))
    return positive, bound.where(regular, torch.inf)


def _product(a: Tensor, group: Tensor, order: Tensor) -> Tensor:
    """x^T x of the columns x that ``order`` names, correct in the lower triangle; perhaps with more zero columns."""
    x = a.new_empty(len(group), a.shape[-2], order.shape[-1])
    for i, columns in zip(group.tolist(), x, strict=True):
        torch.gather(a[i], -1, order[i].expand_as(columns), out=columns)
    k = x.shape[-1]
    size = k if k % 64 else k + 4  # a CPU's cache dislikes columns that are a power of two apart
    product = x.new_zeros(len(group), size, size)
    for start in range(0, k, STRIP):
        stop = min(start + STRIP, k)
        product[:, start:stop, :stop] = x[..., start:stop].mT @ x[..., :stop]
    return product


def _mirrored(lower: Tensor) -> Tensor:
    below = torch.ones(lower.shape[-2:], dtype=torch.bool, device=lower.device).tril_()
    return torch.where(below, lower, lower.mT)


def _frobenius(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=(-2, -1)) * (1 + 1e-9)


def _columns_by_norm(a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Squared norms of the columns, largest first; their order; and entry j: what columns j, j + 1, ... sum to."""
    norms = _squared_norms(a)
    norms, order = norms.sort(-1, descending=True)
    tails = norms.flip(-1).cumsum(-1).flip(-1) * (1 + 1e-9)  # raised above their rounding error
    return norms, order, torch.nn.functional.pad(tails, (0, 1))


def _squared_norms(a: Tensor) -> Tensor:
    """Of the columns; numpy's way goes over ``a`` once."""
    if a.is_cpu:
        return torch.from_numpy(np.einsum("bij,bij->bj", a.numpy(), a.numpy()))
    return torch.cat([part.square().sum(-2) for part in a.split(_together(a))])


def _groups(wanted: Tensor, kept: Tensor, a: Tensor) -> tuple[Tensor, ...]:
    """The wanted matrices in groups treated together, those with a like number of columns in one group."""
    members = wanted.nonzero().squeeze(-1)
    return members[kept[members].argsort()].split(_together(a)) if len(members) else ()


def _together(a: Tensor) -> int:
    return max(1, (CPU_ENTRIES if a.device.type == "cpu" else GPU_ENTRIES) // a[0].numel())


def _error_of_product(bound: Tensor, tol: Tensor, n: int) -> Tensor:
    """Of a computed a^T a - tol^2, in the spectral norm, and of tol^2 itself where an SVD errs by 4 n u |a|.

    ``bound`` >= the squared Frobenius norm of ``a``.
    """
    svd = 4 * n * UNIT * bound.sqrt()
    return (n + 8) * UNIT * 1.01 * (bound + tol * tol) + 2 * tol * svd + svd * svd


def _error_of_factors(order: int, bound: Tensor) -> Tensor:
    """Of l d l^T, in the spectral norm: 8 (order + 8) u |(|l||d||l|^T)|. ``bound`` >= that norm."""
    return 8 * (order + 8) * UNIT * bound
