"""Floating-point operations of training a student, from its shape, and of the solver, by counters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from attnrank.convex import _factored, _gram, _quadratic
from attnrank.experiments.convex_experiments.layers import FreeLayer, SoftmaxLayer


def pass_flops(model: SoftmaxLayer | FreeLayer, texts: int, n: int, d: int, steps: int) -> float:
    """Operations of forward and backward passes over so many texts of n tokens, in so many steps: three forward
    passes."""
    heads = len(model.output)
    if isinstance(model, SoftmaxLayer):
        return 3 * model.forward_flops(texts, n, d, heads, model.query.shape[-1])
    return 3 * model.forward_flops(texts, n, d, heads, steps)


def _cholesky(shape: Any, *rest: Any, **options: Any) -> int:
    """n^3 / 3 for each matrix."""
    return int(shape[-1] ** 3 / 3 * torch.Size(shape[:-2]).numel())


def _substitution(first: Any, second: Any, *rest: Any, **options: Any) -> int:
    """2 n^2 for each right-hand side, of triangular equations or of both that a Cholesky factor makes."""
    matrix, right = (first, second) if first[-1] == first[-2] else (second, first)
    return int(2 * matrix[-1] ** 2 * right[-1])


def _eigen(shape: Any, *rest: Any, **options: Any) -> int:
    """About 9 n^3 for eigenvalues and eigenvectors, as if square."""
    return int(9 * shape[-1] ** 3 * torch.Size(shape[:-2]).numel())


_aten = torch.ops.aten
#: Operations that PyTorch's own counter leaves out.
FACTORISATIONS: dict[Any, Any] = {
    _aten.linalg_cholesky_ex: _cholesky, _aten.cholesky_solve: _substitution,
    _aten.linalg_solve_triangular: _substitution, _aten._linalg_eigh: _eigen, _aten._linalg_svd: _eigen,
}  # fmt: skip


@dataclass
class Count:
    """Operations so far."""

    flops: float = 0.0


def _own_product(columns: bool) -> Callable[..., float]:
    """A matrix times its own transpose, or the transpose times it with ``columns``: BLAS computes one half."""

    def flops(a: Tensor, out: Tensor | None = None) -> float:
        size, summed = (a.shape[1], a.shape[0]) if columns else a.shape
        return float(size * (size + 1) * summed)

    return flops


def _token_products(a: Tensor, tokens: Tensor, c: Tensor) -> float:
    """One product for each sample and each of the tokens asked for."""
    return 2.0 * a.shape[0] * len(tokens) * a.shape[2]


#: Products that the solver leaves to NumPy on the CPU, where no counter of PyTorch sees them: where they are called.
_NUMPY: list[tuple[Any, str, Callable[..., float]]] = [
    (_gram, "times_own_transpose", _own_product(columns=False)),
    (_gram, "own_transpose_times", _own_product(columns=True)),
    (_factored, "times_own_transpose", _own_product(columns=False)),
    (_quadratic, "token_products", _token_products),
]


@contextmanager
def counted() -> Iterator[Count]:
    """Counts the operations of products and factorisations that the solver makes meanwhile, set when it ends."""
    count = Count()

    def counting(function: Callable[..., Tensor], flops: Callable[..., float]) -> Callable[..., Tensor]:
        def call(a: Tensor, *rest: Any, **options: Any) -> Tensor:
            if a.device.type == "cpu":  # elsewhere PyTorch multiplies, and counts
                count.flops += flops(a, *rest, **options)
            return function(a, *rest, **options)

        return call

    with ExitStack() as stack:
        counter = stack.enter_context(FlopCounterMode(display=False, custom_mapping=FACTORISATIONS))
        for module, name, flops in _NUMPY:
            stack.enter_context(mock.patch.object(module, name, counting(getattr(module, name), flops)))
        yield count
        count.flops += counter.get_total_flops()
