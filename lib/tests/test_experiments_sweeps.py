"""Chapter 06: its experiments against plain numpy, its rules on curves drawn by hand, its statistics on known laws."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from attnrank import theory
from attnrank.experiments import EXPERIMENTS, depth, growth, synthetic_sweeps
from attnrank.experiments.shared import distributions
from attnrank.inputs import tokens
from attnrank.models import Encoder, TransformerConfig
from attnrank.report import growth as report_growth

FALSE_ALARM = 1e-6


def gen(seed):
    return torch.Generator().manual_seed(seed)


def distinct(q, k):
    """Rank of the hardmax of q k^T, for tokens without copies."""
    return len(np.unique((q @ k.T).argmax(-1)))


def replay(distribution, n, d, width, generator):
    """Tokens and weights in the order in which the experiments draw them, multiplied by numpy."""
    if distribution == "orthonormal":
        return torch.randn(n, width, generator=generator, dtype=torch.float64).numpy()
    kind, options = distributions.DISTRIBUTIONS[distribution]
    x = tokens(kind, n, d, generator=generator, **options).numpy()
    return x @ torch.randn(d, width, generator=generator, dtype=torch.float64).numpy()


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


# ------------------------------------------------------------------------------------------------ averages over heads


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


# ------------------------------------------------------------------------------------------------------ effective width


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


# ---------------------------------------------------------------------------------------------------------------- rules


def test_rules_on_curves_drawn_by_hand():
    curve = [0.1, 0.3, 0.4, 0.405, 0.5]
    assert theory.increment_stop(curve, 0.01) == 3.0  # though the next step is large again
    assert theory.increment_stop(curve, 0.15) == 2.0 and theory.increment_stop(curve, 0.001) is None
    assert theory.gap_stop([1, 2, 4, 8, 16], curve, 0.35) == pytest.approx(2 * math.sqrt(2))
    assert theory.gap_stop([1, 2, 4, 8, 16], curve, 0.05) == 1.0
    assert theory.gap_stop([1, 2, 4, 8, 16], curve, 0.6) is None


def test_the_crossing_of_increments_is_exact_without_noise_and_unbiased_with_it():
    d_h = np.array([2.0, 3, 5, 7, 9, 11, 13, 16, 20, 24])
    true = 0.3 / d_h - 1.2 / d_h**2 + 1.3 / d_h**3
    true[0] = 0.01  # before the largest increment: left out
    found, error = report_growth.increment_crossing(d_h, true, np.full(10, 1e-3), 0.0125)
    assert 0.3 / found - 1.2 / found**2 + 1.3 / found**3 == pytest.approx(0.0125, rel=1e-5)
    noise = np.random.default_rng(0).normal(size=(600, 10)) * 3e-4
    noise[:, :3] = 0.0
    many = np.array([report_growth.increment_crossing(d_h, true + row, np.full(10, 3e-4), 0.0125) for row in noise])
    assert (
        abs(many[:, 0].mean() - found)
        < stats.norm.isf(FALSE_ALARM / 2) * many[:, 0].std() / math.sqrt(600) + 0.05 * error
    )
    assert many[:, 0].std() <= 1.2 * many[:, 1].mean()  # three of the points have no noise


def test_increments_that_do_not_cross_and_bad_increments():
    d_h, error = [1.0, 2, 3, 4, 5], [1e-3] * 5
    assert report_growth.increment_crossing(d_h, [0.1, 0.09, 0.08, 0.07, 0.06], error, 0.01) is None
    assert report_growth.increment_crossing(d_h, [0.001, 0.002, 0.01, 0.1, 0.001], error, 0.01) is None  # two points
    with pytest.raises(ValueError, match="d_h must increase"):
        report_growth.increment_crossing([1.0, 1, 3, 4, 5], [0.1] * 5, error, 0.01)


increments = st.lists(st.floats(-0.05, 0.2), min_size=2, max_size=30)


@settings(max_examples=200, deadline=None)
@given(true=increments, noise=st.floats(1e-4, 0.05), seed=st.integers(0, 2**32 - 1))
def test_the_rule_stops_within_the_interval_that_noise_allows(true, noise, seed):
    true = np.array([*true, -0.1])  # so that it stops
    error = np.random.default_rng(seed).uniform(-noise, noise, len(true)) * 0.999
    first, last = theory.stop_interval(true, 0.01, noise)
    stop = theory.increment_stop(np.concatenate([[0.0], np.cumsum(true + error)]), 0.01)
    assert first <= stop <= last


def test_stop_interval_says_when_a_stop_is_not_certain():
    assert theory.stop_interval([0.1, 0.012], 0.01, 0.005) == (2, None)
    assert theory.stop_interval([0.1, 0.02, 0.004], 0.01, 0.005) == (3, 3)
    with pytest.raises(ValueError, match="increments must fall to threshold"):
        theory.stop_interval([0.1, 0.02], 0.01, 0.005)


def test_as_many_seeds_as_bernstein_asks_keep_the_noise_within_bounds():
    noise, variance, comparisons, failure = 0.1, 0.01, 5, 0.2
    seeds = theory.seeds_needed(noise, variance, comparisons, failure)
    assert seeds == math.ceil((0.02 + 0.4 / 3) / 0.01 * math.log(50))
    draws = np.random.default_rng(0).choice([-0.1, 0.1], size=(400, comparisons, seeds))  # variance 0.01
    outside = (abs(draws.mean(-1)) > noise).any(-1).sum()
    assert stats.binom.sf(outside - 1, 400, failure) > FALSE_ALARM
    with pytest.raises(ValueError, match="failure"):
        theory.seeds_needed(0.1, 0.01, 5, 0.0)


@pytest.mark.parametrize("design", growth.DESIGNS)
def test_saturation_trials_apply_both_rules_to_one_measured_curve(design, monkeypatch):
    monkeypatch.setattr(growth, "STEPS", (1, 2, 3, 4, 5, 6))
    monkeypatch.setattr(growth, "HEAD_DIMS", (1, 2, 3, 4, 5, 6, 12, 24))
    dims, n, d, repetitions = (1, 2, 3, 4, 5, 6, 12, 24), 14, 30, 9
    generator, curve = gen(11), np.zeros(len(dims))
    for _ in range(repetitions):
        y = replay("gaussian", n, d, 2 * (sum(dims) if design == "independent" else 24), generator)
        start = 0
        for i, d_h in enumerate(dims):
            if design == "independent":
                q, k = y[:, start : start + d_h], y[:, start + d_h : start + 2 * d_h]
                start += 2 * d_h
            else:
                q, k = y[:, :d_h], y[:, 24 : 24 + d_h]
            curve[i] += distinct(q, k) / n / repetitions
    result = growth.saturation_trial("gaussian", n, d, design, repetitions, 11)
    assert result["increment_d_h"] == theory.increment_stop(curve[:6], 0.01)
    expected = theory.gap_stop(dims, curve, theory.occupancy_bound(n) / n - 0.1)
    assert result["gap_d_h"] == (None if expected is None else pytest.approx(expected, rel=1e-9))


# ---------------------------------------------------------------------------------------------------------------- depth


def test_random_encoders_measure_every_layer_of_the_forward_pass():
    n, d, heads, d_h, samples = 10, 16, 2, 4, 2
    result = depth.random_encoders("gaussian", n, d, heads, d_h, "lecun", samples, 3)
    generator, ranks, cosines = gen(3), [], []
    for _ in range(samples):
        x = tokens("gaussian", n, d, generator=generator)
        encoder = Encoder(TransformerConfig(d, heads, d_h, 8, init="lecun"), generator)
        x = x / x.square().mean().sqrt()
        with torch.no_grad():
            pairs = encoder.queries_keys(x)
            ranks.append([np.mean([distinct(q.numpy(), k.numpy()) for q, k in zip(*pair)]) / n for pair in pairs])
            y = encoder.blocks[0].norm1(x).numpy()
        unit = y / np.linalg.norm(y, axis=1, keepdims=True)
        cosines.append((unit @ unit.T)[np.triu_indices(n, 1)].mean())
    ranks = np.array(ranks)
    for layer in range(8):
        assert result[f"rank_{layer + 1}"] == pytest.approx(ranks[:, layer].mean(), rel=1e-12)
        assert result[f"rank_std_{layer + 1}"] == pytest.approx(ranks[:, layer].std(ddof=1), rel=1e-9)
    assert result["cosine_1"] == pytest.approx(np.mean(cosines), rel=1e-9)


def test_random_encoders_refuse_tokens_with_copies():
    with pytest.raises(ValueError, match="distribution must not repeat tokens"):
        depth.random_encoders("repeated_vocabulary", 10, 16, 2, 4, "lecun", 2, 3)


# --------------------------------------------------------------------------------------------------------------- tables


def test_the_grids_are_those_of_the_issue():
    heads = EXPERIMENTS["synthetic_heads"].paper
    assert {s["distribution"] for s in heads} == set(distributions.DISTRIBUTIONS)
    assert {min(s[a] for s in heads) for a in ("n", "d", "d_h")} == {25, 16, 1}
    assert max(s["n"] for s in heads) == 4096 and max(s["d_h"] for s in heads) == 512
    assert max(s["d"] for s in heads if s["distribution"] != "orthonormal") == 2048
    for table in ("synthetic_heads", "synthetic_increments", "layer_averages", "random_encoders"):
        assert all(s["samples"] >= 100 for s in EXPERIMENTS[table].paper if s["n"] <= 400)
    assert {s["heads"] for s in EXPERIMENTS["layer_averages"].paper} == {1, 2, 4, 8, 16}
