"""What the probe costs beside one forward pass of the model: each rank by itself.

    python -m attnrank.benchmarks.probing

The model has 12 layers of width 384 with 6 heads. A cost of 2 means that probing takes as long as two passes: the
model's own, and one further. The published table is that of :mod:`attnrank.experiments.measuring_speed.probing`.
"""

from __future__ import annotations

import torch

from attnrank.benchmarks.timing import compare, extra_memory, interleaved, machine
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


def rounds_of(n: int, rank: str, rounds: int) -> tuple[list[float], list[float]]:
    """Seconds of probing for one rank, and of one forward pass, in rounds; fewer than three rounds are not warm."""
    model, x = encoder(), tokens(n)
    routines = [lambda: probe(model, x, ranks=rank), lambda: model(x)]
    probes, forward = interleaved(routines, rounds, warm=rounds > 2)
    return probes, forward


def costs(n: int, ranks: tuple[str, ...] = RANKS, rounds: int = 5) -> dict[str, float]:
    """Time of probing for each rank over the time of one forward pass, medians of ``rounds`` turns."""
    return {name: 1 / compare(*rounds_of(n, name, rounds)).ratio for name in ranks}


#: A program for `attnrank.benchmarks.extra_memory`: the model alone, or probed for its hardmax ranks.
MEMORY = """
import torch
from attnrank.models import Encoder, TransformerConfig
from attnrank.probe import probe
torch.set_num_threads({threads})
config = TransformerConfig({width}, {heads}, {width} // {heads}, {depth}, init="lecun")
model = Encoder(config, torch.Generator().manual_seed(0)).float().requires_grad_(False).eval()
x = torch.randn(1, {n}, {width}, generator=torch.Generator().manual_seed(1))
probe(model, x[:, :256], ranks="hardmax")
def work():
    probe(model, x, ranks="hardmax") if {probed} else model(x)
"""


def memory(n: int, width: int, heads: int, depth: int, threads: int, *, probed: bool) -> float:
    """Bytes by which the peak memory of a fresh process grows while a model runs on n tokens, probed or alone."""
    return extra_memory(MEMORY.format(n=n, width=width, heads=heads, depth=depth, threads=threads, probed=probed))


def main() -> None:
    """Print the costs at 128 and 512 tokens, and of the hardmax rank at 2,048."""
    print(machine())
    for n, ranks in ((128, RANKS), (512, RANKS), (2048, ("hardmax",))):
        for name, cost in costs(n, ranks).items():
            print(f"n = {n:5d}  {name:10s} {cost:6.2f} forward passes")


if __name__ == "__main__":
    main()
