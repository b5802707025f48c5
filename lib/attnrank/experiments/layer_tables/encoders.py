"""Random encoders on real sequences, beside the first paper's layer tables."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from attnrank import _check, data
from attnrank.experiments.experiment import Exact, Experiment, Rounding
from attnrank.experiments.layer_tables.causes import EXPONENTS, HEAD_DIMS, WIDTHS, compressed_softmax, soft_ranks
from attnrank.experiments.shared.heads import hardmax_rank_on_device
from attnrank.experiments.shared.images import IMAGE_SEEDS
from attnrank.experiments.shared.statistics import seeded
from attnrank.experiments.shared.words import TEXTS, words_of
from attnrank.models import Block, Encoder, TransformerConfig, VisionTransformer, sinusoids
from attnrank.sweep import Setting, grid

POSITIONS = ("none", "sinusoidal", "masked padding")
PADDING = ""  # no word: it follows a text that is shorter than n words
RARE = "?"  # stands for the words outside the vocabulary


def layer_encoders(
    *, dataset: str, n: int, vocabulary: int, positions: str, init: str, temperature: float, width: int, heads: int,
    head_dim: int, layer: int, sequences: int, seed: int,
) -> Setting:  # fmt: skip
    """Rank / n in one layer (from 1) of a random encoder on real sequences, averaged over heads and sequences.

    Texts: the first n words, shorter ones filled up with a padding token; words that are not among the ``vocabulary``
    most frequent of the set are one and the same token; each token has a N(0, 1) vector of its own. ``sequences`` texts
    are taken evenly from all texts in the order of their number of distinct tokens. ``positions``: "none",
    "sinusoidal", or "masked padding": sinusoidal, and padding can be no key. Images: the Vision Transformer of
    the chapter vit_initialisation on n patches, ``vocabulary`` 0 and ``positions`` "none". The temperature is
    ``temperature * sqrt(head_dim)``.

    ``hardmax`` is the hardmax rank / n; ``soft_e`` the share of singular values of the softmax that are at least
    10^-(e/100) times the largest, ``soft_float32`` at least n 2^-23 times; ``sequence_std`` and ``head_std`` the
    standard deviation of ``soft_700`` over sequences and over heads; ``distinct`` the share of distinct tokens (of
    admitted keys where padding is masked).
    """
    _check.choice("positions", positions, POSITIONS)
    layer = _check.integer("layer", layer, minimum=1)
    scale = _check.real("temperature", temperature, above=0.0) * math.sqrt(head_dim)
    config = TransformerConfig(width, heads, head_dim, depth=layer, init=init, temperature=scale)
    generator = seeded(seed)
    default = -math.log10(n * 2.0**-23)  # of torch.linalg.matrix_rank for float32
    hard, soft, distinct = [], [], []
    with torch.no_grad():
        encoder, inputs = _encoder_inputs(dataset, n, vocabulary, positions, config, sequences, seed, generator)
        for x, counts in inputs:
            for block in encoder.blocks[: layer - 1]:
                x = advance(block, x, counts)
            block = encoder.blocks[layer - 1]
            q, k = block.attention.queries_keys(block.norm1(x))
            admitted = counts > 0
            hard.append((hardmax_rank_on_device(q, k[:, admitted]).double() / n).mean())
            soft.append(soft_ranks(compressed_softmax(q, k, counts, scale), n, (*EXPONENTS, default)))
            distinct.append(admitted.double().sum() / n)
    ranks = np.array(soft)  # sequences, heads, tolerances
    names = [*(f"soft_{round(100 * e)}" for e in EXPONENTS), "soft_float32"]
    means = {name: round(float(rank), 6) for name, rank in zip(names, ranks.mean((0, 1)), strict=True)}
    spread = ranks[..., EXPONENTS.index(7.0)]
    deviations = {"sequence_std": spread.mean(1).std(ddof=1), "head_std": spread.mean(0).std(ddof=1)}
    means |= {name: float(value) for name, value in deviations.items()}
    return {"distinct": float(np.mean(distinct)), "hardmax": float(np.mean(hard))} | means


def advance(block: Block, x: Tensor, counts: Tensor) -> Tensor:
    """What a block makes of distinct tokens x (m, d) of which token j occurs ``counts[j]`` times, 0 for masked keys.

    A softmax over all tokens gives token j the weight of one occurrence times its count.
    """
    y, attention = block.norm1(x), block.attention
    q, k = attention.queries_keys(y)
    weights = (q @ k.mT / attention.temperature + counts.log()).softmax(-1)
    x = x + attention.output((weights @ attention.values(y)).transpose(-3, -2).flatten(-2))
    return x + block.mlp(block.norm2(x))


def text_tokens(dataset: str, n: int, vocabulary: int) -> list[list[str]]:
    """The first n words of every text of a set, filled up with padding; rare words are replaced by one."""
    words = _words(dataset)
    frequent = _frequent(dataset, vocabulary)
    return [[w if w in frequent else RARE for w in text[:n]] + [PADDING] * (n - len(text)) for text in words]


def distinct_share(dataset: str, n: int, vocabulary: int) -> Setting:
    """Mean and standard deviation over all texts of a set of the share of distinct tokens among n, padding included."""
    share = np.array([len(set(text)) / n for text in text_tokens(dataset, n, vocabulary)])
    return {"texts": len(share), "share_mean": float(share.mean()), "share_std": float(share.std(ddof=1))}


def _encoder_inputs(
    dataset: str, n: int, vocabulary: int, positions: str, config: TransformerConfig, sequences: int, seed: int,
    generator: torch.Generator,
) -> tuple[Encoder, list[tuple[Tensor, Tensor]]]:  # fmt: skip
    """A random encoder and, for each sequence, its distinct tokens and their counts."""
    if dataset in TEXTS:
        encoder = Encoder(config, generator)
        chosen = _chosen_texts(dataset, n, vocabulary, sequences)
        return encoder, _text_inputs(chosen, n, positions, config.width, generator)
    images, _ = data.images(
        dataset, count=sequences, generator=torch.Generator().manual_seed(IMAGE_SEEDS + seed), standardise=True
    )
    side = math.isqrt(n)
    if side**2 != n or images.shape[-1] % side or vocabulary or positions != "none":
        raise ValueError(f"n must be a square of a divisor of the image size, without text options, got {n}")
    model = VisionTransformer(
        config, image_size=images.shape[-1], patch_size=images.shape[-1] // side, classes=10,
        channels=images.shape[1], pool="mean", generator=generator, dtype=torch.float64,
    )  # fmt: skip
    return model.encoder, [(x, torch.ones(n, dtype=torch.float64)) for x in model.embed(images)]


def _text_inputs(
    chosen: list[list[str]], n: int, positions: str, width: int, generator: torch.Generator
) -> list[tuple[Tensor, Tensor]]:
    index = {word: i for i, word in enumerate(sorted({word for text in chosen for word in text}))}
    vectors = torch.randn(len(index), width, generator=generator, dtype=torch.float64)
    inputs = []
    for text in chosen:
        ids = torch.tensor([index[word] for word in text])
        if positions == "none":
            ids, counts = ids.unique(return_counts=True)
            inputs.append((vectors[ids], counts.double()))
        else:
            masked = (ids == index.get(PADDING, -1)) & (positions == "masked padding")
            inputs.append((vectors[ids] + sinusoids(n, width), (~masked).double()))
    return inputs


@lru_cache(maxsize=8)
def _chosen_texts(dataset: str, n: int, vocabulary: int, sequences: int) -> list[list[str]]:
    """A systematic sample of the texts: the middles of equal parts of their order by distinct tokens."""
    texts = sorted(text_tokens(dataset, n, vocabulary), key=lambda text: (len(set(text)), text))
    return [texts[(2 * i + 1) * len(texts) // (2 * sequences)] for i in range(sequences)]


@lru_cache(maxsize=2)
def _words(dataset: str) -> list[list[str]]:
    return [words_of(text) for text in data.texts(dataset)[0]]


@lru_cache(maxsize=4)
def _frequent(dataset: str, vocabulary: int) -> set[str]:
    counts = pd.Series([word for text in _words(dataset) for word in text]).value_counts()
    ordered = sorted(counts.index, key=lambda word: (-counts[word], word)) if vocabulary else counts.index
    return set(ordered[: vocabulary or None])


def _encoders(**changes: list) -> list[Setting]:
    """The reviews of IMDB, cut or filled up to 500 words, with the changes asked for."""
    axes: dict[str, list] = {
        "dataset": ["imdb"], "n": [500], "vocabulary": [20_000], "positions": ["none"], "init": ["lecun"],
        "temperature": [2.0], "width": [128], "heads": [4], "head_dim": list(HEAD_DIMS), "layer": [2],
        "sequences": [40], "seed": [0],
    }  # fmt: skip
    return grid(**(axes | changes))


_IMAGES = {"vocabulary": [0], "layer": [2]}

EXPERIMENTS = {
    "layer_shares": Experiment(
        "Which share of the tokens of a text of n words, padding included, is distinct?",
        distinct_share,
        quick=grid(dataset=["docstrings"], n=[100], vocabulary=[0]),
        paper=grid(dataset=["imdb"], n=[128, 256, 400, 500, 512, 1000], vocabulary=[0, 20_000, 10_000, 5_000]),
        data="dataset",
        chapter="layer_tables",
        repeats=Exact(),
    ),
    "layer_encoders": Experiment(
        "Which random encoder on real sequences gives the shape of the layer tables?",
        layer_encoders,
        quick=_encoders(dataset=["docstrings"], n=[64], vocabulary=[1000], sequences=[4], width=[32]),
        paper=[
            *_encoders(width=list(WIDTHS), layer=[1, 2, 3, 4], heads=[16], sequences=[24], seed=[0, 1]),
            *_encoders(temperature=[0.5, 1.0, 2.0]),
            *_encoders(positions=["sinusoidal", "masked padding"]),
            *_encoders(init=["xavier", "truncated_normal", "normal"], width=[32, 512]),
            *_encoders(n=[256, 1000]),
            *_encoders(vocabulary=[0, 5_000]),
            *_encoders(dataset=["digits"], n=[16], **_IMAGES),
            *_encoders(dataset=["cifar10"], n=[64, 256], **_IMAGES),
        ],
        data="dataset",
        chapter="layer_tables",
        repeats=Rounding(1e-9),
    ),
}
