"""What the probe costs beside one forward pass of the model: each rank by itself.

    python -m attnrank.benchmarks.probing

The model has 12 layers of width 384 with 6 heads. A ratio of 2 means that probing takes as long as two passes: the model's
own, and one further.
"""

from __future__ import annotations

import torch

from attnrank.benchmarks.timing import compare, interleaved, machine
from attnrank.models import Encoder, TransformerConfig
from attnrank.probe import RANKS, probe

WIDTH, HEADS, DEPTH = 384, 6, 12


def encoder() -> Encoder:
    """The model that is probed, random, in float32."""
    config = TransformerConfig(WIDTH, HEADS, WIDTH // HEADS, DEPTH, init="lecun")
    return Encoder(config, torch.Generator().manual_seed(0)).float().requires_grad_(False).eval()


def tokens(n: int) -> torch.Tensor:
    """One sequence of n Gaussian tokens."""
    return torch.randn(1, n, WIDTH, generator=torch.Generator().manual_seed(1))


def costs(n: int, ranks: tuple[str, ...] = RANKS, rounds: int = 5) -> dict[str, float]:
    """Time of probing for each rank over the time of one forward pass, medians of ``rounds`` turns."""
    model, x = encoder(), tokens(n)
    routines = [lambda: model(x), *(lambda name=name: probe(model, x, ranks=name) for name in ranks)]
    forward, *probes = interleaved(routines, rounds)
    return {name: 1 / compare(seconds, forward).ratio for name, seconds in zip(ranks, probes, strict=True)}


def main() -> None:
    """Print the costs at 128 and 512 tokens, and of the hardmax rank at 2,048."""
    print(machine())
    for n, ranks in ((128, RANKS), (512, RANKS), (2048, ("hardmax",))):
        for name, cost in costs(n, ranks).items():
            print(f"n = {n:5d}  {name:10s} {cost:6.2f} forward passes")


if __name__ == "__main__":
    main()
