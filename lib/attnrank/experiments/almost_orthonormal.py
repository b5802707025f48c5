"""Tables from synthetic tokens that are not orthonormal: perturbed by a set amount, random, chosen by an adversary."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import normalize

from attnrank import _check, inputs
from attnrank.experiments.experiment import Experiment
from attnrank.experiments.gram import SCORES, STRUCTURES, geometry, perturbed_gram, ranks_of_gram
from attnrank.sweep import Setting, grid


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
}
