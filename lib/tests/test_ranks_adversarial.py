"""hardmax_rank where rounding, underflow, overflow and ties would have it wrong, against exact rational arithmetic."""

import numpy as np
import pytest
import torch
from test_ranks_hardmax import DTYPES, PATHS, draw, exact_rank, force, integers, last_bits
from torch.utils.flop_counter import FlopCounterMode

from attnrank import hardmax_rank
from attnrank.ranks._context import EIGHT_BITS
from attnrank.ranks._hardmax import undecided

SIZE = 18  # tokens of a case; fractions are slow

#: Exponents of the smallest number above zero and of the largest.
EXTREMES = dict(zip(DTYPES, [(-24, 15), (-133, 127), (-149, 127), (-1074, 1023)], strict=True))


def one_hot(seed, n, d):
    return torch.eye(d, dtype=torch.float64)[torch.randint(d, (n,), generator=torch.Generator().manual_seed(seed))]


def signs(seed, *shape):
    return torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(seed)).double() * 2 - 1


def repeated(seed, n, d, words):
    return draw(seed, words, d)[torch.randint(words, (n,), generator=torch.Generator().manual_seed(seed))]


def permuted(seed, n, d):
    """Rows that are permutations of one: queries of equal entries find that all of them tie."""
    row = draw(seed, d)
    return torch.stack([row[torch.randperm(d, generator=torch.Generator().manual_seed(seed + i))] for i in range(n)])


