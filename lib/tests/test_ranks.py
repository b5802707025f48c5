"""ranks: the count against full score matrices, the spectral ranks against numpy's float64 singular values."""

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from attnrank import effective_rank, hardmax_rank, numerical_rank, ranks, singular_values, stable_rank

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
TILES = [1, 2, 3, 7, 10**6, None]


def draw(seed, *shape, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def integers(seed, *shape, size=2):
    """Small whole numbers: products and sums are exact in every precision and order, and scores tie often."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-size, size + 1, shape, generator=generator).double()


# ---------------------------------------------------------------------------------------------------- hardmax rank


def chosen_keys(q, k, causal=False):
    """The first best key of every query, by numpy from the full float64 score matrix."""
    scores = q.double().numpy() @ k.double().numpy().swapaxes(-1, -2)
    if causal:
        scores[..., ~np.tri(*scores.shape[-2:], dtype=bool)] = -np.inf
    return scores.argmax(-1)


def reference_rank(q, k, causal=False):
    best = chosen_keys(q, k, causal)
    counts = [len(np.unique(row)) for row in best.reshape(-1, best.shape[-1])]
    return torch.tensor(counts).reshape(best.shape[:-1])


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("batch", [(), (1,), (3,), (2, 3), (2, 1, 3)])
@pytest.mark.parametrize(("n", "m", "d_h"), [(1, 1, 1), (1, 9, 3), (9, 1, 3), (20, 20, 1), (20, 33, 4), (33, 20, 50)])
def test_hardmax_rank_counts_the_distinct_argmax_columns(batch, n, m, d_h, tile):
    q, k = draw(1, *batch, n, d_h), draw(2, *batch, m, d_h)
    counted = hardmax_rank(q, k, tile=tile)
    assert counted.dtype == torch.int64 and counted.shape == batch
    assert torch.equal(counted, reference_rank(q, k))


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("batch", [(), (4,), (2, 3)])
@pytest.mark.parametrize(("n", "d_h"), [(1, 2), (2, 2), (25, 1), (25, 6), (40, 40)])
def test_causal_hardmax_rank_counts_the_argmax_columns_of_the_masked_scores(batch, n, d_h, tile):
    q, k = draw(3, *batch, n, d_h), draw(4, *batch, n, d_h)
    assert torch.equal(hardmax_rank(q, k, causal=True, tile=tile), reference_rank(q, k, causal=True))


def test_the_mask_changes_the_rank():
    q, k = draw(3, 25, 6), draw(4, 25, 6)
    assert hardmax_rank(q, k, causal=True) != hardmax_rank(q, k)


@pytest.mark.parametrize("causal", [False, True])
def test_hardmax_rank_is_the_rank_of_the_one_hot_matrix(causal):
    q, k = draw(5, 12, 30, 3), draw(6, 12, 30, 3)
    one_hot = np.eye(30)[chosen_keys(q, k, causal)]
    assert hardmax_rank(q, k, causal=causal).tolist() == np.linalg.matrix_rank(one_hot).tolist()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_half_precision_is_scored_in_float32(dtype, causal):
    # The inputs are converted exactly. The seeds leave no pair of scores within float32 rounding of each other.
    q, k = draw(7, 6, 40, 8, dtype=dtype), draw(8, 6, 40, 8, dtype=dtype)
    assert torch.equal(hardmax_rank(q, k, causal=causal), reference_rank(q, k, causal))


def test_float16_scores_beyond_its_range_do_not_overflow():
    q = torch.full((3, 4), 60000.0, dtype=torch.float16)
    k = torch.full((5, 4), -60000.0, dtype=torch.float16)
    assert hardmax_rank(q, k) == 1


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_exact_ties_go_to_the_first_key(dtype, causal, tile):
    q, k = integers(9, 8, 30, 3, size=1).to(dtype), integers(10, 8, 30, 3, size=2).to(dtype)
    assert torch.equal(hardmax_rank(q, k, causal=causal, tile=tile), reference_rank(q, k, causal))


def test_ties_decide_ranks_that_differ_when_they_go_to_the_last_key():
    q, k = integers(9, 8, 30, 3, size=1), integers(10, 8, 30, 3, size=2)
    assert not torch.equal(reference_rank(q, k), reference_rank(q, k.flip(-2)))


@settings(max_examples=60, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 12), st.integers(1, 12), st.integers(1, 4)),
    tile=st.integers(1, 13),
    seed=st.integers(0, 2**32 - 1),
)
def test_hardmax_rank_of_tied_integer_scores(shape, tile, seed):
    batch, n, m, d_h = shape
    q, k = integers(seed, batch, n, d_h, size=1), integers(seed + 1, batch, m, d_h, size=1)
    assert torch.equal(hardmax_rank(q, k, tile=tile), reference_rank(q, k))
    if n <= m:
        counted = hardmax_rank(q, k[:, :n], causal=True, tile=tile)
        assert torch.equal(counted, reference_rank(q, k[:, :n], causal=True))


def repeated_rows(seed, n, m, d_h, words, dtype):
    """Queries, keys that repeat ``words`` random rows at random places, and for every key the first of its copies."""
    generator = torch.Generator().manual_seed(seed)
    place = torch.randint(words, (m,), generator=generator)
    first = (place[:, None] == place).int().argmax(-1)
    return draw(seed + 1, n, d_h, dtype=dtype), draw(seed + 2, words, d_h, dtype=dtype)[place], first


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_repeated_keys_count_as_the_first_of_them_whatever_rounding_does(dtype, causal, tile):
    counted, expected = [], []
    for seed in range(4):
        q, k, first = repeated_rows(seed, 70, 70, 24, 20, dtype)
        best = chosen_keys(q, k, causal)  # one of several copies, perhaps not the first
        expected.append(len(np.unique(first.numpy()[best])))
        counted.append(hardmax_rank(q, k, causal=causal, tile=tile).item())
    assert counted == expected


@pytest.mark.parametrize("tile", [1, 3, 31, None])
def test_repeated_keys_in_a_batch(tile):
    drawn = [repeated_rows(seed, 60, 70, 24, 20, torch.float32) for seed in range(6)]
    q, k = torch.stack([d[0] for d in drawn]), torch.stack([d[1] for d in drawn])
    expected = [hardmax_rank(q, k, tile=tile).item() for q, k, _ in drawn]
    assert hardmax_rank(q.view(2, 3, 60, 24), k.view(2, 3, 70, 24), tile=tile).flatten().tolist() == expected
    assert max(expected) <= 20


@pytest.mark.parametrize("causal", [False, True])
def test_keys_that_differ_in_the_sign_of_zero_are_equal(causal):
    k = torch.tensor([[0.0, 1.0], [-0.0, 1.0], [1.0, -0.0], [1.0, 0.0], [-0.0, 1.0]])
    first = ranks._first_equal_row(k[None])
    assert first.tolist() == [[0, 0, 2, 2, 0]]
    assert hardmax_rank(torch.tensor([[0.3, 1.0]] * 5), k, causal=causal) == 1


def collide(monkeypatch, modulus):
    """Make rows collide: with modulus 1 all hashes are equal."""
    honest = ranks._row_hashes
    monkeypatch.setattr(ranks, "_row_hashes", lambda k: honest(k) % modulus)


@pytest.mark.parametrize("modulus", [1, 2, 5])
def test_the_first_equal_row_is_found_under_collisions(monkeypatch, modulus):
    collide(monkeypatch, modulus)
    k = torch.tensor([[1.0], [2.0], [2.0], [3.0], [1.0], [3.0], [2.0], [4.0]])  # A B B C A C B D
    assert ranks._first_equal_row(k[None]).tolist() == [[0, 1, 1, 3, 0, 3, 1, 7]]
    k = integers(11, 5, 40, 2, size=1)
    expected = (k[:, :, None] == k[:, None]).all(-1).int().argmax(-1)
    assert torch.equal(ranks._first_equal_row(k), expected)


@pytest.mark.parametrize("modulus", [1, 7])
def test_repeated_keys_count_once_under_collisions(monkeypatch, modulus):
    q, k, _ = repeated_rows(12, 80, 60, 24, 15, torch.float32)
    expected = hardmax_rank(q, k)
    collide(monkeypatch, modulus)
    assert hardmax_rank(q, k, tile=7) == expected <= 15


def test_hashes_of_random_rows_are_distinct_and_of_equal_rows_equal():
    for dtype in (torch.float32, torch.float64):
        k = draw(13, 3, 1000, 2, dtype=dtype).round(decimals=1)
        hashes = ranks._row_hashes(k)
        for rows, codes in zip(k, hashes, strict=True):
            pairs = torch.cat([rows, codes[:, None]], 1)
            assert len(rows.unique(dim=0)) == len(codes.unique()) == len(pairs.unique(dim=0)) < 1000


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_threads_do_not_change_the_rank(dtype):
    q, k = draw(14, 3, 600, 16, dtype=dtype), draw(15, 3, 600, 16, dtype=dtype)
    threads, counted = torch.get_num_threads(), []
    try:
        for number in (1, 2):
            torch.set_num_threads(number)
            counted.append(hardmax_rank(q, k, tile=100).tolist())
    finally:
        torch.set_num_threads(threads)
    assert counted[0] == counted[1] == reference_rank(q, k).tolist()


@pytest.mark.parametrize("budget", [1, 100, 1000])
def test_the_budget_of_scores_does_not_change_the_rank(monkeypatch, budget):
    # It decides how many matrices go through together, the shape of the tiles and the slices of the hashes.
    monkeypatch.setattr(ranks, "TILE_SCORES", budget)
    for causal in (False, True):
        q, k = integers(52, 7, 2, 12, 3), integers(53, 7, 2, 12, 3)
        assert torch.equal(hardmax_rank(q, k, causal=causal), reference_rank(q, k, causal))
        assert torch.equal(hardmax_rank(q, k, causal=causal, tile=5), reference_rank(q, k, causal))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_gpu_gives_the_same_ranks(dtype):
    q, k = integers(54, 5, 300, 4, size=3).to(dtype), integers(55, 5, 300, 4, size=3).to(dtype)
    for options in ({}, {"causal": True}, {"tile": 70}, {"causal": True, "tile": 70}):
        counted = hardmax_rank(q.cuda(), k.cuda(), **options)
        assert counted.is_cuda and torch.equal(counted.cpu(), hardmax_rank(q, k, **options))
    for name in ("nilpotent", "product", "repeated rows", "huge", "tiny", "one-hot", "zero"):
        a = torch.tensor(MATRICES[name])
        assert numerical_rank(a.cuda(), 1e-9, relative=True).item() == numerical_rank(a, 1e-9, relative=True)
        assert stable_rank(a.cuda()).item() == pytest.approx(stable_rank(a).item(), rel=1e-9)
        assert effective_rank(a.cuda()).item() == pytest.approx(effective_rank(a).item(), rel=1e-9)


@pytest.mark.parametrize("tile", [1, 2, None])
@pytest.mark.parametrize("position", [0, 1, 2, 3])
@pytest.mark.parametrize("size", [1e30, -1e30, "nan"])
def test_a_best_score_that_overflows_is_refused_in_every_tile(size, position, tile):
    k = torch.zeros(4, 2)
    k[position] = torch.tensor([1e30, -1e30]) if size == "nan" else size
    q = torch.tensor([[1.0, 1.0], [1e30, 1e30]])
    if size == -1e30:  # a key that is infinitely bad is chosen by nobody: no harm
        assert hardmax_rank(q, k, tile=tile) == 1
    else:
        with pytest.raises(ValueError, match="q and k must have finite scores"):
            hardmax_rank(q, k, tile=tile)
    assert hardmax_rank(q.double(), k.double(), tile=tile) <= 2


@pytest.mark.parametrize("tile", TILES)
def test_a_masked_score_that_overflows_does_no_harm(tile):
    q, k = torch.full((3, 1), 1e30), torch.tensor([[1.0], [-1.0], [1e30]])
    assert hardmax_rank(q[:2], k[:2], causal=True, tile=tile) == 1
    q[2] = 1.0  # only queries 0 and 1, which do not see key 2, would overflow
    assert hardmax_rank(q, k, causal=True, tile=tile) == 2
    with pytest.raises(ValueError, match="q and k must have finite scores"):
        hardmax_rank(q, k, tile=tile)


def test_gradients_are_neither_needed_nor_kept():
    q, k = draw(16, 9, 3).requires_grad_(), draw(17, 9, 3).requires_grad_()
    assert torch.equal(hardmax_rank(q, k), reference_rank(q.detach(), k.detach()))
    assert not hardmax_rank(q, k).requires_grad


def test_strided_input():
    q, k = draw(18, 4, 12, 2, 5).transpose(1, 2), draw(19, 5, 2, 14, 4).permute(3, 1, 2, 0)
    assert torch.equal(hardmax_rank(q, k), reference_rank(q, k))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(2, 20), m=st.integers(2, 20), d_h=st.integers(1, 6))
def test_hardmax_rank_does_not_depend_on_order_scale_or_basis(seed, n, m, d_h):
    q, k = draw(seed, n, d_h), draw(seed + 1, m, d_h)
    rank = hardmax_rank(q, k)
    assert 1 <= rank <= min(n, m)
    generator = torch.Generator().manual_seed(seed + 2)
    order_q, order_k = torch.randperm(n, generator=generator), torch.randperm(m, generator=generator)
    assert hardmax_rank(q[order_q], k[order_k]) == rank
    assert hardmax_rank(q * 2.0**300, k * 2.0**-200) == rank
    assert hardmax_rank(torch.cat([q, q]), k) == rank  # a repeated query chooses nothing new
    assert hardmax_rank(q, torch.cat([k, k.flip(0)])) == rank  # nor does a repeated key


class LargestTensor(TorchDispatchMode):
    """Records the bytes of the largest tensor that any operation returns."""

    size = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.size = max(self.size, tensor.untyped_storage().nbytes())
        return result


@pytest.mark.parametrize("causal", [False, True])
def test_no_tensor_grows_with_the_square_of_the_number_of_tokens(causal):
    q, k = draw(50, 4096, 8), draw(51, 4096, 8)
    with LargestTensor() as tiles:
        hardmax_rank(q, k, causal=causal, tile=256)
    with LargestTensor() as matrix:
        q @ k.T
    assert tiles.size == 256 * 256 * 8
    assert matrix.size == 4096**2 * 8


MEMORY = """
import torch
from attnrank import hardmax_rank

def memory(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(field))

torch.set_num_threads(1)
q, k = torch.randn(2, 16384, 8, generator=torch.Generator().manual_seed(0))
before = memory("VmRSS")
hardmax_rank(q, k)
print(memory("VmHWM") - before)
(q[:8192] @ k[:8192].T).sum()
print(memory("VmHWM") - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="reads the peak memory of a process from /proc")
def test_extra_memory_of_a_process_is_far_below_the_full_matrix():
    output = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True).stdout
    tiles, quarter_of_the_matrix = map(int, output.split())
    # The full matrix takes 1 GiB. The tiles take about 50 MiB, loaded code included.
    assert tiles < 200 * 2**20 < quarter_of_the_matrix
    assert quarter_of_the_matrix > 0.9 * 8192**2 * 4


