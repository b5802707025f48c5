"""Tables of chapter 05 about tokens and weights: anisotropy, other laws, positions and normalisation, latents."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnrank import _check
from attnrank.experiments.beyond_heads import queries_keys, summary
from attnrank.experiments.counting import hardmax_rank_on_device
from attnrank.experiments.experiment import Experiment
from attnrank.inputs import tokens
from attnrank.scores import gaussian_weights
from attnrank.sweep import Setting, grid

LAWS = ("gaussian", "rademacher", "uniform", "student", "cauchy", "orthogonal", "low_rank")
TREATMENTS = ("none", "layernorm", "rotary", "both")


def anisotropic_heads(n: int, d_h: int, cosine: float, samples: int, seed: int) -> Setting:
    """Hardmax rank of random heads on tokens with Gram matrix (1 - c) I + c 1 1^T.

    Under Gaussian weights queries and keys are sqrt(c) g_0 + sqrt(1 - c) g_i, and so they are drawn.
    """
    c = _check.real("cosine", cosine, minimum=0.0, maximum=1.0)
    common = torch.Generator().manual_seed(1_000_000 + seed)
    ranks = []
    for pair in queries_keys(n, d_h, samples, seed):
        q, k = (
            math.sqrt(c) * torch.randn(len(own), 1, d_h, generator=common, dtype=torch.float64) + math.sqrt(1 - c) * own
            for own in pair
        )
        ranks.append(hardmax_rank_on_device(q, k))
    return summary("rank", torch.cat(ranks))


def anisotropic_limit(n: int, cosine: float, samples: int, seed: int) -> Setting:
    """The same at d_h -> infinity: row i chooses the largest of sqrt(c) a_j + sqrt(1 - c) b_ij, all N(0,1)."""
    c = _check.real("cosine", cosine, minimum=0.0, maximum=1.0)
    generator = torch.Generator().manual_seed(_check.integer("seed", seed, minimum=0))
    ranks = []
    for _ in range(samples):
        a = torch.randn(n, generator=generator, dtype=torch.float64)
        chosen = torch.zeros(n, dtype=torch.bool)
        for start in range(0, n, 512):
            b = torch.randn(min(512, n - start), n, generator=generator, dtype=torch.float64)
            chosen[(math.sqrt(c) * a + math.sqrt(1 - c) * b).argmax(-1)] = True
        ranks.append(chosen.sum())
    return summary("rank", torch.stack(ranks))


def weight_laws(n: int, d: int, d_h: int, law: str, inputs: str, samples: int, seed: int) -> Setting:
    """Hardmax rank under query and key weights (d, d_h) of a law, on an orthonormal frame or on one-hot tokens.

    ``unit_keys``: the same heads with all keys brought to length 1.
    """
    _check.choice("inputs", inputs, ("orthonormal", "one_hot"))
    generator = torch.Generator().manual_seed(_check.integer("seed", seed, minimum=0))
    x = torch.eye(n, d, dtype=torch.float64)
    ranks, unit_keys = [], []
    for _ in range(samples):
        if inputs == "orthonormal":
            x = tokens("orthonormal", n, d, generator=generator)
        q, k = x @ draw_weights(law, d, d_h, generator), x @ draw_weights(law, d, d_h, generator)
        ranks.append(hardmax_rank_on_device(q, k))
        unit_keys.append(hardmax_rank_on_device(q, torch.nn.functional.normalize(k, dim=-1)))
    return summary("rank", torch.stack(ranks)) | summary("unit_keys", torch.stack(unit_keys))


def draw_weights(law: str, d: int, d_h: int, generator: torch.Generator) -> Tensor:
    """Weights (d, d_h) of one of ``LAWS``: Student's t has 3 degrees of freedom, orthogonal weights are a Haar frame,
    and low-rank ones are the product of Gaussian factors of rank 4 (or d_h, if that is less)."""
    _check.choice("law", law, LAWS)
    normal = torch.randn(d, d_h, generator=generator, dtype=torch.float64)
    if law == "rademacher":
        return normal.sign()
    if law == "uniform":
        return 2 * torch.rand(d, d_h, generator=generator, dtype=torch.float64) - 1
    if law == "student":
        return normal / torch.randn(d, d_h, 3, generator=generator, dtype=torch.float64).norm(dim=-1)
    if law == "cauchy":
        return normal / torch.randn(d, d_h, generator=generator, dtype=torch.float64)
    if law == "orthogonal":
        return tokens("orthonormal", d_h, d, generator=generator).T
    if law == "low_rank":
        rank = min(4, d_h)
        left = torch.randn(d, rank, generator=generator, dtype=torch.float64)
        return left @ torch.randn(rank, d_h, generator=generator, dtype=torch.float64)
    return normal


def token_treatments(kind: str, n: int, d: int, d_h: int, treatment: str, samples: int, seed: int) -> Setting:
    """Hardmax rank of random heads on tokens of a kind: with LayerNorm before, rotary positions inside, or both."""
    _check.choice("treatment", treatment, TREATMENTS)
    generator = torch.Generator().manual_seed(_check.integer("seed", seed, minimum=0))
    ranks = []
    for _ in range(samples):
        x = tokens(kind, n, d, generator=generator)
        if treatment in ("layernorm", "both"):
            x = x - x.mean(-1, keepdim=True)
            x = x / x.std(-1, correction=0, keepdim=True)
        w_q, w_k = gaussian_weights(d, d_h, generator=generator)
        q, k = x @ w_q, x @ w_k
        if treatment in ("rotary", "both"):
            q, k = rotate(q), rotate(k)
        ranks.append(hardmax_rank_on_device(q, k))
    return summary("rank", torch.stack(ranks))


def rotate(x: Tensor, base: float = 10000.0) -> Tensor:
    """Rotary positions: the pair (2f, 2f + 1) of row i of x (..., n, d_h) is turned by the angle i base^(-2f / d_h)."""
    n, d_h = x.shape[-2:]
    if d_h % 2:
        raise ValueError(f"x must have an even head dimension for rotary positions, got {d_h}")
    frequency = base ** (-torch.arange(0, d_h, 2, dtype=torch.float64) / d_h)
    angle = torch.arange(n, dtype=torch.float64)[:, None] * frequency
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = (even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos())
    return torch.stack(turned, -1).flatten(-2)


def latent_heads(
    n: int, content: int, rotary: int, query_latent: int, key_latent: int, normalise: bool, samples: int, seed: int
) -> Setting:
    """Hardmax rank of heads of multi-head latent attention on orthonormal tokens, Gaussian weights throughout.

    Queries (``content`` + ``rotary`` dimensions) and the content part of the keys come from latents of the tokens, of
    ``query_latent`` and ``key_latent`` dimensions, which are brought to a root mean square of 1 if ``normalise``; the
    rotary keys come from the token itself. Both rotary parts are turned by the position. A latent of 0 stands for
    none. Every dimension of a query or key has variance 1.
    """
    generator = torch.Generator().manual_seed(_check.integer("seed", seed, minimum=0))

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def project(latent: int, width: int) -> Tensor:
        if latent == 0:
            return normal(n, width)
        z = normal(n, latent)  # an orthonormal token times Gaussian weights
        if normalise:
            z = z * math.sqrt(latent) / z.norm(dim=-1, keepdim=True)
        return z @ normal(latent, width) / math.sqrt(latent)

    ranks = []
    for _ in range(samples):
        q, k = project(query_latent, content + rotary), project(key_latent, content)
        if rotary:
            q = torch.cat([q[:, :content], rotate(q[:, content:])], -1)
            k = torch.cat([k, rotate(normal(n, rotary))], -1)
        ranks.append(hardmax_rank_on_device(q, k))
    return summary("rank", torch.stack(ranks))



def _latent(**axes: list) -> list[Setting]:
    normalise = [True, False] if axes["key_latent"] != [0] else [True]
    return [
        s
        for n, samples in ((100, 100), (1024, 20))
        for s in grid(n=[n], **axes, normalise=normalise, samples=[samples], seed=[0])
    ]


_COSINES = [0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95]

EXPERIMENTS = {
    "anisotropic_heads": Experiment(
        "What does a common direction of the tokens do to the rank of a random head?",
        anisotropic_heads,
        quick=grid(n=[64], d_h=[16], cosine=[0.0, 0.5, 0.9], samples=[50], seed=[0]),
        paper=grid(n=[256], d_h=[8, 64, 512], cosine=_COSINES, samples=[100], seed=[0]),
    ),
    "anisotropic_limit": Experiment(
        "The same at unlimited head dimension: how does the rank grow with the sequence?",
        anisotropic_limit,
        quick=grid(n=[64], cosine=[0.0, 0.5, 0.9], samples=[50], seed=[0]),
        paper=[
            s
            for n, samples, seeds in ((64, 800, 1), (256, 200, 1), (1024, 40, 1), (4096, 8, 5))
            for s in grid(n=[n], cosine=[0.0, 0.1, 0.25, 0.5, 0.75, 0.9], samples=[samples], seed=list(range(seeds)))
        ],
    ),
    "weight_laws": Experiment(
        "Does the law of the weights matter?",
        weight_laws,
        quick=grid(n=[32], d=[64], d_h=[8], law=list(LAWS), inputs=["orthonormal", "one_hot"], samples=[50], seed=[0]),
        paper=grid(
            n=[128], d=[128], d_h=[2, 8, 64, 128], law=list(LAWS), inputs=["orthonormal", "one_hot"], samples=[100],
            seed=[0],
        ),
    ),
    "token_treatments": Experiment(
        "What do LayerNorm and rotary positions do to the rank of a random head?",
        token_treatments,
        quick=grid(kind=["uniform"], n=[64], d=[128], d_h=[16], treatment=list(TREATMENTS), samples=[20], seed=[0]),
        paper=grid(
            kind=["orthonormal", "gaussian", "autoregressive", "anisotropic", "uniform"], n=[256], d=[512],
            d_h=[8, 64], treatment=list(TREATMENTS), samples=[60], seed=[0],
        ),
    ),
    "latent_heads": Experiment(
        "Does multi-head latent attention change the rank of a random head?",
        latent_heads,
        quick=grid(
            n=[100], content=[16], rotary=[0, 8], query_latent=[0], key_latent=[0, 32], normalise=[True], samples=[50],
            seed=[0],
        ),
        paper=[
            *_latent(content=[4, 8, 16, 32, 64, 128, 192, 256], rotary=[0], query_latent=[0], key_latent=[0]),
            *_latent(content=[128], rotary=[0, 64], query_latent=[1536], key_latent=[512]),
            *_latent(content=[128], rotary=[0], query_latent=[0], key_latent=[32, 64, 128]),
        ],
    ),
}  # fmt: skip
