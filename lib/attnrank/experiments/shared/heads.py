"""Random heads: Gaussian queries and keys, and their hardmax ranks."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from attnrank import _check
from attnrank.experiments.shared.statistics import batches, seeded, summary
from attnrank.ranks import hardmax_rank
from attnrank.sweep import Setting, device

#: Numbers drawn at a time for the queries of a batch (8 bytes each).
SMALL, MEDIUM, LARGE = 2**20, 2**21, 2**22


def hardmax_rank_on_device(
    q: Float[Tensor, "*batch n d_h"], k: Float[Tensor, "*batch m d_h"], *, causal: bool = False
) -> Int64[Tensor, "*batch"]:
    """`hardmax_rank` of queries and keys that were drawn on the CPU, counted on the `device` of this process.

    The result is on the CPU. It is exact, so every device gives the same one. Spectra stay on the CPU: those of the
    tables are small, and their last digits would depend on the device.
    """
    where = device()
    return hardmax_rank(q.to(where), k.to(where), causal=causal).cpu()


def distinct(scores: Float[Tensor, "*batch n m"]) -> Int64[Tensor, "*batch"]:
    """Number of distinct columns that the rows of ``scores`` choose: the hardmax rank."""
    return distinct_entries(scores.argmax(-1), scores.shape[-1])


def distinct_entries(chosen: Int64[Tensor, "*batch n"], below: int) -> Int64[Tensor, "*batch"]:
    """Number of distinct entries in each row of indices below ``below``."""
    seen = torch.zeros(*chosen.shape[:-1], below, dtype=torch.bool)
    return seen.scatter_(-1, chosen, True).sum(-1)


def gaussian_heads(
    n: int, d_h: int, samples: int, seed: int | torch.Generator, limit: int = LARGE
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of i.i.d. N(0, 1) queries and keys, float64 (batch, n, d_h) each, ``samples`` >= 2 heads in all.

    ``limit`` bounds the scores and the queries of a batch; with a generator for ``seed``, the caller may draw between
    the batches.
    """
    n, d_h = _check.integer("n", n, minimum=1), _check.integer("d_h", d_h, minimum=1)
    samples = _check.integer("samples", samples, minimum=2)
    generator = seed if isinstance(seed, torch.Generator) else seeded(seed)
    for batch in batches(samples, n * max(n, d_h), limit):
        q = torch.randn(batch, n, d_h, generator=generator, dtype=torch.float64)
        yield q, torch.randn(batch, n, d_h, generator=generator, dtype=torch.float64)


def random_heads(n: int, d_h: int, samples: int, seed: int) -> Setting:
    """Hardmax rank of heads on orthonormal tokens under Gaussian weights: mean, standard error and variance.

    Orthonormal tokens X and N(0, 1) weights give queries X W_q and keys X W_k with i.i.d. N(0, 1) entries: they are
    drawn as such, whatever the width d >= n. ``samples`` >= 2 heads; units of rank.
    """
    rank = torch.cat([hardmax_rank_on_device(q, k) for q, k in gaussian_heads(n, d_h, samples, seed)]).double()
    return summary("rank", rank) | {"rank_variance": rank.var().item()}
