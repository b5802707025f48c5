"""Parts of the rank routines, each at the edge that a fault in it would move."""

import itertools
import math
import operator
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_ranks_hardmax import PATHS, draw, exact_rank, force, last_bits

from attnrank import hardmax_rank, numerical_rank
from attnrank.ranks import certified_rank, hardmax
from attnrank.ranks._context import one_thread
from attnrank.ranks._hardmax import blocks, exact, few, repeated, rounding, search, tiles, undecided
from attnrank.ranks._hardmax import range as range_of_scores
from attnrank.ranks._hardmax.working import Heads


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("tile", [1, 2, 1024])
def test_the_only_score_that_overflows_is_found_wherever_a_query_sees_it(monkeypatch, tile, sign):
    """In the second matrix of a batch; its factors may both be negative; and the last key a query sees is its own."""
    monkeypatch.setattr(range_of_scores, "_TILE", tile)
    n, large = 4, sign * 1e30
    for i, j in itertools.product(range(n), repeat=2):
        q, k = torch.zeros(2, 2, n, 2)
        q[1], k[1] = torch.tensor([0.0, large]), torch.tensor([-large, -large])
        q[1, i], k[1, j] = torch.tensor([large, 0.0]), torch.tensor([large, 0.0])
        for causal in (False, True):
            if causal and j > i:
                hardmax_rank(q, k, causal=True)
            else:
                with pytest.raises(ValueError, match="q and k must have finite scores"):
                    hardmax_rank(q, k, causal=causal)


def growth(roundings, unit):
    """What so many roundings, one after another, may add to a number, in exact arithmetic."""
    return (1 + Fraction(unit)) ** roundings - 1


@pytest.mark.parametrize("d_h", [1, 2, 7, 64, 1000, 4096])
@pytest.mark.parametrize(("dtype", "unit"), [(torch.float32, 2.0**-24), (torch.float64, 2.0**-53)])
def test_bounds_cover_the_worst_rounding_in_the_worst_order(d_h, dtype, unit):
    """Both factors are rounded once, then d_h products and sums of them, and a slack is for two scores."""
    lengths = torch.tensor([3.0, 5.0], dtype=dtype)
    error = rounding.score_error(d_h, *lengths).item()
    assert 15 * growth(d_h + 2, unit) < Fraction(error) < 15 * growth(2 * d_h + 16, unit)
    double = rounding.sum_error(d_h, torch.tensor(3.0, dtype=torch.float64)).item()
    assert 3 * growth(d_h + 1, 2.0**-53) < Fraction(double) < 3 * growth(2 * d_h + 16, 2.0**-53)
    assert rounding.sum_error(d_h, torch.zeros(1).double()) >= d_h * 2.0**-1022  # products may all be flushed to zero
    heads = Heads.of(draw(30, 1, 3, d_h), draw(31, 1, 4, d_h), causal=False, dtype=dtype)
    assert heads.x.dtype == heads.y.dtype == heads.slack.dtype == dtype
    longest = max(sum(Fraction(y) ** 2 for y in row) for row in heads.y[0].tolist())
    for row, slack in zip(heads.x[0].tolist(), heads.slack[0].tolist(), strict=True):
        square = longest * sum(Fraction(x) ** 2 for x in row)
        assert Fraction(slack) ** 2 > 4 * growth(d_h + 2, unit) ** 2 * square


def test_norms_bound_lengths_whose_squares_underflow():
    x = 1.5 * 2.0 ** torch.arange(-149.0, 20.0)[:, None] * torch.tensor([[1.0, -1.0, 0.5]])
    assert (rounding.norms(x).double() * (1 + 2.0**-20) >= torch.linalg.vector_norm(x.double(), dim=-1)).all()


@pytest.mark.parametrize("d_h", [1, 64, 4096])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_rounding_of_the_shortest_rows_covers_what_underflows(d_h, dtype):
    shortest = Fraction(rounding.norms(torch.zeros(1, d_h, dtype=dtype)).item())
    unit, tiny = Fraction(torch.finfo(dtype).eps) / 2, Fraction(torch.finfo(dtype).tiny)
    less = {torch.float32: 8, torch.float64: 2**500}[dtype]
    for floor, covered in ((shortest, True), (shortest / less, False)):  # the negative control
        assert (unit * floor**2 >= 4 * d_h * tiny * (1 + 2 * floor)) == covered


