"""Heads of the non-convex model, the way from a convex solution to heads and back, and their certificate."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from attnrank import _check
from attnrank.convex.certificate import feasible
from attnrank.convex.penalties import PENALTIES
from attnrank.convex.problem import positive, problem
from attnrank.convex.solver import predict


@dataclass(frozen=True)
class Heads:
    """Heads with predictions sum_j (w1_j^T x) w2_j w3_j: shared attention over positions, value and output weights.

    attention : float64 (h, n), each row nonnegative with sum 1. value : float64 (h, d).
    output : float64 (h,) for one output, (h, c) for several. gate : int64 (h,), the gate that each head is under, or
    None; ``gates`` is their number.
    """

    attention: Float64[Tensor, "heads n"]
    value: Float64[Tensor, "heads d"]
    output: Float64[Tensor, "heads *outputs"]
    gate: Int64[Tensor, "heads"] | None = None
    gates: int = 0

    def predict(self, x: Tensor, gates: Tensor | None = None) -> Tensor:
        """Predictions (N,) or (N, c) for tokens x (N, n, d), with gates (N, G) where the heads have gates.

        Raises ValueError for shapes that do not fit, and for gates that are missing or belong to no head.
        """
        shape = (self.attention.shape[1], self.value.shape[1])
        if _check.matrices("x", x).ndim != 3 or x.shape[1:] != shape:  # an axis of length 1 would be broadcast
            raise ValueError(f"x must have shape (samples, {shape[0]}, {shape[1]}) as the heads, got {tuple(x.shape)}")
        scores = torch.einsum("ikd,hk,hd->ih", x.to(self.value.dtype), self.attention, self.value)
        if self.gate is None and gates is not None:
            raise ValueError("gates must be None: these heads are under no gates")
        if self.gate is not None:
            if gates is None:
                raise ValueError("gates must be given: these heads are under gates")
            if _check.matrices("gates", gates).shape != (len(x), self.gates):
                raise ValueError(f"gates must have shape ({len(x)}, {self.gates}), got {tuple(gates.shape)}")
            scores = scores * gates.to(scores.dtype)[:, self.gate]
        return torch.einsum("ih,h...->i...", scores, self.output)

    def penalty(self, penalty: str = "group") -> float:
        """sum (|w2|^2 + |w3|^2) / 2; for the group penalty |w3| is the sum of absolute values, not the Euclidean
        norm."""
        group = _check.choice("penalty", penalty, PENALTIES) == "group"
        output = self.output.flatten(1) if self.output.ndim > 1 else self.output[:, None]
        size = output.abs().sum(1) if group else output.norm(dim=1)
        return 0.5 * (self.value.square().sum() + size.square().sum()).item()


def to_heads(z: Tensor, *, penalty: str = "group", gated: bool = False) -> Heads:
    """Heads with the predictions and the penalty of z: each attends to a single token.

    Parameters
    ----------
    z : float64 (n, d) or (n, d, c); with ``gated`` (G, n, d) or (G, n, d, c).
    penalty : "group", one head for each token and output with z[k, :, l] != 0; or "nuclear", one head for each singular
        value of z[k], with what is below 1e-14 times the largest taken for zero.

    Raises
    ------
    ValueError : z is not a floating-point tensor of such a shape, is empty, has NaN, or an unknown penalty.

    Examples
    --------
    >>> import torch
    >>> from attnrank import convex
    >>> generator = torch.Generator().manual_seed(0)
    >>> x = torch.randn(20, 6, 4, generator=generator, dtype=torch.float64)    # samples, tokens, width
    >>> y = x[:, 2] @ torch.ones(4, dtype=torch.float64)    # only token 2 matters
    >>> heads = convex.to_heads(convex.solve(x, y, beta=2.0).z)
    >>> heads.attention.shape, bool((heads.attention.max(1).values == 1).all())
    (torch.Size([1, 6]), True)
    """
    _check.choice("penalty", penalty, PENALTIES), _check.flag("gated", gated)
    z = _check.finite("z", _check.matrices("z", z)).double()
    if z.ndim - gated not in (2, 3):
        raise ValueError(f"z must have shape ([gates,] n, d[, outputs]), got {tuple(z.shape)} with gated={gated}")
    scalar = z.ndim - gated == 2
    gates = z.shape[0] if gated else 0
    tokens = z.shape[1] if gated else z.shape[0]
    blocks = (z.flatten(0, 1) if gated else z).view(max(gates, 1) * tokens, -1, 1 if scalar else z.shape[-1])
    if penalty == "group" or scalar:
        block, output = blocks.norm(dim=1).nonzero(as_tuple=True)
        vectors = blocks[block, :, output]
        root = vectors.norm(dim=1, keepdim=True).sqrt()
        value, weights = vectors / root, root * torch.eye(blocks.shape[2], dtype=z.dtype, device=z.device)[output]
    else:
        left, values, right = torch.linalg.svd(blocks, full_matrices=False)
        block, place = (values > 1e-14 * values.max()).nonzero(as_tuple=True)
        root = values[block, place].sqrt()[:, None]
        value, weights = root * left[block, :, place], root * right[block, place]
    attention = torch.eye(tokens, dtype=z.dtype, device=z.device)[block % tokens]
    return Heads(attention, value, weights[:, 0] if scalar else weights, block // tokens if gated else None, gates)


def from_heads(heads: Heads) -> Tensor:
    """z of heads, sum_j w1_j w2_j^T w3_j for each gate: equal predictions, and at most their penalty.

    Raises
    ------
    ValueError : no `Heads`; a field of another type or shape, or of another number of heads, with NaN or infinity; a
        gate that is none of ``gates``; attention that is negative or does not sum to 1 (to 1e-9). The field is named.

    Examples
    --------
    >>> import torch
    >>> from attnrank import convex
    >>> generator = torch.Generator().manual_seed(0)
    >>> x = torch.randn(20, 6, 4, generator=generator, dtype=torch.float64)    # samples, tokens, width
    >>> y = x[:, 2] @ torch.ones(4, dtype=torch.float64)    # only token 2 matters
    >>> z = convex.solve(x, y, beta=2.0).z
    >>> torch.allclose(convex.from_heads(convex.to_heads(z)), z)
    True
    """
    heads = _checked(heads)
    if heads.gate is None:
        return torch.einsum("hn,hd,h...->nd...", heads.attention, heads.value, heads.output)
    by_gate = torch.nn.functional.one_hot(heads.gate, heads.gates).to(heads.value)
    return torch.einsum("hg,hn,hd,h...->gnd...", by_gate, heads.attention, heads.value, heads.output)


def _checked(heads: Heads) -> Heads:
    """The heads in float64, or ValueError: an axis of length 1 would be broadcast, and its weights paid for once."""
    if not isinstance(heads, Heads):
        raise ValueError(f"heads must be convex.Heads, got {type(heads).__name__}")
    shapes = {"attention": "(heads, n)", "value": "(heads, d)", "output": "(heads,) or (heads, outputs)"}
    for name, shape in shapes.items():
        field = getattr(heads, name)
        if not isinstance(field, Tensor) or not field.is_floating_point():
            found = field.dtype if isinstance(field, Tensor) else type(field).__name__
            raise ValueError(f"heads.{name} must be a floating-point torch.Tensor, got {found}")
        if field.ndim != 2 and not (name == "output" and field.ndim == 1):
            raise ValueError(f"heads.{name} must have shape {shape}, got {tuple(field.shape)}")
        if len(field) != len(heads.attention):
            count = len(heads.attention)
            raise ValueError(f"heads.{name} must be of the {count} heads of heads.attention, got {len(field)}")
        _check.finite(f"heads.{name}", field)
    sums = heads.attention.sum(1)
    if (heads.attention < 0).any() or not torch.allclose(sums, torch.ones_like(sums), rtol=0, atol=1e-9):
        raise ValueError("heads.attention must be nonnegative and sum to 1 in each row")
    if heads.gate is not None:
        _check_gate(heads.gate, len(heads.attention), _check.integer("heads.gates", heads.gates, minimum=1))
    return replace(heads, **{name: getattr(heads, name).double() for name in shapes})


def _check_gate(gate: Tensor, count: int, gates: int) -> None:
    if not isinstance(gate, Tensor) or gate.dtype != torch.int64 or tuple(gate.shape) != (count,):
        found = f"{gate.dtype} {tuple(gate.shape)}" if isinstance(gate, Tensor) else type(gate).__name__
        raise ValueError(f"heads.gate must be an int64 torch.Tensor of shape ({count},), got {found}")
    if ((gate < 0) | (gate >= gates)).any():
        raise ValueError(f"heads.gate must be in 0..{gates - 1}, got {gate.min()} to {gate.max()}")


@dataclass(frozen=True)
class HeadsCertificate:
    """How far heads are at most from the global optimum of the non-convex program, whatever found them.

    objective : loss + beta penalty of the heads. lower_bound : no heads have less. gap : their difference.
    relative_gap : gap / lower_bound, an upper bound of (objective - optimum) / optimum.
    ratio : dual norm of the correlations over beta. imbalance : (<loss', predictions> + beta penalty) / objective,
    zero where the heads are stationary in value and output weights; there max(ratio, 1) - 1 bounds the relative gap,
    too, for a loss that is never negative.
    """

    objective: float
    lower_bound: float
    ratio: float
    imbalance: float

    @property
    def gap(self) -> float:
        return self.objective - self.lower_bound

    @property
    def relative_gap(self) -> float:
        if self.gap <= 0:
            return 0.0
        return self.gap / self.lower_bound if self.lower_bound > 0 else float("inf")


def certify_heads(
    x: Tensor,
    y: Tensor,
    beta: float,
    heads: Heads,
    *,
    loss: str = "squared",
    penalty: str = "group",
    gates: Tensor | None = None,
) -> HeadsCertificate:
    """Bound how far heads are from the global optimum: no stationarity is needed, and no solution of the program.

    The dual point is the residual of the heads' predictions, scaled to be feasible. Parameters as for ``solve``.

    Raises
    ------
    ValueError : as ``solve``; heads that do not fit x and y, or whose attention is not nonnegative with sums 1.

    Examples
    --------
    >>> import torch
    >>> from attnrank import convex
    >>> generator = torch.Generator().manual_seed(0)
    >>> x = torch.randn(20, 6, 4, generator=generator, dtype=torch.float64)    # samples, tokens, width
    >>> y = x[:, 2] @ torch.ones(4, dtype=torch.float64)    # only token 2 matters
    >>> certificate = convex.certify_heads(x, y, 2.0, convex.to_heads(convex.solve(x, y, 2.0).z))
    >>> round(certificate.ratio, 3)
    1.0
    """
    checked = problem(x, y, loss, penalty, gates)
    beta, heads = positive("beta", beta), _checked(heads)
    z = from_heads(heads).detach()
    if tuple(z.shape) != checked.shape:
        raise ValueError(f"heads must give z of shape {checked.shape}, got {tuple(z.shape)}")
    u = predict(x.detach(), z, gates=gates).view_as(checked.y)
    v = checked.loss.residual(u, checked.y)
    c = checked.correlate(v)
    size = heads.penalty(penalty)
    objective = checked.loss.value(u, checked.y) + beta * size
    imbalance = (beta * size - (v * u).sum().item()) / objective if objective > 0 else 0.0
    return HeadsCertificate(objective, feasible(checked, beta, v, c)[1], checked.penalty.dual_norm(c) / beta, imbalance)
