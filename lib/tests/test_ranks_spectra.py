"""The spectral ranks against numpy's float64 singular values."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnrank import effective_rank, numerical_rank, singular_values, stable_rank
from attnrank.ranks import certified_rank
from spectra_cases import (
    DTYPES,
    MATRICES,
    both_ways,
    counted,
    draw,
    gaps,
    gaussian,
    integers,
    jordan,
    one_hot,
    orthogonal,
)


@both_ways
@pytest.mark.parametrize("name", MATRICES)
def test_numerical_rank_agrees_with_numpy(name, rank_of):
    a = MATRICES[name]
    sigma = np.linalg.svd(a, compute_uv=False)
    for tol in [0.0, 1e-320, *gaps(sigma)]:
        if tol == 1e-320 and name != "zero" and (sigma < 1e-12 * sigma.max()).any():
            continue  # numpy's rounding decides
        assert rank_of(torch.tensor(a), tol).tolist() == (sigma >= tol).sum(-1).tolist(), tol


@both_ways
@pytest.mark.parametrize("name", MATRICES)
def test_relative_numerical_rank_agrees_with_numpy(name, rank_of):
    a = MATRICES[name]
    sigma = np.linalg.svd(a, compute_uv=False)
    largest = sigma[..., :1]
    ratio = np.divide(sigma, largest, out=np.zeros_like(sigma), where=largest > 0)
    for tol in [t for t in gaps(ratio) if t < 1] + [0.0, 1.5]:
        expected = ((ratio >= tol) & (largest > 0)).sum(-1)
        assert rank_of(torch.tensor(a), tol, relative=True).tolist() == expected.tolist(), tol


@both_ways
@pytest.mark.parametrize("scale", [5e-324 * 2**60, 1e-300, 1e-160, 1e-8, 1.0, 1e8, 1e160, 1e300])
def test_known_ranks_at_every_scale(scale, rank_of):
    defective = np.block([[jordan(0.0, 4), np.zeros((4, 3))], [np.zeros((3, 4)), jordan(1.0, 3)]])
    known = [(defective, 6), (MATRICES["product"], 4), (MATRICES["repeated rows"], 5), (np.zeros((3, 4)), 0)]
    for a, rank in known:
        assert rank_of(torch.tensor(scale * a), 1e-9, relative=True) == rank
        assert rank_of(torch.tensor(scale * a), 1e-9 * scale) == rank


def test_singular_values_of_a_diagonal_matrix_are_exact():
    # So a tolerance equal to a singular value counts it. Entries over 400 powers of ten come back unharmed.
    for a in (gaussian(20, 50, 6), np.exp(200 * gaussian(21, 50, 6)).clip(1e-300, 1e100)):
        for row in np.abs(a):
            sigma = singular_values(torch.diag(torch.tensor(row)))
            assert sigma.tolist() == sorted(row, reverse=True)
            for tol in row:
                assert counted(torch.diag(torch.tensor(row)), tol) == (row >= tol).sum()


def test_hardmax_matrices_have_the_roots_of_their_column_counts_as_singular_values():
    a = one_hot(22, 60, 30)
    counts = np.sort(a.sum(0))[::-1]
    assert singular_values(torch.tensor(a)).numpy() == pytest.approx(np.sqrt(counts), abs=1e-13)
    distinct = (counts > 0).sum()
    assert numerical_rank(torch.tensor(a), 0.5) == np.linalg.matrix_rank(a) == distinct
    assert numerical_rank(torch.tensor(a), np.sqrt(1.5)) == (counts >= 2).sum() < distinct


@pytest.mark.parametrize("dtype", DTYPES)
def test_lower_precision_is_converted_before_the_spectrum(dtype):
    a = torch.tensor(gaussian(23, 4, 9, 7)).to(dtype)
    sigma = singular_values(a)
    assert sigma.dtype == torch.float64
    assert sigma.numpy() == pytest.approx(np.linalg.svd(a.double().numpy(), compute_uv=False), rel=1e-12)
    # 2^-9 below 1 + 2^-9: a spectrum in half precision would not tell it from noise
    b = torch.tensor([[1.0, 1.0], [1.0, 1.0 + 2.0**-7]], dtype=dtype)
    assert singular_values(b)[1].item() == pytest.approx(2.0**-7 / singular_values(b)[0].item(), rel=1e-12)


@both_ways
def test_tolerance_zero_counts_every_singular_value(rank_of):
    a = torch.zeros(2, 3, 5)
    assert rank_of(a, 0.0).tolist() == [3, 3]
    assert rank_of(a, 0.0, relative=True).tolist() == [0, 0]
    a[1, 0, 0] = 1e-30
    assert rank_of(a, 0.0, relative=True).tolist() == [0, 3]


def prescribed(seed, n, m, exponents):
    """A matrix with singular values 2^exponent in random bases; and these, largest first."""
    sigma = np.sort(2.0 ** np.array(exponents[: min(n, m)], dtype=float))[::-1]
    k = len(sigma)
    return orthogonal(seed, n)[:, :k] * sigma @ orthogonal(seed + 1, m)[:k], sigma


@pytest.mark.parametrize("shape", [(3, 5), (200, 130)])
def test_tolerance_zero_needs_no_decomposition(monkeypatch, shape):
    for name in ("svdvals", "eigvalsh"):
        monkeypatch.setattr(torch.linalg, name, None)
    a = torch.stack([draw(1, *shape), torch.zeros(shape).double()])
    for relative, expected in ((False, [min(shape)] * 2), (True, [min(shape), 0])):
        assert numerical_rank(a, 0, relative=relative).tolist() == expected
        assert not certified_rank(a, 0, relative=relative)[1].any()


@both_ways
def test_a_tolerance_that_is_a_singular_value_counts_it_at_every_scale(rank_of):
    # Diagonal matrices, whose singular values come out without an error if nothing is divided but by powers of two.
    wrong = []
    for power in [-323, *range(-320, 308, 12), 307]:
        rows = 10.0**power * np.abs(gaussian(90 + power + 400, 12, 3))
        wrong += [
            power
            for row in rows
            for tol in row
            if rank_of(torch.diag(torch.tensor(row)), tol) != (row >= tol).sum()
        ]
    assert not wrong


seeds, sizes = st.integers(0, 2**32 - 2), st.integers(1, 9)
spectra = st.builds(prescribed, seeds, sizes, sizes, st.lists(st.integers(-10, 10), min_size=9, max_size=9))
half_exponents = st.integers(-12, 12).map(lambda i: 2.0 ** (i + 0.5))  # half way between two possible singular values


@settings(max_examples=80, deadline=None)
@given(spectrum=spectra, tol=half_exponents, seed=st.integers(0, 2**32 - 2))
def test_numerical_rank_of_a_prescribed_spectrum_and_its_invariances(spectrum, tol, seed):
    a, sigma = spectrum
    rank = (sigma >= tol).sum()
    n, m = a.shape
    rows, columns = np.random.default_rng(seed).permutation(n), np.random.default_rng(seed + 1).permutation(m)
    variants = [a, a.T, -a, a[rows], a[:, columns], orthogonal(seed, n) @ a, a @ orthogonal(seed, m)]
    for variant in variants:
        assert counted(torch.tensor(variant), tol) == rank
    for scale in (1e-300, 1e-160, 3.0, 1e160, 1e290):
        relative = (sigma >= tol / 2**10 * sigma[0]).sum()
        assert counted(torch.tensor(scale * a), tol / 2**10, relative=True) == relative


@settings(max_examples=40, deadline=None)
@given(spectrum=spectra, tols=st.lists(st.floats(0, 1e4), min_size=2, max_size=6))
def test_numerical_rank_falls_with_the_tolerance(spectrum, tols):
    a = torch.tensor(spectrum[0])
    for relative in (False, True):
        ranks = [counted(a, tol, relative=relative) for tol in sorted(tols)]
        assert ranks == sorted(ranks, reverse=True)


# ------------------------------------------------------------------------------------- stable and effective rank


def stable_reference(a):
    return np.linalg.norm(a, "fro") ** 2 / np.linalg.norm(a, 2) ** 2


def effective_reference(a):
    sigma = np.linalg.svd(a, compute_uv=False)
    p = sigma / np.linalg.norm(a, "nuc")
    return math.prod(float(x) ** -float(x) for x in p if x > 0)


MODERATE = ["scalar", "random", "wide", "tall", "row", "nilpotent", "jordan", "two jordan blocks", "hilbert", "one-hot"]


@pytest.mark.parametrize("name", MODERATE)
def test_stable_and_effective_rank_agree_with_numpy(name):
    a = MATRICES[name]
    assert stable_rank(torch.tensor(a)).item() == pytest.approx(stable_reference(a), rel=1e-12)
    assert effective_rank(torch.tensor(a)).item() == pytest.approx(effective_reference(a), rel=1e-12)


def test_stable_and_effective_rank_of_a_batch():
    a = gaussian(30, 2, 3, 7, 5)
    for function, reference in ((stable_rank, stable_reference), (effective_rank, effective_reference)):
        expected = [[reference(matrix) for matrix in row] for row in a]
        measured = function(torch.tensor(a, dtype=torch.float64))
        assert measured.dtype == torch.float64
        assert measured.numpy() == pytest.approx(np.array(expected), rel=1e-12)


def test_stable_and_effective_rank_worked_by_hand():
    a = torch.diag(torch.tensor([4.0, 2.0, 2.0, 0.0]))  # p = 1/2, 1/4, 1/4: H = 1.5 log 2
    assert stable_rank(a).item() == pytest.approx(1.5, rel=1e-15)
    assert effective_rank(a).item() == pytest.approx(2**1.5, rel=1e-15)
    hardmax = torch.tensor(one_hot(31, 50, 20))
    assert stable_rank(hardmax).item() == pytest.approx(50 / hardmax.sum(0).max().item(), rel=1e-13)


@pytest.mark.parametrize("function", [stable_rank, effective_rank])
def test_a_zero_matrix_has_rank_zero_also_inside_a_batch(function):
    a = torch.zeros(3, 4, 5)
    assert function(a).tolist() == [0.0, 0.0, 0.0]
    a[1] = torch.eye(4, 5)
    assert function(a).tolist() == pytest.approx([0.0, 4.0, 0.0], rel=1e-14)


@pytest.mark.parametrize("function", [stable_rank, effective_rank])
def test_equal_singular_values_count_no_more_than_there_are(function):
    """Rounding alone would give orthogonal matrices an effective rank above their size."""
    for n in (1, 2, 5, 17, 60):
        q = torch.linalg.qr(torch.tensor(gaussian(33 + n, 20, n, n)))[0]
        for a in (q, q[:, : (n + 1) // 2], 1e200 * q):
            assert function(a).max() <= min(a.shape[-2:]) and function(a).min() >= 1.0
            assert function(a).tolist() == pytest.approx([min(a.shape[-2:])] * 20, rel=1e-13)


@settings(max_examples=60, deadline=None)
@given(spectrum=spectra)
def test_one_at_least_stable_at_most_effective_and_rank(spectrum):
    a, sigma = spectrum
    stable, effective = stable_rank(torch.tensor(a)).item(), effective_rank(torch.tensor(a)).item()
    assert stable * (1 + 1e-14) >= 1 and effective * (1 + 1e-14) >= 1
    assert max(stable, effective) <= len(sigma) * (1 + 1e-14)
    assert stable == pytest.approx((sigma**2).sum() / sigma[0] ** 2, rel=1e-12)
    p = sigma / sigma.sum()
    assert effective == pytest.approx(math.exp(-(p * np.log(p)).sum()), rel=1e-12)


@pytest.mark.parametrize("function", [stable_rank, effective_rank])
@pytest.mark.parametrize("scale", [2.0**-1060, 1e-300, 1e-200, 1e200, 1e300, 2.0**1021])
def test_stable_and_effective_rank_do_not_depend_on_the_scale(function, scale):
    # Whole numbers times a power of two are exact down to the denormals; 1e-300 and the like round every entry.
    a = integers(32, 5, 6)
    a[0] = 2.0
    assert function(scale * a).item() == pytest.approx(function(a).item(), rel=1e-12)
    assert torch.isfinite(singular_values(1e300 * a)).all()


@both_ways
@pytest.mark.parametrize("scale", [1e-300, 1.0, 1e300])
def test_a_matrix_of_negative_numbers_has_the_rank_of_its_opposite(scale, rank_of):
    a = scale * torch.tensor(abs(MATRICES["tall"]))
    sigma = torch.linalg.svdvals(a / scale)
    for tol, expected in ((sigma[:2].mean(), 1), (sigma[1:3].mean(), 2), (sigma[-1] / 2, 5)):
        assert rank_of(-a, tol.item() * scale) == rank_of(a, tol.item() * scale) == expected
        relative = (tol / sigma[0]).item()
        assert rank_of(-a, relative, relative=True) == rank_of(a, relative, relative=True) == expected
    assert rank_of(-a, 0.0, relative=True) == rank_of(a, 0.0, relative=True) == 5