def test_the_bound_covers_factors_that_are_cut_to_8_bits(monkeypatch):
    x = torch.tensor([1.0 + 2.0**-7 - 2.0**-23])
    cut = (x.view(torch.int32) & -(2**16)).view(torch.float32)
    assert cut == 1.0
    assert x.double() ** 2 - 1 > rounding.score_error(1, x, x)  # the negative control
    monkeypatch.setattr(rounding, "_factors_may_be_rounded", lambda: True)
    assert x.double() ** 2 - 1 <= rounding.score_error(1, x, x) <= 2.0**-5
    assert rounding.score_error(1, x.double(), x.double()) < 2.0**-48  # of float64 factors nothing is cut


@pytest.mark.parametrize("place", [torch.backends, torch.backends.mkldnn, torch.backends.cuda.matmul])
def test_every_place_where_a_lower_precision_may_be_allowed_is_looked_at(monkeypatch, place):
    monkeypatch.setattr(rounding, "_setting", lambda other: "none")
    assert not rounding._factors_may_be_rounded()
    monkeypatch.setattr(rounding, "_setting", lambda other: "tf32" if other is place else "ieee")
    assert rounding._factors_may_be_rounded()


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_the_older_setting_of_a_lower_precision_is_looked_at_too(monkeypatch, precision):
    monkeypatch.setattr(rounding, "_setting", lambda other: "none")
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: precision)
    assert rounding._factors_may_be_rounded()


@pytest.mark.parametrize(
    ("text", "size"),
    [("512K\n", 1 << 19), ("2M", 1 << 21), ("1048576\n", 1 << 20), ("", 0), ("K", 0), ("unknown", 0), (None, 0)],
)
def test_the_size_of_the_cache_is_read_as_linux_writes_it(monkeypatch, text, size):
    def read(*path, **encoding):
        if text is None:
            raise FileNotFoundError
        return text

    monkeypatch.setattr(Path, "read_text", read)
    assert tiles._cache_as_linux_says() == size


def test_a_tile_holds_no_more_scores_than_float32_counts(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert tiles.tile_scores(cpu) == 3 * max(tiles.cache_bytes(), tiles.LEAST_TILE) // 4
    assert tiles.block_scores(cpu) == 3 * max(tiles.cache_bytes(), tiles.LEAST_BLOCK) // 4
    assert tiles.cached_numbers(cpu) == 3 * tiles.cache_bytes() // 4
    assert [tiles.shared(most, cpu) for most in (0, 2, 3, 4, 7)] == [1, 2, 3, 3, 6]
    assert [tiles.shared(most, cuda) for most in (0, 2, 7)] == [1, 2, 7]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 10**4)
    numbers = (tiles.tile_scores, tiles.block_scores, tiles.cached_numbers)
    assert {held(device) for held in numbers for device in (cpu, cuda)} == {2**24}


@pytest.mark.parametrize(
    ("device", "capability", "dtype"),
    [("cuda", (9, 0), torch.float64), ("cuda", (8, 6), torch.float32), ("cpu", None, torch.float32)],
)
def test_scores_are_in_float64_where_a_gpu_is_fast_in_it(monkeypatch, device, capability, dtype):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert tiles.block_dtype.__wrapped__(torch.device(device)) == dtype


def test_float64_scores_leave_less_undecided(monkeypatch):
    """Not two keys of which one is longer by a millionth, which float32 does; but equal ones all the same."""
    pairs, honest = [], blocks.best_of_pairs
    monkeypatch.setattr(blocks, "best_of_pairs", lambda *x: (pairs.append(len(x[2])), honest(*x))[1])
    q, k = draw(40, 4, 90, 64, dtype=torch.float32), draw(41, 4, 80, 64, dtype=torch.float32)
    k[:, 7] = (1 + 2.0**-20) * k[:, 3]
    tied = k.index_select(1, torch.tensor([*range(80), 7]))
    single = [hardmax_rank(q, keys) for keys in (k, tied)]
    assert len(pairs) == 2
    monkeypatch.setattr(hardmax, "block_dtype", lambda device: torch.float64)
    assert torch.equal(hardmax_rank(q, k), single[0]) and len(pairs) == 2
    assert torch.equal(hardmax_rank(q, tied), single[1]) and len(pairs) == 3


