"""experiments.almost_orthonormal: bounds against other evaluations, Gram matrices, adversary, the tables' functions."""

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import integrate, optimize, stats

from attnrank import theory
from attnrank.experiments import almost_orthonormal as module
from attnrank.experiments import random_tokens
from attnrank.experiments.experiment import Experiment
from attnrank.experiments.vit_initialisation import blocks, real_tokens


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


# Tokens that break a bound

@pytest.mark.parametrize(("tokens", "level", "smallest"), [
    ("simplex", 0.5, 0.5), ("simplex", 1.0, 0.0), ("pairs", 0.3, 0.7), ("common", 0.3, 0.7),
    ("autoregressive", 0.0, 1.0), ("circle", 1.0, 0.0), ("circles", 1.0, 0.0),
])  # fmt: skip
def test_leveled_gram_has_unit_diagonal_and_its_smallest_eigenvalue(tokens, level, smallest):
    gram = module.leveled_gram(tokens, level, 12)
    assert torch.equal(gram, gram.T) and gram.diagonal() == pytest.approx(np.ones(12))
    assert torch.linalg.eigvalsh(gram)[0].item() == pytest.approx(smallest, abs=1e-12)
    assert np.linalg.matrix_rank(gram.numpy()) == {"circle": 2, "circles": 4}.get(tokens, 12 - (smallest == 0.0))


@pytest.mark.parametrize("keys", module.KEYS)
def test_token_ranks_of_two_tokens(keys):
    row = module.token_ranks("simplex", 0.6, 2, keys, 4000, 0)
    assert row["smallest_eigenvalue"] == pytest.approx(0.4)
    exact = 1 + math.acos(-0.6) / math.pi
    assert abs(row["rank_mean"] - exact) < 4.9 * row["rank_standard_error"] < 0.04


def test_the_smallest_eigenvalue_is_what_it_is_unless_it_is_a_rounding_error():
    assert module.token_ranks("simplex", 0.95, 8, "orthonormal", 2, 0)["smallest_eigenvalue"] == pytest.approx(0.05)
    assert module.token_ranks("simplex", 1.0, 8, "orthonormal", 2, 0)["smallest_eigenvalue"] == 0.0


def test_adversarial_tokens_are_measured_on_weights_that_the_ascent_did_not_see(monkeypatch):
    gram = module.perturbed_gram("pairs", 8, 0.5, generator=seeded())
    monkeypatch.setattr(module, "adversarial_gram", lambda *_, **__: gram)
    row = module.adversarial_tokens(8, 3, 0.5, "orthonormal", 0, 50, 7)
    rank, orthonormal = module.ranks_of_gram(gram, 3, 50, generator=seeded(1007))
    assert row["rank_mean"] == rank.mean().item() and row["max_error"] == pytest.approx(0.5)
    assert row["excess_mean"] == pytest.approx((rank - orthonormal).mean().item())


def test_a_step_of_the_adversary_is_one_of_adam_up_its_surrogate():
    """The first step goes by the sign of the slope: that of the keys that are hit if each query samples one, at
    temperature 0.1 sqrt(d_h), which is taken here by finite differences."""
    n, d_h = 4, 3
    start = module.adversarial_gram(n, d_h, 1.0, start="orthonormal", steps=0, seed=5)
    after = module.adversarial_gram(n, d_h, 1.0, start="orthonormal", steps=1, seed=5)
    generator = seeded(5)
    x = torch.eye(n).double() + 0.025 * torch.randn(n, n, generator=generator, dtype=torch.float64)
    x = (x / x.norm(dim=1, keepdim=True)).numpy()
    np.testing.assert_allclose(x @ x.T, start, atol=1e-12)
    q, k = torch.randn(2, 32, n, d_h, generator=generator, dtype=torch.float64).numpy()

    def hit(x):
        scores = (x @ q) @ np.swapaxes(x @ k, 1, 2) / (0.1 * math.sqrt(d_h))
        attention = np.exp(scores - scores.max(-1, keepdims=True))
        attention /= attention.sum(-1, keepdims=True)
        return (1 - np.prod(1 - attention, axis=1)).sum(1).mean()

    slope = np.zeros((n, n))
    for place in np.ndindex(n, n):
        move = np.zeros((n, n))
        move[place] = 1e-6
        slope[place] = (hit(x + move) - hit(x - move)) / 2e-6
    moved = x + 0.1 / n * np.sign(slope)
    moved /= np.linalg.norm(moved, axis=1, keepdims=True)
    np.testing.assert_allclose(moved @ moved.T, after, atol=1e-6)
    assert hit(moved) > hit(x)


