"""Counts of singular values that are certified without a decomposition, and their fallback."""

import threading
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnrank import effective_rank, hardmax_rank, numerical_rank, singular_values, stable_rank
from attnrank.ranks import _inertia, certified_rank
from attnrank.ranks._context import EIGHT_BITS, one_thread
from attnrank.ranks._inertia import DROPPED_FROM_EIGENVALUES, DROPPED_SHARES, _positive_pivots
from spectra_cases import (
    DTYPES,
    MATRICES,
    both_ways,
    counted,
    draw,
    gaussian,
    jordan,
    one_hot,
    orthogonal,
    softmax_matrix,
    with_spectrum,
)


def kahan(n, angle=1.2):
    c, s = np.cos(angle), np.sin(angle)
    return np.diag(s ** np.arange(n)) @ (np.eye(n) - c * np.triu(np.ones((n, n)), 1))


def adversarial():
    """(name, matrix, tolerance): singular values at, around and far from the tolerance."""
    for distance in (0.0, 1e-15, 1e-13, 1e-11, 1e-9, 1e-7, 1e-5, 1e-3):
        for tol in (1.0, 1e-3):
            sigma = tol * (1 + distance * np.array([-2.0, -1.0, -1.0, 1.0, 1.0, 3.0, 100.0, -100.0, 0.5]))
            yield f"cluster {distance} {tol}", with_spectrum(50, np.r_[sigma, 5.0, 0.01 * tol]), tol
    for tol in (1e0, 1e-3, 1e-6, 1e-8, 1e-12, 3e-15, 1e-16):
        yield f"graded {tol}", with_spectrum(52, 10.0 ** -np.arange(17.0)), tol
        yield f"graded diagonal {tol}", np.diag(10.0 ** -np.arange(17.0)), tol
        yield f"hilbert {tol}", 1.0 / (np.arange(14)[:, None] + np.arange(14) + 1.0), tol
        yield f"kahan {tol}", kahan(30), tol
        yield f"jordan {tol}", jordan(0.5, 25), tol
        yield f"exact zeros {tol}", gaussian(53, 40, 5) @ gaussian(54, 5, 30), tol
    for tol in (1.0, np.sqrt(2.0), np.sqrt(3.0), 1.5, 1e-3):
        yield f"one-hot {tol}", one_hot(55, 60, 40), tol
    for tol in (0.5, 0.5 * (1 - 1e-12), 0.5 * (1 + 1e-12), 0.25):
        yield f"repeated {tol}", with_spectrum(56, [2.0] * 3 + [0.5] * 9 + [0.0] * 4), tol
        yield f"multiple of a rotation {tol}", 0.5 * orthogonal(57, 33), tol
    for scale in (1e-12, 1e200, 1e-200):
        for tol in (1.0, 0.1, 1e-5):
            yield f"scale {scale} {tol}", scale * with_spectrum(58, 2.0 ** -np.arange(20.0)), 0.75 * scale * tol
    for n, m in ((1, 1), (1, 50), (50, 1), (200, 3), (3, 200), (70, 64), (64, 70)):
        yield f"shape {n} x {m}", gaussian(59, n, m), 1.0
        yield f"zero {n} x {m}", np.zeros((n, m)), 1e-3
    for temperature in (1 / 64, 1 / 8, 1.0, 4.0):
        for n, d_h in ((40, 1), (64, 8), (130, 8), (130, 64)):
            for tol in (1e-1, 1e-3, 1e-5, 1e-9):
                yield f"softmax {n} {d_h} {temperature} {tol}", softmax_matrix(60, n, d_h, temperature), tol


ADVERSARIAL = {name: (a, tol) for name, a, tol in adversarial()}


@pytest.mark.parametrize("name", ADVERSARIAL)
def test_certified_rank_is_the_count_of_a_float64_svd(name):
    a, tol = ADVERSARIAL[name]
    sigma = torch.linalg.svdvals(torch.tensor(a))  # LAPACK, as in the fallback
    rank, by_svd = certified_rank(torch.tensor(a), tol)
    assert rank == (sigma >= tol).sum() and by_svd.dtype == torch.bool
    if not by_svd:  # then other routines for singular values agree, and the transposed matrix has the same count
        assert rank == (scipy.linalg.svd(a, compute_uv=False, lapack_driver="gesvd") >= tol).sum()
        assert rank == counted(torch.tensor(a).mT, tol)
    relative = tol / sigma[0].item() if sigma[0] > 0 else 0.1
    assert counted(torch.tensor(a), relative, relative=True) == ((sigma >= relative * sigma[0]) & (sigma > 0)).sum()


