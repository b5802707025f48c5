"""Tables of the chapter masks: causal heads and sliding windows."""

from __future__ import annotations

import torch

from attnrank import theory
from attnrank.experiments.experiment import Exact, Experiment, Rounding
from attnrank.experiments.shared.heads import MEDIUM, distinct, gaussian_heads, hardmax_rank_on_device
from attnrank.experiments.shared.statistics import summary
from attnrank.sweep import Setting, grid


def causal_heads(n: int, d_h: int, samples: int, seed: int) -> Setting:
    """Hardmax rank of causal heads with i.i.d. N(0,1) queries and keys: orthonormal tokens, Gaussian weights."""
    ranks = [hardmax_rank_on_device(q, k, causal=True) for q, k in gaussian_heads(n, d_h, samples, seed, MEDIUM)]
    return summary("rank", torch.cat(ranks))


def causal_bounds(n: int, d_h: int) -> Setting:
    """The bound on the expected rank of causal random heads resolved by head dimension (about two seconds a value)."""
    return {"bound": theory.causal_head_dim_bound(n, d_h)}


def window_heads(n: int, d_h: int, window: int, causal: bool, samples: int, seed: int) -> Setting:
    """Hardmax rank if row i sees the last ``window`` keys (causal), or the keys at distance < ``window``."""
    position = torch.arange(n)
    distance = position[:, None] - position
    hidden = (distance < 0) | (distance >= window) if causal else distance.abs() >= window
    ranks = [
        distinct((q @ k.mT).masked_fill(hidden, -torch.inf)) for q, k in gaussian_heads(n, d_h, samples, seed, MEDIUM)
    ]
    return summary("rank", torch.cat(ranks))


def _causal_grid(samples: dict[int, int], head_dims: list[int]) -> list[Setting]:
    return [s for n, count in samples.items() for s in grid(n=[n], d_h=head_dims, samples=[count], seed=[0])]


EXPERIMENTS = {
    "causal_heads": Experiment(
        "What is the rank of a random head under a causal mask?",
        causal_heads,
        quick=_causal_grid({16: 400, 64: 400}, [1, 2, 8, 64]),
        paper=_causal_grid(
            {4: 20000, 16: 10000, 64: 4000, 100: 2000, 256: 1000, 1024: 100}, [1, 2, 4, 8, 16, 64, 512]
        ),
        chapter="masks",
        repeats=Exact(),
    ),
    "causal_bounds": Experiment(
        "What bounds the rank of a random head under a causal mask, at each head dimension?",
        causal_bounds,
        quick=grid(n=[16], d_h=[1, 2, 8]),
        paper=grid(n=[4, 16, 64, 100, 256, 1024], d_h=[1, 2, 4, 8, 16, 64, 512]),
        chapter="masks",
        repeats=Rounding(1e-9),
        version=3,
    ),
    "window_heads": Experiment(
        "What is the rank of a random head that sees a sliding window?",
        window_heads,
        quick=grid(n=[128], d_h=[8, 64], window=[1, 4, 16, 64], causal=[True, False], samples=[20], seed=[0]),
        paper=grid(
            n=[512], d_h=[2, 8, 64, 512], window=[1, 2, 4, 8, 16, 32, 64, 128, 256, 512], causal=[True, False],
            samples=[40], seed=[0],
        ),
        chapter="masks",
        repeats=Exact(),
    ),
}  # fmt: skip
