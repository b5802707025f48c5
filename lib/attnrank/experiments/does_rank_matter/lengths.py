"""How long queries and keys must be for every key to get half of the attention of some query."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from attnrank import _check

HALVINGS = 100
LARGEST = 2.0**40  # l^2 / T that is looked for


def circle_head(
    n: int, target: Int64[Tensor, " n"], length: float
) -> tuple[Float[Tensor, "n 2"], Float[Tensor, "n 2"]]:
    """Queries and keys of dimension 2 whose hardmax sends token i to target[i], whatever the targets are.

    Key j stands at the angle 2 pi j / n of a circle of radius ``length``, query i where its target's key stands.
    """
    angle = 2 * torch.pi * torch.arange(_check.integer("n", n, minimum=1), dtype=torch.float64) / n
    k = _check.real("length", length, above=0) * torch.stack([angle.cos(), angle.sin()], -1)
    return k[target], k


def enough(n: int) -> float:
    """Squared length over temperature that is enough for n keys on a circle: log 3 / (1 - cos(2 pi / n))."""
    return math.log(3) / (1 - math.cos(2 * math.pi / _check.integer("n", n, minimum=3)))


def needed(n: int) -> float:
    """Squared length over temperature that n keys of dimension 2 need at least: n^2 log 2 / (2 pi^2)."""
    return _check.integer("n", n, minimum=3) ** 2 * math.log(2) / (2 * math.pi**2)


def least(q: Float[Tensor, "*batch n d_h"], k: Float[Tensor, "*batch n d_h"]) -> Float[Tensor, "*batch"]:
    """Squared length over temperature, by bisection, from which on query i gives key i half of its attention.

    The length is that of the longest query or key: both are scaled by one factor each, to length 1 at most.
    Raises ValueError where some key is not the only best one of its query.
    """
    q, k = (x / x.norm(dim=-1).amax(-1)[..., None, None] for x in (q, k))
    scores = q @ k.mT
    gaps = scores.diagonal(dim1=-2, dim2=-1)[..., None] - scores
    others = ~torch.eye(gaps.shape[-1], dtype=torch.bool)
    if not (gaps[..., others] > 0).all():
        raise ValueError("q must have key i as the only best one of query i")
    low = torch.zeros(gaps.shape[:-2], dtype=gaps.dtype)
    high = torch.full_like(low, LARGEST)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        half = ((-middle[..., None, None] * gaps).exp().sum(-1) <= 2).all(-1)  # the key itself weighs 1
        low, high = torch.where(half, low, middle), torch.where(half, middle, high)
    return high


def ovals(
    count: int, n: int, *, generator: torch.Generator
) -> tuple[Float[Tensor, "count n 2"], Float[Tensor, "count n 2"]]:
    """Queries and keys of dimension 2: the keys are the vertices of random convex polygons, the queries bisect them.

    The vertices lie on ellipses of random axes, at angles moved at random by up to their distance. A query halves the
    angle between the outer normals of the two edges at its key.
    """
    step, shape = 2 * torch.pi / n, (count, 1)
    move, axis = (torch.rand(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    by = torch.rand(count, n, generator=generator, dtype=torch.float64)
    angle = step * (torch.arange(n, dtype=torch.float64) + 0.9 * move * by)
    k = torch.stack([angle.cos(), (1 - axis / 2) * angle.sin()], -1)
    edge = k.roll(-1, 1) - k
    normal = torch.stack([edge[..., 1], -edge[..., 0]], -1)
    normal = normal / normal.norm(dim=-1, keepdim=True)
    q = normal + normal.roll(1, 1)
    return q / q.norm(dim=-1, keepdim=True), k


def sphere(n: int) -> Float[Tensor, "n 3"]:
    """Points spread over a sphere: a Fibonacci lattice."""
    place = torch.arange(_check.integer("n", n, minimum=1), dtype=torch.float64) + 0.5
    z, angle = 1 - 2 * place / n, torch.pi * (1 + 5**0.5) * place
    around = (1 - z.square()).sqrt()
    return torch.stack([around * angle.cos(), around * angle.sin(), z], -1)