# ------------------------------------------------------------------------------------------------ numerical rank


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


@pytest.mark.parametrize("name", MATRICES)
def test_numerical_rank_agrees_with_numpy(name):
    a = MATRICES[name]
    sigma = np.linalg.svd(a, compute_uv=False)
    for tol in [0.0, 1e-320, *gaps(sigma)]:
        if tol == 1e-320 and name != "zero" and (sigma < 1e-12 * sigma.max()).any():
            continue  # numpy's rounding decides
        assert numerical_rank(torch.tensor(a), tol).tolist() == (sigma >= tol).sum(-1).tolist(), tol


@pytest.mark.parametrize("name", MATRICES)
def test_relative_numerical_rank_agrees_with_numpy(name):
    a = MATRICES[name]
    sigma = np.linalg.svd(a, compute_uv=False)
    largest = sigma[..., :1]
    ratio = np.divide(sigma, largest, out=np.zeros_like(sigma), where=largest > 0)
    for tol in [t for t in gaps(ratio) if t < 1] + [0.0, 1.5]:
        expected = ((ratio >= tol) & (largest > 0)).sum(-1)
        assert numerical_rank(torch.tensor(a), tol, relative=True).tolist() == expected.tolist(), tol


@pytest.mark.parametrize("scale", [5e-324 * 2**60, 1e-300, 1e-160, 1e-8, 1.0, 1e8, 1e160, 1e300])
def test_known_ranks_at_every_scale(scale):
    defective = np.block([[jordan(0.0, 4), np.zeros((4, 3))], [np.zeros((3, 4)), jordan(1.0, 3)]])
    known = [(defective, 6), (MATRICES["product"], 4), (MATRICES["repeated rows"], 5), (np.zeros((3, 4)), 0)]
    for a, rank in known:
        assert numerical_rank(torch.tensor(scale * a), 1e-9, relative=True) == rank
        assert numerical_rank(torch.tensor(scale * a), 1e-9 * scale) == rank


