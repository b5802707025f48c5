"""Table from real tokens, images and texts: how far they are from orthonormal, and their ranks."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import normalize

from attnrank import _check, data
from attnrank.experiments.experiment import Experiment, Rounding
from attnrank.experiments.shared.gram import geometry
from attnrank.experiments.shared.heads import (
    hardmax_rank_on_device,
)
from attnrank.experiments.shared.images import images_of, random_model
from attnrank.experiments.shared.statistics import seeded
from attnrank.experiments.shared.words import TEXTS, words_of
from attnrank.models import TransformerConfig
from attnrank.sweep import Setting, grid

WIDTH = 192
HEAD_DIMS = (2, 4, 8, 16, 64, 192)
IMAGE_POSITIONS = 0.02  # of attnrank.models


#: Added to a seed for the weights of the heads, and for the choice of texts.
WEIGHT_SEEDS, TEXT_SEEDS = 2000, 10_000


def real_tokens(dataset: str, n: int, positions: float, d_h: int, sequences: int, seed: int) -> Setting:
    """Mean rank and geometry of real tokens of width 192 that enter the first block of a random Transformer.

    Images: the tokens of chapter vit_initialisation, sqrt(n) x sqrt(n) patches; ``positions`` must be the 0.02 of that
    model. Texts: the first n words of a text, each word with a N(0, 1) vector of its own, so that repeated words are
    equal, plus a N(0, positions^2) vector for each position; then LayerNorm. One random model with 3 heads a seed.
    """
    x, first, shape = _real_sequences(dataset, n, positions, sequences, seed)
    generator = torch.Generator().manual_seed(WEIGHT_SEEDS + seed)
    w_q, w_k = torch.randn(2, 3, WIDTH, d_h, generator=generator, dtype=torch.float64)
    ranks = []
    for part, same in zip(x.unsqueeze(1).split(16), first.split(16), strict=True):
        k = (part @ w_k).take_along_dim(same[:, None, :, None], -2)  # equal tokens have equal keys, to the last bit
        ranks.append(hardmax_rank_on_device(part @ w_q, k))
    rank = torch.cat(ranks).double()
    return shape | {"rank_mean": rank.mean().item(), "rank_over_sequences_std": rank.mean(1).std().item()}


@lru_cache(maxsize=2)
def _real_sequences(
    dataset: str, n: int, positions: float, sequences: int, seed: int
) -> tuple[Tensor, Tensor, dict[str, float]]:
    """Tokens (sequences, n, width), for each the first token that equals it (sequences, n), and their geometry."""
    positions = _check.real("positions", positions, minimum=0.0)
    first = torch.arange(n).expand(sequences, n)
    if dataset in TEXTS:
        words = _word_indices(dataset, n, sequences, seed)
        x = _text_tokens(words, positions, seed)
        if positions == 0.0:
            first = (words[:, :, None] == words[:, None]).byte().argmax(-1)
    elif positions == IMAGE_POSITIONS:
        x = _patches(dataset, n, sequences, seed)
    else:
        raise ValueError(f"positions must be {IMAGE_POSITIONS} for images, got {positions}")
    unit = normalize(x, dim=-1)
    return x, first, geometry(unit @ unit.mT)


def _text_tokens(words: Tensor, positions: float, seed: int) -> Tensor:
    """Tokens (sequences, n, width) of indices of words (sequences, n)."""
    generator = seeded(seed)
    vectors = torch.randn(int(words.max()) + 1, WIDTH, generator=generator, dtype=torch.float64)
    place = torch.randn(words.shape[1], WIDTH, generator=generator, dtype=torch.float64)
    return torch.nn.functional.layer_norm(vectors[words] + positions * place, (WIDTH,))


def _word_indices(dataset: str, n: int, sequences: int, seed: int) -> Tensor:
    """The first n words of the first ``sequences`` texts drawn that have as many, as indices (sequences, n)."""
    chosen = [words[:n] for words in _word_lists(dataset, seed) if len(words) >= n][:sequences]
    if len(chosen) < sequences:
        raise ValueError(f"sequences must be at most {len(chosen)}, the drawn texts with {n} words, got {sequences}")
    index = {word: i for i, word in enumerate(sorted({word for words in chosen for word in words}))}
    return torch.tensor([[index[word] for word in words] for words in chosen])


@lru_cache(maxsize=8)
def _word_lists(dataset: str, seed: int) -> list[list[str]]:
    count = 500 if dataset == "imdb" else None
    texts, _ = data.texts(dataset, count=count, generator=torch.Generator().manual_seed(TEXT_SEEDS + seed))
    return [words_of(text) for text in texts]


def _patches(dataset: str, n: int, sequences: int, seed: int) -> Tensor:
    size = images_of(dataset, 1, 0).shape[-1]
    side = math.isqrt(_check.integer("n", n, minimum=1))
    if side**2 != n or size % side:
        raise ValueError(f"n must be the square of a divisor of the image size {size}, got {n}")
    config = TransformerConfig(WIDTH, 3, 64, depth=1, init="lecun")
    model = random_model(dataset, size // side, config, seed)
    return model.encoder.blocks[0].norm1(model.embed(images_of(dataset, sequences, seed)))


def _real(dataset: str, lengths: list[int], positions: list[float], sequences: int, seeds: int) -> list[Setting]:
    axes: dict[str, list] = {"dataset": [dataset], "n": lengths, "positions": positions, "sequences": [sequences]}
    return grid(**axes, seed=list(range(seeds)), d_h=list(HEAD_DIMS))


EXPERIMENTS = {
    "real_tokens": Experiment(
        "How far are real tokens from orthonormal, and does the conclusion of the barrier survive?",
        real_tokens,
        quick=_real("digits", [16], [IMAGE_POSITIONS], 32, 1),
        paper=[
            *_real("digits", [16], [IMAGE_POSITIONS], 64, 20),
            *_real("cifar10", [64, 256], [IMAGE_POSITIONS], 64, 20),
            *_real("imdb", [64, 256], [0.0, 1.0], 64, 20),
        ],
        data="dataset",
        chapter="vit_initialisation",
        repeats=Rounding(1e-9),
    ),
}  # fmt: skip