@pytest.mark.parametrize("numbers", [0, 10**6])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_few_pairs_and_many_have_the_same_best_keys(monkeypatch, dtype, numbers):
    """Of three keys that differ in the last bits or not at all, by whichever of the two ways."""
    monkeypatch.setattr(few, "NUMBERS", numbers)
    calls, honest = [], undecided._best_of_few
    monkeypatch.setattr(undecided, "_best_of_few", lambda *x: (calls.append(1), honest(*x))[1])
    q, key = draw(50, 60, 3, dtype=dtype), draw(51, 1, 3, dtype=dtype).expand(90, 3).contiguous()
    k = last_bits(52, key)
    k[60:] = k[:30]
    query, keys = torch.arange(60).repeat_interleave(3), torch.arange(90).view(3, 30).T.flatten().repeat(2)
    best = undecided.best_of_pairs(q, k, query, keys).view(60, 3)
    pairs = zip(q[query].tolist(), k[keys].tolist(), strict=True)
    scores = [sum(Fraction(a) * Fraction(b) for a, b in zip(*pair, strict=True)) for pair in pairs]
    first = [max(range(3), key=lambda i: (scores[3 * row + i], -i)) for row in range(60)]
    assert best.nonzero().tolist() == [[row, i] for row, i in enumerate(first)]
    assert first.count(0) > 9 and first.count(1) > 9 and len(calls) == (numbers > 0)
    assert honest(q, draw(53, 90, 3, dtype=dtype), query, keys) is not None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(("start", "first"), [(0, 0), (2, 3)])
@pytest.mark.parametrize("seen", [5, 40])
def test_few_queries_of_a_block_keep_the_first_of_their_best_keys(dtype, start, first, seen):
    """Of matrices that a block of queries sees only the first keys of, few or many, and of which one has nothing to
    decide; keys differ in the last bits or not at all, but in float64, where rounding would decide."""
    n, d_h = 7, 3
    q, k = draw(60, start + 4, first + n, d_h, dtype=dtype), draw(62, start + 4, seen + 1, d_h, dtype=dtype)
    if dtype != torch.float64:
        k = last_bits(61, k[:, :1].expand(k.shape).contiguous())
    close = (draw(63, 4, seen, n) > 0).float()
    close[:, 6:] = 0.0
    close[:, 0] = 1.0
    close[1], close[1, 0] = 0.0, 1.0
    counts = close.sum(2)
    expected = torch.zeros_like(counts)
    for matrix, query in itertools.product(range(4), range(n)):
        keys = close[matrix, :, query].nonzero().flatten().tolist()
        x = [Fraction(number) for number in q[start + matrix, first + query].tolist()]
        y = [list(map(Fraction, row)) for row in k[start + matrix].tolist()]
        scores = {key: sum(map(operator.mul, x, y[key])) for key in keys}
        expected[matrix, max(keys, key=lambda key: (scores[key], -key))] += 1
    given = counts.clone()
    assert few.decide_few(q, k, start, first, close, counts, least=n) and torch.equal(counts, expected)
    assert not torch.equal(counts, given)
    assert few.decide_few(q, k, start, first, close, given, least=0) and torch.equal(given, expected)


def test_few_queries_whose_close_keys_all_count_for_others_are_not_decided(monkeypatch):
    """Two queries have both keys close, and each key is the best one of others: of so many that one is left, or not."""
    decided = []
    monkeypatch.setattr(few, "best_row", lambda *x: (decided.append(x), 0)[1])
    q, k = draw(66, 1, 8, 3, dtype=torch.float32), draw(67, 1, 2, 3, dtype=torch.float32)
    for sure in (1, 0):
        close = torch.zeros(1, 2, 8)
        close[0, :, :2], close[0, 0, 2:], close[0, 1, 7], close[0, 0, 7] = 1.0, 1.0, float(sure), 1.0 - sure
        counts = close.sum(2)
        assert counts.tolist() == [[8.0 - sure, 2.0 + sure]]
        assert few.decide_few(q, k, 0, 0, close, counts, least=8)
        assert counts.tolist() == [[8.0 - sure, 2.0 + sure] if sure else [8.0, 0.0]] and len(decided) == 2 * (1 - sure)