# Gram matrices

@pytest.mark.parametrize("structure", module.STRUCTURES)
def test_perturbed_gram_is_a_gram_matrix_of_the_size_asked_for(structure):
    gram = module.perturbed_gram(structure, 16, 0.05, generator=seeded())
    error = gram - torch.eye(16, dtype=torch.float64)
    assert torch.equal(gram, gram.T) and torch.equal(gram.diagonal(), torch.ones(16, dtype=torch.float64))
    assert error.abs().max().item() == pytest.approx(0.05, rel=1e-12)
    assert torch.linalg.eigvalsh(gram)[0] >= -1e-12


@pytest.mark.parametrize(("structure", "largest"), [("simplex", 1 / 511), ("common", 1.0), ("pairs", 1.0)])
def test_perturbed_gram_goes_as_far_as_eigenvalues_of_zero(structure, largest):
    """Which rounding makes negative; and no further."""
    gram = module.perturbed_gram(structure, 512, largest, generator=seeded())
    assert module.geometry(gram)["smallest_eigenvalue"] == 0.0
    assert module.geometry(gram)["operator"] == pytest.approx(511 * largest if structure != "pairs" else 1.0)
    with pytest.raises(ValueError, match="epsilon"):
        module.perturbed_gram(structure, 512, largest * (1 + 1e-6), generator=seeded())


def test_perturbed_gram_structures():
    def error(structure):
        return module.perturbed_gram(structure, 16, 0.05, generator=seeded()) - torch.eye(16, dtype=torch.float64)

    assert error("common").sum().item() == pytest.approx(0.05 * 240)
    assert error("simplex").sum().item() == pytest.approx(-0.05 * 240)
    assert error("pairs").sum().item() == pytest.approx(-0.05 * 16)
    assert error("blocks").sum().item() == pytest.approx(0.05 * 2 * 56)
    assert error("autoregressive")[2, 5].item() == pytest.approx(0.05**3)


def test_ranks_of_gram_uses_the_gram_matrix():
    """Two tokens have mean rank 1 + arccos(rho) / pi; false-alarm rate 1e-6 each."""
    for rho in (-0.8, 0.0, 0.6):
        gram = torch.tensor([[1, rho], [rho, 1]], dtype=torch.float64)
        rank, orthonormal = module.ranks_of_gram(gram, 3, 4000, generator=seeded())
        for sample, mean in ((rank, 1 + math.acos(rho) / math.pi), (orthonormal, 1.5)):
            assert abs(sample.mean() - mean) < 4.9 * sample.std() / math.sqrt(4000)


def test_ranks_of_gram_on_orthonormal_tokens_is_paired():
    rank, orthonormal = module.ranks_of_gram(torch.eye(12, dtype=torch.float64), 4, 50, generator=seeded())
    assert torch.equal(rank, orthonormal)
    lengths = torch.ones(12, dtype=torch.float64)
    lengths[0] = 1e6  # one huge key: two queries' choices, it or anything but it
    long, _ = module.ranks_of_gram(torch.eye(12, dtype=torch.float64), 4, 50, generator=seeded(), lengths=lengths)
    assert long.mean() < rank.mean()


def test_geometry_of_known_matrices():
    shape = module.geometry(module.perturbed_gram("common", 10, 0.2, generator=seeded()))
    known = {"max_error": 0.2, "frobenius": 0.2 * math.sqrt(90), "operator": 1.8, "smallest_eigenvalue": 0.8}
    assert shape == pytest.approx(known | {"mean_cosine": 0.2})


@pytest.mark.parametrize("epsilon", [0.02, 0.3, 1.0])
@pytest.mark.parametrize("start", ["orthonormal", "circle"])
def test_adversarial_gram_is_admissible(start, epsilon):
    gram = module.adversarial_gram(10, 4, epsilon, start=start, steps=15, seed=1)
    assert (gram - torch.eye(10, dtype=torch.float64)).abs().max() <= epsilon * (1 + 1e-12)
    assert torch.linalg.eigvalsh(gram)[0] >= -1e-10
    assert torch.allclose(gram.diagonal(), torch.ones(10, dtype=torch.float64))


def test_adversary_gains_rank_and_repels():
    row = module.adversarial_tokens(8, 8, 0.14, "orthonormal", 100, 4000, 0)
    assert row["excess_mean"] > 4.9 * row["excess_standard_error"]
    assert row["mean_cosine"] * 8 * 7 < -4  # more than half of the way to -n


