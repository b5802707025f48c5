"""hardmax_rank against full score matrices."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from attnrank import hardmax_rank, singular_values
from attnrank.ranks import hardmax

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
TILES = [1, 2, 3, 7, 10**6, None]


def draw(seed, *shape, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def integers(seed, *shape, size=2):
    """Small whole numbers: products and sums are exact in every precision and order, and scores tie often."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-size, size + 1, shape, generator=generator).double()


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
    first = hardmax._first_equal_row(k[None])
    assert first.tolist() == [[0, 0, 2, 2, 0]]
    assert hardmax_rank(torch.tensor([[0.3, 1.0]] * 5), k, causal=causal) == 1


def collide(monkeypatch, modulus):
    """Make rows collide: with modulus 1 all hashes are equal."""
    honest = hardmax._row_hashes
    monkeypatch.setattr(hardmax, "_row_hashes", lambda k: honest(k) % modulus)


@pytest.mark.parametrize("modulus", [1, 2, 5])
def test_the_first_equal_row_is_found_under_collisions(monkeypatch, modulus):
    collide(monkeypatch, modulus)
    k = torch.tensor([[1.0], [2.0], [2.0], [3.0], [1.0], [3.0], [2.0], [4.0]])  # A B B C A C B D
    assert hardmax._first_equal_row(k[None]).tolist() == [[0, 1, 1, 3, 0, 3, 1, 7]]
    k = integers(11, 5, 40, 2, size=1)
    expected = (k[:, :, None] == k[:, None]).all(-1).int().argmax(-1)
    assert torch.equal(hardmax._first_equal_row(k), expected)


@pytest.mark.parametrize("modulus", [1, 7])
def test_repeated_keys_count_once_under_collisions(monkeypatch, modulus):
    q, k, _ = repeated_rows(12, 80, 60, 24, 15, torch.float32)
    expected = hardmax_rank(q, k)
    collide(monkeypatch, modulus)
    assert hardmax_rank(q, k, tile=7) == expected <= 15


def test_hashes_of_random_rows_are_distinct_and_of_equal_rows_equal():
    for dtype in (torch.float32, torch.float64):
        k = draw(13, 3, 1000, 2, dtype=dtype).round(decimals=1)
        hashes = hardmax._row_hashes(k)
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
    monkeypatch.setattr(hardmax, "TILE_SCORES", budget)
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
