"""Tables from tokens that are not orthonormal: perturbed by a set amount, random, chosen by an adversary, and real.

Throughout, tokens are measured after normalisation to length 1: their Gram matrix is I + E with zero diagonal E.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from attnrank import _check, data, inputs
from attnrank.experiments import vision
from attnrank.experiments.experiment import Experiment
from attnrank.models import TransformerConfig
from attnrank.ranks import hardmax_rank
from attnrank.sweep import Setting, grid

WIDTH = 192
HEAD_DIMS = (2, 4, 8, 16, 64, 192)
#: Scores computed at a time, so that memory stays small.
SCORES = 2**22


# Bounds -------------------------------------------------------------------------------------------------------------

def smallest_eigenvalue_bound(n: int, smallest: float) -> float:
    """Bound on E D from the smallest eigenvalue alone, for Gaussian query weights and any keys, as many as tokens.

    With mu = 1 - smallest, (1 - 1/e) n + n^{2 mu / (1 + mu)} L^a / 2, where a = (1 - mu) / (1 + mu) and
    L = max(1, log(2 n^a)). In units of rank; not less than 1 - 1/e of n, and trivial (about 1.13 n) for mu = 1.

    Parameters
    ----------
    n : number of tokens, >= 1.
    smallest : smallest eigenvalue of the normalised Gram matrix, in [0, 1].

    Raises
    ------
    ValueError : an argument out of its range.

    Source: chapter 04, the smallest-eigenvalue theorem.
    """
    n = _check.integer("n", n, minimum=1)
    mu = 1.0 - _check.real("smallest", smallest, minimum=0.0, maximum=1.0)
    power = (1.0 - mu) / (1.0 + mu)
    logarithm = max(1.0, math.log(2.0) + power * math.log(n))
    return (1.0 - math.exp(-1.0)) * n + 0.5 * n ** (1.0 - power) * logarithm**power


def hellinger_excess(eigenvalues: np.ndarray, n: int, d_h: int) -> float:
    """(n - 1) sqrt(1 - B^2): how much E D can differ from that of orthonormal tokens, by the Hellinger affinity B.

    ``eigenvalues`` > -1 are those of E; B^2 = prod (1 + x^2 / (4 (1 + x)))^{-d_h / 2}. In units of rank.

    Raises
    ------
    ValueError : an eigenvalue <= -1 or not finite, n < 1 or d_h < 1.

    Source: chapter 04, the total-variation theorem.
    """
    x = np.asarray(eigenvalues, dtype=float)
    if x.size == 0 or not np.isfinite(x).all() or (x <= -1).any():
        raise ValueError(f"eigenvalues must be finite and greater than -1, got {eigenvalues!r}")
    n, d_h = _check.integer("n", n, minimum=1), _check.integer("d_h", d_h, minimum=1)
    log_affinity = -0.5 * d_h * np.log1p(x**2 / (4.0 * (1.0 + x))).sum()
    return (n - 1) * math.sqrt(-math.expm1(log_affinity))


# Gram matrices ------------------------------------------------------------------------------------------------------

def perturbed_gram(structure: str, n: int, epsilon: float, *, generator: torch.Generator) -> Tensor:
    """Gram matrix I + E of n unit tokens, max |E_ij| = epsilon, float64 (n, n).

    ``structure`` of E: "random", uniform entries; "autoregressive", E_ij = epsilon^|i-j|; "blocks", epsilon within
    blocks of 8 neighbours; "common", epsilon everywhere; "simplex", -epsilon everywhere; "pairs", -epsilon between
    tokens 2i and 2i + 1. Raises ValueError where I + E has a negative eigenvalue.
    """
    _check.choice("structure", structure, STRUCTURES)
    n, epsilon = _check.integer("n", n, minimum=2), _check.real("epsilon", epsilon, minimum=0.0, maximum=1.0)
    _check.generator("generator", generator)
    position = torch.arange(n)
    distance = (position[:, None] - position).abs()
    if structure == "random":
        upper = (2.0 * torch.rand(n, n, generator=generator, dtype=torch.float64) - 1.0).triu(1)
        error = epsilon * upper / upper.abs().max()
        error = error + error.T
    elif structure == "autoregressive":
        error = torch.tensor(epsilon, dtype=torch.float64) ** distance
    elif structure == "blocks":
        error = epsilon * (position[:, None] // 8 == position // 8).double()
    elif structure == "pairs":
        error = -epsilon * (position[:, None] // 2 == position // 2).double()
    else:
        error = (epsilon if structure == "common" else -epsilon) * torch.ones(n, n, dtype=torch.float64)
    gram = error.fill_diagonal_(1.0)
    if torch.linalg.eigvalsh(gram)[0] < -1e-12:
        raise ValueError(f"epsilon = {epsilon} is too large for {structure} at n = {n}: I + E has an eigenvalue < 0")
    return gram


STRUCTURES = ("random", "autoregressive", "blocks", "common", "simplex", "pairs")


def geometry(gram: Tensor) -> dict[str, float]:
    """How far unit tokens (..., n, n) are from orthonormal, means over leading dimensions of measures of E."""
    n = gram.shape[-1]
    error = gram - torch.eye(n, dtype=gram.dtype)
    values = torch.linalg.eigvalsh(error)
    return {
        "max_error": error.abs().amax((-2, -1)).mean().item(),
        "frobenius": error.square().sum((-2, -1)).sqrt().mean().item(),
        "operator": values.abs().amax(-1).mean().item(),
        "smallest_eigenvalue": _without_noise(1.0 + values)[..., 0].mean().item(),
        "mean_cosine": (error.sum((-2, -1)) / (n * (n - 1))).mean().item(),
    }


def ranks_of_gram(
    gram: Tensor, d_h: int, samples: int, *, generator: torch.Generator, lengths: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Ranks of ``samples`` heads on tokens with this Gram matrix, and of orthonormal tokens with the same weights.

    Gaussian weights make queries and keys Gaussian with the Gram matrix as covariance; they are drawn as such. Keys are
    scaled by ``lengths`` (n,) of the tokens if given (the lengths of queries do not matter). Tokens must differ: equal
    ones give keys that are equal up to rounding only, and then count as different.
    """
    n = len(gram)
    values, vectors = torch.linalg.eigh(gram)
    root = (vectors * _without_noise(values).sqrt()) @ vectors.T
    key_root = root if lengths is None else lengths[:, None] * root
    ranks, orthonormal = [], []
    together = max(1, SCORES // (n * max(n, d_h)))
    for start in range(0, samples, together):
        q, k = torch.randn(2, min(together, samples - start), n, d_h, generator=generator, dtype=torch.float64)
        ranks.append(hardmax_rank(root @ q, key_root @ k))
        orthonormal.append(hardmax_rank(q, k))
    return torch.cat(ranks).double(), torch.cat(orthonormal).double()


# Tables -------------------------------------------------------------------------------------------------------------

def perturbed_tokens(structure: str, n: int, d_h: int, epsilon: float, samples: int, seed: int) -> Setting:
    """Mean rank under a controlled perturbation, and its excess over orthonormal tokens with the same weights."""
    generator = torch.Generator().manual_seed(_check.integer("seed", seed, minimum=0))
    gram = perturbed_gram(structure, n, epsilon, generator=generator)
    return geometry(gram) | _summary(*ranks_of_gram(gram, d_h, samples, generator=generator))


def adversarial_tokens(n: int, d_h: int, epsilon: float, start: str, steps: int, samples: int, seed: int) -> Setting:
    """The perturbation that :func:`adversarial_gram` finds, measured on fresh weights."""
    gram = adversarial_gram(n, d_h, epsilon, start=start, steps=steps, seed=seed)
    generator = torch.Generator().manual_seed(1000 + seed)
    return geometry(gram) | _summary(*ranks_of_gram(gram, d_h, samples, generator=generator))


def adversarial_gram(n: int, d_h: int, epsilon: float, *, start: str, steps: int, seed: int) -> Tensor:
    """Gram matrix with |E_ij| <= epsilon that gradient ascent finds for the mean rank, float64 (n, n).

    The rank is replaced by sum_j 1 - prod_i (1 - A_ij), A the softmax at temperature 0.1 sqrt(d_h): the mean number of
    keys that are hit if each query samples one. Adam on the tokens, fresh weights at every step; after it the tokens
    are normalised and the entries of E clipped. ``start``: "orthonormal", or "circle", evenly spaced in the plane.
    """
    n, d_h = _check.integer("n", n, minimum=2), _check.integer("d_h", d_h, minimum=1)
    epsilon = _check.real("epsilon", epsilon, above=0.0, maximum=1.0)
    _check.choice("start", start, ("orthonormal", "circle"))
    steps = _check.integer("steps", steps, minimum=0)
    generator = torch.Generator().manual_seed(_check.integer("seed", seed, minimum=0))
    x = torch.eye(n, dtype=torch.float64)
    if start == "circle":
        angle = 2.0 * math.pi * torch.arange(n, dtype=torch.float64) / n
        x = torch.zeros(n, n, dtype=torch.float64)
        x[:, 0], x[:, 1] = angle.cos(), angle.sin()
    x = x + 0.05 / math.sqrt(n) * torch.randn(n, n, generator=generator, dtype=torch.float64)
    x = _admissible(x, epsilon).requires_grad_(True)
    optimiser = torch.optim.Adam([x])
    for step in range(steps):
        optimiser.param_groups[0]["lr"] = 0.1 / n * (1.0 - step / steps)
        q, k = torch.randn(2, 32, n, d_h, generator=generator, dtype=torch.float64)
        attention = (10.0 / math.sqrt(d_h) * (x @ q) @ (x @ k).mT).softmax(-1)
        missed = torch.log1p(-attention.clamp(max=1.0 - 1e-12)).sum(-2).exp()
        optimiser.zero_grad()
        missed.sum(-1).mean().backward()
        optimiser.step()
        with torch.no_grad():
            x.copy_(_admissible(x, epsilon))
    gram = (x @ x.T).detach().fill_diagonal_(0.0)
    shrink = min(1.0, epsilon / gram.abs().max().item())  # a last step inside: I + E stays positive semi-definite
    return (shrink * gram).fill_diagonal_(1.0)


def simplex_tokens(n: int, samples: int, seed: int) -> Setting:
    """Mean rank of n queries at the corners of a regular simplex, for orthonormal keys: the limit of a large head.

    Scores of orthonormal tokens are then an (n, n) matrix of i.i.d. N(0, 1); a simplex subtracts the mean query.
    """
    n, samples = _check.integer("n", n, minimum=2), _check.integer("samples", samples, minimum=2)
    generator = torch.Generator().manual_seed(_check.integer("seed", seed, minimum=0))
    counts = []
    for size in torch.arange(samples).split(max(1, SCORES // n**2)):
        scores = torch.randn(len(size), n, n, generator=generator, dtype=torch.float64)
        counts.append([_distinct(s.argmax(-1)) for s in (scores - scores.mean(-2, keepdim=True), scores)])
    return _summary(*(torch.cat(ranks).double() for ranks in zip(*counts, strict=True)))


def random_tokens(kind: str, n: int, d: int, d_h: int, draws: int, heads: int, seed: int) -> Setting:
    """Mean rank and geometry of ``draws`` sequences of a kind of :mod:`attnrank.inputs`, with ``heads`` heads each."""
    generator = torch.Generator().manual_seed(_check.integer("seed", seed, minimum=0))
    grams, means = [], []
    for _ in range(draws):
        x = inputs.tokens(kind, n, d, generator=generator)
        unit = normalize(x, dim=-1)
        grams.append(unit @ unit.T)
        rank, _ = ranks_of_gram(grams[-1], d_h, heads, generator=generator, lengths=x.norm(dim=-1))
        means.append(rank.mean())
    means = torch.stack(means)
    return geometry(torch.stack(grams)) | {
        "rank_mean": means.mean().item(), "rank_standard_error": means.std().item() / math.sqrt(draws)
    }  # fmt: skip


def real_tokens(dataset: str, n: int, positions: float, d_h: int, sequences: int, seed: int) -> Setting:
    """Mean rank and geometry of real tokens of width 192 that enter the first block of a random Transformer.

    Images: the tokens of chapter 07, sqrt(n) x sqrt(n) patches; ``positions`` must be the 0.02 of that model. Texts:
    the first n words of a text, each word with a N(0, 1) vector of its own, so that repeated words are equal, plus a
    N(0, positions^2) vector for each position; then LayerNorm. One random model with 3 heads a seed.
    """
    x, first, shape = _real_sequences(dataset, n, positions, sequences, seed)
    generator = torch.Generator().manual_seed(2000 + seed)
    w_q, w_k = torch.randn(2, 3, WIDTH, d_h, generator=generator, dtype=torch.float64)
    ranks = []
    for part, same in zip(x.unsqueeze(1).split(16), first.split(16), strict=True):
        k = (part @ w_k).take_along_dim(same[:, None, :, None], -2)  # equal tokens have equal keys, to the last bit
        ranks.append(hardmax_rank(part @ w_q, k))
    rank = torch.cat(ranks).double()
    return shape | {"rank_mean": rank.mean().item(), "rank_over_sequences_std": rank.mean(1).std().item()}


TEXTS = ("imdb", "docstrings")
IMAGE_POSITIONS = 0.02  # of attnrank.models


def words_of(text: str) -> list[str]:
    """The words of a text: runs of letters and apostrophes, in lower case, HTML line breaks left out."""
    return re.findall(r"[a-z']+", re.sub(r"<br\s*/?>", " ", text.lower()))


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
    generator = torch.Generator().manual_seed(_check.integer("seed", seed, minimum=0))
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
    texts, _ = data.texts(dataset, count=count, generator=torch.Generator().manual_seed(10_000 + seed))
    return [words_of(text) for text in texts]


def _patches(dataset: str, n: int, sequences: int, seed: int) -> Tensor:
    size = vision._images(dataset, 1, 0).shape[-1]
    side = math.isqrt(_check.integer("n", n, minimum=1))
    if side**2 != n or size % side:
        raise ValueError(f"n must be the square of a divisor of the image size {size}, got {n}")
    config = TransformerConfig(WIDTH, 3, 64, depth=1, init="lecun")
    model = vision._model(dataset, size // side, config, seed)
    return model.encoder.blocks[0].norm1(model.embed(vision._images(dataset, sequences, seed)))


def _without_noise(eigenvalues: Tensor) -> Tensor:
    """Eigenvalues of a Gram matrix with zeros in the place of rounding errors, which differ from machine to machine."""
    return eigenvalues.where(eigenvalues > 1e-10, 0.0)


def _admissible(x: Tensor, epsilon: float) -> Tensor:
    """Unit tokens near ``x`` whose inner products exceed ``epsilon`` by little: clip, then make semi-definite again."""
    x = normalize(x.detach(), dim=-1)
    error = (x @ x.T).fill_diagonal_(0.0)
    if error.abs().max() <= epsilon:
        return x
    values, vectors = torch.linalg.eigh(error.clamp(-epsilon, epsilon).fill_diagonal_(1.0))
    return normalize((vectors * values.clamp(min=1e-9).sqrt()) @ vectors.T, dim=-1)


def _distinct(chosen: Tensor) -> Tensor:
    """Number of distinct entries in each row of (samples, n) indices below n."""
    return torch.zeros_like(chosen, dtype=torch.bool).scatter_(-1, chosen, True).sum(-1)


def _summary(rank: Tensor, orthonormal: Tensor) -> dict[str, float]:
    """Mean rank and mean paired difference from orthonormal tokens, with standard errors."""
    excess, root = rank - orthonormal, math.sqrt(len(rank))
    return {
        "rank_mean": rank.mean().item(),
        "rank_standard_error": rank.std().item() / root,
        "excess_mean": excess.mean().item(),
        "excess_standard_error": excess.std().item() / root,
    }


def _perturbations(n: int, d_h: int, samples: int) -> list[Setting]:
    largest = {"random": 0.8 / math.sqrt(n), "simplex": 1.0 / (n - 1)}  # beyond these I + E is not semi-definite
    return [
        setting
        for structure in STRUCTURES
        for epsilon in (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 0.9)
        for setting in grid(structure=[structure], n=[n], d_h=[d_h], epsilon=[epsilon], samples=[samples], seed=[0])
        if epsilon <= largest.get(structure, 1.0)
    ] + grid(structure=["simplex"], n=[n], d_h=[d_h], epsilon=[1.0 / (n - 1)], samples=[samples], seed=[0])


def _ratios(n: int, d_h: int, draws: int, heads: int, ratios=(0.1, 0.2, 0.5, 1, 2, 5, 10, 20)) -> list[Setting]:
    widths = [round(ratio * n) for ratio in ratios]
    return grid(kind=["gaussian", "sphere"], n=[n], d=widths, d_h=[d_h], draws=[draws], heads=[heads], seed=[0])


def _real(dataset: str, lengths: list[int], positions: list[float], sequences: int, seeds: int) -> list[Setting]:
    axes = {"dataset": [dataset], "n": lengths, "positions": positions, "sequences": [sequences]}
    return grid(**axes, seed=list(range(seeds)), d_h=list(HEAD_DIMS))


EXPERIMENTS = {
    "perturbed_tokens": Experiment(
        "How does the mean rank change when orthonormal tokens are perturbed by a set amount?",
        perturbed_tokens,
        quick=_perturbations(16, 8, 500),
        paper=[
            *(s for n in (16, 64) for d_h in (8, 64) for s in _perturbations(n, d_h, 4000)),
            *_perturbations(256, 64, 1000),
        ],
    ),
    "adversarial_tokens": Experiment(
        "How much rank can an adversary gain who may move the tokens by a set amount?",
        adversarial_tokens,
        quick=grid(n=[8], d_h=[8], epsilon=[0.05, 1.0], start=["orthonormal"], steps=[30], samples=[500], seed=[0]),
        paper=[
            *grid(
                n=[16, 64], d_h=[8, 64], epsilon=[0.003, 0.01, 0.03, 0.1, 0.3, 0.9], start=["orthonormal"],
                steps=[300], samples=[4000], seed=[0],
            ),
            *grid(n=[16, 64], d_h=[8, 64], epsilon=[1.0], start=["circle"], steps=[300], samples=[4000], seed=[0]),
        ],
    ),
    "simplex_tokens": Experiment(
        "How far does a simplex of tokens exceed the barrier, by sequence length?",
        simplex_tokens,
        quick=grid(n=[4, 16, 64], samples=[500], seed=[0]),
        paper=[
            *grid(n=[4, 8, 16, 32, 64, 128], samples=[20000], seed=[0]),
            *grid(n=[256, 512, 1024], samples=[400], seed=[0, 1, 2, 3, 4]),
        ],
    ),
    "random_tokens": Experiment(
        "What is the mean rank on Gaussian and spherical tokens, by their width?",
        random_tokens,
        quick=_ratios(16, 8, 20, 20),
        paper=[
            *(s for d_h in (2, 8, 64) for s in _ratios(64, d_h, 40, 50)),
            *(s for d_h in (8, 64) for s in _ratios(256, d_h, 20, 10)),
        ],
    ),
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
    ),
}