def test_simplex_tokens_are_centred_queries():
    """Independent code: numpy, its own random numbers; false-alarm rate 1e-6."""
    row = module.simplex_tokens(6, 5000, 0)
    scores = np.random.default_rng(1).standard_normal((5000, 6, 6))
    chosen = (scores - scores.mean(axis=1, keepdims=True)).argmax(axis=2)
    rank = np.array([len(set(line)) for line in chosen.tolist()])
    error = math.hypot(row["rank_standard_error"], rank.std() / math.sqrt(5000))
    assert abs(row["rank_mean"] - rank.mean()) < 4.9 * error
    assert abs(row["rank_mean"] - row["excess_mean"] - theory.occupancy_bound(6)) < 4.9 * 2 * row["rank_standard_error"]


def test_random_tokens_of_great_width_are_as_good_as_orthonormal():
    row = random_tokens.random_tokens("sphere", 8, 20000, 4, 10, 200, 0)
    assert row["max_error"] < 0.05 and row["smallest_eigenvalue"] > 0.9
    assert row["rank_mean"] <= theory.head_dim_bound(8, 4) + 4.9 * row["rank_standard_error"]
    narrow = random_tokens.random_tokens("sphere", 8, 2, 64, 10, 200, 0)
    assert narrow["rank_mean"] < theory.head_dim_bound(8, 64) - 0.2
    assert narrow["smallest_eigenvalue"] == pytest.approx(0, abs=1e-12)


# Real tokens

def test_words_of_a_review():
    assert real_tokens.words_of("It's GOOD.<br /><br />Don't-miss it, 10/10") == ["it's", "good", "don't", "miss", "it"]


def test_repeated_words_are_equal_tokens_and_positions_tell_them_apart():
    texts = [w[:64] for w in real_tokens._word_lists("docstrings", 0) if len(w) >= 64][:5]
    x, first, _ = real_tokens._real_sequences("docstrings", 64, 0.0, 5, 0)
    for tokens, same, words in zip(x, first, texts, strict=True):
        assert same.tolist() == [words.index(word) for word in words]
        assert torch.equal(tokens, tokens[same])
        assert len(torch.unique(tokens, dim=0)) == len(set(words)) < 64
    apart, first, _ = real_tokens._real_sequences("docstrings", 64, 1.0, 5, 0)
    assert all(len(torch.unique(tokens, dim=0)) == 64 for tokens in apart)
    assert torch.equal(first, torch.arange(64).expand(5, 64))
    assert apart.mean(-1).abs().max() < 1e-12 and (apart.var(-1, correction=0) - 1).abs().max() < 1e-3


def test_rank_of_a_text_is_at_most_its_number_of_words():
    distinct = [len(set(w[:64])) for w in real_tokens._word_lists("docstrings", 0) if len(w) >= 64][:5]
    row = real_tokens.real_tokens("docstrings", 64, 0.0, 192, 5, 0)
    assert 1 <= row["rank_mean"] <= sum(distinct) / 5 and row["smallest_eigenvalue"] == 0.0


def test_real_tokens_of_digits_are_those_of_the_vision_chapter():
    row = real_tokens.real_tokens("digits", 16, real_tokens.IMAGE_POSITIONS, 8, 8, 0)
    same = blocks.vit_tokens("digits", 2, real_tokens.WIDTH, "none", 8, 0)
    assert row["mean_cosine"] == pytest.approx(same["mean_cosine"], rel=1e-9)
    assert 1 <= row["rank_mean"] <= 16


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: module.leveled_gram("circle", 0.5, 8), "level"),
        (lambda: module.leveled_gram("lattice", 0.5, 8), "tokens"),
        (lambda: module.token_ranks("simplex", 0.5, 8, "none", 10, 0), "keys"),
        (lambda: module.perturbed_gram("simplex", 10, 0.2, generator=seeded()), "epsilon"),
        (lambda: module.perturbed_gram("lattice", 10, 0.2, generator=seeded()), "structure"),
        (lambda: module.perturbed_gram("common", 1, 0.2, generator=seeded()), "n"),
        (lambda: module.adversarial_gram(5, 2, 0.0, start="circle", steps=1, seed=0), "epsilon"),
        (lambda: module.adversarial_gram(5, 2, 0.1, start="line", steps=1, seed=0), "start"),
        (lambda: real_tokens.real_tokens("digits", 15, 0.02, 8, 8, 0), "n"),
        (lambda: real_tokens.real_tokens("digits", 16, 0.5, 8, 8, 0), "positions"),
        (lambda: real_tokens.real_tokens("docstrings", 10**6, 0.0, 8, 8, 0), "sequences"),
    ],
)
def test_bad_input_is_named(call, name):
    with pytest.raises(ValueError, match=rf"^{name}\b"):
        call()


