"""experiments.softmax: the table of ranks by length against full decompositions."""

import numpy as np
import pytest
import torch

from attnrank import attention, numerical_rank, stable_rank
from attnrank.experiments import softmax as module
from attnrank.experiments.shared.heads import MEDIUM, gaussian_heads


def test_softmax_lengths_against_singular_values():
    n, d_h, temperature, samples = 30, 4, 0.8, 5
    row = module.softmax_lengths(n, d_h, temperature, samples, 3)
    q, k = (torch.cat(part) for part in zip(*gaussian_heads(n, d_h, samples, 3, MEDIUM), strict=True))
    a = attention(q, k, temperature=temperature * d_h**0.5)
    for tol, name in ((0.05, "0_05"), (0.1, "0_1"), (0.2, "0_2"), (0.4, "0_4")):
        ranks = numerical_rank(a, tol).double().numpy()
        assert row[f"rank_at_{name}_mean"] == pytest.approx(ranks.mean())
        assert row[f"rank_at_{name}_standard_error"] == pytest.approx(ranks.std(ddof=1) / np.sqrt(samples))
    assert row["stable_mean"] == pytest.approx(stable_rank(a).mean().item(), rel=1e-9)