def test_singular_values_of_a_diagonal_matrix_are_exact():
    # So a tolerance equal to a singular value counts it. Entries over 400 powers of ten come back unharmed.
    for a in (gaussian(20, 50, 6), np.exp(200 * gaussian(21, 50, 6)).clip(1e-300, 1e100)):
        for row in np.abs(a):
            sigma = singular_values(torch.diag(torch.tensor(row)))
            assert sigma.tolist() == sorted(row, reverse=True)
            for tol in row:
                assert numerical_rank(torch.diag(torch.tensor(row)), tol) == (row >= tol).sum()


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


def test_tolerance_zero_counts_every_singular_value():
    a = torch.zeros(2, 3, 5)
    assert numerical_rank(a, 0.0).tolist() == [3, 3]
    assert numerical_rank(a, 0.0, relative=True).tolist() == [0, 0]
    a[1, 0, 0] = 1e-30
    assert numerical_rank(a, 0.0, relative=True).tolist() == [0, 3]


def prescribed(seed, n, m, exponents):
    """A matrix with singular values 2^exponent in random bases; and these, largest first."""
    sigma = np.sort(2.0 ** np.array(exponents[: min(n, m)], dtype=float))[::-1]
    k = len(sigma)
    return orthogonal(seed, n)[:, :k] * sigma @ orthogonal(seed + 1, m)[:k], sigma


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
        assert numerical_rank(torch.tensor(variant), tol) == rank
    for scale in (1e-300, 1e-160, 3.0, 1e160, 1e290):
        relative = (sigma >= tol / 2**10 * sigma[0]).sum()
        assert numerical_rank(torch.tensor(scale * a), tol / 2**10, relative=True) == relative


@settings(max_examples=40, deadline=None)
@given(spectrum=spectra, tols=st.lists(st.floats(0, 1e4), min_size=2, max_size=6))
def test_numerical_rank_falls_with_the_tolerance(spectrum, tols):
    a = torch.tensor(spectrum[0])
    for relative in (False, True):
        counted = [numerical_rank(a, tol, relative=relative) for tol in sorted(tols)]
        assert counted == sorted(counted, reverse=True)


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
    assert 1 <= stable * (1 + 1e-14) and 1 <= effective * (1 + 1e-14)
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
    ({"q": Q.numpy()}, r"q must be a torch\.Tensor, got ndarray"),
    ({"k": [[1.0]]}, r"k must be a torch\.Tensor, got list"),
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
    ({"q": 1e200 * Q, "k": 1e200 * K}, r"q and k must have finite scores: q k\^T overflows torch\.float64"),
]

MATRIX_VALID = {"a": A}
MATRIX_BAD = [
    ({"a": A.numpy()}, r"a must be a torch\.Tensor, got ndarray"),
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
    ({"tol": None}, r"tol must be a finite number, got None"),
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