@pytest.mark.parametrize("name", sorted(module.EXPERIMENTS | real_tokens.EXPERIMENTS))
def test_grids_are_sound(name):
    experiment = (module.EXPERIMENTS | real_tokens.EXPERIMENTS)[name]
    assert isinstance(experiment, Experiment) and experiment.question.endswith("?")
    for profile in (experiment.quick, experiment.paper):
        assert len({tuple(s.items()) for s in profile}) == len(profile)


def test_every_perturbation_of_the_table_is_admissible():
    for setting in module.EXPERIMENTS["perturbed_tokens"].paper:
        if setting["d_h"] == 64:
            generator = seeded(setting["seed"])
            module.perturbed_gram(setting["structure"], setting["n"], setting["epsilon"], generator=generator)


@given(n=st.integers(2, 10**6), d=st.integers(1, 10**6), d_h=st.integers(1, 4096))
def test_token_conditions_are_their_formulas(n, d, d_h):
    row, (n, d, d_h) = module.token_conditions(n, d, d_h), (mpmath.mpf(k) for k in (n, d, d_h))
    expected = {
        "paper": 1 / (n * mpmath.sqrt(n) * (d + d_h)),
        "total_variation": 1 / (n**2 * mpmath.sqrt(d_h)),
        "ratio": (d + d_h) / mpmath.sqrt(n * d_h),
        "effective_queries": 1 / n**2,
        "small_cosines": 1 / (n * mpmath.log(n) ** 3),
        "noise_stability": 1 / (n * mpmath.log(n)),
        "vanishing": 1 / n,
        "random_directions": mpmath.sqrt(4 * mpmath.log(n) / d),
    }
    assert row == pytest.approx({name: float(value) for name, value in expected.items()}, rel=1e-12)
    if d >= n:
        assert row["ratio"] >= 2 * math.sqrt(d / n) * (1 - 1e-12) >= 2 * (1 - 1e-12)


def equal_cells(n, mu):
    """n cells of measure 1/n under queries whose share mu is common: the mean by Simpson's rule over that share."""
    z = np.linspace(-12, 12, 200_001)
    shifted = (stats.norm.ppf(1 / n) + math.sqrt(mu) * z) / math.sqrt(1 - mu)
    return -n * math.expm1(n * integrate.simpson(stats.norm.logsf(shifted) * stats.norm.pdf(z), x=z))


@given(n=st.integers(2, 10**6), parts=st.integers(2, 50))
@settings(max_examples=20)
def test_eigenvalue_bounds_against_other_quadrature(n, parts):
    row = module.eigenvalue_bounds(n, 1 / parts)
    with mpmath.workdps(40):
        chance = 1 - mpmath.mpf(1) / n
        assert row["barrier"] == pytest.approx(float(n * (1 - chance**n)), rel=1e-12)
        assert row["effective_queries"] == pytest.approx(float(n * (1 - chance ** (n * parts))), rel=1e-12)
    assert row["noise_stability"] == pytest.approx(equal_cells(n, 1 - 1 / parts), rel=1e-7)


@given(n=st.integers(2, 10**6), parts=st.integers(1, 50))
def test_effective_queries_are_as_many_balls_in_the_same_cells(n, parts):
    """For an eigenvalue 1 / k the bound is the barrier of k n queries and n keys."""
    assert theory.effective_queries_bound(n, 1 / parts) == pytest.approx(
        theory.occupancy_bound(n * parts, n), rel=1e-12
    )
    assert theory.effective_queries_bound(n, 0.0) == n
    row = module.eigenvalue_bounds(n, 1 / parts)
    mu = 1 - 1 / parts
    # Never below the barrier, and at most (1 - 1/e) n + 4 / (1 - mu) n^{2 mu / (1 + mu)}.
    closed = n - n / math.e + 4 * parts * n ** (2 * mu / (1 + mu))
    assert theory.occupancy_bound(n) * (1 - 1e-9) <= row["noise_stability"] <= closed * (1 + 1e-9)


