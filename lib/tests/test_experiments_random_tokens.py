"""experiments.random_tokens: tokens with a common direction against quadrature, ranks of random tokens."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, special, stats

from attnrank import hardmax_rank, theory
from attnrank.experiments import random_tokens
from attnrank.inputs import tokens
from attnrank.report import student_margin
from attnrank.scores import gaussian_weights


def gen(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_anisotropic_bound_against_adaptive_quadrature():
    def win(a, n, c):
        def density(b):
            score = math.sqrt(c) * a + math.sqrt(1 - c) * b
            return math.exp(-b * b / 2) / math.sqrt(2 * math.pi) * special.ndtr(score) ** (n - 1)

        return integrate.quad(density, -9, 9, epsabs=1e-11)[0]

    for n, c in ((5, 0.3), (60, 0.7)):
        outer = integrate.quad(lambda a: stats.norm.pdf(a) * (1 - (1 - win(a, n, c)) ** n), -9, 9, epsabs=1e-9)[0]
        assert theory.anisotropic_bound(n, c) == pytest.approx(n * outer, rel=1e-6)
    assert theory.anisotropic_bound(256, 0.0) == pytest.approx(theory.occupancy_bound(256), rel=1e-9)
    assert theory.anisotropic_exponent(0.0) == 1.0


def test_anisotropic_heads_approach_their_limit():
    heads = random_tokens.anisotropic_heads(32, 2000, 0.5, 300, 0)
    limit = random_tokens.anisotropic_limit(32, 0.5, 2000, 0)
    error = math.hypot(heads["rank_standard_error"], limit["rank_standard_error"])
    loss = 32 * theory.lognormal_variance(32, 2000)  # what d_h = 2000 can cost at most
    assert abs(heads["rank_mean"] - limit["rank_mean"]) <= student_margin(error, 300, cases=2) + loss


def mean_rank(kind: str, n: int, d: int, d_h: int, samples: int = 60, **options) -> float:
    generator, ranks = gen(d_h), []
    for _ in range(samples):
        x = tokens(kind, n, d, generator=generator, **options)
        w_q, w_k = gaussian_weights(d, d_h, generator=generator)
        ranks.append(hardmax_rank(x @ w_q, x @ w_k).item() / n)
    return float(np.mean(ranks))


def test_reference_tokens():
    dims = (2, 4, 8, 16, 64, 192)
    table = [
        ("gaussian", 64, {}, (0.083, 0.231, 0.370, 0.457, 0.534, 0.549)),
        ("gaussian", 512, {}, (0.085, 0.232, 0.378, 0.485, 0.581, 0.610)),
        ("orthonormal", 128, {}, (0.080, 0.243, 0.377, 0.484, 0.592, 0.626)),
        ("autoregressive", 512, {}, (0.087, 0.194, 0.269, 0.298, 0.317, 0.321)),
        ("repeated_vocabulary", 512, {}, (0.071, 0.147, 0.202, 0.233, 0.27, 0.27)),
    ]
    for kind, d, options, values in table:
        for d_h, value in zip(dims, values):
            assert mean_rank(kind, 100, d, d_h, **options) == pytest.approx(value, abs=0.02), (kind, d_h)


def test_reference_anisotropy():
    cases = (("gaussian", {}, 0.549), ("uniform", {}, 0.093), ("autoregressive", {"correlation": 0.95}, 0.254))
    for kind, options, value in cases:
        assert mean_rank(kind, 256, 512, 64, 40, **options) == pytest.approx(value, abs=0.02), kind
