"""experiments.softmax: ranks by length against full decompositions, exact rank, the gap of scores, reference values."""

import math

import mpmath
import numpy as np
import pytest
import torch

from attnrank import attention, numerical_rank, stable_rank, theory
from attnrank.experiments import softmax
from attnrank.experiments.shared.heads import MEDIUM, gaussian_heads
from attnrank.report import bernstein_margin


def test_softmax_lengths_against_singular_values():
    n, d_h, temperature, samples = 30, 4, 0.8, 5
    row = softmax.softmax_lengths(n, d_h, temperature, samples, 3)
    q, k = (torch.cat(part) for part in zip(*gaussian_heads(n, d_h, samples, 3, MEDIUM), strict=True))
    a = attention(q, k, temperature=temperature * d_h**0.5)
    for tol, name in ((0.05, "0_05"), (0.1, "0_1"), (0.2, "0_2"), (0.4, "0_4")):
        ranks = numerical_rank(a, tol).double().numpy()
        assert row[f"rank_at_{name}_mean"] == pytest.approx(ranks.mean())
        assert row[f"rank_at_{name}_standard_error"] == pytest.approx(ranks.std(ddof=1) / np.sqrt(samples))
    assert row["stable_mean"] == pytest.approx(stable_rank(a).mean().item(), rel=1e-9)


def test_gap_density_is_the_slope_of_the_gap_at_zero():
    assert theory.gap_density(2) == pytest.approx(1 / math.sqrt(math.pi), rel=1e-10)
    best = np.sort(np.random.default_rng(0).standard_normal((100_000, 50)), 1)
    share = np.mean(best[:, -1] - best[:, -2] < 0.02)
    error = math.sqrt(share / 100_000)
    # To second order the share is rate h - c h^2; h = 0.02 makes that 1 %.
    margin = bernstein_margin(error, 100_000, 1.0, cases=2)
    assert abs(share - 0.02 * theory.gap_density(50)) <= margin + 0.03 * share


def test_exact_rank_of_a_softmax_is_n():
    for d_h, temperature in ((1, 0.1), (1, 10.0), (3, 1.0)):
        row = softmax.exact_rank(10, d_h, temperature, 200, 1)
        assert row["exact"] == 10
        assert row["float64"] <= 10
    singular = mpmath.matrix([[1, 2, 3], [2, 4, 6], [1, 0, 1]])
    assert sum(p > 1e-10 for p in softmax._pivots(singular)) == 2


def test_rounding_decides_no_rank_of_a_table():
    """A singular value that differs from a tolerance by rounding is counted or not, as the processor rounds."""
    eps = np.finfo(float).eps
    n, longest = (max(s["n"] for s in softmax.EXPERIMENTS[f"softmax_{name}"].paper) for name in ("phase", "lengths"))
    assert min(softmax.TOLERANCES) > 1e5 * n * eps * math.sqrt(n)  # the largest singular value of a stochastic matrix
    assert min(softmax.LENGTH_TOLERANCES) ** 2 > 1e5 * longest * eps * longest  # its square
    for setting in softmax.EXPERIMENTS["exact_rank"].paper:
        n, d_h, seed = (setting[name] for name in ("n", "d_h", "seed"))
        q, k = next(gaussian_heads(n, d_h, 2, seed, MEDIUM))
        a = attention(q[0], k[0], temperature=setting["temperature"] * math.sqrt(d_h)).numpy()
        sigma = np.linalg.svd(a, compute_uv=False)
        assert np.abs(sigma / sigma[0] - n * eps).min() > 4 * eps, setting


def test_reference_softmax():
    warm = softmax.softmax_phase(100, 64, 1.0, 10, 1)
    assert warm["rank_fraction_at_1e_06"] == 1.0
    assert warm["rank_fraction_at_0_1"] == pytest.approx(0.40, abs=0.01)
    assert warm["rank_fraction_at_0_5"] == pytest.approx(0.01, abs=0.002)
    for temperature, value in {0.01: 0.60, 0.001: 0.59}.items():
        row = softmax.softmax_phase(100, 64, temperature, 60, 1)
        assert row["rank_fraction_at_0_1"] == pytest.approx(value, abs=0.015)
    for temperature, value in {2.0: 1.28, 1.0: 2.64}.items():  # 1: not 2.70
        row = softmax.stable_heads(400, 2048, temperature, 3, 1)
        assert row["stable_mean"] == pytest.approx(value, rel=0.015)
