"""Tables of the chapter choosing_head_dimension: trained heads made smaller."""

from __future__ import annotations

import torch
from torch import Tensor

from attnrank import _check
from attnrank.experiments.experiment import Experiment, Rounding
from attnrank.models import pretrained
from attnrank.models.route import HEAD_DIM, HEADS, RouteEncoder, tour_length
from attnrank.models.truncation import truncate_query_key
from attnrank.probe import probe
from attnrank.sweep import Setting, grid

PROBLEMS = 500
RANKS = (1, 2, 3, 4, 6, 8, 12, 16)
LENGTHS = {"route_tsp20": 20, "route_tsp50": 50, "route_tsp100": 100}


def truncated_routes(model: str, weights: str, rank: int, problems: int) -> Setting:
    """Greedy tours of a route model whose heads are cut down to query-key dimension ``rank``, all at once, no training.

    ``length``: mean length of the tours through ``problems`` random problems of the size that the model was trained on,
    ``length_std`` over problems; ``kept``: the share of the squared singular values of W_q W_k^T that the truncation
    keeps, mean over heads; ``hardmax``: mean over heads of hardmax rank / n, of 16 problems. The temperature stays.
    """
    n = LENGTHS[_check.choice("model", model, LENGTHS)]
    found = pretrained.load(model, seed=None if weights == "trained" else 0).double()
    kept = torch.stack([_truncate(layer, rank) for layer in found.layers])
    points = torch.rand(problems, n, 2, generator=torch.Generator().manual_seed(18), dtype=torch.float64)
    lengths = torch.cat([_lengths(found, some) for some in points.split(100)])
    frame = probe(found, points[:16], ranks="hardmax")
    return {
        "length": lengths.mean().item(),
        "length_std": lengths.std().item(),
        "kept": kept.mean().item(),
        "hardmax": (frame["hardmax_rank"] / frame["n"]).mean().item(),
    }


@torch.no_grad()
def _lengths(model: RouteEncoder, points: Tensor) -> Tensor:
    return tour_length(points, model.tour(points))


@torch.no_grad()
def _truncate(layer: torch.nn.Module, rank: int) -> Tensor:
    """Cut the heads of a layer down, the rest of their dimensions zero; returns the share kept of each (H)."""
    w_q, w_k = (w.weight.T.unflatten(1, (HEADS, HEAD_DIM)).transpose(0, 1) for w in (layer.q, layer.k))
    *small, sigma = truncate_query_key(w_q, w_k, rank)
    for linear, w in zip((layer.q, layer.k), small, strict=True):
        padded = torch.nn.functional.pad(w, (0, HEAD_DIM - rank))
        linear.weight.copy_(padded.transpose(0, 1).flatten(1).T)
    return sigma[:, :rank].square().sum(-1) / sigma.square().sum(-1)


EXPERIMENTS = {
    "truncated_routes": Experiment(
        "What do trained heads lose when their query-key dimension is cut down without training?",
        truncated_routes,
        quick=grid(model=["route_tsp20"], weights=["random"], rank=[1, 16], problems=[4]),
        paper=grid(model=list(LENGTHS), weights=["trained"], rank=list(RANKS), problems=[PROBLEMS]),
        chapter="choosing_head_dimension",
        repeats=Rounding(1e-6),
        data="model",
    ),
}
