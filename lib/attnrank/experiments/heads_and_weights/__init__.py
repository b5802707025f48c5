"""Tables of the chapter heads_and_weights: several heads, and other weights, found by ascent or drawn by other laws."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnrank import _check
from attnrank.experiments.experiment import Exact, Experiment, Statistical
from attnrank.experiments.heads_and_weights.laws import LAWS, draw_weights
from attnrank.experiments.shared.distributions import rotate
from attnrank.experiments.shared.heads import MEDIUM, distinct, gaussian_heads, hardmax_rank_on_device
from attnrank.experiments.shared.statistics import seeded, summary
from attnrank.inputs import tokens
from attnrank.ranks import singular_values
from attnrank.scores import gaussian_weights
from attnrank.sweep import Setting, grid

#: Every matrix below has integer entries; its non-zero singular values are far above this.
ZERO = 1e-8


def tied_heads(n: int, d_h: int, samples: int, seed: int) -> Setting:
    """Hardmax rank of K K^T for i.i.d. N(0,1) keys, and the number of tokens that choose themselves."""
    ranks, selves = [], []
    for k, _ in gaussian_heads(n, d_h, samples, seed, MEDIUM):
        scores = k @ k.mT
        ranks.append(distinct(scores))
        selves.append((scores.argmax(-1) == torch.arange(n)).sum(-1))
    return summary("rank", torch.cat(ranks)) | summary("selves", torch.cat(selves))


def many_heads(n: int, d_h: int, heads: int, samples: int, seed: int) -> Setting:
    """Ranks of H independent heads together: A_1 over ... over A_H, side by side, and summed.

    Above one another the rank is the number of distinct tokens that any head attends to. Side by side (n x Hn) and
    summed (n x n) it is counted from float64 singular values.
    """
    generator = seeded(seed)
    vertical, horizontal, added = [], [], []
    for _ in range(samples):
        q, k = torch.randn(2, heads, n, d_h, generator=generator, dtype=torch.float64)
        choice = (q @ k.mT).argmax(-1)
        a = torch.nn.functional.one_hot(choice, n).double()
        vertical.append(choice.unique().numel())
        horizontal.append(int((singular_values(a.transpose(0, 1).reshape(n, heads * n)) > ZERO).sum()))
        added.append(int((singular_values(a.sum(0)) > ZERO).sum()))
    return {
        key: value
        for name, ranks in (("vertical", vertical), ("horizontal", horizontal), ("sum", added))
        for key, value in summary(name, torch.tensor(ranks)).items()
    }


CHECKPOINTS = (0, 30, 100, 300, 1000, 3000)
#: Standard deviation over seeds of the rank after 100 steps and more: at most 5 at n = 64, for every d_h and surrogate.
SEED_SPREAD = 5.0


def rank_ascent(n: int, d_h: int, surrogate: str, seed: int) -> Setting:
    """Hardmax rank while the queries and keys of one head climb a smooth surrogate of it; A is their softmax.

    "coverage": sum_j 1 - prod_i (1 - A_ij), the expected number of distinct tokens if each row samples one token.
    "matching": sum_i log A_ii, the log-likelihood of every token attending to itself. Linearly independent tokens let
    the weights reach any queries and keys, so the ascent is in these. Adam with rate 0.1, from N(0,1) entries; the rank
    after each number of steps of ``CHECKPOINTS``.
    """
    _check.choice("surrogate", surrogate, ("coverage", "matching"))
    generator = seeded(seed)
    q, k = (torch.randn(n, d_h, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(2))
    optimiser = torch.optim.Adam([q, k], lr=0.1)
    ranks = {}
    for step in range(max(CHECKPOINTS) + 1):
        if step in CHECKPOINTS:
            ranks[f"rank_after_{step}"] = float(hardmax_rank_on_device(q, k))
        optimiser.zero_grad()
        log_a = (q @ k.T).log_softmax(-1)
        if surrogate == "matching":
            loss = -log_a.diagonal().sum()
        else:
            loss = torch.log1p(-log_a.exp().clamp(max=1 - 1e-12)).sum(0).exp().sum()
        loss.backward()
        optimiser.step()
    return ranks


TREATMENTS = ("none", "layernorm", "rotary", "both")


def weight_laws(n: int, d: int, d_h: int, law: str, inputs: str, samples: int, seed: int) -> Setting:
    """Hardmax rank under query and key weights (d, d_h) of a law, on an orthonormal frame or on one-hot tokens.

    ``unit_keys``: the same heads with all keys brought to length 1.
    """
    _check.choice("inputs", inputs, ("orthonormal", "one_hot"))
    generator = seeded(seed)
    x = torch.eye(n, d, dtype=torch.float64)
    ranks, unit_keys = [], []
    for _ in range(samples):
        if inputs == "orthonormal":
            x = tokens("orthonormal", n, d, generator=generator)
        q, k = x @ draw_weights(law, d, d_h, generator), x @ draw_weights(law, d, d_h, generator)
        ranks.append(hardmax_rank_on_device(q, k))
        unit_keys.append(hardmax_rank_on_device(q, torch.nn.functional.normalize(k, dim=-1)))
    return summary("rank", torch.stack(ranks)) | summary("unit_keys", torch.stack(unit_keys))


def token_treatments(kind: str, n: int, d: int, d_h: int, treatment: str, samples: int, seed: int) -> Setting:
    """Hardmax rank of random heads on tokens of a kind: with LayerNorm before, rotary positions inside, or both."""
    _check.choice("treatment", treatment, TREATMENTS)
    generator = seeded(seed)
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


def latent_heads(
    n: int, content: int, rotary: int, query_latent: int, key_latent: int, normalise: bool, samples: int, seed: int
) -> Setting:
    """Hardmax rank of heads of multi-head latent attention on orthonormal tokens, Gaussian weights throughout.

    Queries (``content`` + ``rotary`` dimensions) and the content part of the keys come from latents of the tokens, of
    ``query_latent`` and ``key_latent`` dimensions, which are brought to a root mean square of 1 if ``normalise``; the
    rotary keys come from the token itself. Both rotary parts are turned by the position. A latent of 0 stands for
    none. Every dimension of a query or key has variance 1.
    """
    generator = seeded(seed)

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


EXPERIMENTS = {
    "tied_heads": Experiment(
        "What is the rank of a random head whose queries are its keys?",
        tied_heads,
        quick=grid(n=[64], d_h=[2, 8, 16], samples=[100], seed=[0]),
        paper=grid(n=[64, 256, 1024], d_h=[1, 2, 4, 8, 12, 16, 20, 24, 32, 64], samples=[100], seed=[0]),
        chapter="heads_and_weights",
        repeats=Exact(),
    ),
    "many_heads": Experiment(
        "What is the rank of several random heads together?",
        many_heads,
        quick=grid(n=[32], d_h=[64], heads=[1, 2, 3], samples=[10], seed=[0]),
        paper=grid(n=[64, 256], d_h=[8, 64, 512], heads=[1, 2, 3, 4, 6], samples=[40], seed=[0]),
        chapter="heads_and_weights",
        repeats=Exact(),
    ),
    "rank_ascent": Experiment(
        "Which rank do the weights of a head reach by gradient ascent?",
        rank_ascent,
        quick=grid(n=[16], d_h=[2], surrogate=["matching"], seed=[0]),
        paper=grid(n=[64], d_h=[1, 2, 3, 8], surrogate=["coverage", "matching"], seed=[0, 1, 2]),
        chapter="heads_and_weights",
        # From about 100 steps on, rounding decides where an ascent goes: as if it had another seed.
        repeats=Statistical({f"rank_after_{step}": SEED_SPREAD for step in CHECKPOINTS if step >= 100}, rtol=1e-12),
    ),
    "weight_laws": Experiment(
        "Does the law of the weights matter?",
        weight_laws,
        quick=grid(n=[32], d=[64], d_h=[8], law=list(LAWS), inputs=["orthonormal", "one_hot"], samples=[50], seed=[0]),
        paper=grid(
            n=[128], d=[128], d_h=[2, 8, 64, 128], law=list(LAWS), inputs=["orthonormal", "one_hot"], samples=[100],
            seed=[0],
        ),
        chapter="heads_and_weights",
        repeats=Exact(),
    ),
    "token_treatments": Experiment(
        "What do LayerNorm and rotary positions do to the rank of a random head?",
        token_treatments,
        quick=grid(kind=["uniform"], n=[64], d=[128], d_h=[16], treatment=list(TREATMENTS), samples=[20], seed=[0]),
        paper=grid(
            kind=["orthonormal", "gaussian", "autoregressive", "anisotropic", "uniform"], n=[256], d=[512],
            d_h=[8, 64], treatment=list(TREATMENTS), samples=[60], seed=[0],
        ),
        chapter="heads_and_weights",
        repeats=Exact(),
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
        chapter="heads_and_weights",
        repeats=Exact(),
    ),
}  # fmt: skip