def test_the_collection_takes_both_ways():
    by_svd = {name: certified_rank(torch.tensor(a), tol)[1].item() for name, (a, tol) in ADVERSARIAL.items()}
    assert all(by_svd[name] for name in ("one-hot 1.0", "repeated 0.5", "cluster 0.0 1.0", "cluster 1e-15 0.001"))
    assert not any(by_svd[name] for name in ("one-hot 1.5", "repeated 0.25", "cluster 0.001 1.0", "scale 1e+200 0.1"))
    assert not any(by_svd[f"softmax 130 {d_h} {t} 0.001"] for d_h in (8, 64) for t in (1 / 64, 1 / 8, 1.0, 4.0))
    assert 0.2 < np.mean(list(by_svd.values())) < 0.6


def test_inertia_at_a_single_shift_is_not_enough():
    """Negative control: without the band the inertia of a^T a - tol^2 counts otherwise than the SVD, and often."""
    wrong = 0
    for a, tol in ADVERSARIAL.values():
        if 1e-100 < abs(a).max() < 1e100:
            short = a if a.shape[0] >= a.shape[1] else a.T
            shifted = short.T @ short - tol**2 * np.eye(short.shape[1])
            d = scipy.linalg.ldl(shifted)[1]
            wrong += (np.linalg.eigvalsh(d) >= 0).sum() != (np.linalg.svd(a, compute_uv=False) >= tol).sum()
    assert wrong >= 10


def exact_count(a, tol):
    """Sturm's count in exact rational arithmetic: leading minors of a^T a - tol^2 along a generic elimination."""
    rows = [[Fraction(float(x)) for x in row] for row in a]
    n, square = len(rows[0]), Fraction(float(tol)) ** 2
    h = [[sum(r[i] * r[j] for r in rows) - (square if i == j else 0) for j in range(n)] for i in range(n)]
    positive = 0
    for k in range(n):
        if h[k][k] == 0:
            return None
        positive += h[k][k] > 0
        for i in range(k + 1, n):
            factor = h[i][k] / h[k][k]
            for j in range(k + 1, n):
                h[i][j] -= factor * h[k][j]
    return positive


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 2),
    shape=st.tuples(st.integers(2, 9), st.integers(2, 9)),
    index=st.integers(0, 8),
    exponent=st.integers(-14, -1),
    side=st.sampled_from([-1, 1]),
)
def test_certified_counts_are_those_of_exact_arithmetic(seed, shape, index, exponent, side):
    a = gaussian(seed, *shape)
    sigma = np.linalg.svd(a, compute_uv=False)
    tol = sigma[index % len(sigma)] * (1 + side * 10.0**exponent)
    rank, by_svd = certified_rank(torch.tensor(a), float(tol))
    assert rank == (torch.linalg.svdvals(torch.tensor(a)) >= tol).sum()
    if not by_svd:
        assert rank == exact_count(a if shape[0] >= shape[1] else a.T, tol)


@both_ways
def test_ranks_do_not_depend_on_the_batch_split_or_the_threads(rank_of):
    a = torch.tensor(np.stack([softmax_matrix(seed, 96, 8, 1 / 8) for seed in range(12)]))
    a[3], a[7] = torch.tensor(one_hot(61, 96, 96)), 0.0
    for tol in (1e-3, 1.0, 1e-7):
        for relative in (False, True):
            whole = rank_of(a, tol, relative=relative)
            assert whole.tolist() == [rank_of(x, tol, relative=relative).item() for x in a]
            assert whole.tolist() == torch.cat([rank_of(x, tol, relative=relative) for x in a.split(5)]).tolist()
            threads = torch.get_num_threads()
            torch.set_num_threads(2)
            try:
                assert whole.tolist() == rank_of(a, tol, relative=relative).tolist()
            finally:
                torch.set_num_threads(threads)
            assert whole.reshape(3, 4).tolist() == rank_of(a.reshape(3, 4, 96, 96), tol, relative=relative).tolist()


