"""Heads that others trained, cut down to a smaller query-key dimension without training."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnrank import _check
from attnrank.experiments import after_training
from attnrank.experiments.experiment import Experiment, Rounding
from attnrank.models import pretrained
from attnrank.models.route import tour_length
from attnrank.models.truncation import truncate_query_key
from attnrank.probe import probe
from attnrank.sweep import Setting, grid

PROBLEMS, TEXTS, LENGTH = 200, 64, 128
#: A route model with random weights: for it no file is needed.
DRAWN = "drawn_tsp20"
#: The four recordings, and each of them that many steps of 50 ms later.
SHIFTS = 8
RANKS = {"stories260K": (2, 4, 6, 8), "kwt1": (1, 2, 4, 8, 16, 32, 48, 64)} | dict.fromkeys(
    after_training.ROUTES, (1, 2, 3, 4, 6, 8, 12, 16)
)


def truncated_heads(model: str, rank: int) -> Setting:
    """What a trained model does when all its heads are cut down to query-key dimension ``rank``, without training.

    The temperature stays. ``loss``: for route_* the mean length of greedy tours through 200 random problems of the size
    of training; for stories260K nats a token on 64 texts of 128 tokens that the whole model wrote; for kwt1 the mean
    Kullback-Leibler divergence from the whole model's answers to 32 shifts of the four recordings. ``loss_error``: its
    standard error over problems, texts or recordings; for route_* and stories260K those of ``excess``, the mean
    difference from the whole model on the same inputs, are in ``excess_error``. ``same``: the share of steps of the
    tour, tokens or recordings for which the answer is that of the whole model. ``kept``: the share of the squared
    singular values of W_q W_k^T that is kept, mean over heads. ``hardmax``: mean over heads of hardmax rank / n.

    With rotary positions no smaller matrix between W_q and W_k is exact, so stories260K loses whole planes of rotation:
    in each head those with the smallest ||W_q|| ||W_k||; its ``kept`` is their share of the squares of these products.
    """
    whole, whole_answers = _outcome(model, None)[:2]
    losses, answers, kept, hardmax = _outcome(model, rank)
    excess = losses - whole
    return {
        "loss": losses.mean().item(), "loss_error": _error(losses), "excess": excess.mean().item(),
        "excess_error": _error(excess), "same": (answers == whole_answers).double().mean().item(), "kept": kept,
        "hardmax": hardmax,
    }  # fmt: skip


def _error(values: Tensor) -> float:
    return (values.std() / len(values) ** 0.5).item()


@lru_cache(maxsize=2)
def _outcome(model: str, rank: int | None) -> tuple[Tensor, Tensor, float, float]:
    """Loss of each input, the answers, the share of the spectrum kept, rank / n; ``rank`` None: the whole model."""
    _check.choice("model", model, [*RANKS, DRAWN])
    cut, run = {"stories260K": (_cut_planes, _read), "kwt1": (_cut_layers, _listen)}.get(model, (_cut_layers, _route))
    found = (pretrained.load("route_tsp20", seed=0) if model == DRAWN else pretrained.load(model)).double()
    kept = 1.0 if rank is None else cut(found, rank)
    return *run(found, model), kept, _rank(found, model)


@torch.no_grad()
def _route(model: Any, name: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(18)
    points = torch.rand(PROBLEMS, _points(name), 2, generator=generator, dtype=torch.float64)
    tours = torch.cat([model.tour(some) for some in points.split(100)])
    return tour_length(points, tours), tours


def _points(name: str) -> int:
    return int(name.rpartition("tsp")[2])


@torch.no_grad()
def _read(model: nn.Module, name: str) -> tuple[Tensor, Tensor]:
    tokens = _texts()
    logits = torch.cat([model(input_ids=some).logits for some in tokens.split(16)])[:, :-1]
    return F.cross_entropy(logits.mT, tokens[:, 1:], reduction="none").mean(1), logits.argmax(-1)


@lru_cache(maxsize=1)
def _texts() -> Tensor:
    return after_training.written(LENGTH, TEXTS, torch.Generator().manual_seed(18))


@torch.no_grad()
def _listen(model: nn.Module, name: str) -> tuple[Tensor, Tensor]:
    sound = _recordings()
    said = model(sound).log_softmax(-1)
    told = pretrained.load("kwt1").double()(sound).log_softmax(-1)
    return (told.exp() * (told - said)).sum(-1), said.argmax(-1)


def _recordings() -> Tensor:
    clips = torch.stack([pretrained.clip(clip) for clip in pretrained.CLIPS]).double()
    return torch.cat([clips.roll(800 * shift, -1) for shift in range(SHIFTS)])


def _rank(model: nn.Module, name: str) -> float:
    if name == "stories260K":
        batch = _texts()[:8]
    elif name == "kwt1":
        batch = _recordings()[:4]
    else:
        generator = torch.Generator().manual_seed(18)
        batch = torch.rand(16, _points(name), 2, generator=generator, dtype=torch.float64)
    frame = probe(model, batch, ranks="hardmax")
    return (frame["hardmax_rank"] / frame["n"]).mean().item()


@torch.no_grad()
def _cut_layers(model: Any, rank: int) -> float:
    """Cut the heads of all layers down, the rest of their dimensions zero; returns the share kept, mean over heads."""
    shares = []
    for layer in model.layers:
        heads = 1 if layer.q.out_features == 64 else 8  # kwt1 and route_*
        w_q, w_k = (w.weight.T.unflatten(1, (heads, -1)).transpose(0, 1) for w in (layer.q, layer.k))
        *small, sigma = truncate_query_key(w_q, w_k, rank)
        for linear, w in zip((layer.q, layer.k), small, strict=True):
            padded = F.pad(w, (0, w_q.shape[-1] - rank))
            linear.weight.copy_(padded.transpose(0, 1).flatten(1).T)
        shares.append(sigma[:, :rank].square().sum(-1) / sigma.square().sum(-1))
    return torch.cat(shares).mean().item()


@torch.no_grad()
def _cut_planes(model: Any, rank: int) -> float:
    """Keep ``rank`` / 2 planes of rotation of each head, set the queries of the others to 0; returns the share kept."""
    if _check.integer("rank", rank, minimum=2) % 2 or rank > model.config.head_dim:
        raise ValueError(f"rank must be even and at most {model.config.head_dim}, got {rank}")
    shares, half = [], model.config.head_dim // 2
    for layer in model.model.layers:
        query, key = layer.self_attn.q_proj.weight, layer.self_attn.k_proj.weight
        # dimensions i and i + half of a head turn together: (heads, 2, half, width)
        w_q, w_k = (w.view(-1, 2, half, w.shape[-1]) for w in (query, key))
        q, k = (w.square().sum((1, 3)) for w in (w_q, w_k))
        energy = q * k.repeat_interleave(len(q) // len(k), 0)
        largest = energy.topk(rank // 2, dim=-1).indices
        mask = torch.zeros_like(energy).scatter_(-1, largest, 1.0)
        w_q *= mask[:, None, :, None]
        shares.append((energy * mask).sum(-1) / energy.sum(-1))
    return torch.cat(shares).mean().item()


EXPERIMENTS = {
    "truncated_heads": Experiment(
        "What do trained heads lose when their query-key dimension is cut down without training?",
        truncated_heads,
        quick=grid(model=[DRAWN], rank=[1, 16]),
        paper=[row for model, ranks in RANKS.items() for row in grid(model=[model], rank=list(ranks))],
        chapter="choosing_head_dimension",
        repeats=Rounding(1e-6, atol=1e-9),
        data="model",
    ),
}
