"""Tables of chapter 06 about the first paper's layer tables: which random heads and encoders give their shape?"""

from __future__ import annotations

import math
from functools import lru_cache
from importlib import resources

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from attnrank import _check, data
from attnrank.experiments.experiment import Experiment
from attnrank.experiments.real_tokens import TEXTS, words_of
from attnrank.models import (
    Block,
    Encoder,
    TransformerConfig,
    VisionTransformer,
    sinusoids,
)
from attnrank.ranks import hardmax_rank, singular_values
from attnrank.sweep import Setting, grid

HEAD_DIMS = (2, 3, 4, 8, 16)
WIDTHS = (32, 128, 256, 512)
CAUSES = (
    "none", "repeated", "zipf", "padding", "masked", "directions", "cosine", "tied", "unit_keys", "causal",
)  # fmt: skip
POSITIONS = ("none", "sinusoidal", "masked padding")
#: Tolerances 10^-e relative to the largest singular value, of the columns of ``layer_encoders``: "soft_" and 100 e.
EXPONENTS = tuple(e / 4 for e in range(35))
#: Tolerances among which ``layer_causes`` finds the one that fits best.
FINE_EXPONENTS = tuple(e / 40 for e in range(361))
PADDING = ""  # no word: it follows a text that is shorter than n words
RARE = "?"  # stands for the words outside the vocabulary


def layer_tables() -> pd.DataFrame:
    """The paper's layer tables: layer, embed_dim, head_dim, rank_mean and rank_std, both divided by n."""
    with resources.files("attnrank.experiments").joinpath("layer_tables.csv").open(encoding="utf-8") as file:
        return pd.read_csv(file)


def layer_table_row(layer: int, embed_dim: int, head_dim: int) -> Setting:
    """Mean and standard deviation of rank / n as the paper's rebuttal gives them."""
    table = layer_tables().set_index(["layer", "embed_dim", "head_dim"])
    return table.loc[(layer, embed_dim, head_dim)].to_dict()


def scores_apart(curve: np.ndarray, rows: pd.DataFrame) -> np.ndarray:
    """How far a curve of rank / n over ``HEAD_DIMS`` is from rows of the paper's table, in their deviations."""
    at = dict(zip(HEAD_DIMS, np.asarray(curve, dtype=float), strict=True))
    return (rows.head_dim.map(at).to_numpy() - rows.rank_mean.to_numpy()) / rows.rank_std.to_numpy()


def distance(curve: np.ndarray, rows: pd.DataFrame) -> float:
    """Root mean square of :func:`scores_apart`: at most 1 where the curve is typically within a standard deviation."""
    return float(np.sqrt(np.mean(scores_apart(curve, rows) ** 2)))


def layer_causes(
    cause: str, amount: float, n: int, power: float, temperature: float, samples: int, seed: int
) -> Setting:  # fmt: skip
    """Rank / n of random heads with one departure from orthonormal tokens, hard and soft, at each of ``HEAD_DIMS``.

    The softmax has temperature ``temperature * head_dim ** power``; queries and keys have entries of variance 1.
    Causes and what their amount is: "none"; "repeated", each token is one of amount * n words, uniformly; "zipf", one
    of 20,000 words with probability proportional to (place in the list)^-amount; "padding", that share of the tokens is
    one padding token; "masked", that share of the tokens can be no key, but is a query; "directions", the tokens are
    i.i.d. Gaussian in so many directions; "cosine", of any two tokens; "tied", W_q = W_k; "unit_keys", keys brought to
    the length sqrt(head_dim); "causal", the mask.

    ``hard_d`` is the hardmax rank / n at head dimension d; ``soft_d`` the share of singular values of the softmax that
    are at least 10^-``exponent`` times the largest, with the exponent, one for all d, of the least :func:`distance` to
    the paper's layer 2; ``distinct`` the share of distinct tokens (of admitted keys for "masked").
    """
    _check.choice("cause", cause, CAUSES)
    generator = torch.Generator().manual_seed(_check.integer("seed", seed, minimum=0))
    temperature, power = _check.real("temperature", temperature, above=0.0), _check.real("power", power)
    tables = layer_tables().query("layer == 2")
    distinct, hard, soft = [], {}, []
    for d in HEAD_DIMS:
        ranks, curves = [], []
        for _ in range(_check.integer("samples", samples, minimum=1)):
            q, k, counts = _heads(cause, amount, n, d, generator)
            ranks.append(hardmax_rank(q, k, causal=cause == "causal").item() / n)
            a = compressed_softmax(q, k, counts, temperature * d**power, causal=cause == "causal")
            curves.append(_soft_ranks(a, n, FINE_EXPONENTS))
            distinct.append(len(k) / n)
        hard[f"hard_{d}"] = float(np.mean(ranks))
        soft.append(np.mean(curves, 0))
    best = min(range(len(FINE_EXPONENTS)), key=lambda e: distance([curve[e] for curve in soft], tables))
    fitted = {f"soft_{d}": float(curve[best]) for d, curve in zip(HEAD_DIMS, soft, strict=True)}
    return {"distinct": float(np.mean(distinct)), "exponent": FINE_EXPONENTS[best]} | fitted | hard