def test_few_queries_are_left_as_they_are_where_rounding_might_decide():
    """The close keys of the second query differ by a vector that is orthogonal to it, up to rounding."""
    q = torch.tensor([[[1.0, 0.0, 0.0], [0.1, 0.3, 0.7]]]).double()
    k = torch.tensor([[[3.0, 1.0, 2.0], [2.0, 1.0, 3.0], [1.0, 3.0, 2.0]]]).double() / 10
    k[0, 2] = k[0, 1] + torch.tensor([0.3, -0.1, 0.0]).double()
    close = torch.tensor([[[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]])
    counts = close.sum(2)
    assert not few.decide_few(q, k, 0, 0, close, counts, least=2) and torch.equal(counts, close.sum(2))
    assert few.decide_few(q, k, 0, 0, close[..., :1], counts, least=1) and counts.tolist() == [[1.0, 1.0, 1.0]]


def test_a_block_decides_few_queries_at_once_and_more_together(monkeypatch):
    """All queries with two close keys are of one matrix; one number more than ``few`` takes, and pairs are kept."""
    alone, together = [], []
    decide, best = few.decide_few, blocks.best_of_pairs
    monkeypatch.setattr(few, "decide_few", lambda *x: (alone.append(decide(*x)), alone[-1])[1])
    monkeypatch.setattr(blocks, "best_of_pairs", lambda *x: (together.append(len(x[2])), best(*x))[1])
    q, k = draw(64, 2, 90, 8, dtype=torch.float32), draw(65, 2, 90, 8, dtype=torch.float32)
    scores = q.double() @ k.double().mT
    several = scores.argmax(-1)[1, 70]
    k[1, 0] = k[1, several] * (1 + 2.0**-22)
    extra = int((scores.argmax(-1)[1] == several).sum())
    rank = hardmax_rank(q, k)
    assert alone == [True] and together == []
    monkeypatch.setattr(few, "NUMBERS", 2 * extra * 8 - 1)
    assert torch.equal(hardmax_rank(q, k), rank) and alone == [True] and together == [2 * extra]


def test_repeated_tokens_need_no_exact_arithmetic(monkeypatch):
    """The keys that are close to the best one of a query are ten equal ones; the negative control has one more."""
    cut, honest = [], undecided._exactly_best
    monkeypatch.setattr(undecided, "_exactly_best", lambda *x: (cut.append(len(x[3])), honest(*x))[1])
    words, q = draw(54, 20, 16, dtype=torch.float32), draw(55, 200, 16, dtype=torch.float32)
    q[0] = torch.eye(16)[0]
    words[7, 0] = words[:, 0].max() + 1
    k = words[torch.arange(200) % 20]
    rank = len((q.double() @ words.double().mT).argmax(-1).unique())
    assert hardmax_rank(q, k) == rank and cut == []
    k[190, 1:], k[190, 0] = 0.0, words[7, 0]
    hardmax_rank(q, k)
    assert cut == [2]  # the first query has the keys 7 and 190


@settings(max_examples=200, deadline=None)
@given(
    numbers=st.lists(st.integers(-(2**26), 2**26), min_size=8, max_size=8),
    power=st.integers(-1000, 900),
    odd=st.sampled_from([None, 2.0**-1074, 2.0**-600, 1e300]),
)
def test_what_is_short_has_exact_products_and_loses_nothing(numbers, power, odd):
    """Two keys and two queries of two numbers; one of them may be so far from the others that scaling drops it."""
    x = torch.tensor(numbers, dtype=torch.float64).view(2, 2, 2) * 2.0**power
    if odd is not None:
        x[0, 1, 1] = odd
    short = undecided._short(*x)
    if short is None:
        assert odd is not None or max(map(abs, numbers)) == 2**26
        return
    for own, whole in zip(x, short, strict=True):
        units = {Fraction(a) / Fraction(b) for a, b in zip(own.flatten().tolist(), whole.flatten().tolist()) if b}
        assert len(units) <= 1 and torch.equal(own == 0, whole == 0)
    product = [[sum(Fraction(a) * Fraction(b) for a, b in zip(q, k)) for k in short[1].tolist()] for q in
               short[0].tolist()]  # fmt: skip
    assert [[Fraction(s) for s in row] for row in (short[0] @ short[1].mT).tolist()] == product


@pytest.mark.parametrize("path", PATHS)
def test_rows_of_one_hash_are_told_apart(monkeypatch, path):
    """Equal rows may then be missed, which costs time and changes no rank."""
    force(monkeypatch, path, keys=30)
    words = draw(60, 5, 8)
    q, k = draw(61, 3, 90, 8), words[draw(62, 3, 90).argsort() % 5]
    expected = [exact_rank(*pair) for pair in zip(q, k, strict=True)]
    first = (k[:, :, None] == k[:, None]).all(-1).int().argmax(-1)
    assert torch.equal(repeated.first_equals(k), first) and hardmax_rank(q, k).tolist() == expected
    monkeypatch.setattr(repeated, "_hash", lambda x: x.new_zeros(x.shape[:-1], dtype=torch.int64))
    found = repeated.first_equals(k)
    assert (found >= first).all() and (found != first).any()
    assert torch.equal(k.gather(1, found[..., None].expand_as(k)), k) and hardmax_rank(q, k).tolist() == expected


def test_the_hash_of_a_row_is_that_of_its_numbers():
    x = draw(63, 2, 500, 8)
    rows = torch.cat([x, torch.eye(8).double().expand(2, 8, 8), torch.arange(400.0).double().view(2, 25, 8)], 1)
    assert len(repeated._hash(rows).unique()) == 2 * 500 + 8 + 2 * 25
    for values in ([-1.0, 1.0], [0.0, 1.0], [-1.0, 0.0, 1.0], [0.1, 0.2, 0.3]):
        several = torch.tensor(list(itertools.product(values, repeat=8)), dtype=torch.float64)
        assert len(repeated._hash(several).unique()) == len(values) ** 8
    permuted = torch.tensor(list(itertools.permutations([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])), dtype=torch.float64)
    assert len(repeated._hash(permuted).unique()) == len(permuted)
    assert torch.equal(repeated._hash(rows[:, ::3].contiguous()), repeated._hash(rows)[:, ::3])
    assert torch.equal(repeated._hash(rows.new_zeros(1, 8)), repeated._hash(-rows.new_zeros(1, 8)))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("queries", "keys"), [(1, 2), (20, 15)])
