"""Ranks of models that others trained, beside the same models with random weights."""

from __future__ import annotations

import tempfile
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn

from attnrank import _check, data, theory
from attnrank.experiments.experiment import Experiment, Rounding
from attnrank.models import pretrained
from attnrank.probe import Attention, attentions, hub, probe
from attnrank.ranks import hardmax_rank, numerical_rank
from attnrank.scores import attention as attention_matrix
from attnrank.sweep import Setting, grid

TREATMENTS = ("none", "other keys", "no positions", "shuffled")
WEIGHTS = ("trained", "random")
ROUTES = ("route_tsp20", "route_tsp50", "route_tsp100")
LENGTHS = (20, 50, 100, 200, 400)
SHAPES = {"stories260K": (5, 8), "kwt1": (12, 1)} | dict.fromkeys(ROUTES, (3, 8))  # layers, heads

#: Sequences of a model's input, and how many of them have their spectra taken.
SAMPLES = {"stories260K": 16, "kwt1": 4} | dict.fromkeys(ROUTES, 32)
SPECTRA = 4
TOL = 0.1


def trained_heads(model: str, weights: str, treatment: str, n: int, layer: int, head: int) -> Setting:
    """Ranks of one head of a trained or random model, and where its queries look; means over sequences, in float64.

    Inputs: route_*: 32 problems of n uniform points; stories260K: 16 sequences of n tokens that the trained model
    wrote; kwt1: the four recordings, 99 tokens. ``treatment``: "other keys", the keys are those of another sequence;
    "no positions", stories260K with all positions 0, kwt1 without its position vectors; "shuffled", the tokens or
    frames in random order. Layers count from 1, heads from 0.

    ``rank``: hardmax rank / n, ``rank_std`` over sequences. ``numerical``: the share of singular values >= 0.1 of the
    softmax at the model's temperature (4 sequences). ``bound``: on the expected rank / n of a random head of this n,
    d_h and mask; ``barrier``: the same for independent queries at any head dimension, causal ones being uniform. Shares
    of queries whose best key is their own (``own``), the one before (``previous``), the first (``first``), or the key
    that most queries choose (``largest``).
    """
    _check.choice("treatment", treatment, TREATMENTS)
    _check.choice("weights", weights, WEIGHTS)
    found = _layer(_check.choice("model", model, SHAPES), weights, treatment, n, layer)
    return {name: values[head].item() for name, values in found.items()}


@lru_cache(maxsize=2)
def _attentions(name: str, weights: str, treatment: str, n: int) -> list[Attention]:
    model = _model(name, weights)
    given = _input(name, n)
    if treatment == "shuffled":
        given = _shuffled(name, given)
    batch: Tensor | dict[str, Tensor] = given
    if name == "stories260K":
        positions = torch.zeros_like(given) if treatment == "no positions" else torch.arange(n).expand_as(given)
        batch = {"input_ids": given, "position_ids": positions}
    elif treatment == "no positions":
        if name != "kwt1":
            raise ValueError(f"treatment must be another one: {name} has no positions")
        model.pos_emb.data.zero_()  # type: ignore[operator]  # a Parameter
    return attentions(model, batch)


@lru_cache(maxsize=16)
def _layer(name: str, weights: str, treatment: str, n: int, layer: int) -> dict[str, Tensor]:
    """Each measured number of a layer for all heads (H)."""
    return measured_heads(_attentions(name, weights, treatment, n)[layer - 1], other_keys=treatment == "other keys")


@lru_cache(maxsize=16)
def _bound(n: int, d_h: int, causal: bool) -> float:
    return theory.causal_head_dim_bound(n, d_h) if causal else theory.head_dim_bound(n, d_h)


def measured_heads(found: Attention, *, other_keys: bool = False, spectra: int = SPECTRA) -> dict[str, Tensor]:
    """The columns of `trained_heads` for all heads (H) of a layer, means over its sequences; ``spectra`` of these."""
    q, k, causal, n = found.q, found.k, found.mask.causal, found.mask.n
    assert q is not None and k is not None  # these models attend by products
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    if other_keys:
        k = k.roll(1, 0)
    rank = hardmax_rank(q, k, causal=causal).double() / n
    numerical = numerical_rank(
        attention_matrix(q[:spectra], k[:spectra], temperature=1 / found.scale, causal=causal), TOL
    )
    best = _best(q, k, causal)
    place = torch.arange(n)
    counts = torch.zeros(*best.shape[:2], n, dtype=torch.float64).scatter_add_(-1, best, torch.ones_like(best).double())
    barrier = theory.causal_limit(n) if causal else theory.occupancy_bound(n)
    every = torch.ones(q.shape[1], dtype=torch.float64)
    return {
        "rank": rank.mean(0), "rank_std": rank.std(0), "numerical": numerical.double().mean(0) / n,
        "bound": every * _bound(n, q.shape[-1], causal) / n, "barrier": every * barrier / n,
        "own": (best == place).double().mean((0, 2)),
        "previous": (best == place - 1).double().mean((0, 2)), "first": (best == 0).double().mean((0, 2)),
        "largest": counts.amax(-1).mean(0) / n,
    }  # fmt: skip


