"""The spectral ranks against numpy's float64 singular values."""

import math
import threading
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnrank import attention, effective_rank, hardmax_rank, numerical_rank, singular_values, stable_rank
from attnrank.ranks import certified_rank
from attnrank.ranks._context import EIGHT_BITS, one_thread
from attnrank.ranks._inertia import _positive_pivots

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def draw(seed, *shape, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def integers(seed, *shape, size=2):
    """Small whole numbers: products and sums are exact in every precision and order, and scores tie often."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-size, size + 1, shape, generator=generator).double()


def jordan(value, size):
    return np.diag(np.full(size, value)) + np.diag(np.ones(size - 1), 1)


def gaussian(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)


def orthogonal(seed, n):
    return np.linalg.qr(gaussian(seed, n, n))[0]


def one_hot(seed, n, m):
    return np.eye(m)[np.random.default_rng(seed).integers(m, size=n)]


MATRICES = {
    "scalar": np.array([[2.5]]),
    "random": gaussian(0, 17, 17),
    "wide": gaussian(1, 5, 40),
    "tall": gaussian(2, 40, 5),
    "row": gaussian(3, 1, 30),
    "column": gaussian(4, 30, 1),
    "batch": gaussian(5, 2, 3, 8, 6),
    "nilpotent": jordan(0.0, 12),
    "jordan": jordan(0.7, 12),
    "two jordan blocks": np.block([[jordan(2.0, 4), np.zeros((4, 5))], [np.zeros((5, 4)), jordan(0.0, 5)]]),
    "zero": np.zeros((6, 9)),
    "zero batch": np.zeros((3, 4, 4)),
    "product": gaussian(6, 30, 4) @ gaussian(7, 4, 20),
    "repeated rows": gaussian(8, 6, 10)[[0, 1, 0, 2, 3, 1, 5, 5, 5]],
    "hilbert": 1.0 / (np.arange(12)[:, None] + np.arange(12) + 1.0),
    "tiny": 1e-300 * gaussian(9, 8, 8),
    "huge": 1e300 * gaussian(10, 8, 8),
    "denormal": 5e-324 * np.rint(1e4 * gaussian(11, 8, 8)),
    "graded": np.diag(10.0 ** np.linspace(-150, 150, 13)),
    "graded upwards": np.diag(10.0 ** np.linspace(-300, 100, 13)),
    "graded downwards": np.diag(10.0 ** np.linspace(-300, 100, 13)[::-1]),
    "graded rows": 10.0 ** -np.arange(0, 12, 2)[:, None] * gaussian(12, 6, 6),
    "prescribed": orthogonal(13, 20) @ np.diag(2.0 ** -np.arange(20)) @ orthogonal(14, 20),
    "one-hot": one_hot(15, 40, 25),
    "batch of every scale": np.stack([s * gaussian(16, 6, 6) for s in (1e-300, 1e-8, 1.0, 1e8, 1e300)]),
}


def gaps(sigma):
    """Tolerances far from every singular value: the middles of gaps of a factor of 10 or more than 1 % above noise."""
    noise = 1e-12 * sigma.max()
    values = np.unique(sigma[sigma > noise])
    low, high = values[:-1], values[1:]
    middles = (np.sqrt(low) * np.sqrt(high))[high > 1.01 * low]
    return [*middles, 2.0 * sigma.max(), max(np.sqrt(noise) * np.sqrt(values.min()), 5e-324)] if len(values) else []


def counted(a, tol, **options):
    """The rank as large matrices have it, counted where that is certain; small ones go to the SVD at once otherwise."""
    return certified_rank(a, tol, **options)[0]


both_ways = pytest.mark.parametrize("rank_of", [numerical_rank, counted])


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


# ------------------------------------------------------------------------------ certified counts and their fallback


def kahan(n, angle=1.2):
    c, s = np.cos(angle), np.sin(angle)
    return np.diag(s ** np.arange(n)) @ (np.eye(n) - c * np.triu(np.ones((n, n)), 1))


def with_spectrum(seed, sigma, n=None, m=None):
    k = len(sigma)
    return orthogonal(seed, n or k)[:, :k] * np.asarray(sigma) @ orthogonal(seed + 1, m or k)[:k]


def softmax_matrix(seed, n, d_h, temperature):
    q, k = torch.randn(2, n, d_h, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return attention(q, k, temperature=temperature).numpy()


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


# ------------------------------------------------------------------------------------------------------ bad input

NAN, INFINITE = torch.tensor([[1.0, math.nan]]), torch.tensor([[1.0, -math.inf]])
Q, K, A = draw(40, 2, 5, 3), draw(41, 2, 5, 3), draw(42, 2, 5, 4)

HARDMAX_VALID = {"q": Q, "k": K, "causal": True, "tile": 2}
HARDMAX_BAD = [
    ({"q": Q.numpy()}, r"q must be a torch\.Tensor, got ndarray; torch\.from_numpy\(q\)"),
    ({"k": [[1.0]]}, r"k must be a torch\.Tensor, got list; torch\.tensor\(k\)"),
    ({"q": Q[0, 0]}, r"q must have shape \(\.\.\., rows, columns\), got \(3,\)"),
    ({"k": K[0, 0]}, r"k must have shape \(\.\.\., rows, columns\), got \(3,\)"),
    ({"q": Q[:, :0]}, r"q must not be empty, got shape \(2, 0, 3\)"),
    ({"k": K[:0]}, r"k must not be empty, got shape \(0, 5, 3\)"),
    ({"q": Q[..., :0], "k": K[..., :0]}, r"q must not be empty, got shape \(2, 5, 0\)"),
    ({"q": Q.long()}, r"q must be floating point, got torch\.int64"),
    ({"k": K.to(torch.complex128)}, r"k must be floating point, got torch\.complex128"),
    ({"q": NAN, "k": torch.ones(1, 2)}, r"q must be finite, got NaN in a tensor of shape \(1, 2\)"),
    ({"k": INFINITE, "q": torch.ones(1, 2)}, r"k must be finite, got infinite values in a tensor of shape \(1, 2\)"),
    ({"k": K[..., :2]}, r"q and k must have the same .* q of shape \(2, 5, 3\) and k of shape \(2, 5, 2\)"),
    ({"k": K[0]}, r"q and k must have the same .* q of shape \(2, 5, 3\) and k of shape \(5, 3\)"),
    ({"q": Q.float()}, r"q and k must share dtype and device, got torch\.float32 on cpu, torch\.float64 on cpu"),
    ({"q": Q[:, :4]}, r"causal needs as many keys as queries, got 4 queries and 5 keys"),
    ({"tile": 0}, r"tile must be at least 1, got 0"),
    ({"tile": -3}, r"tile must be at least 1, got -3"),
    ({"tile": 2.0}, r"tile must be an integer, got 2\.0"),
    ({"tile": True}, r"tile must be an integer, got True"),
    ({"q": Q[:1], "k": K}, r"same leading .*: to use some for several, expand them, as in k\.expand"),
    ({"q": Q[:, None].expand(2, 4, 5, 3), "k": K[:, None].expand(2, 2, 5, 3)}, r"k\.repeat_interleave\(2, dim=-3\)"),
    ({"q": 1e200 * Q, "k": 1e200 * K}, r"q and k must have finite scores: q k\^T overflows torch\.float64"),
]

MATRIX_VALID = {"a": A}
MATRIX_BAD = [
    ({"a": A.numpy()}, r"a must be a torch\.Tensor, got ndarray; torch\.from_numpy\(a\) makes one"),
    ({"a": A.tolist()}, r"a must be a torch\.Tensor, got list; torch\.tensor\(a\) makes one"),
    ({"a": None}, r"a must be a torch\.Tensor, got NoneType"),
    ({"a": A[0, 0]}, r"a must have shape \(\.\.\., rows, columns\), got \(4,\)"),
    ({"a": A[:, :0]}, r"a must not be empty, got shape \(2, 0, 4\)"),
    ({"a": A[..., :0]}, r"a must not be empty, got shape \(2, 5, 0\)"),
    ({"a": A.bool()}, r"a must be floating point, got torch\.bool"),
    ({"a": NAN}, r"a must be finite, got NaN in a tensor of shape \(1, 2\)"),
    ({"a": INFINITE}, r"a must be finite, got infinite values in a tensor of shape \(1, 2\)"),
]

NUMERICAL_VALID = MATRIX_VALID | {"tol": 0.5}
NUMERICAL_BAD = MATRIX_BAD + [
    ({"tol": -1e-300}, r"tol must be at least 0\.0, got -1e-300"),
    ({"tol": math.nan}, r"tol must be a finite number, got nan"),
    ({"tol": math.inf}, r"tol must be a finite number, got inf"),
    ({"tol": 10**400}, r"tol must be a finite number, got 1000"),
    ({"tol": "0.1"}, r"tol must be a finite number, got '0\.1'"),
    ({"tol": None}, r"tol must be given: 1e-3, say, or with relative=True a fraction of the largest singular value"),
    ({"tol": torch.ones(3, 4)}, r"tol must be a finite number, got Tensor of shape \(3, 4\)$"),
    ({"tol": torch.tensor(0.5)}, r"tol must be a finite number, got Tensor of shape \(\); its \.item\(\) is a number"),
    ({"tol": np.ones(2)}, r"tol must be a finite number, got ndarray of shape \(2,\)$"),
    ({"tol": True}, r"tol must be a finite number, got True"),
    ({"tol": 1j}, r"tol must be a finite number, got 1j"),
]

BAD = [
    (function, valid, bad, message)
    for function, valid, table in [
        (hardmax_rank, HARDMAX_VALID, HARDMAX_BAD),
        (numerical_rank, NUMERICAL_VALID, NUMERICAL_BAD),
        (stable_rank, MATRIX_VALID, MATRIX_BAD),
        (effective_rank, MATRIX_VALID, MATRIX_BAD),
        (singular_values, MATRIX_VALID, MATRIX_BAD),
    ]
    for bad, message in table
]


@pytest.mark.parametrize(("function", "valid", "bad", "message"), BAD)
def test_bad_input_is_refused_by_name(function, valid, bad, message):
    function(**valid)  # without the fault the call passes
    with pytest.raises(ValueError, match=message):
        function(**valid | bad)
