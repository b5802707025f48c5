"""theory: the two sides of the barrier resolved by head dimension, causal masks, many heads, perturbed tokens."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from attnrank import hardmax_rank, theory
from attnrank.theory import causal, lower_bound
from attnrank.theory.lower_bound import log_moment_ratio

QUANTILE = 4.9  # Phi(-4.9) < 1e-6 / 2


def random_heads(n, d_h, samples, seed=0):
    """Queries and keys of random heads on orthonormal tokens: i.i.d. Gaussian."""
    generator = torch.Generator().manual_seed(seed + 1000 * n + d_h)
    return torch.randn(2, samples, n, d_h, generator=generator, dtype=torch.float64)


def mean_and_margin(values):
    return float(values.mean()), QUANTILE * float(values.std()) / math.sqrt(len(values))


# Reference values of the expected rank / n, by simulation; "-" where none is known. Their noise is about 0.002.
HEAD_DIMS = (1, 2, 4, 8, 16, 32, 64, 128, 192, 512)
SIMULATED = {
    16: (0.125, 0.316, 0.474, 0.557, 0.600, 0.623, 0.632, 0.639, 0.642, 0.641),
    64: (0.031, 0.120, 0.285, 0.426, 0.519, 0.574, 0.606, 0.620, 0.626, 0.633),
    100: (0.020, 0.085, 0.231, 0.384, 0.489, 0.554, 0.591, 0.615, 0.621, 0.628),
    256: (0.008, 0.038, 0.141, 0.296, 0.420, 0.512, 0.567, 0.599, 0.609, 0.625),
    1024: (0.002, 0.011, 0.063, 0.184, 0.321, 0.437, 0.521, 0.571, 0.592, 0.616),
}


@pytest.mark.parametrize("n", SIMULATED)
def test_the_two_bounds_hold_the_simulated_values(n):
    for d_h, value in zip(HEAD_DIMS, SIMULATED[n], strict=True):
        lower, upper = theory.head_dim_lower_bound(n, d_h) / n, theory.head_dim_bound(n, d_h) / n
        assert lower - 0.0025 <= value <= upper + 0.0025


@pytest.mark.parametrize(
    ("n", "d_h", "value"),
    [(16, 8, 0.557), (64, 2, 0.120), (64, 32, 0.574), (100, 16, 0.489), (100, 192, 0.621), (256, 64, 0.567),
     (1024, 8, 0.184)],
)  # fmt: skip
def test_random_heads_lie_between_the_two_bounds(n, d_h, value):
    mean, margin = mean_and_margin(hardmax_rank(*random_heads(n, d_h, 64000 // n)).double() / n)
    lower, upper = theory.head_dim_lower_bound(n, d_h) / n, theory.head_dim_bound(n, d_h) / n
    assert lower - margin <= mean <= upper + margin
    assert abs(mean - value) <= margin + 0.0025
    if d_h >= 16:
        assert lower > 0.97 * upper
        tied = random_heads(n, d_h, 50)[0]  # the negative control: queries that are their own keys
        assert float(hardmax_rank(tied, tied).double().mean()) / n > upper


@given(n=st.integers(1, 10**6), d_h=st.integers(1, 2000))
@settings(max_examples=25, deadline=None)
def test_the_lower_bound_is_below_the_upper_bound(n, d_h):
    lower, upper = theory.head_dim_lower_bound(n, d_h), theory.head_dim_bound(n, d_h)
    assert 1 <= lower <= upper * (1 + 1e-6)
    assert theory.head_dim_lower_bound(n, 2 * d_h) >= lower * (1 - 2e-3)


def test_the_two_bounds_meet_for_many_tokens():
    lengths = (64, 1024, 4096, 10**6, 10**12)
    gaps = [1 - theory.head_dim_lower_bound(n, 64) / theory.head_dim_bound(n, 64) for n in lengths]
    assert all(np.diff(gaps) < 0) and gaps[2] < 2e-3 and gaps[-1] < 2e-4


@pytest.mark.parametrize(("n", "expected"), [(1, 1), (2, 1.5), (5, 2 - 2**-4), (40, 2 - 2**-39)])
def test_the_lower_bound_is_exact_at_head_dimension_one(n, expected):
    assert theory.head_dim_lower_bound(n, 1) == expected
    if n == 5:
        mean, margin = mean_and_margin(hardmax_rank(*random_heads(n, 1, 4000)).double())
        assert abs(mean - expected) <= margin


def test_the_lower_bound_of_two_tokens_is_exact():
    assert [theory.head_dim_lower_bound(2, d_h) for d_h in (1, 2, 64)] == [1.5, 1.5, 1.5]


@pytest.mark.parametrize(("n", "d_h", "accuracy"), [(5, 2, 5e-3), (64, 3, 2e-3), (10**6, 12, 1e-4), (1024, 64, 1e-4)])
def test_the_lower_bound_stays_when_its_rules_are_finer(monkeypatch, n, d_h, accuracy):
    value, panels, rule = theory.head_dim_lower_bound(n, d_h), lower_bound.gauss_legendre, special.roots_jacobi
    monkeypatch.setattr(lower_bound, "NODES", 27)
    monkeypatch.setattr(lower_bound, "gauss_legendre", lambda edges, order: panels(edges, order=2 * order))
    monkeypatch.setattr(lower_bound.scipy.special, "roots_jacobi", lambda nodes, *powers: rule(2 * nodes, *powers))
    assert value == pytest.approx(theory.head_dim_lower_bound(n, d_h), rel=accuracy)
    monkeypatch.setattr(lower_bound, "NODES", 9)  # the negative control
    assert n < 10**6 or value != pytest.approx(theory.head_dim_lower_bound(n, d_h), rel=accuracy)


@pytest.mark.parametrize(("n", "d_h"), [(16, 3), (64, 2), (64, 8), (128, 32)])
def test_cell_second_moment_is_n_times_the_chance_of_a_shared_key(n, d_h):
    q, k = random_heads(n, d_h, 600)
    counts = torch.nn.functional.one_hot((q @ k.mT).argmax(-1), n).sum(-2).double()
    shared = n * (counts * (counts - 1)).sum(-1) / (n * (n - 1))  # unbiased: pairs of queries that share a key
    mean, margin = mean_and_margin(shared)
    assert abs(mean - theory.cell_second_moment(n, d_h)) <= margin
    assert margin < 0.1 * mean


@pytest.mark.parametrize(("n", "d_h", "expected"), [(1, 4, 1), (2, 4, 1), (50, 1, 25)])
def test_cell_second_moment_is_exact_in_the_simplest_cases(n, d_h, expected):
    assert theory.cell_second_moment(n, d_h) == expected


def test_moments_given_the_norm_agree_with_simulation():
    """E[p^2 | r] / E[p | r]^2, with p estimated by two independent halves of many queries."""
    r, n, d_h, samples = 2.2, 20, 3, 20000
    generator = torch.Generator().manual_seed(3)
    others = torch.randn(samples, n - 1, d_h, generator=generator, dtype=torch.float64)
    q = torch.randn(samples, 60, d_h, generator=generator, dtype=torch.float64)
    wins = (r * q[..., 0] > (q @ others.mT).amax(-1)).double()
    first, second = wins[:, :30].mean(-1), wins[:, 30:].mean(-1)
    ratio = (first * second).mean() / (wins.mean() ** 2)
    margin = QUANTILE * float((first * second / wins.mean() ** 2 - 2 * ratio * wins.mean(-1) / wins.mean()).std())
    assert abs(float(ratio) - math.exp(log_moment_ratio(r, n, d_h))) <= margin / math.sqrt(samples)


# Causal masks --------------------------------------------------------------------------------------------------------


def causal_ranks(n, d_h, samples):
    return hardmax_rank(*random_heads(n, d_h, samples), causal=True).double()


@given(n=st.integers(1, 60))
def test_causal_limit_is_the_mean_over_uniform_choices(n):
    chosen = [1 - math.prod(1 - 1 / i for i in range(j, n + 1)) for j in range(1, n + 1)]
    assert theory.causal_limit(n) == pytest.approx(sum(chosen), rel=1e-12)


@pytest.mark.parametrize("n", [1, 2, 3, 10, 101])
def test_the_causal_barrier_is_reached_by_growing_alternating_keys(n):
    """Row i chooses key i or i - 1, each with probability 1/2: exactly 3n/4."""
    chosen = np.zeros((n, n))
    for i in range(n):
        chosen[i, max(i - 1, 0)] += 0.5
        chosen[i, i] += 0.5
    assert theory.causal_bound(n) == pytest.approx((1 - (1 - chosen).prod(0)).sum(), rel=1e-12)
    keys = torch.tensor([(-1.0) ** i * (i + 1) for i in range(n)], dtype=torch.float64)[:, None].expand(3000, n, 1)
    q = random_heads(n, 1, 3000)[0]
    mean, margin = mean_and_margin(hardmax_rank(q, keys, causal=True).double())
    assert abs(mean - theory.causal_bound(n)) <= margin
    if n > 2:  # the negative control: queries of one sign
        assert float(hardmax_rank(q.abs(), keys.abs(), causal=True).double().mean()) == n


@pytest.mark.parametrize(
    ("n", "d_h", "value"),
    [(100, 4, 0.290), (100, 8, 0.380), (100, 16, 0.434), (100, 64, 0.486), (30, 2, None)],
)
def test_causal_bounds_hold_for_random_heads(n, d_h, value):
    mean, margin = mean_and_margin(causal_ranks(n, d_h, 600) / n)
    bound = theory.causal_head_dim_bound(n, d_h) / n
    assert mean <= bound + margin
    assert bound <= (theory.causal_limit(n) + 0.6) / n
    if d_h >= 16:
        assert mean >= 0.97 * bound - margin
    if value is not None:
        assert abs(mean - value) <= margin + 0.001
    assert float((hardmax_rank(*random_heads(n, d_h, 100)).double() / n).mean()) > bound or d_h < 16  # without mask


def test_causal_head_dim_bound_in_the_simplest_cases():
    assert theory.causal_head_dim_bound(1, 3) == 1 and theory.causal_head_dim_bound(2, 3) == 1.5
    assert theory.causal_head_dim_bound(3, 10**4) == pytest.approx(2, rel=1e-3)


def expected_causal_rank_in_one_dimension(n):
    """Exactly, over every order of n keys on a line and every sequence of signs of the queries."""
    total = 0
    for keys in itertools.permutations(range(n)):
        for signs in itertools.product((max, min), repeat=n):
            total += len({sign(keys[: i + 1]) for i, sign in enumerate(signs)})
    return Fraction(total, math.factorial(n) * 2**n)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6])
def test_the_causal_mean_in_one_dimension_is_that_of_all_orders_and_signs(n):
    exact = expected_causal_rank_in_one_dimension(n)
    assert exact == 1 + sum((2 - Fraction(4, 2**i)) / i for i in range(2, n + 1))
    assert theory.causal_head_dim_bound(n, 1) == pytest.approx(float(exact), rel=1e-14)
    assert (exact == Fraction(n + 1, 2)) == (n <= 3) and exact <= Fraction(n + 1, 2)


def test_causal_heads_of_one_dimension_have_the_mean_and_others_do_not():
    """Laws without a symmetry: only the order of the keys and the signs of the queries matter. One hypothesis at a time
    is broken: keys that grow, queries of one sign, queries that are their keys less a number."""
    n, generator = 40, torch.Generator().manual_seed(40)
    k = torch.randn(4000, n, 1, generator=generator, dtype=torch.float64).exp()
    sign = torch.randint(0, 2, k.shape, generator=generator, dtype=torch.float64) * 2 - 1
    q = sign * torch.where(sign > 0, 1.0, 3.0)
    value = theory.causal_head_dim_bound(n, 1)

    def difference(q, k):
        mean, margin = mean_and_margin(hardmax_rank(q, k, causal=True).double())
        return abs(mean - value) / margin

    assert difference(q, k) <= 1
    for other in ((q, k.sort(dim=1).values), (q.abs(), k), (k - 1, k)):
        assert difference(*other) > 2


def test_causal_head_dim_bound_stays_when_its_rules_are_finer(monkeypatch):
    """In long sequences the share of queries that pick a key is a step in the key's norm. A rule of 32 norms without
    panels missed it, and the value was 7e-3 too small."""
    value = theory.causal_head_dim_bound(10**5, 4)
    for name, finer in (("NORM_PANELS", 128), ("RATIO_NODES", 20), ("LENGTHS", 9)):
        monkeypatch.setattr(causal, name, finer)
    assert value == pytest.approx(theory.causal_head_dim_bound(10**5, 4), rel=1.5e-4)
    monkeypatch.setattr(causal, "NORM_PANELS", 2)  # the negative control
    monkeypatch.setattr(causal, "LENGTHS", 2)
    assert value != pytest.approx(theory.causal_head_dim_bound(10**5, 4), rel=1e-3)


def test_causal_head_dim_bound_of_very_long_sequences():
    """Steps of .4 % take the place of every length: neither time nor memory grow with n."""
    harmonic = math.log(10**10) + np.euler_gamma  # up to 1e-10
    assert theory.causal_head_dim_bound(10**10, 1) == pytest.approx(2 * harmonic + 1 - 4 * math.log(2), abs=1e-9)
    values = [theory.causal_head_dim_bound(10**k, 64) / 10**k for k in (6, 8, 10)]
    assert 0.25 > values[0] > values[1] > values[2] > 0


def test_sums_of_smooth_sequences():
    i = causal._steps(300)
    assert i.tolist() == list(range(2, 301))
    values = np.stack([1 / i, 1 / i**2], axis=1)
    assert causal._sums_from(i, values) == pytest.approx(np.cumsum(values[::-1], axis=0)[::-1], rel=1e-12)
    i = causal._steps(10**6)
    assert i[0] == 2 and i[-1] == 10**6 and len(i) < 3000
    every = np.arange(2.0, 10**6 + 1)
    for power in (0.5, 1, 2):
        exact = np.cumsum((every**-power)[::-1])[::-1][i - 2]
        assert causal._sums_from(i, (i[:, None].astype(float)) ** -power)[:, 0] == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize(("d_h", "accuracy"), [(2, 1e-2), (3, 3e-3), (4, 2e-3), (8, 2e-3), (64, 1e-4)])
def test_second_moment_of_three_keys(d_h, accuracy):
    """One of three keys wins both queries of cosine rho with probability 1/9 + (asin(rho)^2 - asin(rho/2)^2) / 4 pi^2
    and what is odd in rho: an orthant probability. Its mean over rho = cos(t), density sin(t)^(d_h - 2)."""
    t = (np.arange(20_000) + 0.5) * math.pi / 20_000
    weights, rho = np.sin(t) ** (d_h - 2), np.cos(t)
    even = np.arcsin(rho) ** 2 - np.arcsin(rho / 2) ** 2
    exact = 1 + 9 / (4 * math.pi**2) * float((weights * even).sum() / weights.sum())
    assert theory.cell_second_moment(3, d_h) == pytest.approx(exact, rel=accuracy)
    assert exact > 1 + 2 * accuracy  # so that a value of 1 would be found


@pytest.mark.parametrize(("n", "d_h"), [(3, 3), (5, 3), (12, 4)])
def test_second_moment_of_few_normalised_keys_is_an_upper_bound_by_at_most_what_is_stated(n, d_h):
    """n times the share of pairs of queries that choose the same of n unit keys."""
    generator = torch.Generator().manual_seed(n)
    keys = torch.nn.functional.normalize(torch.randn(200_000, n, d_h, generator=generator), dim=-1)
    first, second = ((keys @ torch.randn(200_000, d_h, 1, generator=generator)).argmax(1) for _ in range(2))
    mean, margin = mean_and_margin(n * (first == second).double())
    assert mean - margin <= theory.normalised_second_moment(n, d_h) <= mean + margin + n * 2.0 ** (1 - n)


# Many heads and perturbed tokens -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("heads", "fraction"), [(1, 0.632), (2, 0.865), (3, 0.950), (4, 0.982)])
def test_multihead_limit_has_the_reference_values(heads, fraction):
    assert theory.multihead_limit(10**9, heads) / 10**9 == pytest.approx(fraction, abs=5.1e-4)
    assert theory.multihead_limit(7, heads) == pytest.approx(7 * (1 - (6 / 7) ** (7 * heads)), rel=1e-13)


@pytest.mark.parametrize(("n", "heads", "d_h"), [(64, 2, 8), (64, 4, 64), (128, 3, 32)])
def test_multihead_limit_bounds_independent_random_heads(n, heads, d_h):
    q, k = random_heads(n, d_h, 400 * heads)
    chosen = torch.nn.functional.one_hot((q @ k.mT).argmax(-1), n).amax(-2).reshape(400, heads, n)
    mean, margin = mean_and_margin(chosen.amax(1).sum(-1).double())
    resolved = theory.multihead_limit(n, heads, d_h)
    assert mean <= resolved + margin and resolved <= theory.multihead_limit(n, heads)
    assert mean >= 0.94 * resolved


def test_a_single_token_is_attended_to_by_every_head():
    assert theory.multihead_limit(1, 3) == theory.multihead_limit(1, 3, 8) == 1


def test_heads_that_share_out_the_tokens_exceed_the_multihead_limit():
    assert theory.multihead_limit(2, 2) < 2  # head 1 always chooses token 1, head 2 token 2: rank 2
    assert theory.multihead_limit(1, 3) == 1


@given(n=st.integers(1, 10**6), d_h=st.integers(1, 500), frobenius=st.floats(0, 2), rho=st.floats(0, 0.99))
def test_perturbation_bound_is_its_formula(n, d_h, frobenius, rho):
    bound = theory.perturbation_bound(n, d_h, frobenius, rho)
    excess = n / 2 * math.sqrt(d_h) * frobenius / (1 - rho)
    assert bound == pytest.approx(min(n, theory.occupancy_bound(n) + excess), rel=1e-12)
    assert theory.occupancy_bound(n) <= bound <= n
    if d_h >= 3 and frobenius > (1 - rho) / 2:
        assert bound == n or n == 1  # the hypothesis on eigenvalues is needed only where the bound says something


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: theory.head_dim_lower_bound(0, 3), "n"),
        (lambda: theory.head_dim_lower_bound(5, 2.5), "d_h"),
        (lambda: theory.cell_second_moment(5, 0), "d_h"),
        (lambda: theory.causal_limit(0), "n"),
        (lambda: theory.causal_bound(-1), "n"),
        (lambda: theory.causal_head_dim_bound(5, 0), "d_h"),
        (lambda: theory.multihead_limit(5, 0), "heads"),
        (lambda: theory.multihead_limit(5, 2, 0.5), "d_h"),
        (lambda: theory.perturbation_bound(0, 2, 0.1), "n"),
        (lambda: theory.perturbation_bound(5, 0, 0.1), "d_h"),
        (lambda: theory.perturbation_bound(5, 2, -0.1), "frobenius"),
        (lambda: theory.perturbation_bound(5, 2, 0.1, 1.0), "rho"),
        (lambda: theory.perturbation_bound(5, 2, 0.1, -0.1), "rho"),
    ],
)
def test_bad_input_is_named(call, name):
    with pytest.raises(ValueError, match=rf"^{name} must"):
        call()


@pytest.mark.parametrize("function", [theory.head_dim_lower_bound, theory.cell_second_moment])
def test_more_tokens_than_a_square_can_count_are_refused(function):
    assert 1.0 <= function(1e150, 2) < math.inf
    with pytest.raises(ValueError, match=r"n must be at most 1e\+150, got 1000000"):
        function(1e151, 2)