def _best(q: Tensor, k: Tensor, causal: bool) -> Tensor:
    """Each query's best key: the first of those whose scores are equal up to rounding. Equal tokens have equal keys."""
    scores = q @ k.mT
    if causal:
        scores.masked_fill_(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    rounding = 1e-12 * q.norm(dim=-1, keepdim=True) * k.norm(dim=-1).amax(-1)[..., None, None]
    return (scores >= scores.amax(-1, keepdim=True) - rounding).byte().argmax(-1)


def _model(name: str, weights: str) -> nn.Module:
    model = pretrained.load(name) if weights == "trained" else pretrained.load(name, seed=0, dtype=torch.float64)
    if name == "kwt1" and weights == "random":
        model.frontend = pretrained.load(name).frontend  # the same sound for both
    return model.double()


@lru_cache(maxsize=4)
def _input(name: str, n: int) -> Tensor:
    generator = torch.Generator().manual_seed(17)
    if name == "kwt1":
        _check_length(name, n, 99)
        return torch.stack([pretrained.clip(clip) for clip in pretrained.CLIPS]).double()
    if name == "stories260K":
        return written(_check.integer("n", n, minimum=1), SAMPLES[name], generator)
    return torch.rand(SAMPLES[name], n, 2, generator=generator, dtype=torch.float64)


def _check_length(name: str, n: int, only: int) -> None:
    if n != only:
        raise ValueError(f"n must be {only} for {name}, got {n}")


@torch.no_grad()
def written(n: int, samples: int, generator: torch.Generator) -> Tensor:
    """Tokens (samples, n) that the trained stories260K writes at temperature 1, from its first token on."""
    model = _model("stories260K", "trained")
    tokens, cache = torch.ones(samples, 1, dtype=torch.int64), None
    while tokens.shape[1] < n:
        out = model(input_ids=tokens[:, -1:], past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        drawn = torch.multinomial(out.logits[:, -1].softmax(-1), 1, generator=generator)
        tokens = torch.cat([tokens, drawn], 1)
    return tokens


def _shuffled(name: str, given: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(18)
    if name == "kwt1":  # frames, not sound: as features
        model = pretrained.load(name).double()
        assert isinstance(model, pretrained.KeywordTransformer)
        given = model.frontend(given)
    order = torch.rand(given.shape[:2], generator=generator).argsort(1)
    return given.gather(1, order if given.ndim == 2 else order[..., None].expand_as(given))


def _grid(model: str, lengths: list[int], treatments: list[str]) -> list[Setting]:
    layers, heads = SHAPES[model]
    return grid(model=[model], weights=list(WEIGHTS), treatment=treatments, n=lengths, layer=list(range(1, layers + 1)),
                head=list(range(heads)))  # fmt: skip


def hub_heads(model: str, weights: str, n: int) -> Setting:
    """Ranks of a model of the Hugging Face hub on embedded data: docstrings as text, or digits as images; 4 sequences.

    ``status`` is "measured", or says that the model was not at hand; all else is missing then. ``rank``: mean over
    heads of hardmax rank / n, ``highest`` the largest; ``above``: the share of heads above their ``bound``.
    """
    numbers = ("layers", "heads", "head_dim", "rank", "highest", "above", "bound")
    try:
        found = hub.load(model, seed=None if weights == "trained" else 0, local=not hub.reachable())
        frame = probe(hub.part_for(found, "vision"), _hub_batches(model, found, n), ranks="hardmax")
    except (ValueError, OSError) as error:
        if "cannot be loaded" not in str(error) and "transformers" not in str(error):
            raise
        return {"status": "not at hand"} | dict.fromkeys(numbers)
    rank = frame["hardmax_rank"] / frame["n"]
    above = (frame["hardmax_rank"] > frame["bound"]).mean()
    values = (frame["layer"].nunique(), frame["head"].nunique(), frame["head_dim"].max(), rank.mean(), rank.max(),
    above,
              (frame["bound"] / frame["n"]).mean())  # fmt: skip
    return {"status": "measured"} | dict(zip(numbers, map(float, values), strict=True))


def _hub_batches(name: str, model: nn.Module, n: int) -> list[dict]:
    if size := getattr(model.config, "image_size", None):
        images, _ = data.images("digits", "test", count=4, generator=torch.Generator().manual_seed(17))
        large = nn.functional.interpolate(images.float(), size=size)
        return [{"pixel_values": image[None].expand(1, 3, -1, -1)} for image in large]
    texts, _ = data.texts("docstrings", "test", count=200, generator=torch.Generator().manual_seed(17))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "text.txt"
        file.write_text("\n".join(texts), encoding="utf-8")
        return hub.text_batches(name, model, file, length=n, samples=4)


HUB = ("bert-base-uncased", "gpt2", "google/vit-base-patch16-224", "Qwen/Qwen3-0.6B")  # the last one with QK-norm

EXPERIMENTS = {
    "trained_heads": Experiment(
        "What are the ranks of the heads of models that others trained, and what are they with random weights?",
        trained_heads,
        quick=grid(model=["route_tsp20"], weights=["random"], treatment=["none"], n=[20], layer=[1, 2], head=[0, 1]),
        paper=[
            *(row for model in ROUTES for row in _grid(model, list(LENGTHS), ["none", "other keys"])),
            *_grid("stories260K", [256], list(TREATMENTS)),
            *_grid("kwt1", [99], list(TREATMENTS)),
        ],
        chapter="after_training",
        repeats=Rounding(1e-6),
        version=4,
        data="model",
    ),
    "hub_heads": Experiment(
        "What are the ranks of the heads of models of the Hugging Face hub, where there is a network?",
        hub_heads,
        quick=grid(model=[HUB[0]], weights=["random"], n=[32]),
        paper=grid(model=list(HUB), weights=list(WEIGHTS), n=[256]),
        chapter="after_training",
        repeats=Rounding(1e-3),
        data="model",
    ),
}
