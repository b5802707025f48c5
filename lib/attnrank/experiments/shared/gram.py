"""Tokens by their Gram matrix: perturbed ones, how far they are from orthonormal, and the ranks of random heads on
them.

Throughout, tokens are measured after normalisation to length 1: their Gram matrix is I + E with zero diagonal E.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnrank import _check
from attnrank.experiments.shared.heads import LARGE, hardmax_rank_on_device
from attnrank.experiments.shared.statistics import batches

STRUCTURES = ("random", "autoregressive", "blocks", "common", "simplex", "pairs")
#: What rounding makes of an eigenvalue of zero is smaller than this.
NOISE = 1e-10


def perturbed_gram(structure: str, n: int, epsilon: float, *, generator: torch.Generator) -> Tensor:
    """Gram matrix I + E of n unit tokens, max |E_ij| = epsilon, float64 (n, n).

    ``structure`` of E: "random", uniform entries; "autoregressive", E_ij = epsilon^|i-j|; "blocks", epsilon within
    blocks of 8 neighbours; "common", epsilon everywhere; "simplex", -epsilon everywhere; "pairs", -epsilon between
    tokens 2i and 2i + 1. Raises ValueError where I + E has a negative eigenvalue.
    """
    _check.choice("structure", structure, STRUCTURES)
    n, epsilon = _check.integer("n", n, minimum=2), _check.real("epsilon", epsilon, minimum=0.0, maximum=1.0)
    _check.generator("generator", generator)
    position = torch.arange(n)
    distance = (position[:, None] - position).abs()
    if structure == "random":
        upper = (2.0 * torch.rand(n, n, generator=generator, dtype=torch.float64) - 1.0).triu(1)
        error = epsilon * upper / upper.abs().max()
        error = error + error.T
    elif structure == "autoregressive":
        error = torch.tensor(epsilon, dtype=torch.float64) ** distance
    elif structure == "blocks":
        error = epsilon * (position[:, None] // 8 == position // 8).double()
    elif structure == "pairs":
        error = -epsilon * (position[:, None] // 2 == position // 2).double()
    else:
        error = (epsilon if structure == "common" else -epsilon) * torch.ones(n, n, dtype=torch.float64)
    gram = error.fill_diagonal_(1.0)
    if torch.linalg.eigvalsh(gram)[0] < -NOISE:
        raise ValueError(f"epsilon = {epsilon} is too large for {structure} at n = {n}: I + E has an eigenvalue < 0")
    return gram


def geometry(gram: Tensor) -> dict[str, float]:
    """How far unit tokens (..., n, n) are from orthonormal, means over leading dimensions of measures of E."""
    n = gram.shape[-1]
    error = gram - torch.eye(n, dtype=gram.dtype)
    values = torch.linalg.eigvalsh(error)
    return {
        "max_error": error.abs().amax((-2, -1)).mean().item(),
        "frobenius": error.square().sum((-2, -1)).sqrt().mean().item(),
        "operator": values.abs().amax(-1).mean().item(),
        "smallest_eigenvalue": _without_noise(1.0 + values)[..., 0].mean().item(),
        "mean_cosine": (error.sum((-2, -1)) / (n * (n - 1))).mean().item(),
    }


def ranks_of_gram(
    gram: Tensor, d_h: int, samples: int, *, generator: torch.Generator, lengths: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Ranks of ``samples`` heads on tokens with this Gram matrix, and of orthonormal tokens with the same weights.

    Gaussian weights make queries and keys Gaussian with the Gram matrix as covariance; they are drawn as such. Keys are
    scaled by ``lengths`` (n,) of the tokens if given (the lengths of queries do not matter). Tokens must differ: equal
    ones give keys that are equal up to rounding only, and then count as different.
    """
    n = len(gram)
    values, vectors = torch.linalg.eigh(gram)
    root = (vectors * _without_noise(values).sqrt()) @ vectors.T
    key_root = root if lengths is None else lengths[:, None] * root
    ranks, orthonormal = [], []
    for batch in batches(samples, n * max(n, d_h), LARGE):
        q, k = torch.randn(2, batch, n, d_h, generator=generator, dtype=torch.float64)
        ranks.append(hardmax_rank_on_device(root @ q, key_root @ k))
        orthonormal.append(hardmax_rank_on_device(q, k))
    return torch.cat(ranks).double(), torch.cat(orthonormal).double()


def _without_noise(eigenvalues: Tensor) -> Tensor:
    """Eigenvalues of a Gram matrix with zeros in the place of rounding errors, which differ from machine to machine."""
    return eigenvalues.where(eigenvalues > NOISE, 0.0)


def mean_cosine(x: Tensor) -> Tensor:
    """Mean over all pairs of different rows of x (..., n, d) of the cosine between them: (...)."""
    unit = torch.nn.functional.normalize(x, dim=-1)
    n = x.shape[-2]
    total = unit.sum(-2).square().sum(-1)  # sum over all pairs, the n pairs of a token with itself included
    return (total - n) / (n * (n - 1))