def of_all_sizes(seed, n, d, dtype):
    low, high = EXTREMES[dtype]
    exponent = torch.randint(low, (high - 8) // 2, (n, d), generator=torch.Generator().manual_seed(seed))
    return torch.from_numpy(np.ldexp(draw(seed, n, d).numpy(), exponent.numpy()))


def nearly_equal(seed, n, d, dtype):
    return last_bits(seed, draw(seed, 1, d).to(dtype).expand(n, d).contiguous()).double()


#: name: queries and keys (SIZE, d_h) in float64, before they are rounded to a dtype
CASES = {
    "one-hot, signs": lambda dtype: (one_hot(0, SIZE, 5), signs(1, SIZE, 5)),
    "signs, signs": lambda dtype: (signs(2, SIZE, 4), signs(3, SIZE, 4)),
    "one-hot, one-hot": lambda dtype: (one_hot(4, SIZE, 7), one_hot(5, SIZE, 7)),
    "one-hot of any length, signs of no whole length": lambda dtype: (
        one_hot(6, SIZE, 6) * draw(7, SIZE, 1).abs(),
        signs(8, SIZE, 6) / 6**0.5,
    ),
    "repeated words": lambda dtype: (repeated(9, SIZE, 6, 8), repeated(10, SIZE, 6, 8)),
    "one key again and again": lambda dtype: (draw(11, SIZE, 3), draw(12, 1, 3).expand(SIZE, 3)),
    "one query again and again": lambda dtype: (draw(13, 1, 3).expand(SIZE, 3), integers(14, SIZE, 3)),
    "equal entries, permutations": lambda dtype: (draw(15, SIZE, 1).expand(SIZE, 6), permuted(16, SIZE, 6)),
    "queries that see one coordinate": lambda dtype: (
        one_hot(17, SIZE, 4) * draw(18, SIZE, 1),
        repeated(19, SIZE, 4, 3),
    ),
    "nearly equal keys": lambda dtype: (draw(20, SIZE, 3), nearly_equal(21, SIZE, 3, dtype)),
    "nearly equal keys far away": lambda dtype: (draw(22, SIZE, 3), 1000.0 + nearly_equal(23, SIZE, 3, dtype)),
    "zero and other queries": lambda dtype: (draw(24, SIZE, 3) * integers(25, SIZE, 1, size=1), draw(26, SIZE, 3)),
    "zero keys": lambda dtype: (draw(27, SIZE, 3), draw(28, SIZE, 3) * integers(29, SIZE, 1, size=1)),
    "all zero": lambda dtype: (torch.zeros(SIZE, 2).double(), torch.zeros(SIZE, 2).double()),
    "zeros of both signs": lambda dtype: (integers(30, SIZE, 3, size=1), -integers(31, SIZE, 3, size=1) * 0.0),
    "small whole numbers": lambda dtype: (integers(32, SIZE, 4, size=3), integers(33, SIZE, 4, size=3)),
    "whole numbers of 12 bits": lambda dtype: (integers(34, SIZE, 3, size=2047), integers(35, SIZE, 3, size=2047)),
    "numbers of all sizes": lambda dtype: (of_all_sizes(36, SIZE, 3, dtype), of_all_sizes(37, SIZE, 3, dtype)),
    "gaussian": lambda dtype: (draw(38, SIZE, 4), draw(39, SIZE, 4)),
    "one coordinate": lambda dtype: (draw(40, SIZE, 1), repeated(41, SIZE, 1, 5)),
    "one entry is huge": lambda dtype: (
        draw(42, SIZE, 3),
        signs(43, SIZE, 3) * (1 + torch.eye(SIZE, 3).double() * 2.0 ** (EXTREMES[dtype][1] // 2)),
    ),
}

#: name: powers of two that the queries and the keys are multiplied with, from the smallest and the largest exponent
SCALES = {
    "1": lambda low, high: (0, 0),
    "both smallest": lambda low, high: (low + 2, low + 2),
    "both small": lambda low, high: (low * 9 // 16, low * 9 // 16),
    "both at half": lambda low, high: (low // 2, low // 2),
    "both large": lambda low, high: ((high - 22) // 2, (high - 22) // 2),
    "one large, one small": lambda low, high: (high - 14, low + 2),
    "queries small": lambda low, high: (low + 2, 0),
    "keys large": lambda low, high: (0, high - 14),
}


def scaled(case, dtype, scale):
    """The numbers of a case as a dtype has them after scaling; None where they do not fit or scores overflow."""
    limit = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).max
    with np.errstate(all="ignore"):
        x = [
            torch.from_numpy(np.ldexp(part.to(dtype).double().numpy(), power)).to(dtype)
            for part, power in zip(CASES[case](dtype), SCALES[scale](*EXTREMES[dtype]), strict=True)
        ]
        most = np.abs(x[0].double().numpy()) @ np.abs(x[1].double().numpy()).T
    return x if all(part.isfinite().all() for part in x) and most.max() < limit / 2 else None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_the_rank_is_that_of_rational_arithmetic_at_every_scale(monkeypatch, case, dtype):
    cases = {scale: x for scale in SCALES if (x := scaled(case, dtype, scale)) is not None}
    assert len(cases) >= 4
    for i, (scale, x) in enumerate(cases.items()):
        for causal in (False, True):
            path = PATHS[(i + causal) % len(PATHS)]  # in turns
            with monkeypatch.context() as patch:
                force(patch, path, keys=7)
                assert hardmax_rank(*x, causal=causal) == exact_rank(*x, causal), (scale, path, causal)


@pytest.mark.parametrize("default", [torch.float16, torch.bfloat16, torch.float64])
def test_the_default_dtype_does_not_change_the_rank(monkeypatch, default):
    before = torch.get_default_dtype()
    cases = [
        (x, causal)
        for i, case in enumerate(CASES)
        for causal in (False, True)
        if (x := scaled(case, DTYPES[i % len(DTYPES)], "1"))
    ]
    expected = [hardmax_rank(*x, causal=causal).item() for x, causal in cases]
    for path in PATHS:
        with monkeypatch.context() as patch:
            force(patch, path, keys=9)
            try:
                torch.set_default_dtype(default)
                assert [hardmax_rank(*x, causal=causal).item() for x, causal in cases] == expected
            finally:
                torch.set_default_dtype(before)


@pytest.mark.parametrize("causal", [False, True])
def test_threads_do_not_change_the_rank_of_ties(causal):
    n, before, ranks = 300, torch.get_num_threads(), []
    for q, k in (
        (one_hot(50, n, 16), signs(51, n, 16)),
        (repeated(52, n, 8, 90), repeated(53, n, 8, 90)),
        (draw(54, n, 4).float(), nearly_equal(55, n, 4, torch.float32).float()),
    ):
        for threads in (1, 2, 3):
            try:
                torch.set_num_threads(threads)
                ranks.append([hardmax_rank(q, k, causal=causal, tile=tile).item() for tile in (None, 100)])
            finally:
                torch.set_num_threads(before)
    assert all(ranks[i] == ranks[i - i % 3] and len(set(ranks[i])) == 1 for i in range(9))


@pytest.mark.parametrize("power", [0, -538, -600, -1040])
@pytest.mark.parametrize("n", [300, 4096])
def test_one_hot_queries_and_signs_at_tiny_scales(n, power):
    generator = torch.Generator().manual_seed(0)
    q = torch.eye(16, dtype=torch.float64)[torch.randint(16, (n,), generator=generator)]
    k = torch.randint(0, 2, (n, 16), generator=generator).double() * 2 - 1
    first = {int((k[:, i] == 1).int().argmax()) for i in range(16)}  # the first key that has a 1 there
    assert hardmax_rank(q * 2.0**power, k * 2.0**power) == len(first)
    assert len(first) == 6 or n < 4096


@pytest.mark.parametrize("dtype", EIGHT_BITS)
def test_8_bit_numbers(dtype):
    q, k = draw(60, 2, 40, 5).to(dtype), draw(61, 2, 40, 5).to(dtype)
    expected = [exact_rank(q[i].float(), k[i].float()) for i in range(2)]
    assert hardmax_rank(q, k).tolist() == expected == hardmax_rank(q.float(), k.float()).tolist()


def operations(q, k, causal):
    """Floating-point operations of all products that are taken."""
    with FlopCounterMode(display=False) as counter:
        hardmax_rank(q, k, causal=causal)
    return counter.get_total_flops()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("n", "power"), [(300, -600), (2100, 0)])
def test_ties_cost_a_few_products_more_and_nothing_for_each_pair(monkeypatch, n, causal, power):
    # What made ties expensive was arithmetic pair by pair, some of it in fractions. Now: 16 products of slices at most.
    gathered = []
    honest = undecided._exactly_best
    monkeypatch.setattr(
        undecided, "_exactly_best", lambda *x: (gathered.append(len(x[-1])), honest(*x))[1]
    )
    cases = [
        (one_hot(70, n, 16), signs(71, n, 16), 4),
        (repeated(72, n, 16, 6), repeated(73, n, 16, 6), 24),
        (draw(74, n, 1).expand(n, 16), permuted(75, n, 16), 24),
    ]
    for q, k, products in cases[: 3 if n < 1000 else 2]:
        gathered.clear()
        assert operations(draw(76, n, 16), draw(77, n, 16), False) > 2 * n * n * 16 / 2  # the counter sees products
        assert operations(q * 2.0**power, k * 2.0**power, causal) < products * 2 * n * n * 16
        assert sum(gathered) <= n * n / 16


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("batch", "n", "words"), [(3000, 2, 1), (500, 16, 1), (500, 16, 4), (20, 99, 1), (20, 99, 7)])
def test_repeated_keys_of_many_small_matrices_cost_no_product_more(batch, n, words, dtype, causal):
    """Padding, or a short vocabulary; each matrix has its own. They cost a hundred times argmax."""
    q, k = draw(80, batch, n, 8).to(dtype), draw(81, batch, words, 8).to(dtype)
    k = k[:, torch.arange(n) % words].contiguous()
    assert operations(q, k, causal) <= 2 * batch * n * n * 8
    some = slice(0, batch, batch // 5)
    expected = [exact_rank(*pair, causal) for pair in zip(q[some], k[some], strict=True)]
    assert hardmax_rank(q, k, causal=causal)[some].tolist() == expected


@pytest.mark.parametrize("causal", [False, True])
def test_ties_of_short_numbers_cost_one_product_more(monkeypatch, causal):
    """They are exact in float64, and need no slices."""
    monkeypatch.setattr(undecided, "exact_scores", None)
    q, k = integers(82, 300, 16, 8), integers(83, 300, 16, 8)
    assert operations(q, k, causal) <= 2 * 2 * 300 * 16 * 16 * 8
    assert hardmax_rank(q, k, causal=causal)[:5].tolist() == [exact_rank(q[i], k[i], causal) for i in range(5)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("n", "longer"), [(100, 1e5), (100, 1e8), (100, 1e12), (2100, 1e8)])
def test_one_long_key_costs_a_few_products_more(n, longer, dtype, causal):
    """In float32 it leaves undecided all queries that do not choose it."""
    q, k = draw(78, n, 16).to(dtype), draw(79, n, 16).to(dtype)
    k[n // 3] *= longer
    assert operations(q, k, causal) < 3 * 2 * n * n * 16
    if n < 1000:
        assert hardmax_rank(q, k, causal=causal) == exact_rank(q, k, causal)