def test_float64_decides_what_it_can_and_exact_arithmetic_the_rest(monkeypatch, queries, keys, causal):
    """Queries of equal entries tie for some keys, permutations of one. Beside them a query that is zero, a long key."""
    whole, honest = [], undecided._digits_of_all
    monkeypatch.setattr(undecided, "_digits_of_all", lambda *x: (whole.append(1), honest(*x))[1])
    q, k = draw(56, 2, 60, 8), draw(57, 2, 50, 8)
    k[:, 40] = -1e8 * k[:, 40].abs()
    k[:, 1 : 1 + keys] = (k[:, 1:2].abs() + 2)[..., draw(58, keys, 8).argsort()].squeeze(1)
    q[:, 30 : 30 + queries] = 0.3
    q[1, 55] = 0
    seen = (torch.arange(50), torch.arange(60)) if causal else None
    rational = np.vectorize(Fraction, otypes=[object])
    for better in (1, 1 + 2.0**-52):  # the last of the keys, by less than float64 sees
        k[:, keys] *= better
        best = undecided._best_of_all(q, k, seen)
        for x, y, found in zip(q, k, best.tolist(), strict=True):
            scores = rational(x.numpy()) @ rational(y.numpy()).T
            assert found == [row[: i + 1 if causal else None].argmax() for i, row in enumerate(scores)]
        assert best[:, 30].tolist() == [1 if better == 1 else keys] * 2 and best[1, 55] == 0
    assert len(whole) == (2 if queries > 1 else 0)


def test_a_zero_query_does_not_hide_a_tie_of_another():
    k = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-5.0, -5.0]])
    q = torch.tensor([[1.0, 1.0], [0.0, 0.0], [-1.0, -1.0]])  # a tie of the first two keys; key 0; the last
    assert hardmax_rank(q[:2], k) == 1 and hardmax_rank(q, k) == 2


def test_a_shorter_key_is_looked_at_that_is_better_by_less_than_rounding(monkeypatch):
    """The longest key comes first and is a little off the direction of the query, the next one is not."""
    force(monkeypatch, "pruned", keys=1)
    longer, better = torch.tensor([[1.0, 2.0**-10], [1 + 2.0**-23, 0.0]])
    q, k = torch.tensor([[1.0, 0.0], [1.0, 0.25]]), torch.stack([longer, better, -longer, -better])
    assert longer.double().norm() > better.double().norm() and hardmax_rank(q, k) == exact_rank(q, k) == 2


