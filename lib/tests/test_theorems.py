"""Theorems of the chapters that no public function computes, each against its own hypotheses."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from attnrank import attention, hardmax_rank, stable_rank, theory

FALSE_ALARM = 1e-6


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def circle(m):
    angle = 2 * math.pi * torch.arange(m, dtype=torch.float64) / m
    return torch.stack([angle.cos(), angle.sin()], -1)


def mean_rank(queries, keys):
    return hardmax_rank(queries, keys.expand(len(queries), *keys.shape)).double().mean().item()


def test_orthogonal_tokens_of_any_lengths_reach_the_barrier_on_a_circle_and_crowded_ones_do_not():
    n, samples, margin = 6, 20_000, theory.occupancy_margin(6, FALSE_ALARM / 4, 20_000)
    x = torch.linalg.qr(normal(8, n)).Q.mT * torch.linspace(0.1, 9, n, dtype=torch.float64)[:, None]
    w_q = normal(samples, 8, 2, seed=1)
    assert abs(mean_rank(x @ w_q, circle(n)) - theory.occupancy_bound(n)) <= margin
    assert mean_rank((x + 5 * x[:1]) @ w_q, circle(n)) < theory.occupancy_bound(n) - margin


@pytest.mark.parametrize("n, m", [(4, 9), (9, 4)])
def test_cross_attention_from_independent_tokens_obeys_the_barrier_under_any_weights(n, m):
    samples, margin = 20_000, theory.occupancy_margin(n, FALSE_ALARM / 4, 20_000)
    w_q, keys = torch.diag(torch.tensor([3.0, 3.0], dtype=torch.float64)), circle(m)
    angle = 2 * math.pi * torch.rand(samples, n, generator=seeded(), dtype=torch.float64)
    even = torch.stack([angle.cos(), angle.sin()], -1)
    assert abs(mean_rank(even @ w_q, keys) - theory.occupancy_bound(n, m)) <= margin  # reached
    uneven = even.square() + 0.2  # another law of the tokens
    assert mean_rank(uneven @ w_q, keys) <= theory.occupancy_bound(n, m) + margin


@pytest.mark.parametrize("n", [2, 3, 10, 100])
def test_the_loss_to_lengths_and_the_rest_at_head_dimension_one(n):
    """There everything is known: E D = 2 - 2^(1-n), and pi(r) is the mean of Phi(r)^(n-1) and Phi(-r)^(n-1)."""

    def integrand(r):
        share = (stats.norm.cdf(r) ** (n - 1) + stats.norm.cdf(-r) ** (n - 1)) / 2
        return n * (1 - (1 - share) ** n) * 2 * stats.norm.pdf(r)

    upper = integrate.quad(integrand, 0, 12, epsabs=1e-11, limit=200)[0]
    assert theory.head_dim_bound(n, 1) == pytest.approx(upper, rel=1e-7)
    lengths, rest = theory.occupancy_bound(n) - upper, upper - (2 - 2.0 ** (1 - n))
    assert lengths >= -1e-9 and rest >= -1e-9
    assert n < 3 or min(lengths, rest) > 0


nodes, weights = np.polynomial.hermite_e.hermegauss(120)
weights = weights / weights.sum()


@given(n=st.integers(2, 40), rho=st.floats(0, 0.95), quantile=st.floats(-3, 3))
def test_reverse_hoelder_for_half_lines_and_equal_cosines(n, rho, quantile):
    """P(no q_a > t) of standard normals of correlation rho, whose smallest eigenvalue is 1 - rho, by quadrature."""
    given_common = stats.norm.cdf((quantile - math.sqrt(rho) * nodes) / math.sqrt(1 - rho)) ** n
    p = stats.norm.sf(quantile)
    assert weights @ given_common >= (1 - p) ** (n / (1 - rho)) * (1 - 1e-6) - 1e-9


@given(rho=st.floats(0, 0.99), quantile=st.floats(-2, 2))
@settings(deadline=None)
def test_reverse_hoelder_for_two_opposed_queries(rho, quantile):
    neither = stats.multivariate_normal([0, 0], [[1, -rho], [-rho, 1]]).cdf([quantile, quantile])
    assert neither >= stats.norm.cdf(quantile) ** (2 / (1 - rho)) - 1e-6


@given(r=st.floats(0, 0.999))
def test_two_opposed_tokens_obey_the_bound_of_effective_queries(r):
    truth = 1 + math.acos(-r) / math.pi
    assert truth <= theory.effective_queries_bound(2, 1 - r) + 1e-12
    assert r > 0 or truth == theory.effective_queries_bound(2, 1.0) == 1.5


def test_tokens_that_the_smallest_eigenvalue_covers():
    n = 400
    signs = np.triu(np.random.default_rng(0).choice([-1.0, 1.0], (n, n)), 1)
    for share in (0.3, 0.9):  # cosines of at most share / n, of random and of one sign
        for e in (signs + signs.T, np.eye(n) - np.ones((n, n))):
            assert np.linalg.eigvalsh(np.eye(n) + share / n * e)[0] >= 1 - share
    gap = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    for r in (0.2, 0.9):
        smallest = np.linalg.eigvalsh(r**gap)[0]
        assert (1 - r) / (1 + r) <= smallest <= (1 - r) / (1 + r) + 0.01
    x = torch.nn.functional.normalize(normal(n, 2 * n), dim=1)
    limit = (1 - 2**-0.5) ** 2
    assert torch.linalg.eigvalsh(x @ x.T)[0].item() == pytest.approx(limit, abs=0.02)


def test_stable_rank_of_independent_logits():
    for temperature in (1.5, 2.0):
        rank = stable_rank(attention(normal(600, 600), torch.eye(600, dtype=torch.float64), temperature=temperature))
        assert rank.item() == pytest.approx(math.exp(1 / temperature**2), rel=0.02)
        assert rank.item() != pytest.approx(math.exp(1 / (1.1 * temperature) ** 2), rel=0.02)


@given(n=st.integers(2, 12), extra=st.integers(0, 3), d_h=st.integers(2, 4), seed=st.integers(0, 99))
@settings(deadline=None)
def test_every_assignment_is_the_hardmax_of_some_weights_from_two_dimensions_on(n, extra, d_h, seed):
    x = torch.linalg.qr(normal(n + extra, n, seed=seed)).Q.mT + 0.1 * normal(n, n + extra, seed=seed + 1)
    assert torch.linalg.matrix_rank(x) == n
    wanted = torch.randint(n, (n,), generator=seeded(seed))
    keys = torch.nn.functional.pad(circle(n), (0, d_h - 2))
    w_q, w_k = (torch.linalg.pinv(x) @ target for target in (keys[wanted], keys))
    assert torch.equal((x @ w_q @ w_k.T @ x.T).argmax(1), wanted)


@given(q=st.lists(st.integers(-2, 2), min_size=2, max_size=9), seed=st.integers(0, 99))
def test_one_dimension_has_rank_two_and_three_with_ties(q, seed):
    q = torch.tensor(q, dtype=torch.float64)[:, None]
    k = torch.randint(-3, 4, q.shape, generator=seeded(seed)).double()
    assert hardmax_rank(q, k) <= min(len(q), 3)
    apart = k + 0.01 * torch.arange(len(k), dtype=torch.float64)[:, None]  # no two keys are equal
    assert hardmax_rank(q[q != 0][:, None], apart) <= 2 if (q != 0).any() else True
    assert hardmax_rank(torch.tensor([[0.0], [1], [-1]]), torch.tensor([[0.0], [1], [-1]])) == 3
