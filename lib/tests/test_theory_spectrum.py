"""theory.spectrum: Mehler's spectrum against a discretised operator, brute-force counts and random softmax matrices."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnrank import attention, theory


def discretised(beta, radius=math.inf, nodes=160):
    """Eigenvalues, decreasing, of the kernel exp(beta x x') in L^2 of the standard normal law on |x| <= radius."""
    if math.isinf(radius):
        x, weight = np.polynomial.hermite_e.hermegauss(nodes)
    else:
        x, weight = np.polynomial.legendre.leggauss(nodes)
        x, weight = radius * x, radius * weight * np.exp(-((radius * x) ** 2) / 2)
    weight = weight / math.sqrt(2 * math.pi)
    log_root = 0.5 * np.log(weight)
    return np.linalg.eigvalsh(np.exp(beta * np.outer(x, x) + log_root[:, None] + log_root))[::-1]


@pytest.mark.parametrize(("d_h", "temperature"), [(1, 2.0), (1, 1.6), (8, 1.0), (64, 1.0), (64, 0.25)])
def test_spectrum_of_one_dimension_against_a_discretised_operator(d_h, temperature):
    w = theory.softmax_ratio(d_h, temperature)
    eigenvalues = discretised(1 / (temperature**2 * d_h))[:6]
    assert math.sqrt(1 + w**2) * w ** np.arange(6) == pytest.approx(eigenvalues, rel=1e-7, abs=1e-12)


@pytest.mark.parametrize(("d_h", "temperature", "tol"), [(1, 3.0, 0.02), (2, 1.3, 0.1), (3, 1.0, 0.05), (5, 0.9, 0.3)])
def test_rank_limit_counts_products_of_eigenvalues(d_h, temperature, tol):
    one = discretised(1 / (temperature**2 * d_h))
    one = one[one > 1e-6]
    count = sum(math.sqrt(math.prod(combination)) >= tol for combination in itertools.product(one, repeat=d_h))
    assert theory.softmax_rank_limit(d_h, temperature, tol) == count


@given(d_h=st.integers(1, 200), excess=st.floats(0.01, 50), tol=st.floats(1e-3, 1))
@settings(deadline=None)
def test_levels_agree_with_the_moments_of_the_kernel(d_h, excess, tol):
    temperature = math.sqrt((2 + excess) / d_h)
    beta = 1 / (temperature**2 * d_h)
    values, multiplicity = theory.softmax_singular_values(d_h, temperature, 400)
    w = theory.softmax_ratio(d_h, temperature)
    tail = w ** (400 / d_h) > 1e-3  # many levels carry weight: compare only where 400 of them hold nearly all
    weights = np.array([float(m) for m in multiplicity])
    log_trace = -d_h / 2 * math.log1p(-2 * beta)
    if not tail and d_h * w < 100:
        assert np.log((weights * values**2).sum()) == pytest.approx(log_trace, rel=1e-3, abs=1e-3)
    stable = theory.softmax_stable_rank_limit(d_h, temperature)
    assert math.log(stable) == pytest.approx(log_trace - 2 * math.log(values[0]), rel=1e-9, abs=1e-9)
    assert stable >= math.exp(1 / temperature**2) * (1 - 1e-9)
    limit = theory.softmax_rank_limit(d_h, temperature, tol)
    if (values < tol).any():
        assert limit == pytest.approx(float(sum(m for v, m in zip(values, multiplicity, strict=True) if v >= tol)))


def test_singular_values_of_a_long_softmax_are_near_their_limits():
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1200, 3, generator=generator, dtype=torch.float64)
    a = attention(q, k, temperature=2 * math.sqrt(3))
    sigma = torch.linalg.eigvalsh(a.T @ a).flip(0)[:10].clamp(min=0).sqrt().numpy()
    values, multiplicity = theory.softmax_singular_values(3, 2.0, 3)
    assert multiplicity == [1, 3, 6]
    assert sigma[0] == pytest.approx(values[0], rel=0.01)
    assert sigma[1:4].mean() == pytest.approx(values[1], rel=0.03)
    assert sigma[4:10].mean() == pytest.approx(values[2], rel=0.06)
    control, _ = theory.softmax_singular_values(3, 1.8, 3)  # another temperature
    assert sigma[1:4].mean() != pytest.approx(control[1], rel=0.03)


