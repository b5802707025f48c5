"""experiments.heads_and_weights: several heads by exact ranks, tied weights, laws of weights, positions, ascent."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from attnrank import theory
from attnrank.experiments import heads_and_weights
from attnrank.experiments.shared import distributions
from attnrank.report import student_margin


def gen(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


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


def test_ascent_reaches_full_rank_in_two_dimensions_and_two_in_one():
    assert heads_and_weights.rank_ascent(16, 2, "matching", 0)["rank_after_3000"] == 16
    assert heads_and_weights.rank_ascent(16, 1, "matching", 0)["rank_after_3000"] == 2
    with pytest.raises(ValueError, match="surrogate must be one of"):
        heads_and_weights.rank_ascent(16, 2, "luck", 0)


def test_reference_heads_and_tied_weights():
    assert [round(theory.multihead_limit(10**6, h) / 10**6, 3) for h in (1, 2, 3, 4)] == [0.632, 0.865, 0.950, 0.982]
    assert heads_and_weights.tied_heads(256, 8, 100, 1)["rank_mean"] / 256 == pytest.approx(0.452, abs=0.01)
    assert heads_and_weights.tied_heads(256, 64, 20, 1)["rank_mean"] == 256


def test_latent_head_dim_without_latents_is_that_of_an_ordinary_head():
    for normalise in (False, True):
        assert theory.latent_head_dim(128, 0, 0, 0, normalise) == pytest.approx(128)
        assert theory.latent_head_dim(96, 32, 0, 0, normalise) == pytest.approx(128)  # rotary coordinates among them
