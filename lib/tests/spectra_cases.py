"""Matrices whose spectra are hard to count, and how the tests of the spectral ranks draw them."""


import numpy as np
import pytest
import torch

from attnrank import attention, numerical_rank
from attnrank.ranks import certified_rank

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def draw(seed, *shape, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def integers(seed, *shape, size=2):
    """Small whole numbers: products and sums are exact in every precision and order, and scores tie often."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-size, size + 1, shape, generator=generator).double()


def jordan(value, size):
    return np.diag(np.full(size, value)) + np.diag(np.ones(size - 1), 1)


def gaussian(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)


def orthogonal(seed, n):
    return np.linalg.qr(gaussian(seed, n, n))[0]


def one_hot(seed, n, m):
    return np.eye(m)[np.random.default_rng(seed).integers(m, size=n)]


MATRICES = {
    "scalar": np.array([[2.5]]),
    "random": gaussian(0, 17, 17),
    "wide": gaussian(1, 5, 40),
    "tall": gaussian(2, 40, 5),
    "row": gaussian(3, 1, 30),
    "column": gaussian(4, 30, 1),
    "batch": gaussian(5, 2, 3, 8, 6),
    "nilpotent": jordan(0.0, 12),
    "jordan": jordan(0.7, 12),
    "two jordan blocks": np.block([[jordan(2.0, 4), np.zeros((4, 5))], [np.zeros((5, 4)), jordan(0.0, 5)]]),
    "zero": np.zeros((6, 9)),
    "zero batch": np.zeros((3, 4, 4)),
    "product": gaussian(6, 30, 4) @ gaussian(7, 4, 20),
    "repeated rows": gaussian(8, 6, 10)[[0, 1, 0, 2, 3, 1, 5, 5, 5]],
    "hilbert": 1.0 / (np.arange(12)[:, None] + np.arange(12) + 1.0),
    "tiny": 1e-300 * gaussian(9, 8, 8),
    "huge": 1e300 * gaussian(10, 8, 8),
    "denormal": 5e-324 * np.rint(1e4 * gaussian(11, 8, 8)),
    "graded": np.diag(10.0 ** np.linspace(-150, 150, 13)),
    "graded upwards": np.diag(10.0 ** np.linspace(-300, 100, 13)),
    "graded downwards": np.diag(10.0 ** np.linspace(-300, 100, 13)[::-1]),
    "graded rows": 10.0 ** -np.arange(0, 12, 2)[:, None] * gaussian(12, 6, 6),
    "prescribed": orthogonal(13, 20) @ np.diag(2.0 ** -np.arange(20)) @ orthogonal(14, 20),
    "one-hot": one_hot(15, 40, 25),
    "batch of every scale": np.stack([s * gaussian(16, 6, 6) for s in (1e-300, 1e-8, 1.0, 1e8, 1e300)]),
}


def gaps(sigma):
    """Tolerances far from every singular value: the middles of gaps of a factor of 10 or more than 1 % above noise."""
    noise = 1e-12 * sigma.max()
    values = np.unique(sigma[sigma > noise])
    low, high = values[:-1], values[1:]
    middles = (np.sqrt(low) * np.sqrt(high))[high > 1.01 * low]
    return [*middles, 2.0 * sigma.max(), max(np.sqrt(noise) * np.sqrt(values.min()), 5e-324)] if len(values) else []


def counted(a, tol, **options):
    """The rank as large matrices have it, counted where that is certain; small ones go to the SVD at once otherwise."""
    return certified_rank(a, tol, **options)[0]


both_ways = pytest.mark.parametrize("rank_of", [numerical_rank, counted])


def with_spectrum(seed, sigma, n=None, m=None):
    k = len(sigma)
    return orthogonal(seed, n or k)[:, :k] * np.asarray(sigma) @ orthogonal(seed + 1, m or k)[:k]


def softmax_matrix(seed, n, d_h, temperature):
    q, k = torch.randn(2, n, d_h, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return attention(q, k, temperature=temperature).numpy()