def test_a_spectrum_in_two_clusters_at_the_tolerance_has_one_rank_for_any_number_of_threads():
    u, v = torch.linalg.qr(draw(0, 2, 256, 256)).Q
    a = u * torch.tensor([1.0] * 128 + [0.5] * 128, dtype=torch.float64) @ v.mT
    threads, counted_by, counted_apart = torch.get_num_threads(), [], []
    try:
        for number in (1, 2, 3, 2, 1):
            torch.set_num_threads(number)
            counted_by.append([numerical_rank(x, t).item() for x in (a, a[:40, :30]) for t in (1.0, 0.5)])
            counted_apart.append(int((torch.linalg.svdvals(a) >= 1.0).sum()))
            assert torch.get_num_threads() == number
    finally:
        torch.set_num_threads(threads)
    assert counted_by.count(counted_by[0]) == len(counted_by)
    assert len(set(counted_apart)) > 1 or torch.get_num_threads() == 1  # negative control: the threads matter


def test_calls_that_overlap_leave_the_number_of_threads_of_each_as_it_was():
    inside, leave, seen, before = threading.Event(), threading.Event(), [], torch.get_num_threads()

    def stay():
        torch.set_num_threads(3)
        with one_thread():
            seen.append(torch.get_num_threads())
            inside.set()
            leave.wait(60)
        seen.append(torch.get_num_threads())

    other = threading.Thread(target=stay)
    torch.set_num_threads(2)
    try:
        with one_thread():
            other.start()
            inside.wait(60)
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2  # the other is not done
        leave.set()
        other.join()
        assert torch.get_num_threads() == 2 and seen == [1, 3]
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("default", DTYPES)
def test_the_default_dtype_does_not_change_a_rank(default):
    names = ["graded", "one-hot", "tiny", "huge", "batch of every scale"]
    before = torch.get_default_dtype()
    measures = (stable_rank, effective_rank, singular_values, *(partial(f, tol=0.3) for f in (numerical_rank, counted)))
    expected = [measure(torch.tensor(MATRICES[name])) for name in names for measure in measures]
    try:
        torch.set_default_dtype(default)
        results = [measure(torch.tensor(MATRICES[name])) for name in names for measure in measures]
    finally:
        torch.set_default_dtype(before)
    assert all(torch.equal(x, y) for x, y in zip(results, expected, strict=True))


@pytest.mark.parametrize("dtype", EIGHT_BITS)
def test_8_bit_numbers_are_widened(dtype):
    a = draw(70, 2, 140, 90).to(dtype)
    measures = (stable_rank, effective_rank, singular_values, *(partial(f, tol=3.0) for f in (numerical_rank, counted)))
    for measure in measures:
        assert torch.equal(measure(a), measure(a.float()))


def test_a_compiled_function_may_call_the_routines():
    @torch.compile(backend="aot_eager")
    def ranks(x):
        return numerical_rank(x.sin(), 1e-3) + 1, counted(2 * x, 1e-2), hardmax_rank(x, x + 1)

    x = draw(71, 2, 160, 160)
    results = ranks(x), (numerical_rank(x.sin(), 1e-3) + 1, counted(2 * x, 1e-2), hardmax_rank(x, x + 1))
    assert all(torch.equal(compiled, eager) for compiled, eager in zip(*results, strict=True))


@pytest.mark.parametrize("function", [stable_rank, effective_rank, singular_values, partial(numerical_rank, tol=0.3)])
def test_gradients_are_neither_needed_nor_kept(function):
    a = draw(72, 2, 5, 4)
    result = function(a.clone().requires_grad_())
    assert not result.requires_grad and result.numpy().tolist() == function(a).tolist()


def test_only_matrices_with_a_singular_value_at_the_tolerance_take_the_svd():
    a = torch.tensor(np.stack([with_spectrum(seed, [3.0, 2.0, 1.0, 0.1, 1e-9]) for seed in range(6)]))
    a[2], a[4] = torch.eye(5), 2.0 * torch.eye(5)
    rank, by_svd = certified_rank(a, 1.0 + 1e-4)
    assert rank.tolist() == [2, 2, 0, 2, 5, 2] and not by_svd.any()
    rank, by_svd = certified_rank(a[[2, 4]], 1.0)
    assert rank.tolist() == [5, 5] and by_svd.tolist() == [True, False]


@pytest.mark.parametrize("dtype", DTYPES)
def test_certified_rank_of_lower_precision_is_that_of_the_converted_matrix(dtype):
    a = torch.tensor(softmax_matrix(62, 80, 8, 0.5)).to(dtype)
    rank, by_svd = certified_rank(a, 1e-2)
    assert rank == (torch.linalg.svdvals(a.double()) >= 1e-2).sum() and not by_svd