def layer_encoders(
    dataset: str, n: int, vocabulary: int, positions: str, init: str, temperature: float, width: int, heads: int,
    head_dim: int, layer: int, sequences: int, seed: int,
) -> Setting:  # fmt: skip
    """Rank / n in one layer (from 1) of a random encoder on real sequences, averaged over heads and sequences.

    Texts: the first n words, shorter ones filled up with a padding token; words that are not among the ``vocabulary``
    most frequent of the set are one and the same token; each token has a N(0, 1) vector of its own. ``sequences`` texts
    are taken evenly from all texts in the order of their number of distinct tokens. ``positions``: "none",
    "sinusoidal", or "masked padding": sinusoidal, and padding can be no key. Images: the Vision Transformer of chapter
    07 on n patches, ``vocabulary`` 0 and ``positions`` "none". The temperature is ``temperature * sqrt(head_dim)``.

    ``hardmax`` is the hardmax rank / n; ``soft_e`` the share of singular values of the softmax that are at least
    10^-(e/100) times the largest, ``soft_float32`` at least n 2^-23 times; ``sequence_std`` and ``head_std`` the
    standard deviation of ``soft_700`` over sequences and over heads; ``distinct`` the share of distinct tokens (of
    admitted keys where padding is masked).
    """
    _check.choice("positions", positions, POSITIONS)
    layer = _check.integer("layer", layer, minimum=1)
    scale = _check.real("temperature", temperature, above=0.0) * math.sqrt(head_dim)
    config = TransformerConfig(width, heads, head_dim, depth=layer, init=init, temperature=scale)
    generator = torch.Generator().manual_seed(_check.integer("seed", seed, minimum=0))
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
            hard.append((hardmax_rank(q, k[:, admitted]).double() / n).mean())
            soft.append(_soft_ranks(compressed_softmax(q, k, counts, scale), n, (*EXPONENTS, default)))
            distinct.append(admitted.double().sum() / n)
    soft = np.array(soft)  # sequences, heads, tolerances
    names = [*(f"soft_{round(100 * e)}" for e in EXPONENTS), "soft_float32"]
    means = {name: round(float(rank), 6) for name, rank in zip(names, soft.mean((0, 1)), strict=True)}
    spread = soft[..., EXPONENTS.index(7.0)]
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


