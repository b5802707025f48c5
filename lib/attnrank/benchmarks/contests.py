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
    """Names of contestant and baseline, and the function of a case that prepares both as calls without arguments."""

    contestant: str
    baseline: str
    prepare: Callable[..., tuple[Routine, Routine]]


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


def one_hot_rank(q: Tensor, k: Tensor) -> Tensor:
    """The rank as the definition has it: the one-hot matrix of the best keys, and its rank by singular values."""
    return torch.linalg.matrix_rank(one_hot((q @ k.mT).argmax(-1), k.shape[-2]).to(q.dtype))


def dense_path(q: Tensor, k: Tensor) -> Tensor:
    """The hardmax rank from all scores, whatever the head dimension."""
    from attnrank.ranks._hardmax import Heads, search_rank  # not public: timed only

    heads = Heads.of(q, k, causal=False)
    return torch.stack([search_rank(heads[i : i + 1], causal=False, tile=None, prune=False) for i in range(len(q))])


def _hardmax_against(baseline: Callable[[Tensor, Tensor], object]) -> Callable[..., tuple[Routine, Routine]]:
    def prepare(n: int, d_h: int, batch: int, dtype: str, device: str) -> tuple[Routine, Routine]:
        q, k = queries_and_keys(n, d_h, batch, dtype, device)
        return lambda: hardmax_rank(q, k), lambda: baseline(q, k)

    return prepare


def _spectra(temperature: float, tol: float, relative: bool = False) -> Callable[..., tuple[Routine, Routine]]:
    def prepare(n: int, d_h: int, batch: int, dtype: str, device: str) -> tuple[Routine, Routine]:
        a = attention(*queries_and_keys(n, d_h, batch, dtype, device), temperature=temperature)
        return lambda: numerical_rank(a, tol, relative=relative), lambda: torch.linalg.svdvals(a.double())

    return prepare


CONTESTS: dict[str, Contest] = {
    "one-hot": Contest("hardmax_rank", "matrix_rank(one_hot(argmax))", _hardmax_against(one_hot_rank)),
    "product": Contest("hardmax_rank", "tiled product alone", _hardmax_against(tiled_product)),
    "dense": Contest("hardmax_rank", "the same from all scores", _hardmax_against(dense_path)),
    "spectrum": Contest("numerical_rank", "svdvals float64", _spectra(1 / 8, 1e-3)),
    "spectrum, temperature 1": Contest("numerical_rank", "svdvals float64", _spectra(1.0, 1e-3)),
    "spectrum, relative": Contest("numerical_rank, relative", "svdvals float64", _spectra(1 / 8, 1e-3, True)),
}
