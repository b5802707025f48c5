"""Tables from synthetic tokens."""

from __future__ import annotations

import torch

from attnrank import _check
from attnrank.experiments.counting import hardmax_rank_on_device
from attnrank.experiments.experiment import Experiment
from attnrank.sweep import Setting, grid


def random_heads(n: int, d_h: int, samples: int, seed: int) -> Setting:
    """Hardmax rank of heads on orthonormal tokens under Gaussian weights: mean, standard error and variance.

    Orthonormal tokens X and N(0, 1) weights give queries X W_q and keys X W_k with i.i.d. N(0, 1) entries: they are
    drawn as such, whatever the width d >= n. ``samples`` >= 2 heads; units of rank.
    """
    n, d_h = _check.integer("n", n, minimum=1), _check.integer("d_h", d_h, minimum=1)
    samples = _check.integer("samples", samples, minimum=2)
    generator = torch.Generator().manual_seed(_check.integer("seed", seed, minimum=0))
    ranks = []
    together = max(1, 2**22 // (n * max(n, d_h)))
    for start in range(0, samples, together):
        shape = (min(together, samples - start), n, d_h)
        q = torch.randn(shape, generator=generator, dtype=torch.float64)
        k = torch.randn(shape, generator=generator, dtype=torch.float64)
        ranks.append(hardmax_rank_on_device(q, k))
    rank = torch.cat(ranks).double()
    return {
        "rank_mean": rank.mean().item(),
        "rank_standard_error": rank.std().item() / samples**0.5,
        "rank_variance": rank.var().item(),
    }


EXPERIMENTS = {
    "random_heads": Experiment(
        "How does the rank of a random head grow with head dimension, for each sequence length?",
        random_heads,
        quick=grid(n=[16, 64], d_h=[1, 2, 4, 8, 16, 32, 64, 128], samples=[400], seed=[0]),
        paper=grid(
            n=[16, 64, 256, 1024, 4096], d_h=[1, 2, 4, 8, 16, 32, 64, 128, 256, 512], samples=[400], seed=[0]
        ),
    ),
}
