"""The first paper's layer tables, and random heads that depart from orthonormal tokens in one way: who has their
shape?"""

from __future__ import annotations

import math
from importlib import resources

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from attnrank import _check
from attnrank.experiments.experiment import Exact, Experiment, Rounding
from attnrank.experiments.shared.heads import hardmax_rank_on_device
from attnrank.experiments.shared.statistics import seeded
from attnrank.ranks import singular_values
from attnrank.sweep import Setting, grid

HEAD_DIMS = (2, 3, 4, 8, 16)
WIDTHS = (32, 128, 256, 512)
CAUSES = (
    "none", "repeated", "zipf", "padding", "masked", "directions", "cosine", "tied", "unit_keys", "causal",
)  # fmt: skip
#: Tolerances 10^-e relative to the largest singular value, of the columns of the table ``layer_encoders``.
EXPONENTS = tuple(e / 4 for e in range(35))
#: Tolerances among which ``layer_causes`` finds the one that fits best.
FINE_EXPONENTS = tuple(e / 40 for e in range(361))


def layer_tables() -> pd.DataFrame:
    """The paper's layer tables: layer, embed_dim, head_dim, rank_mean and rank_std, both divided by n."""
    with (
        resources.files("attnrank.experiments.layer_tables").joinpath("layer_tables.csv").open(encoding="utf-8") as file
    ):
        return pd.read_csv(file)


def layer_table_row(layer: int, embed_dim: int, head_dim: int) -> Setting:
    """Mean and standard deviation of rank / n as the paper's rebuttal gives them."""
    table = layer_tables().set_index(["layer", "embed_dim", "head_dim"])
    return table.loc[(layer, embed_dim, head_dim)].to_dict()


def scores_apart(curves: np.ndarray, rows: pd.DataFrame) -> np.ndarray:
    """How far curves of rank / n over ``HEAD_DIMS``, (..., dims), are from rows of the paper's table, in their
    deviations: (..., rows)."""
    at = dict(zip(HEAD_DIMS, np.moveaxis(np.asarray(curves, dtype=float), -1, 0), strict=True))
    ranks = np.stack([at[head_dim] for head_dim in rows.head_dim], -1)
    return (ranks - rows.rank_mean.to_numpy()) / rows.rank_std.to_numpy()


def distance(curves: np.ndarray, rows: pd.DataFrame) -> np.ndarray:
    """Root mean square of :func:`scores_apart`: at most 1 where a curve is typically within a standard deviation."""
    return np.sqrt(np.mean(scores_apart(curves, rows) ** 2, -1))


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
    generator = seeded(seed)
    temperature, power = _check.real("temperature", temperature, above=0.0), _check.real("power", power)
    tables = layer_tables().query("layer == 2")
    distinct, hard, soft = [], {}, []
    for d in HEAD_DIMS:
        ranks, curves = [], []
        for _ in range(_check.integer("samples", samples, minimum=1)):
            q, k, counts = _drawn(cause, amount, n, d, generator)
            ranks.append(hardmax_rank_on_device(q, k, causal=cause == "causal").item() / n)
            a = compressed_softmax(q, k, counts, temperature * d**power, causal=cause == "causal")
            curves.append(soft_ranks(a, n, FINE_EXPONENTS))
            distinct.append(len(k) / n)
        hard[f"hard_{d}"] = float(np.mean(ranks))
        soft.append(np.mean(curves, 0))
    best = int(np.argmin(distance(np.stack(soft, -1), tables)))
    fitted = {f"soft_{d}": float(curve[best]) for d, curve in zip(HEAD_DIMS, soft, strict=True)}
    return {"distinct": float(np.mean(distinct)), "exponent": FINE_EXPONENTS[best]} | fitted | hard


def _drawn(cause: str, amount: float, n: int, d_h: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
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


def soft_ranks(a: Tensor, n: int, exponents: tuple[float, ...]) -> np.ndarray:
    """Number of singular values of each matrix that are at least 10^-e times its largest, over n: (..., exponents)."""
    sigma = singular_values(a)
    tolerance = torch.tensor([10.0**-e for e in exponents], dtype=torch.float64)
    return ((sigma[..., None] >= tolerance * sigma[..., :1, None]).double().sum(-2) / n).numpy()


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


EXPERIMENTS = {
    "layer_tables": Experiment(
        "What do the layer tables of the first paper's rebuttal say?",
        layer_table_row,
        quick=grid(layer=[2], embed_dim=[32], head_dim=list(HEAD_DIMS)),
        paper=grid(layer=[2, 4], embed_dim=list(WIDTHS), head_dim=list(HEAD_DIMS)),
        chapter="layer_tables",
        repeats=Exact(),
    ),
    "layer_causes": Experiment(
        "Which single departure from orthonormal tokens gives random heads the shape of the layer tables?",
        layer_causes,
        quick=_causes({64: 4}, ((0.5, 2.0),), {"none": [0.0], "padding": [0.74]}),
        paper=_causes(_SAMPLES, _TEMPERATURES, _AMOUNTS),
        chapter="layer_tables",
        repeats=Rounding(1e-9),
    ),
}
