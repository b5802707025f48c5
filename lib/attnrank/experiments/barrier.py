"""Tables of the chapter barrier: random heads on orthonormal tokens."""

from __future__ import annotations

from attnrank.experiments.experiment import Exact, Experiment
from attnrank.experiments.shared.heads import random_heads
from attnrank.sweep import grid

EXPERIMENTS = {
    "random_heads": Experiment(
        "How does the rank of a random head grow with head dimension, for each sequence length?",
        random_heads,
        quick=grid(n=[16, 64], d_h=[1, 2, 4, 8, 16, 32, 64, 128], samples=[400], seed=[0]),
        paper=grid(
            n=[16, 64, 256, 1024, 4096], d_h=[1, 2, 4, 8, 16, 32, 64, 128, 256, 512], samples=[400], seed=[0]
        ),
        chapter="barrier",
        repeats=Exact(),
    ),
}  # fmt: skip
