"""experiments.masks: bounds under masks against sums and uniform choices, heads that see windows, reference values."""

import math

import mpmath
import numpy as np
import pytest
import torch

from attnrank import hardmax_rank, theory
from attnrank.experiments import masks
from attnrank.report import bernstein_margin


def gen(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("n", [1, 2, 7, 60])
def test_causal_isotropic_bound_is_its_poisson_sum(n):
    with mpmath.workdps(30):
        excess = mpmath.fsum(
            mpmath.exp(-i) * mpmath.mpf(i) ** m / mpmath.factorial(m) * abs(m - i) / max(m, i)
            for i in range(1, n + 1)
            for m in range(i + 100)
        )
    assert theory.causal_isotropic_bound(n) == pytest.approx((n + 1) / 2 + float(excess), rel=1e-10)
    assert theory.causal_isotropic_bound(n) <= (n + 1) / 2 + 2 * math.sqrt(n)


def test_window_limit_against_uniform_choices_and_closed_forms():
    assert theory.window_limit(40, 40, causal=True) == pytest.approx(theory.causal_limit(40), rel=1e-12)
    assert theory.window_limit(40, 40, causal=False) == pytest.approx(theory.occupancy_bound(40), rel=1e-12)
    assert theory.window_limit(40, 1, causal=True) == 40
    rng, samples = np.random.default_rng(0), 4000
    for n, window, causal in ((9, 3, True), (12, 4, False)):
        counts = []
        for _ in range(samples):
            low = [max(0, i - window + 1) for i in range(n)]
            high = [i if causal else min(n - 1, i + window - 1) for i in range(n)]
            counts.append(len({rng.integers(a, b + 1) for a, b in zip(low, high)}))
        margin = bernstein_margin(np.std(counts) / samples**0.5, samples, n - 1, cases=4)
        assert abs(np.mean(counts) - theory.window_limit(n, window, causal=causal)) <= margin


def test_window_heads_equal_masked_ranks():
    full = masks.window_heads(16, 4, 16, True, 10, 3)
    assert full == masks.causal_heads(16, 4, 10, 3)
    assert masks.window_heads(16, 4, 1, False, 10, 3)["rank_mean"] == 16


@pytest.mark.parametrize(("n", "d_h"), [(2, 1), (9, 1), (40, 3)])
def test_causal_barrier_for_any_keys_holds_and_is_reached(n, d_h):
    samples = 2000
    growing = torch.arange(1.0, n + 1, dtype=torch.float64) * (-1.0) ** torch.arange(1, n + 1)
    k = torch.randn(d_h, generator=gen(0), dtype=torch.float64) * growing[:, None]
    q = torch.randn(samples, n, d_h, generator=gen(1), dtype=torch.float64)
    rank = hardmax_rank(q, k.expand(samples, n, d_h), causal=True).double()
    margin = theory.occupancy_margin(n, 1e-6 / 6, samples)  # McDiarmid
    assert abs(rank.mean().item() - theory.causal_bound(n)) <= margin


def test_reference_causal():
    for d_h, value in {2: 0.177, 4: 0.290, 8: 0.380, 16: 0.434, 64: 0.486, 512: 0.504}.items():  # 2: not .174
        assert masks.causal_heads(100, d_h, 300, 0)["rank_mean"] / 100 == pytest.approx(value, abs=0.006)
