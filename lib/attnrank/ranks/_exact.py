"""Signs of sums of products, exactly: error-free transformations in float64, rational numbers beyond their range."""

from __future__ import annotations

from fractions import Fraction

import torch
from torch import Tensor

#: Magnitudes between which a product of two float64 numbers splits into two float64 numbers without error.
SPLITTABLE = (2.0**-400, 2.0**400)


def sign_of_difference(q: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Sign of ``q . (a - b)``, row by row, in exact arithmetic on the numbers as given.

    Parameters
    ----------
    q, a, b : floating-point tensors (pairs, d_h), finite.

    Returns
    -------
    int64 tensor (pairs): -1, 0 or 1.

    Source: Ogita, Rump and Oishi (2005), Accurate sum and dot product.
    """
    if q.dtype != torch.float64:  # 24-bit factors: float64 holds their products, the smallest too
        q, a, b = q.double(), a.double(), b.double()
        return _sign_of_sum(torch.cat([q * a, -q * b], -1))
    sizes = torch.stack([q, a, b]).abs()
    usual = ((sizes == 0) | ((sizes >= SPLITTABLE[0]) & (sizes <= SPLITTABLE[1]))).all(-1).all(0)
    signs = torch.zeros(len(q), dtype=torch.int64, device=q.device)
    terms = (*_product(q[usual], a[usual]), *_product(-q[usual], b[usual]))
    signs[usual] = _sign_of_sum(torch.cat(terms, -1))
    for pair in (~usual).nonzero().flatten().tolist():
        signs[pair] = _rational_sign(q[pair], a[pair], b[pair])
    return signs


def _sign_of_sum(x: Tensor) -> Tensor:
    """Sign of the exact sum of each row: sums are split into a rounded sum and its errors until the sum outweighs."""
    signs = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    undecided = torch.arange(len(x), device=x.device)
    while len(undecided):  # each pass shrinks the sum of the sizes at least a millionfold
        total, errors = _rounded_sum(x)
        rest = errors.abs().sum(-1) * (1 + 1e-6)
        decided = (total.abs() > rest) | (rest == 0)
        signs[undecided[decided]] = total[decided].sign().long()
        undecided = undecided[~decided]
        x = torch.cat([total[:, None], errors], -1)[~decided]
    return signs


def _rounded_sum(x: Tensor) -> tuple[Tensor, Tensor]:
    """A float64 sum (rows) of each row and numbers (rows, columns - 1) that add up to its error, exactly."""
    errors = []
    while x.shape[-1] > 1:
        half = x.shape[-1] // 2
        left, right, odd = x[:, :half], x[:, half : 2 * half], x[:, 2 * half :]
        total = left + right
        part = total - left
        errors.append((left - (total - part)) + (right - part))
        x = torch.cat([total, odd], -1)
    return x[:, 0], torch.cat(errors, -1)


def _product(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The float64 product and its rounding error, exact within ``SPLITTABLE``."""
    product = x * y
    (x_high, x_low), (y_high, y_low) = _halves(x), _halves(y)
    return product, x_low * y_low - (((product - x_high * y_high) - x_low * y_high) - x_high * y_low)


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """Two numbers of at most 26 bits that add up to ``x``."""
    shifted = x * (2.0**27 + 1)
    high = shifted - (shifted - x)
    return high, x - high


def _rational_sign(q: Tensor, a: Tensor, b: Tensor) -> int:
    numbers = zip(q.tolist(), a.tolist(), b.tolist(), strict=True)
    total = sum((Fraction(x) * (Fraction(y) - Fraction(z)) for x, y, z in numbers), Fraction(0))
    return (total > 0) - (total < 0)