def _heads(cause: str, amount: float, n: int, d_h: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and keys of the distinct tokens, and how often each occurs; "masked" has fewer keys than queries."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    counts = torch.ones(n, dtype=torch.float64)
    if cause in ("repeated", "zipf"):
        words = max(1, round(amount * n)) if cause == "repeated" else 20_000
        weight = torch.arange(1, words + 1, dtype=torch.float64) ** -(0.0 if cause == "repeated" else amount)
        counts = torch.bincount(torch.multinomial(weight, n, replacement=True, generator=generator)).double()
        counts = counts[counts > 0]
    if cause == "padding":
        padding = round(amount * n)
        counts = torch.cat([counts[padding:], torch.tensor([float(padding)], dtype=torch.float64)])
    if cause == "directions":
        x = normal(n, int(amount)) / math.sqrt(amount)
        return x @ normal(int(amount), d_h), x @ normal(int(amount), d_h), counts
    q, k = normal(len(counts), d_h), normal(len(counts), d_h)
    if cause == "masked":
        k = k[: n - round(amount * n)]
        return q, k, counts[: len(k)]
    if cause == "cosine":
        q, k = (math.sqrt(amount) * normal(1, d_h) + math.sqrt(1 - amount) * own for own in (q, k))
    if cause == "tied":
        q = k
    if cause == "unit_keys":
        k = k * math.sqrt(d_h) / k.norm(dim=-1, keepdim=True)
    return q, k, counts


def compressed_softmax(q: Tensor, k: Tensor, counts: Tensor, scale: float, causal: bool = False) -> Tensor:
    """A matrix of distinct tokens with the non-zero singular values of the softmax matrix of all n.

    With Z (n, m) the matrix that says which token stands where, the softmax matrix is Z B Z^T, and Z = U C^{1/2} with
    orthonormal columns U and C the counts: the singular values are those of C^{1/2} B C^{1/2}.
    """
    scores = q @ k.mT / scale
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
    if q.shape[-2] != k.shape[-2]:  # distinct queries, some of which are no keys
        return scores.softmax(-1)
    rows = counts.clamp(min=1.0).sqrt()  # a masked key is a query that occurs once
    return rows[:, None] * (scores + counts.log()).softmax(-1) / rows


def _soft_ranks(a: Tensor, n: int, exponents: tuple[float, ...]) -> np.ndarray:
    """Number of singular values of each matrix that are at least 10^-e times its largest, over n: (..., exponents)."""
    sigma = singular_values(a)
    tolerance = torch.tensor([10.0**-e for e in exponents], dtype=torch.float64)
    return ((sigma[..., None] >= tolerance * sigma[..., :1, None]).double().sum(-2) / n).numpy()


def _encoder_inputs(
    dataset: str, n: int, vocabulary: int, positions: str, config: TransformerConfig, sequences: int, seed: int,
    generator: torch.Generator,
) -> tuple[Encoder, list[tuple[Tensor, Tensor]]]:  # fmt: skip
    """A random encoder and, for each sequence, its distinct tokens and their counts."""
    if dataset not in TEXTS:
        images, _ = data.images(
            dataset, count=sequences, generator=torch.Generator().manual_seed(10_000 + seed), standardise=True
        )
        side = math.isqrt(n)
        if side**2 != n or images.shape[-1] % side or vocabulary or positions != "none":
            raise ValueError(f"n must be a square of a divisor of the image size, without text options, got {n}")
        model = VisionTransformer(
            config, image_size=images.shape[-1], patch_size=images.shape[-1] // side, classes=10,
            channels=images.shape[1], pool="mean", generator=generator, dtype=torch.float64,
        )  # fmt: skip
        return model.encoder, [(x, torch.ones(n, dtype=torch.float64)) for x in model.embed(images)]
    encoder = Encoder(config, generator)
    chosen = _chosen_texts(dataset, n, vocabulary, sequences)
    index = {word: i for i, word in enumerate(sorted({word for text in chosen for word in text}))}
    vectors = torch.randn(len(index), config.width, generator=generator, dtype=torch.float64)
    inputs = []
    for text in chosen:
        ids = torch.tensor([index[word] for word in text])
        if positions == "none":
            ids, counts = ids.unique(return_counts=True)
            inputs.append((vectors[ids], counts.double()))
        else:
            masked = (ids == index.get(PADDING, -1)) & (positions == "masked padding")
            inputs.append((vectors[ids] + sinusoids(n, config.width), (~masked).double()))
    return encoder, inputs


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


_TEMPERATURES = ((0.5, 0.1), (0.5, 1.0), (0.5, 2.0), (0.5, 4.0), (1.0, 0.3), (1.0, 1.0), (0.0, 1.0))  # power, factor
_SAMPLES = {64: 32, 128: 16, 192: 10, 256: 8, 384: 4, 512: 3}
_AMOUNTS = {
    "none": [0.0],
    "repeated": [0.265, 0.5],
    "zipf": [1.0, 1.25, 1.5],
    "padding": [0.5, 0.74],
    "masked": [0.5, 0.74],
    "directions": [3.0, 4.0, 5.0, 6.0, 8.0],
    "cosine": [0.25, 0.5, 0.75, 0.9],
    "tied": [0.0],
    "unit_keys": [0.0],
    "causal": [0.0],
}


def _causes(samples: dict[int, int], temperatures: tuple, amounts: dict[str, list[float]]) -> list[Setting]:
    return [
        setting
        for cause, values in amounts.items()
        for n, count in samples.items()
        for power, factor in temperatures
        for setting in grid(
            cause=[cause], amount=values, n=[n], power=[power], temperature=[factor], samples=[count], seed=[0, 1]
        )
    ]


def _encoders(**changes: list) -> list[Setting]:
    """The reviews of IMDB, cut or filled up to 500 words, with the changes asked for."""
    axes = {
        "dataset": ["imdb"], "n": [500], "vocabulary": [20_000], "positions": ["none"], "init": ["lecun"],
        "temperature": [2.0], "width": [128], "heads": [4], "head_dim": list(HEAD_DIMS), "layer": [2],
        "sequences": [40], "seed": [0],
    }  # fmt: skip
    return grid(**(axes | changes))


_IMAGES = {"vocabulary": [0], "layer": [2]}

EXPERIMENTS = {
    "layer_tables": Experiment(
        "What do the layer tables of the first paper's rebuttal say?",
        layer_table_row,
        quick=grid(layer=[2], embed_dim=[32], head_dim=list(HEAD_DIMS)),
        paper=grid(layer=[2, 4], embed_dim=list(WIDTHS), head_dim=list(HEAD_DIMS)),
    ),
    "layer_causes": Experiment(
        "Which single departure from orthonormal tokens gives random heads the shape of the layer tables?",
        layer_causes,
        quick=_causes({64: 4}, ((0.5, 2.0),), {"none": [0.0], "padding": [0.74]}),
        paper=_causes(_SAMPLES, _TEMPERATURES, _AMOUNTS),
    ),
    "layer_shares": Experiment(
        "Which share of the tokens of a text of n words, padding included, is distinct?",
        distinct_share,
        quick=grid(dataset=["docstrings"], n=[100], vocabulary=[0]),
        paper=grid(dataset=["imdb"], n=[128, 256, 400, 500, 512, 1000], vocabulary=[0, 20_000, 10_000, 5_000]),
        data="dataset",
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
    ),
}
