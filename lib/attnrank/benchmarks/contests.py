"""What is timed against what: each contest prepares a contestant and a baseline for one shape, dtype and device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from attnrank.ranks import hardmax_rank, numerical_rank
from attnrank.scores import attention

Routine = Callable[[], object]

#: Scores of a tile of the naive floor, queries x keys: the fastest shape found; wider tiles collide in a CPU's cache.
#: On a GPU, where none could be tried, large enough that the calls weigh little.
TILE, GPU_TILE = (512, 512), (8192, 8192)


@dataclass(frozen=True)
class Contest:
    """Names of contestant and baseline, and what prepares both for a case, as calls without arguments.

    ``prepare`` may give a third call, a floor that no contestant can pass; the ratio of the baseline to it is the limit
    of the contest's ratio. To add a contest, add an entry to ``CONTESTS`` and rows to the table `speed`.
    """

    contestant: str
    baseline: str
    prepare: Callable[..., tuple[Routine, ...]]


def queries_and_keys(n: int, d_h: int, batch: int, dtype: str, device: str) -> tuple[Tensor, Tensor]:
    """Gaussian queries and keys (batch, n, d_h), drawn in float64 on the CPU as everywhere."""
    draws = torch.randn(2, batch, n, d_h, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return tuple(draws.to(device, getattr(torch, dtype)))


def tiled_product(q: Tensor, k: Tensor) -> None:
    """All scores, tile by tile into one buffer, and nothing else: the floor of every routine that computes them all."""
    tile = TILE if q.device.type == "cpu" else GPU_TILE
    rows, columns = min(tile[0], q.shape[-2]), min(tile[1], k.shape[-2])
    scratch = q.new_empty(rows * columns)
    for queries, keys in zip(q, k, strict=True):
        for some in queries.split(rows):
            for others in keys.split(columns):
                torch.mm(some, others.mT, out=scratch[: len(some) * len(others)].view(len(some), len(others)))


def argmax_and_count(q: Tensor, k: Tensor) -> Tensor:
    """The rank in three lines of torch: all scores, the best key of every query, and how many keys are one."""
    best = (q @ k.mT).argmax(-1)
    chosen = torch.zeros(k.shape[:-1], dtype=torch.bool, device=k.device).scatter_(-1, best, True)
    return chosen.sum(-1)


def argmax_by_rows(q: Tensor, k: Tensor) -> Tensor:
    """The same without holding all scores: some queries at a time."""
    chosen = torch.zeros(k.shape[:-1], dtype=torch.bool, device=k.device)
    for queries in q.split(512, -2):
        chosen.scatter_(-1, (queries @ k.mT).argmax(-1), True)
    return chosen.sum(-1)


def one_hot_rank(q: Tensor, k: Tensor) -> Tensor:
    """The rank as the definition has it: the one-hot matrix of the best keys, and its rank by singular values."""
    return torch.linalg.matrix_rank(one_hot((q @ k.mT).argmax(-1), k.shape[-2]).to(q.dtype))


def dense_path(q: Tensor, k: Tensor) -> Tensor:
    """The hardmax rank from all scores, whatever the head dimension."""
    from attnrank.ranks._hardmax import Heads, search_rank  # not public: timed only

    heads = Heads.of(q, k, causal=False)
    return torch.stack([search_rank(heads[i : i + 1], causal=False, tile=None, prune=False) for i in range(len(q))])


def _hardmax_against(baseline: Callable[[Tensor, Tensor], object], floor: bool = False) -> Callable[..., tuple]:
    def prepare(n: int, d_h: int, batch: int, dtype: str, device: str) -> tuple[Routine, ...]:
        q, k = queries_and_keys(n, d_h, batch, dtype, device)
        routines = (lambda: hardmax_rank(q, k), lambda: baseline(q, k))
        return (*routines, _product(q, k)) if floor else routines

    return prepare


def _product(q: Tensor, k: Tensor) -> Routine:
    """The product in float32, in which the routine computes scores of every precision."""
    x, y = q.float(), k.float()
    return lambda: tiled_product(x, y)


def _against_the_product(n: int, d_h: int, batch: int, dtype: str, device: str) -> tuple[Routine, ...]:
    q, k = queries_and_keys(n, d_h, batch, dtype, device)
    return lambda: hardmax_rank(q, k), _product(q, k)


def eigenvalue_rank(a: Tensor, tol: float) -> Tensor:
    """Singular values counted as roots of eigenvalues of a^T a, in float64: wrong below about 1e-8 of the largest."""
    a = a.double()
    return (torch.linalg.eigvalsh(a.mT @ a) >= tol * tol).sum(-1)


def _spectra(temperature: float, tol: float, relative: bool = False, squared: bool = False) -> Callable[..., tuple]:
    def prepare(n: int, d_h: int, batch: int, dtype: str, device: str) -> tuple[Routine, ...]:
        a = attention(*queries_and_keys(n, d_h, batch, dtype, device), temperature=temperature)
        baseline = (lambda: eigenvalue_rank(a, tol)) if squared else (lambda: torch.linalg.svdvals(a.double()))
        return lambda: numerical_rank(a, tol, relative=relative), baseline

    return prepare


CONTESTS: dict[str, Contest] = {
    "argmax": Contest("hardmax_rank", "argmax and count", _hardmax_against(argmax_and_count)),
    "argmax by rows": Contest("hardmax_rank", "argmax and count, 512 rows at a time", _hardmax_against(argmax_by_rows)),
    "product": Contest("hardmax_rank", "tiled product alone, float32", _against_the_product),
    "one-hot": Contest("hardmax_rank", "matrix_rank(one_hot(argmax))", _hardmax_against(one_hot_rank, floor=True)),
    "dense": Contest("hardmax_rank", "the same from all scores", _hardmax_against(dense_path)),
    "spectrum": Contest("numerical_rank", "svdvals float64", _spectra(1 / 8, 1e-3)),
    "spectrum, temperature 1": Contest("numerical_rank", "svdvals float64", _spectra(1.0, 1e-3)),
    "spectrum, relative": Contest("numerical_rank, relative", "svdvals float64", _spectra(1 / 8, 1e-3, True)),
    "eigenvalues": Contest("numerical_rank", "eigvalsh(a^T a) >= tol^2", _spectra(1 / 8, 1e-3, squared=True)),
}
