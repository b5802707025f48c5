"""Floating-point operations of training a student, from its shape, and of the solver, by PyTorch's counter."""

from __future__ import annotations

from typing import Any

import torch

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