def test_a_search_compares_bounds_of_scores_with_room_for_their_rounding(monkeypatch):
    """Keys that differ from a query in last bits, but for their length: most scores are within rounding of bounds."""
    force(monkeypatch, "pruned", keys=1)
    for seed in (1, 10, 12, 14, 17, 19, 23, 28):
        q = draw(seed, 1, 3, dtype=torch.float32).expand(6, 3).contiguous()
        k = last_bits(seed + 1, q.repeat(2, 1), size=2)
        q, k = last_bits(seed + 2, q), torch.cat([k, -k])
        assert hardmax_rank(q, k) == exact_rank(q, k)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_key_that_cancellation_hides_is_not_dropped(monkeypatch, sign):
    """In float64 the differences round to -1, 1 and -2^-53, and their sum to -2^-53: the exact one is positive."""
    k = torch.tensor([[1.0, -1.0, 0.0], [0.99 * 2.0**-54, 0.99 * 2.0**-53, -(2.0**-53)]], dtype=torch.float64)
    q, k = torch.tensor([[1.0, 1.0, 1.0], [1.0, -1.0, 0.0]], dtype=torch.float64), sign * k
    assert [exact_rank(q[:1], k), exact_rank(q, k)] == [1, 2]
    for path in PATHS:
        with monkeypatch.context() as patch:
            force(patch, path)
            for module in (blocks, search):
                patch.setattr(module, "MANY", 1.0)  # pair by pair
            assert hardmax_rank(q, k) == 2


def test_no_advice_is_given_that_would_not_help():
    q = torch.ones(2, 6, 5, 3)
    for k, advice in (
        (torch.ones(3, 2, 5, 3), "expand them"),  # no groups: the batches differ
        (torch.ones(2, 12, 5, 3), "expand them"),
        (torch.ones(2, 1, 5, 4), r"and k of shape \(2, 1, 5, 4\)$"),  # nothing fits keys of another length
        (torch.ones(2, 6, 5, 4), r"and k of shape \(2, 6, 5, 4\)$"),
    ):
        with pytest.raises(ValueError, match=advice):
            hardmax_rank(q, k)


def test_the_number_of_threads_comes_back_after_an_error():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with pytest.raises(ZeroDivisionError), one_thread():
            raise ZeroDivisionError
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("d_h", [1, 2, 3, 4, 8, 15, 16, 17, 32, 64, 128])
def test_digits_are_exact_where_nearly_every_bit_of_every_number_is_set(d_h):
    """The largest products that slices can have, the most of them on a level, and none of them even."""
    missing = torch.randint(0, 1 << 20, (10, d_h), generator=torch.Generator().manual_seed(d_h))
    full = 1 - (2.0 * missing.double() + 1) * 2.0**-53
    q, k = full[:1].expand(9, d_h), full[1:]
    k[-1] /= 8.0
    tops = torch.zeros(9, 1, dtype=torch.int32)
    digits = exact.exact_scores(q, k, tops, tops, lambda a, b: (a * b).sum(-1))
    width = (exact.BITS - math.ceil(math.log2(d_h * exact.TERMS[0]))) // 2
    units = [Fraction(1, 2 ** (width * (level + 2))) for level in range(len(digits))]
    scores = torch.stack(digits, 1).tolist()
    found = [sum(Fraction(d) * unit for d, unit in zip(score, units, strict=True)) for score in scores]
    pairs = [zip(*rows, strict=True) for rows in zip(q.tolist(), k.tolist(), strict=True)]
    assert found == [sum(Fraction(x) * Fraction(y) for x, y in pair) for pair in pairs]


@pytest.mark.parametrize("rank_of", [numerical_rank, lambda *x, **y: certified_rank(*x, **y)[0]])
def test_a_singular_value_at_a_relative_tolerance_counts(rank_of):
    a = torch.diag(torch.tensor([4.0, 2.0, 2.0, 1.0, 0.0], dtype=torch.float64))
    assert [rank_of(a, tol, relative=True).item() for tol in (1.0, 0.5, 0.25)] == [1, 3, 4]
    assert rank_of(torch.eye(3), 1.0, relative=True) == 3


@pytest.mark.parametrize("rank_of", [numerical_rank, lambda *x, **y: certified_rank(*x, **y)[0]])
def test_a_tolerance_at_the_ends_of_the_range_of_numbers(rank_of):
    """Singular values are compared where neither they nor the tolerance round."""
    least = torch.tensor(5e-324, dtype=torch.float64)
    a = torch.tensor([[1.0, 1.0], [1.0, 0.0]], dtype=torch.float64)  # 1.618 and 0.618
    assert [rank_of(least * a, i * least.item()).item() for i in (1, 2)] == [1, 0]
    assert [rank_of(1e300 * torch.diag(a[1]), tol).item() for tol in (least.item(), 1e300, 1.1e300)] == [1, 1, 0]
