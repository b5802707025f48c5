"""A convex attention program, checked: tokens with their gates, targets, loss and penalty."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from attnrank import _check
from attnrank.convex.losses import LOSSES, CrossEntropy, Squared
from attnrank.convex.penalties import PENALTIES, Blocks, Group, Nuclear

#: Entries of x and y are at most this large, and the largest at least as small: products of four stay numbers.
LARGEST = 1e60


@dataclass(frozen=True)
class Problem:
    """min over z of loss(<x, z>, y) + beta penalty(z), all arrays with every axis: one output is an axis of length 1.

    ``a`` holds gated tokens: gate after gate, each token times its gate.
    """

    a: Float64[Tensor, "samples tokens d"]
    y: Float64[Tensor, "samples outputs"]
    loss: Squared | CrossEntropy
    penalty: Group | Nuclear
    shape: tuple[int, ...]  # of z as the caller sees it
    tokens: int  # of a sequence, gates not counted
    scalar: bool  # y was (samples,)
    caches: dict = field(default_factory=dict)

    def predict(self, z: Blocks) -> Float64[Tensor, "samples outputs"]:
        active = z.ne(0).flatten(1).any(1).nonzero()[:, 0]
        if 3 * len(active) > len(z):
            return self.a.flatten(1) @ z.flatten(0, 1)
        return self.a.index_select(1, active).flatten(1) @ z[active].flatten(0, 1)

    def correlate(self, v: Float64[Tensor, "samples outputs"]) -> Blocks:
        """sum_i a_ik v_i^T, for each token k."""
        return (self.a.flatten(1).mT @ v).view(*self.a.shape[1:], v.shape[1])

    def beta_max(self) -> float:
        """The smallest beta for which z = 0 is optimal."""
        return self.penalty.dual_norm(self.at_zero())

    def at_zero(self) -> Blocks:
        """Correlations at z = 0; computed once."""
        if "at_zero" not in self.caches:
            self.caches["at_zero"] = self.correlate(self.loss.residual(torch.zeros_like(self.y), self.y))
        return self.caches["at_zero"]

    def blocks(self, z: Tensor) -> Blocks:
        """z of the caller's shape as blocks."""
        return z.reshape(self.a.shape[1], self.a.shape[2], self.y.shape[1])


def problem(x: Tensor, y: Tensor, loss: str, penalty: str, gates: Tensor | None) -> Problem:
    """Check the arguments of :func:`attnrank.convex.solve` and put them together."""
    x = checked_array("x", x, 3, "(samples, tokens, dimension)")
    y = _targets(y, x, loss)
    _check.choice("penalty", penalty, PENALTIES)
    scalar = y.ndim == 1
    tokens = x.shape[1]
    shape = (*x.shape[1:], *y.shape[1:])
    if gates is not None:
        gates = checked_array("gates", gates, 2, "(samples, gates)")
        matching("gates", gates, x)
        shape = (gates.shape[1], *shape)
        x = _check.finite("gates times x", (gates[:, :, None, None] * x[:, None]).flatten(1, 2))
    for name, value in (("x" if gates is None else "gates times x", x), ("y", y)):
        in_range(name, value)
    return Problem(x.contiguous(), y[:, None] if scalar else y, LOSSES[loss], PENALTIES[penalty], shape, tokens, scalar)


def positive(name: str, value: object) -> float:
    """A weight of the penalty: beta = 0 has no unique solution and no certificate, a negative one no solution."""
    return _check.real(name, value, above=0.0)


def _targets(y: Tensor, x: Tensor, loss: str) -> Tensor:
    _check.choice("loss", loss, LOSSES)
    y = checked_array("y", y, (1, 2), "(samples,) or (samples, outputs)")
    matching("y", y, x)
    return probabilities(y, last=y.ndim == 2) if loss == "cross_entropy" else y


def in_range(name: str, value: Tensor) -> None:
    """Squares and products of squares must neither overflow nor vanish."""
    least, most = value.aminmax()
    largest = max(-least.item(), most.item())
    if largest > 0 and not 1.0 / LARGEST <= largest <= LARGEST:
        raise ValueError(f"{name} must have its largest entry in [{1 / LARGEST:g}, {LARGEST:g}], got {largest:g}")


def probabilities(y: Tensor, *, last: bool) -> Tensor:
    """Targets of the cross-entropy: probabilities, which sum to 1 over the ``last`` axis; there exactly, as returned.

    Where a row misses 1 by ever so little, the conjugate is infinite and no dual point bounds anything.
    """
    if (y < 0).any() or (y > 1).any():
        raise ValueError(f"y must be probabilities for cross_entropy, got values from {y.min():g} to {y.max():g}")
    if last and y.shape[-1] < 2:
        raise ValueError("y must have at least 2 columns for cross_entropy, or the shape (samples,) for one score")
    if last and not torch.allclose(y.sum(-1), y.new_ones(()), rtol=0, atol=1e-9):
        raise ValueError("y must have rows that sum to 1 for cross_entropy (one_hot(labels).double())")
    return y / y.sum(-1, keepdim=True) if last else y


def checked_array(name: str, value: object, dims: int | tuple[int, ...], shape: str) -> Tensor:
    """Return an array of such dimensions in float64, without gradients, or raise ValueError."""
    if isinstance(value, np.ndarray):
        raise ValueError(f"{name} must be a torch.Tensor, got a numpy array: use torch.from_numpy({name})")
    if not isinstance(value, Tensor):
        raise ValueError(f"{name} must be a torch.Tensor, got {type(value).__name__}")
    _check.dense(name, value)
    if value.ndim not in (dims if isinstance(dims, tuple) else (dims,)) or value.numel() == 0:
        raise ValueError(f"{name} must have shape {shape} and not be empty, got {tuple(value.shape)}")
    if not value.is_floating_point():
        raise ValueError(f"{name} must be floating point, got {value.dtype}: use {name}.double(), one_hot for labels")
    value = value.detach().double()
    if not math.isfinite(value.sum().item()):  # a sum is faster than a look at every entry
        _check.finite(name, value)
    return value


def matching(name: str, value: Tensor, x: Tensor) -> None:
    if value.shape[0] != x.shape[0]:
        raise ValueError(f"{name} must have one row for each of the {x.shape[0]} samples of x, got {value.shape[0]}")
    if value.device != x.device:
        raise ValueError(f"{name} must be on the device of x, {x.device}, got {value.device}")
