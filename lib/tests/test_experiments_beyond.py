"""Chapter 05: its bounds against independent computations, its experiments, the facts that it must reproduce."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch
from scipy import integrate, special, stats

from attnrank import hardmax_rank, theory
from attnrank.experiments import EXPERIMENTS, depth, heads_and_weights, masks, random_tokens, softmax
from attnrank.experiments.shared import distributions
from attnrank.inputs import tokens
from attnrank.report import bernstein_margin, student_margin
from attnrank.scores import gaussian_weights


def gen(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# Bounds against independent computations -----------------------------------------------------------------------------


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


def components(edges: list[tuple[int, int]]) -> int:
    """Rank of the bipartite incidence matrix: edges that join two different components, one after the other."""
    parent: dict[object, object] = {}

    def root(v):
        while parent.setdefault(v, v) != v:
            v = parent[v]
        return v

    joined = 0
    for a, b in edges:
        u, v = root(("left", a)), root(("right", b))
        joined += u != v
        parent[u] = v
    return joined


def test_two_heads_side_by_side_have_the_rank_of_a_spanning_forest():
    n, samples, ranks = 40, 300, []
    for choice in torch.randint(n, (samples, 2, n), generator=gen(0)):
        a = torch.cat([torch.nn.functional.one_hot(c, n) for c in choice], -1).double()
        rank = int((torch.linalg.svdvals(a) > heads_and_weights.ZERO).sum())
        assert rank == components(list(zip(*choice.tolist())))
        ranks.append(n - rank)
    margin = student_margin(np.std(ranks) / samples**0.5, samples)
    assert np.mean(ranks) <= theory.two_head_deficit(n) + margin
    assert theory.two_head_deficit(2) == pytest.approx(0.25)  # the two rows are equal
    growth = theory.two_head_deficit(10**6) - theory.two_head_deficit(10**5)
    assert growth == pytest.approx(math.log(10) / 4, rel=5e-3)


def exact_rank_of(matrix: list[list[int]]) -> int:
    rows, rank = [[Fraction(v) for v in row] for row in matrix], 0
    for column in range(len(rows[0])):
        pivot = next((i for i in range(rank, len(rows)) if rows[i][column]), None)
        if pivot is None:
            continue
        rows[rank], rows[pivot] = rows[pivot], rows[rank]
        for i in range(rank + 1, len(rows)):
            factor = rows[i][column] / rows[rank][column]
            rows[i] = [a - factor * b for a, b in zip(rows[i], rows[rank])]
        rank += 1
    return rank


@pytest.mark.parametrize("heads", [1, 2, 3])
def test_many_heads_counts_exact_ranks(heads):
    n, d_h = 12, 3
    result = heads_and_weights.many_heads(n, d_h, heads, 2, 5)
    generator, exact = gen(5), {"vertical": [], "horizontal": [], "sum": []}
    for _ in range(2):
        q, k = torch.randn(2, heads, n, d_h, generator=generator, dtype=torch.float64)
        a = torch.nn.functional.one_hot((q @ k.mT).argmax(-1), n)
        exact["vertical"].append(exact_rank_of(a.reshape(-1, n).tolist()))
        exact["horizontal"].append(exact_rank_of(torch.cat(list(a), -1).tolist()))
        exact["sum"].append(exact_rank_of(a.sum(0).tolist()))
    for name, ranks in exact.items():
        assert result[f"{name}_mean"] == np.mean(ranks)


def test_tied_bound_is_the_probability_of_choosing_oneself():
    for n, d_h in ((2, 1), (50, 3), (256, 8)):
        def density(r, n=n, d_h=d_h):
            return stats.chi.pdf(r, d_h) * stats.norm.cdf(r) ** (n - 1)

        expected = integrate.quad(density, 0, np.inf, epsabs=1e-13)[0]
        assert theory.tied_bound(n, d_h) == pytest.approx(n * expected, rel=1e-8)
    result = heads_and_weights.tied_heads(64, 6, 400, 0)
    margin = student_margin(result["selves_standard_error"], 400, cases=2)
    assert abs(result["selves_mean"] - theory.tied_bound(64, 6)) <= margin
    for n, d_h in ((64, 10), (1024, 24)):  # the elementary form
        assert theory.tied_bound(n, d_h) >= n * (1 - (n - 1) / 2 * 2 ** (-d_h / 2))


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


def test_gap_density_is_the_slope_of_the_gap_at_zero():
    assert theory.gap_density(2) == pytest.approx(1 / math.sqrt(math.pi), rel=1e-10)
    best = np.sort(np.random.default_rng(0).standard_normal((100_000, 50)), 1)
    share = np.mean(best[:, -1] - best[:, -2] < 0.02)
    error = math.sqrt(share / 100_000)
    # To second order the share is rate h - c h^2; h = 0.02 makes that 1 %.
    margin = bernstein_margin(error, 100_000, 1.0, cases=2)
    assert abs(share - 0.02 * theory.gap_density(50)) <= margin + 0.03 * share


@pytest.mark.parametrize(
    "shape", [(16, 0, 0, 0, False), (16, 8, 96, 32, True), (16, 8, 96, 32, False), (16, 0, 0, 8, True)]
)
def test_latent_head_dim_is_the_spread_of_the_variance_of_scores(shape):
    content, rotary, query_latent, key_latent, normalise = shape
    rng, spreads = np.random.default_rng(1), []
    for _ in range(60):
        width = content + rotary
        w_q = rng.standard_normal((query_latent or width, width)) / math.sqrt(query_latent or width)
        sigma = w_q.T @ w_q if query_latent else np.eye(width)
        z = rng.standard_normal((4000, key_latent or content))
        if normalise and key_latent:
            z *= math.sqrt(key_latent) / np.linalg.norm(z, axis=1, keepdims=True)
        k = z @ rng.standard_normal((key_latent, content)) / math.sqrt(key_latent) if key_latent else z
        rotated = rng.standard_normal((4000, rotary))
        # Rotations of different rows average the cross terms of content and rotary parts away.
        variance = np.einsum("id,de,ie->i", k, sigma[:content, :content], k)
        variance += np.einsum("id,de,ie->i", rotated, sigma[content:, content:], rotated)
        spreads.append(2 * variance.mean() ** 2 / variance.var())
    assert np.mean(spreads) == pytest.approx(theory.latent_head_dim(*shape), rel=0.06)


# Experiments ---------------------------------------------------------------------------------------------------------


def test_rotary_positions_are_rotations_that_see_differences_only():
    x = torch.randn(1, 8, generator=gen(0), dtype=torch.float64).expand(20, 8)
    y = torch.randn(1, 8, generator=gen(1), dtype=torch.float64).expand(20, 8)
    a, b = distributions.rotate(x), distributions.rotate(y)
    torch.testing.assert_close(a.norm(dim=-1), x.norm(dim=-1))
    scores = a @ b.T
    torch.testing.assert_close(scores[1:, 1:], scores[:-1, :-1])
    assert not torch.allclose(scores[1:], scores[:-1])
    with pytest.raises(ValueError, match="x must have an even"):
        distributions.rotate(torch.zeros(3, 5, dtype=torch.float64))


@pytest.mark.parametrize("law", heads_and_weights.LAWS)
def test_weights_have_their_law(law):
    w = heads_and_weights.draw_weights(law, 400, 16, gen(0))
    assert w.shape == (400, 16)
    assert torch.linalg.matrix_rank(w) == (4 if law == "low_rank" else 16)
    if law == "orthogonal":
        torch.testing.assert_close(w.T @ w, torch.eye(16, dtype=torch.float64))
    if law == "rademacher":
        assert set(w.flatten().tolist()) == {-1.0, 1.0}
    if law == "cauchy":  # quartiles at -1 and 1
        assert (w.abs() < 1).double().mean().item() == pytest.approx(0.5, abs=0.05)


def test_keys_of_unit_length_bring_the_laws_together():
    rows = [
        heads_and_weights.weight_laws(64, 64, 8, law, "one_hot", 60, 0) for law in ("gaussian", "student", "cauchy")
    ]
    ranks, unit = ([row[f"{name}_mean"] / 64 for row in rows] for name in ("rank", "unit_keys"))
    assert max(ranks) - min(ranks) > 0.2 > max(unit) - min(unit)
    assert min(unit) > max(ranks)


def test_window_heads_equal_masked_ranks():
    full = masks.window_heads(16, 4, 16, True, 10, 3)
    assert full == masks.causal_heads(16, 4, 10, 3)
    assert masks.window_heads(16, 4, 1, False, 10, 3)["rank_mean"] == 16


def test_anisotropic_heads_approach_their_limit():
    heads = random_tokens.anisotropic_heads(32, 2000, 0.5, 300, 0)
    limit = random_tokens.anisotropic_limit(32, 0.5, 2000, 0)
    error = math.hypot(heads["rank_standard_error"], limit["rank_standard_error"])
    loss = 32 * theory.lognormal_variance(32, 2000)  # what d_h = 2000 can cost at most
    assert abs(heads["rank_mean"] - limit["rank_mean"]) <= student_margin(error, 300, cases=2) + loss


def test_exact_rank_of_a_softmax_is_n():
    for d_h, temperature in ((1, 0.1), (1, 10.0), (3, 1.0)):
        row = softmax.exact_rank(10, d_h, temperature, 200, 1)
        assert row["exact"] == 10
        assert row["float32"] <= row["float64"] <= 10
    singular = mpmath.matrix([[1, 2, 3], [2, 4, 6], [1, 0, 1]])
    assert sum(p > 1e-10 for p in softmax._pivots(singular)) == 2


def test_depth_ranks_marks_what_rounding_decides():
    row = depth.depth_ranks(16, 16, 8, False, 1.0, 8, 4, 0)
    assert row["hardmax_1"] is not None and row["hardmax_8"] is None
    assert row["residual_8"] < 1e-6 < row["residual_1"]


def test_ascent_reaches_full_rank_in_two_dimensions_and_two_in_one():
    assert heads_and_weights.rank_ascent(16, 2, "matching", 0)["rank_after_3000"] == 16
    assert heads_and_weights.rank_ascent(16, 1, "matching", 0)["rank_after_3000"] == 2
    with pytest.raises(ValueError, match="surrogate must be one of"):
        heads_and_weights.rank_ascent(16, 2, "luck", 0)


@pytest.mark.parametrize(
    "name", [name for part in (masks, heads_and_weights, softmax, depth, random_tokens) for name in part.EXPERIMENTS]
)
def test_quick_settings_run(name):
    experiment = EXPERIMENTS[name]
    row = experiment.function(**experiment.quick[0])
    assert row and not set(row) & set(experiment.quick[0])
    assert row == experiment.function(**experiment.quick[0])


# The stated bounds at random settings, false-alarm rate 1e-6 over all ------------------------------------------------


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


@pytest.mark.parametrize(("n", "d_h"), [(2, 1), (9, 1), (40, 3)])
def test_causal_barrier_for_any_keys_holds_and_is_reached(n, d_h):
    samples = 2000
    growing = torch.arange(1.0, n + 1, dtype=torch.float64) * (-1.0) ** torch.arange(1, n + 1)
    k = torch.randn(d_h, generator=gen(0), dtype=torch.float64) * growing[:, None]
    q = torch.randn(samples, n, d_h, generator=gen(1), dtype=torch.float64)
    rank = hardmax_rank(q, k.expand(samples, n, d_h), causal=True).double()
    margin = theory.occupancy_margin(n, 1e-6 / 6, samples)  # McDiarmid
    assert abs(rank.mean().item() - theory.causal_bound(n)) <= margin


# Reference values of the facts ---------------------------------------------------------------------------------------


def test_reference_causal():
    for d_h, value in {2: 0.177, 4: 0.290, 8: 0.380, 16: 0.434, 64: 0.486, 512: 0.504}.items():  # 2: not .174
        assert masks.causal_heads(100, d_h, 300, 0)["rank_mean"] / 100 == pytest.approx(value, abs=0.006)


def test_reference_heads_and_tied_weights():
    assert [round(theory.multihead_limit(10**6, h) / 10**6, 3) for h in (1, 2, 3, 4)] == [0.632, 0.865, 0.950, 0.982]
    assert heads_and_weights.tied_heads(256, 8, 100, 1)["rank_mean"] / 256 == pytest.approx(0.452, abs=0.01)
    assert heads_and_weights.tied_heads(256, 64, 20, 1)["rank_mean"] == 256


def test_reference_softmax():
    warm = softmax.softmax_phase(100, 64, 1.0, 10, 1)
    assert warm["rank_fraction_at_default"] == 1.0
    assert warm["rank_fraction_at_0_1"] == pytest.approx(0.40, abs=0.01)
    assert warm["rank_fraction_at_0_5"] == pytest.approx(0.01, abs=0.002)
    for temperature, value in {0.01: 0.60, 0.001: 0.59}.items():
        row = softmax.softmax_phase(100, 64, temperature, 60, 1)
        assert row["rank_fraction_at_0_1"] == pytest.approx(value, abs=0.015)
    for temperature, value in {2.0: 1.28, 1.0: 2.64}.items():  # 1: not 2.70
        row = softmax.stable_heads(400, 2048, temperature, 3, 1)
        assert row["stable_mean"] == pytest.approx(value, rel=0.015)


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