@pytest.mark.parametrize("order", [1, 2, 7, 40, 150])
def test_pivots_count_positive_eigenvalues_and_bound_their_own_error(order):
    for seed in range(6):
        g = gaussian(63 + seed, order, order)
        h = g + g.T + np.diag(10.0 ** np.linspace(-6, 3, order)) * (-1) ** np.arange(order)
        positive, bound = _positive_pivots(torch.tensor(h)[None])
        assert positive == (np.linalg.eigvalsh(h) > 0).sum()
        l, d, _ = scipy.linalg.ldl(h)
        assert np.linalg.norm(l @ d @ l.T - h) < bound.item() < 1e-7 * np.linalg.norm(h)
    assert _positive_pivots(torch.zeros(1, order, order).double())[1].isinf()  # singular: no count is certain


def test_the_bound_of_factors_counts_a_block_for_both_of_its_columns():
    """Here the second column of a block of size 1 is the long one, and all other pivots are small."""
    order = 10
    h = 1e-3 * np.eye(order)
    h[0], h[:, 0], h[0, 0] = 1.0, 1.0, 0.0
    l, d, _ = scipy.linalg.ldl(h)
    size = np.linalg.norm(abs(l) @ abs(d) @ abs(l).T, 2)
    assert d[0, 1] == 1 and size > 3
    positive, bound = _positive_pivots(torch.tensor(h)[None])
    assert positive == (np.linalg.eigvalsh(h) > 0).sum()
    assert 8 * (order + 8) * 2.0**-53 * size <= bound < 8 * (order + 8) * 2.0**-53 * 20


def test_columns_too_small_to_be_multiplied_count_where_they_tip_the_balance():
    """They raise a singular value just below the tolerance, or the largest one, which a relative tolerance follows."""
    one, two, s = *torch.eye(4, dtype=torch.float64)[:2], 2.0**-4.5
    raised = torch.stack([(1 - 1e-4) * one, s * one], 1)
    assert s**2 < DROPPED_SHARES[0] and counted(raised, 1.0) == 1 and counted(raised[:, :1], 1.0) == 0
    s = 2.0**-6.5
    assert s**2 < DROPPED_FROM_EIGENVALUES / 4
    raised = torch.stack([one, 0.5 * (1 - 1e-4) * two, s * two], 1)
    assert counted(raised, 0.5, relative=True) == 2 and counted(raised[:, :2], 0.5, relative=True) == 1
    largest = torch.stack([one, s * one, 0.5 * (1 + 2e-5) * two], 1)
    assert counted(largest, 0.5, relative=True) == 1 and counted(largest[:, ::2], 0.5, relative=True) == 2


def test_every_8_bit_format_with_a_sign_and_a_zero_is_known():
    assert {getattr(torch, name) for name in dir(torch) if name.startswith("float8_e") and "e8m0" not in name} == {
        *EIGHT_BITS
    }


@pytest.mark.parametrize("n", [1000, 4000])
def test_no_count_is_certain_where_a_backward_stable_svd_could_differ(n):
    """It may err by 4 n u |a|, and in long columns a product errs by less."""
    a = torch.zeros(n, 1, dtype=torch.float64)
    a[0] = 1.0
    for share, near in ((-3.9, True), (3.9, True), (-30.0, False), (30.0, False)):
        rank, by_svd = certified_rank(a, 1.0 + share * n * 2.0**-53)
        assert rank == (share < 0) and by_svd == near


@pytest.mark.parametrize("n", [1000, 4000])
def test_no_relative_count_is_certain_where_a_backward_stable_svd_could_differ(n):
    a = torch.zeros(n, 2, dtype=torch.float64)
    a[0, 0], a[1, 1] = 1.0, 0.5
    for share, near in ((-3.9, True), (3.9, True), (-100.0, False), (100.0, False)):
        rank, by_svd = certified_rank(a, 0.5 * (1.0 + share * n * 2.0**-53), relative=True)
        assert rank == (2 if share < 0 else 1) and by_svd == near


def test_no_count_is_certain_that_its_factors_do_not_confirm(monkeypatch):
    a = torch.tensor(softmax_matrix(64, 96, 8, 0.5))
    assert not certified_rank(a, 1e-2)[1]
    monkeypatch.setattr(_inertia, "_positive_pivots", lambda h: (_positive_pivots(h)[0], h.new_ones(h.shape[:-2])))
    rank, by_svd = certified_rank(a, 1e-2)
    assert by_svd and rank == (torch.linalg.svdvals(a) >= 1e-2).sum()
