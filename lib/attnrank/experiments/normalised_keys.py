"""Table of the chapter normalised_keys: random heads whose keys or queries are brought to one length."""

from __future__ import annotations

import torch
from torch import Tensor

from attnrank import _check
from attnrank.experiments.experiment import Exact, Experiment
from attnrank.experiments.shared.heads import (
    gaussian_heads,
    hardmax_rank_on_device,
)
from attnrank.experiments.shared.statistics import seeded, summary
from attnrank.sweep import Setting, grid

#: What is brought to unit length before the scores.
NORMALISED = ("none", "keys", "queries", "both")


def normalised_heads(n: int, d_h: int, normalised: str, gain_spread: float, samples: int, seed: int) -> Setting:
    """Hardmax rank of random heads on orthonormal tokens whose keys or queries are normalised (``NORMALISED``).

    What is normalised is then multiplied by one positive gain per coordinate, as by an RMSNorm that has learned one:
    log-normal, with ``gain_spread`` the standard deviation of its logarithm (0: no gain), drawn anew for each head and
    separately for queries and keys. ``samples`` >= 2 heads; units of rank.
    """
    what = _check.choice("normalised", normalised, NORMALISED)
    spread = _check.real("gain_spread", gain_spread, minimum=0.0)
    generator, ranks = seeded(seed), []
    for q, k in gaussian_heads(n, d_h, samples, generator):
        if what in ("queries", "both"):
            q = _normalise(q, spread, generator)
        if what in ("keys", "both"):
            k = _normalise(k, spread, generator)
        ranks.append(hardmax_rank_on_device(q, k))
    return summary("rank", torch.cat(ranks))


def _normalise(x: Tensor, gain_spread: float, generator: torch.Generator) -> Tensor:
    unit = torch.nn.functional.normalize(x, dim=-1)
    if gain_spread == 0:
        return unit
    return unit * torch.randn(len(x), 1, x.shape[-1], generator=generator, dtype=torch.float64).mul(gain_spread).exp()


def _normalised() -> list[Setting]:
    def rows(n: int, d_h: int, normalised: str, gain_spread: float, samples: int) -> Setting:
        return {"n": n, "d_h": d_h, "normalised": normalised, "gain_spread": gain_spread, "samples": samples, "seed": 5}

    lengths, head_dims = (64, 256, 1024, 4096), (2, 3, 4, 5, 6, 8, 12, 16, 32, 64, 128)
    plain = [rows(n, d_h, "keys", 0.0, 400_000 // n) for n in lengths for d_h in head_dims]
    controls = [
        rows(1024, d_h, normalised, spread, 200)
        for d_h in (4, 8, 16, 32, 64, 128)
        for normalised, spread in (
            ("none", 0.0),
            ("queries", 0.0),
            ("keys", 0.5),
            ("both", 0.25),
            ("both", 0.5),
            ("both", 1.0),
        )
    ]
    long = [rows(65536, d_h, "keys", 0.0, 2) | {"seed": seed} for d_h in (2, 3, 8) for seed in (5, 6, 7)]
    return plain + controls + long


EXPERIMENTS = {
    "normalised_heads": Experiment(
        "What is the rank of random heads whose keys or queries are normalised?",
        normalised_heads,
        quick=grid(n=[64, 256], d_h=[2, 4, 8], normalised=["none", "keys"], gain_spread=[0.0], samples=[100], seed=[5]),
        paper=_normalised(),
        chapter="normalised_keys",
        repeats=Exact(),
    ),
}  # fmt: skip
