"""Attention that plans routes: the encoder of Kool, van Hoof and Welling (2019), and the tours that its decoder builds.

Its tokens are the places of a travelling salesman problem, points of the unit square, without positions or order.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnrank import _check

WIDTH, HEADS, HEAD_DIM, DEPTH = 128, 8, 16, 3


class RouteLayer(nn.Module):
    """H = BN_1(X + MHA(X)); output = BN_2(H + W_2 relu(W_1 H + b_1) + b_2), batch normalisation over the width."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        bound = 1 / math.sqrt(HEAD_DIM)  # the authors' weights are (heads, width, head_dim): by their last dimension
        for linear in (self.q, self.k, self.v):
            nn.init.uniform_(linear.weight, -bound, bound)
        self.fc1, self.fc2 = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.bn1, self.bn2 = nn.BatchNorm1d(WIDTH), nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2) for y in (self.q(x), self.k(x), self.v(x)))
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = self.bn1((x + self.o(mixed)).mT).mT
        return self.bn2((x + self.fc2(F.relu(self.fc1(x)))).mT).mT


class RouteDecoder(nn.Module):
    """Adds one place after the other to a tour: a glimpse at the places not yet visited, then a pointer to one."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.graph, self.out = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.step = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.placeholder = nn.Parameter(torch.empty(2 * WIDTH).uniform_(-1, 1))

    def forward(self, h: Tensor) -> Tensor:
        """The greedy tour through places encoded as ``h`` (batch, n, width): int64 (batch, n)."""
        batch, n = h.shape[:2]
        keys, values, pointer = self.nodes(h).chunk(3, -1)
        keys, values = (y.unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2) for y in (keys, values))
        fixed, every = self.graph(h.mean(1)), torch.arange(batch, device=h.device)
        free = torch.ones(batch, n, dtype=torch.bool, device=h.device)
        tour: list[Tensor] = []
        for _ in range(n):
            ends = (
                torch.cat([h[every, tour[0]], h[every, tour[-1]]], -1) if tour else self.placeholder.expand(batch, -1)
            )
            query = (fixed + self.step(ends)).unflatten(-1, (HEADS, 1, HEAD_DIM))
            glimpse = F.scaled_dot_product_attention(query, keys, values, attn_mask=free[:, None, None])
            logits = (pointer @ self.out(glimpse.flatten(1))[:, :, None]).squeeze(-1) / math.sqrt(WIDTH)
            tour.append((10 * logits.tanh()).masked_fill(~free, -torch.inf).argmax(-1))
            free[every, tour[-1]] = False
        return torch.stack(tour, 1)


class RouteEncoder(nn.Module):
    """Encoder of points (batch, n, 2): three layers of 8 heads of dimension 16, no positions. ``tour`` decodes
    greedily.

    Random weights are the authors': uniform on +-1/4 for queries, keys and values, on +-1/sqrt(inputs) as in torch.nn
    for the others; the running statistics of batch normalisation are then those of random problems.
    """

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(2, WIDTH)
        self.layers = nn.ModuleList(RouteLayer() for _ in range(DEPTH))
        self.decoder = RouteDecoder()
        self._settle()

    def forward(self, points: Tensor) -> Tensor:
        if _check.matrices("points", points).ndim != 3 or points.shape[-1] != 2:
            raise ValueError(f"points must have shape (batch, n, 2), got {tuple(points.shape)}")
        x = self.embed(points)
        for layer in self.layers:
            x = layer(x)
        return x

    def tour(self, points: Tensor) -> Tensor:
        """The order in which the model visits the points (batch, n, 2): int64 (batch, n)."""
        return self.decoder(self(points))

    @torch.no_grad()
    def _settle(self) -> None:
        norms: list[Any] = [norm for layer in self.layers for norm in (layer.bn1, layer.bn2)]
        usual = norms[0].momentum
        for norm in norms:
            norm.momentum = 1.0
        self.train()(torch.rand(64, 50, 2))
        for norm in norms:
            norm.momentum = usual
        self.eval()


def tour_length(points: Tensor, tour: Tensor) -> Tensor:
    """Length of closed tours (batch, n) through points (batch, n, 2)."""
    places = points.gather(1, tour[..., None].expand(-1, -1, 2))
    return (places - places.roll(-1, 1)).norm(dim=-1).sum(-1)
