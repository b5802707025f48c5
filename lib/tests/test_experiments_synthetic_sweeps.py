"""experiments.synthetic_sweeps: ranks, increments and layers against plain numpy, laws of tokens and of scores."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from attnrank import theory
from attnrank.experiments import EXPERIMENTS, synthetic_sweeps
from attnrank.experiments.shared import distributions
from attnrank.inputs import tokens
from replayed_heads import distinct, gen, replay

FALSE_ALARM = 1e-6


DISTINCT = [name for name in distributions.DISTRIBUTIONS if name != "repeated_vocabulary"]


def test_the_chapter_has_the_distributions_that_it_promises():
    kinds = {kind for kind, _ in distributions.DISTRIBUTIONS.values()}
    assert kinds == {"orthonormal", "gaussian", "sphere", "uniform", "mixture", "autoregressive", "repeated_vocabulary",
                     "heavy_tailed", "anisotropic"}  # fmt: skip
    assert len(distributions.DISTRIBUTIONS) == 10 and distributions.DISTRIBUTIONS["uniform_centred"][1]["low"] == -1.0


@pytest.mark.parametrize("distribution", DISTINCT)
def test_projections_are_tokens_times_weights(distribution):
    y = distributions.projections(distribution, 9, 16, 6, gen(3)).numpy()
    assert y == pytest.approx(replay(distribution, 9, 16, 6, gen(3)), abs=1e-12)


def test_projections_of_orthonormal_tokens_have_the_law_of_tokens_times_weights():
    y = np.stack([distributions.projections("orthonormal", 3, 8, 2, gen(s)).numpy() for s in range(1500)])
    g = gen(0)
    drawn = [
        (tokens("orthonormal", 3, 8, generator=g), torch.randn(8, 2, generator=g, dtype=torch.float64))
        for _ in range(1500)
    ]
    z = np.stack([(x @ w).numpy() for x, w in drawn])
    for a, b in ((y[:, 0, 0], z[:, 0, 0]), (y[:, 0, 0] * y[:, 1, 0], z[:, 0, 0] * z[:, 1, 0])):
        assert stats.ks_2samp(a, b).pvalue > FALSE_ALARM
    with pytest.raises(ValueError, match="d must be at least n"):
        distributions.projections("orthonormal", 9, 8, 2, gen(0))


def test_copies_of_a_token_have_equal_queries_and_keys_exactly():
    x = tokens("repeated_vocabulary", 301, 37, generator=gen(5), vocabulary=50)
    y = distributions.projections("repeated_vocabulary", 301, 37, 26, gen(5))
    assert len(y.unique(dim=0)) == len(x.unique(dim=0)) <= 50
    assert y.numpy() == pytest.approx(replay("repeated_vocabulary", 301, 37, 26, gen(5)), abs=1e-12)
    result = synthetic_sweeps.synthetic_heads("repeated_vocabulary", 301, 37, 64, 4, 0)
    assert result["rank_mean"] * 301 < 50


@pytest.mark.parametrize("distribution", DISTINCT)
def test_synthetic_heads_counts_the_ranks_of_fresh_tokens_and_weights(distribution):
    n, d, d_h, samples = 12, 20, 5, 7
    generator, ranks = gen(4), []
    for _ in range(samples):
        y = replay(distribution, n, d, 2 * d_h, generator)
        ranks.append(distinct(y[:, :d_h], y[:, d_h:]) / n)
    result = synthetic_sweeps.synthetic_heads(distribution, n, d, d_h, samples, 4)
    assert result["rank_mean"] == pytest.approx(np.mean(ranks), rel=1e-12)
    assert result["rank_std"] == pytest.approx(np.std(ranks, ddof=1), rel=1e-12)
    assert result["rank_standard_error"] == pytest.approx(np.std(ranks, ddof=1) / math.sqrt(samples), rel=1e-12)


def test_the_size_of_a_batch_does_not_matter(monkeypatch):
    setting = ("gaussian", 30, 16, 6, 20, 1)
    whole = synthetic_sweeps.synthetic_heads(*setting), synthetic_sweeps.synthetic_increments(*setting)
    monkeypatch.setattr(synthetic_sweeps, "batches", lambda samples, entries, limit: [1] * samples)
    assert whole == (synthetic_sweeps.synthetic_heads(*setting), synthetic_sweeps.synthetic_increments(*setting))


def test_increments_are_of_the_same_heads_without_their_last_coordinate():
    n, d, d_h, samples = 15, 20, 3, 6
    generator, before, after = gen(2), [], []
    for _ in range(samples):
        y = replay("mixture", n, d, 2 * d_h + 2, generator)
        q, k = y[:, : d_h + 1], y[:, d_h + 1 :]
        before.append(distinct(q[:, :-1], k[:, :-1]) / n)
        after.append(distinct(q, k) / n)
    result = synthetic_sweeps.synthetic_increments("mixture", n, d, d_h, samples, 2)
    assert result["rank_mean"] == pytest.approx(np.mean(before), rel=1e-12)
    increments = np.subtract(after, before)
    assert result["increment_mean"] == pytest.approx(increments.mean(), rel=1e-12)
    assert result["increment_standard_error"] == pytest.approx(increments.std(ddof=1) / samples**0.5, rel=1e-12)


@pytest.mark.parametrize("distribution", ["gaussian", "orthonormal"])
def test_layer_averages_are_an_analysis_of_variance(distribution):
    n, d, d_h, heads, samples = 11, 20, 4, 3, 8
    generator, ranks = gen(6), np.empty((samples, heads))
    for i in range(samples):
        y = replay(distribution, n, d, 2 * heads * d_h, generator).reshape(n, 2, heads, d_h)
        ranks[i] = [distinct(y[:, 0, h], y[:, 1, h]) / n for h in range(heads)]
    result = synthetic_sweeps.layer_averages(distribution, n, d, d_h, heads, samples, 6)
    assert result["rank_mean"] == pytest.approx(ranks.mean(), rel=1e-12)
    assert result["rank_std"] == pytest.approx(ranks.mean(1).std(ddof=1), rel=1e-12)
    f = stats.f_oneway(*ranks).statistic  # between tokens over within tokens
    rho = result["correlation"]
    assert 1 + heads * rho / (1 - rho) == pytest.approx(f, rel=1e-9)
    assert (1 - rho) * result["head_variance"] == pytest.approx(ranks.var(1, ddof=1).mean(), rel=1e-9)


def test_one_head_has_no_correlation_to_report():
    result = synthetic_sweeps.layer_averages("gaussian", 11, 20, 4, 1, 8, 6)
    assert result["correlation"] is None and result["head_variance"] is None


def test_heads_on_tokens_of_width_one_agree():
    assert synthetic_sweeps.layer_averages("gaussian", 4, 1, 3, 5, 60, 0)["correlation"] == pytest.approx(
        1.0, abs=1e-12
    )


def test_two_tokens_of_two_words_have_the_correlation_one_third(monkeypatch):
    def words(kind, n, d, *, generator):
        return torch.eye(2, dtype=torch.float64)[torch.randint(2, (n,), generator=generator)]

    monkeypatch.setattr(distributions, "tokens", words)
    monkeypatch.setitem(distributions.DISTRIBUTIONS, "repeated_vocabulary", ("repeated_vocabulary", {}))
    samples, heads = 4000, 2
    result = synthetic_sweeps.layer_averages("repeated_vocabulary", 2, 2, 3, heads, samples, 1)
    # Moments of the mean of two heads: 1/4 of (variance of D) (1 + 1/3) / 2 with Var D = 3/16, all divided by n^2 = 4.
    mean, variance = 1.25 / 2, 3 / 16 / 4 * (1 + 1 / 3) / 2
    assert abs(result["rank_mean"] - mean) < stats.norm.isf(FALSE_ALARM / 2) * math.sqrt(variance / samples)
    assert result["correlation"] == pytest.approx(1 / 3, abs=stats.norm.isf(FALSE_ALARM / 2) / math.sqrt(samples))
    assert result["head_variance"] == pytest.approx(3 / 64, rel=0.1)


def test_effective_head_dim_is_the_first_order_of_the_exact_moments():
    d_h, d, length_variance = 40, 300, 0.004
    exact = (1 + 2 / d_h) * (1 + 2 / d) * (1 + length_variance) - 1 - 2 / (d * d_h)
    assert 2 / exact == pytest.approx(theory.effective_head_dim(d_h, d, length_variance), rel=1e-2)
    assert theory.effective_head_dim(64, 1e12, 0.0) == pytest.approx(64)
    assert theory.effective_head_dim(64, 128, 2 / 128) == pytest.approx(32)
    with pytest.raises(ValueError, match="length_variance must be at least"):
        theory.effective_head_dim(64, 128, -1.0)


def test_the_variance_of_a_score_has_the_moments_that_the_heuristic_uses():
    # t = |W_q W_k^T x|^2 for a token x of length 1 has the law of a product of independent chi-squares.
    d, d_h, samples, generator = 12, 5, 20_000, gen(0)
    w_q, w_k = torch.randn(2, samples, d, d_h, generator=generator, dtype=torch.float64)
    t = (w_q @ w_k[:, 0, :, None]).square().sum((-2, -1)).numpy()
    product = stats.chi2(d_h).rvs(samples, random_state=1) * stats.chi2(d).rvs(samples, random_state=2)
    assert stats.ks_2samp(t, product).pvalue > FALSE_ALARM
    assert stats.ks_2samp(t, stats.chi2(d_h).rvs(samples, random_state=1) * d).pvalue < FALSE_ALARM


def test_the_grids_reach_what_the_chapter_says():
    heads = EXPERIMENTS["synthetic_heads"].paper
    assert {s["distribution"] for s in heads} == set(distributions.DISTRIBUTIONS)
    assert {min(s[a] for s in heads) for a in ("n", "d", "d_h")} == {25, 16, 1}
    assert max(s["n"] for s in heads) == 4096 and max(s["d_h"] for s in heads) == 512
    assert max(s["d"] for s in heads if s["distribution"] != "orthonormal") == 2048
    for table in ("synthetic_heads", "synthetic_increments", "layer_averages", "random_encoders"):
        assert all(s["samples"] >= 100 for s in EXPERIMENTS[table].paper if s["n"] <= 400)
    assert {s["heads"] for s in EXPERIMENTS["layer_averages"].paper} == {1, 2, 4, 8, 16}