@pytest.mark.parametrize("beta", [0.5, 0.7])
def test_below_the_threshold_the_count_grows_with_the_radius(beta):
    counts = [int((discretised(beta, radius, 400) >= 1).sum()) for radius in (2, 5, 10, 20)]
    assert counts == sorted(set(counts))
    assert theory.softmax_rank_limit(4, 1 / math.sqrt(4 * beta), 1.0) == math.inf
    with pytest.raises(ValueError, match="^temperature"):
        theory.softmax_stable_rank_limit(4, 1 / math.sqrt(4 * beta))


def test_limits_beyond_the_range_of_floats_are_infinite():
    """Just above the threshold T^2 d_h = 2 they are finite, and no float."""
    d_h, temperature = 1000, 0.0448
    assert temperature**2 * d_h > 2
    assert theory.softmax_stable_rank_limit(d_h, temperature) == math.inf
    assert theory.softmax_rank_limit(d_h, temperature, 0.5) == math.inf
    assert math.isfinite(theory.softmax_stable_rank_limit(d_h, 0.1))


@pytest.mark.parametrize("d_h", [10**6, 10**17])
def test_a_limit_of_millions_of_digits_is_not_written_out(d_h):
    assert theory.softmax_rank_limit(d_h, math.sqrt(2.0001 / d_h), 0.1) == math.inf


@pytest.mark.parametrize(("d_h", "w", "level"), [(505, 0.5, 505), (10**15, 1e-15, 1), (3, 0.99, 10_000)])
def test_limits_within_the_range_of_floats_are_the_exact_counts(d_h, w, level):
    tol = math.exp(d_h / 4 * math.log1p(w**2) + (level + 0.5) / 2 * math.log(w))  # between the level and the next
    limit = theory.softmax_rank_limit(d_h, math.sqrt((w + 1 / w) / d_h), tol)
    assert limit == float(math.comb(level + d_h, d_h)) < math.inf


def test_known_values():
    assert theory.softmax_rank_limit(64, 1.0, 0.1) == 65
    assert theory.softmax_rank_limit(64, 1.0, 0.01) == math.comb(66, 2)
    assert theory.softmax_stable_rank_limit(10**6, 1.0) == pytest.approx(math.e, rel=1e-5)
    assert theory.softmax_stable_rank_limit(8, 1.0) == pytest.approx(2.9645, abs=1e-4)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: theory.softmax_ratio(0, 1.0), "d_h"),
        (lambda: theory.softmax_ratio(4, 0.0), "temperature"),
        (lambda: theory.softmax_singular_values(2, 1.0, 3), "temperature"),
        (lambda: theory.softmax_singular_values(8, 1.0, 0), "levels"),
        (lambda: theory.softmax_singular_values(8, 1.0, 1e300), "levels"),
        (lambda: theory.softmax_rank_limit(8, 1.0, 0.0), "tol"),
        (lambda: theory.softmax_rank_limit(8, 1.0, 1.5), "tol"),
    ],
)
def test_bad_input_is_named(call, name):
    with pytest.raises(ValueError, match=rf"^{name}\b"):
        call()


def test_at_a_temperature_beyond_the_smallest_float_one_singular_value_is_left():
    assert theory.softmax_rank_limit(10**20, 1e150, 0.01) == theory.softmax_rank_limit(4, 1e150, 1.0) == 1.0
    values, multiplicities = theory.softmax_singular_values(10**20, 1e150, 3)
    assert values.tolist() == [1.0, 0.0, 0.0] and multiplicities[:2] == [1, 10**20]
