"""The bounds of several chapters at random settings, and their controls."""

import numpy as np
import torch
from scipy import stats

from attnrank import hardmax_rank, theory
from attnrank.experiments import heads_and_weights, masks, softmax
from attnrank.report import bernstein_margin, student_margin


def gen(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_settings(count: int) -> list[tuple[int, int, int]]:
    rng = np.random.default_rng(5)
    return [(int(rng.integers(3, 120)), int(2 ** rng.uniform(0, 7)), seed) for seed in range(count)]


def union_of_heads(n: int, d_h: int, heads: int, samples: int, seed: int) -> np.ndarray:
    """Numbers of tokens that any of ``heads`` random heads attends to."""
    generator, counts = gen(seed), []
    for _ in range(0, samples, 50):
        q, k = torch.randn(2, 50, heads, n, d_h, generator=generator, dtype=torch.float64)
        chosen = torch.zeros(50, n, dtype=torch.bool)
        counts.append(chosen.scatter_(1, (q @ k.mT).argmax(-1).flatten(1), True).sum(1))
    return torch.cat(counts).double().numpy()


def test_bounds_hold_at_random_settings_and_controls_are_caught():
    settings, samples, caught = random_settings(45), 200, {name: 0 for name in ("causal", "heads", "tied", "soft")}
    for n, d_h, seed in settings:
        causal = masks.causal_heads(n, d_h, samples, seed)
        margin = student_margin(causal["rank_standard_error"], samples, cases=200)
        assert causal["rank_mean"] <= theory.causal_isotropic_bound(n) + margin
        q = torch.rand(n, 1, generator=gen(seed), dtype=torch.float64)
        k = torch.arange(1.0, n + 1, dtype=torch.float64)[:, None]
        caught["causal"] += int(hardmax_rank(q, k, causal=True)) > 0.75 * n + 0.5

        heads = 1 + seed % 4
        union = union_of_heads(n, d_h, heads, 2 * samples, seed)
        # Few tokens are missed at all, so that nothing is normal: a margin for every law of numbers from 1 to n.
        margin = bernstein_margin(stats.sem(union), 2 * samples, n - 1, cases=200)
        assert union.mean() <= theory.multihead_limit(n, heads, d_h) + margin
        caught["heads"] += union.mean() > theory.multihead_limit(n, heads, d_h) / 1.5 + margin

        tied = heads_and_weights.tied_heads(n, d_h, samples, seed)
        margin = student_margin(tied["selves_standard_error"], samples, cases=200) + 1e-9
        assert tied["rank_mean"] >= theory.tied_bound(n, d_h) - margin
        caught["tied"] += causal["rank_mean"] < theory.tied_bound(n, d_h) - margin

        soft = softmax.softmax_gap(n, d_h, 10 ** (-(seed % 4)), 4, seed)
        assert soft["violations"] == soft["rank_bound_violations"] == 0
        caught["soft"] += n > 3 and soft["variation"] > soft["lower"] * (1 + 1e-9)
    assert min(caught.values()) >= 10, caught