@given(n=st.integers(2, 10**9), scale=st.floats(1e-4, 5), share=st.floats(0.01, 1))
@example(n=3, scale=1.0, share=0.125)  # the largest quotient is not where the two entries of the minimum cross
@settings(deadline=None, max_examples=40)
def test_small_cosine_bound_covers_the_largest_excess(n, scale, share):
    largest = min(0.5, scale / n)
    total = share * n * (n - 1) * largest / 2
    log_p = np.linspace(-2 * math.log(n) - 12, -1e-9, 30_001)
    log_isoperimetric = stats.norm.logpdf(stats.norm.isf(np.exp(log_p)))
    log_pairs = math.log(6 * total * math.log(n)) + 2 / (1 + largest) * log_isoperimetric
    log_missed = n * np.log(-np.expm1(log_p))
    excess = math.exp((np.minimum(log_missed, log_pairs) - log_p).max())
    bound = theory.small_cosine_bound(n, largest, total)
    assert bound <= min(n, theory.occupancy_bound(n) + 1.01 * excess + total / (4 * n)) * (1 + 1e-9)
    assert bound >= min(n, theory.occupancy_bound(n) + excess + total / (4 * n)) * (1 - 1e-9)
    assert theory.occupancy_bound(n) <= bound <= n
    assert theory.small_cosine_bound(n, 0.0) == pytest.approx(theory.occupancy_bound(n), rel=1e-12)


@pytest.mark.parametrize(("n", "largest"), [(10**4, 1e-6), (10**6, 1e-8), (10**9, 1e-12)])
def test_small_cosine_bound_holds_between_the_nodes_of_its_grid(n, largest):
    """The largest quotient is where its two entries cross, and that is at no node."""
    total = n * (n - 1) * largest / 2

    def log_entries(log_p):
        p = math.exp(log_p)
        isoperimetric = stats.norm.logpdf(stats.norm.isf(p))
        return n * math.log1p(-p), math.log(6 * total * math.log(n)) + 2 / (1 + largest) * isoperimetric

    crossing = optimize.brentq(lambda x: np.subtract(*log_entries(x)), -math.log(n), -math.log(n) + 4, xtol=1e-14)
    excess = math.exp(log_entries(crossing)[0] - crossing)
    assert math.exp(crossing) > 2 / n and excess < n / 4
    bound = theory.small_cosine_bound(n, largest)
    assert excess <= bound - theory.occupancy_bound(n) - total / (4 * n) <= 1.05 * excess
    assert theory.small_cosine_bound(n, largest, total) == bound > theory.small_cosine_bound(n, largest, total / 2)


def test_small_cosine_bound_grows_like_log_cubed_at_one_over_n():
    excess = [theory.small_cosine_bound(10**k, 10.0**-k) - theory.occupancy_bound(10**k) for k in (8, 10, 12)]
    cubes = [math.log(10**k) ** 3 for k in (8, 10, 12)]
    ratio = np.divide(excess, cubes)
    assert (np.diff(ratio) > 0).all() and ratio.max() < 6  # 6 is the limit
    assert math.log(excess[2] / excess[1], 100) < 0.2  # and no power of n


def test_simplex_first_order_by_exact_means():
    means = {2: 1 / math.sqrt(math.pi), 3: 1.5 / math.sqrt(math.pi)}  # of the largest of 2 and of 3 normal numbers
    for n, mean in means.items():
        assert theory.simplex_first_order(n) == pytest.approx(n * mean**2 / (2 * (n - 1)) * (1 - 1 / n) ** (n - 2))
    large = np.random.default_rng(0).standard_normal((20_000, 100)).max(1)
    mean, error = large.mean(), large.std() / math.sqrt(20_000)
    root = math.sqrt(theory.simplex_first_order(100) * 2 * 99 / 100 / 0.99**98)
    assert abs(root - mean) < 4.9 * error


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: module.token_conditions(1, 8, 4), "n"),
        (lambda: module.token_conditions(8, 0, 4), "d"),
        (lambda: module.token_conditions(8, 8, 0), "d_h"),
        (lambda: theory.simplex_first_order(1), "n"),
        (lambda: theory.effective_queries_bound(0, 0.5), "n"),
        (lambda: theory.effective_queries_bound(8, 1.5), "smallest"),
        (lambda: theory.small_cosine_bound(1, 0.1), "n"),
        (lambda: theory.small_cosine_bound(8, 0.6), "largest"),
        (lambda: theory.small_cosine_bound(8, -0.1), "largest"),
        (lambda: theory.small_cosine_bound(8, 0.1, 2.81), "total"),  # 28 pairs
        (lambda: theory.small_cosine_bound(8, 0.1, -0.1), "total"),
    ],
)
def test_bad_input_of_conditions_and_bounds_is_named(call, name):
    with pytest.raises(ValueError, match=rf"^{name} must"):
        call()
