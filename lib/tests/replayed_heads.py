"""Heads drawn in the order in which the experiments draw them, and multiplied and counted by numpy."""

import numpy as np
import torch

from attnrank.experiments.shared import distributions
from attnrank.inputs import tokens


def gen(seed):
    return torch.Generator().manual_seed(seed)


def distinct(q, k):
    """Rank of the hardmax of q k^T, for tokens without copies."""
    return len(np.unique((q @ k.T).argmax(-1)))


def replay(distribution, n, d, width, generator):
    """Tokens times weights."""
    if distribution == "orthonormal":
        return torch.randn(n, width, generator=generator, dtype=torch.float64).numpy()
    kind, options = distributions.DISTRIBUTIONS[distribution]
    x = tokens(kind, n, d, generator=generator, **options).numpy()
    return x @ torch.randn(d, width, generator=generator, dtype=torch.float64).numpy()
