"""hardmax_rank against full score matrices, and against rational arithmetic where rounding would decide otherwise."""

import math
import subprocess
import sys
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from attnrank import hardmax_rank
from attnrank._scaling import power_of_two
from attnrank.ranks import hardmax
from attnrank.ranks._hardmax import blocks, exact, few, repeated, rounding, search, tiles, undecided
from attnrank.ranks._hardmax.working import Heads

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
TILES = [1, 7, 10**6, None]
PATHS = ["blocks", "doubles", "search", "pruned"]


def force(monkeypatch, path, keys=5):
    """Send matrices of any size down one path; ``keys`` is the number of keys of a tile of a search."""
    if path == "blocks":
        return
    monkeypatch.setattr(hardmax, "block_dtype", lambda device: torch.float64)  # as on some GPUs
    if path == "doubles":
        return
    monkeypatch.setattr(hardmax, "SMALL", 0)
    if path == "search":
        monkeypatch.setattr(few, "NUMBERS", 0)
    monkeypatch.setattr(hardmax, "search_rank", partial(search.search_rank, prune=path == "pruned"))
    monkeypatch.setattr(search, "KEYS", (keys, keys))
    monkeypatch.setattr(search, "GPU_KEYS", (keys, keys))


def draw(seed, *shape, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def integers(seed, *shape, size=2):
    """Small whole numbers: products and sums are exact in every precision and order, and scores tie often."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-size, size + 1, shape, generator=generator).double()


def last_bits(seed, x, size=1):
    """``x`` with up to ``size`` units in the last place added or taken away at random."""
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    change = torch.randint(-size, size + 1, x.shape, generator=torch.Generator().manual_seed(seed))
    return torch.where(x == 0, x, (x.view(integer) + change.to(integer)).view(x.dtype))


def nearly_tied(seed, n, m, d_h, dtype):
    """Queries, and keys that differ from one another in the last bits only."""
    key = draw(seed, 1, d_h, dtype=dtype).expand(m, d_h).contiguous()
    return draw(seed + 1, n, d_h, dtype=dtype), last_bits(seed + 2, key)


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


def exact_rank(q, k, causal=False):
    """The rank of one matrix in rational arithmetic."""
    rational = np.vectorize(Fraction, otypes=[object])
    scores = rational(q.double().numpy()) @ rational(k.double().numpy()).T
    return len({row[: i + 1 if causal else None].argmax() for i, row in enumerate(scores)})


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("batch", [(), (1,), (3,), (2, 1, 3)])
@pytest.mark.parametrize(("n", "m", "d_h"), [(1, 1, 1), (1, 9, 3), (9, 1, 3), (20, 20, 1), (15, 33, 4), (33, 15, 50)])
def test_hardmax_rank_counts_the_distinct_argmax_columns(batch, n, m, d_h, tile):
    q, k = draw(1, *batch, n, d_h), draw(2, *batch, m, d_h)
    counted = hardmax_rank(q, k, tile=tile)
    assert counted.dtype == torch.int64 and counted.shape == batch
    assert torch.equal(counted, reference_rank(q, k))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("n", "m", "d_h"), [(1, 1, 1), (9, 70, 3), (70, 9, 3), (80, 90, 1), (300, 400, 2), (300, 400, 9)]
)
def test_every_path_counts_the_distinct_argmax_columns(monkeypatch, path, n, m, d_h):
    force(monkeypatch, path, keys=40)
    for dtype in DTYPES:
        q, k = draw(1, 2, n, d_h, dtype=dtype), draw(2, 2, m, d_h, dtype=dtype)
        q[:, n // 2] = 0.0
        assert torch.equal(hardmax_rank(q, k), reference_rank(q, k))


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
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_exact_argmax_decides_between_keys_that_differ_in_the_last_bits(monkeypatch, dtype, path, causal):
    force(monkeypatch, path)
    counted, expected, rounded = [], [], []
    for seed in range(0, 50, 5):
        q, k = nearly_tied(seed, 12, 12, 3, dtype)
        counted.append(hardmax_rank(q, k, causal=causal).item())
        expected.append(exact_rank(q, k, causal))
        scores = q @ k.T
        if causal:
            scores = scores.masked_fill(torch.ones(12, 12).triu(1).bool(), -torch.inf)
        rounded.append(len(scores.argmax(-1).unique()))
    assert counted == expected
    assert rounded != expected  # negative control: the argmax of rounded scores


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_queries_orthogonal_to_differences_of_keys_up_to_rounding(monkeypatch, dtype, path):
    force(monkeypatch, path)
    counted, expected = [], []
    for seed in range(6):
        q, k = draw(seed, 10, 4), draw(seed + 100, 16, 4)
        q -= (q * k[:1]).sum(-1, keepdim=True) / k[0].square().sum() * k[:1]
        k = torch.cat([k[1:2] + 10 * k[:1], k[1:2] - 3 * k[:1], k[1:2] + k[:1] * draw(seed + 7, 9, 1)])
        q, k = q.to(dtype), k.to(dtype)
        counted.append(hardmax_rank(q, k).item())
        expected.append(exact_rank(q, k))
    assert counted == expected


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_of_all_sizes_subnormal_ones_too(monkeypatch, dtype, path):
    force(monkeypatch, path)
    smallest = {torch.float32: -149, torch.float64: -1074}[dtype]
    largest = {torch.float32: 60, torch.float64: 500}[dtype]
    counted, expected = [], []
    for seed in range(12):
        generator = torch.Generator().manual_seed(seed)
        size = torch.randint(smallest, largest if seed % 2 else smallest + 8, (26, 2), generator=generator)
        x = torch.from_numpy(np.ldexp(draw(seed, 26, 2).numpy(), size.numpy())).to(dtype)
        q, k = x[:12], torch.cat([x[12:], last_bits(seed, x[18:])])
        counted.append(hardmax_rank(q, k).item())
        expected.append(exact_rank(q, k))
    assert counted == expected


@settings(max_examples=80, deadline=None)
@given(
    data=st.data(),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    shape=st.tuples(st.integers(1, 6), st.integers(1, 8), st.integers(1, 3)),
    path=st.sampled_from(PATHS),
    causal=st.booleans(),
)
def test_hardmax_rank_is_that_of_rational_arithmetic(data, dtype, shape, path, causal):
    n, m, d_h = shape
    width = {torch.float32: 32, torch.float64: 64}[dtype]
    limit = {torch.float32: 2.0**60, torch.float64: 2.0**500}[dtype]
    pool = st.floats(-limit, limit, width=width) | st.sampled_from([0.0, -0.0, 1.0, 1 + 2.0**-23, -1.0, 0.5])
    numbers = data.draw(st.lists(pool, min_size=(n + m) * d_h, max_size=(n + m) * d_h))
    x = torch.tensor(numbers, dtype=dtype).view(n + m, d_h)
    q, k = x[:n], x[n:]
    if causal:
        q, k = q[: min(n, m)], k[: min(n, m)]
    with pytest.MonkeyPatch.context() as monkeypatch:
        force(monkeypatch, path)
        assert hardmax_rank(q, k, causal=causal) == exact_rank(q, k, causal)


@settings(max_examples=100, deadline=None)
@given(
    data=st.data(),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    shape=st.tuples(st.integers(1, 4), st.integers(1, 4)),
)
def test_digits_of_scores_are_those_of_rational_arithmetic(data, dtype, shape):
    width = {torch.float32: 32, torch.float64: 64}[dtype]
    pool = st.floats(width=width, allow_nan=False, allow_infinity=False)
    pool |= st.sampled_from([0.0, 1.0, 1 + 2.0**-23, 1 - 2.0**-24, 3.0, 2.0**-149])
    size = 2 * shape[0] * shape[1]
    q, k = torch.tensor(data.draw(st.lists(pool, min_size=size, max_size=size)), dtype=torch.float64).view(2, *shape)
    tops = [exact.exponents(x).amax() for x in (q, k)]
    digits = exact.exact_scores(q, k, *tops, lambda a, b: (a * b).sum(-1))
    widths = [w for terms in exact.TERMS for w in [(exact.BITS - math.ceil(math.log2(shape[1] * terms))) // 2]]
    expected = [
        sum(Fraction(x) * Fraction(y) for x, y in zip(*rows, strict=True))
        for rows in zip(q.tolist(), k.tolist(), strict=True)
    ]
    unit = Fraction(2) ** int(sum(tops))
    assert expected in [
        [
            sum(int(d[i]) * unit / 2 ** (w * (level + 2)) for level, d in enumerate(digits)) for i in range(shape[0])
        ]
        for w in widths
    ]
    assert all((d >= 0).all() and (d < 2.0 ** max(widths)).all() and (d == d.round()).all() for d in digits[1:])


@settings(max_examples=100, deadline=None)
@given(
    numbers=st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=5),
    width=st.integers(1, 26),
)
def test_slices_of_few_bits_add_up(numbers, width):
    x = torch.tensor(numbers, dtype=torch.float64)
    top = exact.exponents(x).amax()
    parts = exact.slices(x, top, width)
    assert all((part.abs() < 2**width).all() and (part == part.round()).all() for part in parts.values())
    for i, number in enumerate(numbers):
        units = {level: Fraction(2) ** (int(top) - width * (level + 1)) for level in parts}
        assert sum(int(part[i]) * units[level] for level, part in parts.items()) == Fraction(number)


def test_no_bound_of_rounding_errors_is_one_too(monkeypatch):
    """From as many products on as the roundings of float32 add up to 1 all is decided in exact arithmetic."""
    norms = torch.ones(2, 3)
    for d_h in (2**24 - 9, 2**24, 2**30):
        assert torch.isinf(rounding.score_error(d_h, norms, norms)).all()
    assert torch.isfinite(rounding.score_error(2**24 - 10, norms, norms)).all()
    monkeypatch.setattr(rounding, "_growth", lambda d_h, unit: math.inf if unit == 2.0**-24 else (d_h + 9) * unit)
    for path in PATHS:
        with monkeypatch.context() as patch:
            force(patch, path)
            for causal in (False, True):
                q, k = draw(60, 2, 12, 3), draw(61, 2, 12, 3)
                q[:, 2] = 0.0
                assert torch.equal(hardmax_rank(q, k, causal=causal), reference_rank(q, k, causal))
                q, k = integers(62, 2, 12, 3), integers(63, 2, 12, 3)
                assert torch.equal(hardmax_rank(q, k, causal=causal), reference_rank(q, k, causal))


@pytest.mark.parametrize("d_h", [1, 3, 64, 300])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1.0, 2.0**-40])
@pytest.mark.parametrize("centre", [True, False])
def test_rounding_errors_stay_within_their_bounds(dtype, d_h, scale, centre):
    q, k = draw(20, 1, 200, d_h).to(dtype), (5 + draw(21, 1, 200, d_h)).to(dtype)
    k[:, ::2] *= 2.0**-12
    if dtype.itemsize > 2:
        q, k = q * scale, k * scale
    heads = Heads.of(q, k, causal=False, centre=centre)
    unit = torch.linalg.vector_norm(heads.x.double()) / torch.linalg.vector_norm(q.double())
    unit = 2.0 ** unit.log2().round()
    other = 1.0 if scale == 1.0 or dtype.itemsize == 2 else power_of_two(k.abs().amax().reshape(1)).double()
    scores = (heads.x @ heads.y.mT).double()
    # of differences of two keys: the centre does not matter for an argmax
    exactly = (q.double() * unit) @ (k.double() * other).mT
    error = ((scores - scores[..., :1]) - (exactly - exactly[..., :1])).abs().amax(-1)
    assert (error <= heads.slack).all()
    if centre or dtype.itemsize > 2:  # products of short numbers are exact
        assert (error > heads.slack / 1000).any()  # the bound is not idle


def test_keys_are_measured_from_their_mean_where_that_makes_them_shorter():
    """Not keys around the origin, whatever their scales; but keys far from it, and all that are asked for."""
    q, around = draw(24, 8, 100, 16, dtype=torch.float32), draw(25, 8, 100, 16, dtype=torch.float32)
    scales = 10.0 ** torch.linspace(-3, 3, 8)[:, None, None]
    for k in (around, around * scales, around + 0.5):
        assert torch.equal(Heads.of(q, k, causal=False, centre=False).y, k)
        assert Heads.of(q, k, causal=False).y.mean(1).abs().amax() < 1e-3 < k.mean(1).abs().amax()
    short = torch.arange(100) % 20 == 0
    for k in (around + 30, (around + 30) * scales[:1], (around + 30).masked_fill(short[:, None], 0.0)):
        own, left = (Heads.of(q, k, causal=False, centre=centre) for centre in (True, False))
        assert torch.equal(own.y, left.y) and torch.equal(own.slack, left.slack)
        lengths = rounding.norms(k).amax(-1, keepdim=True)
        assert (rounding.score_error(16, own.norm, lengths, scores=2) > own.slack).all()


def lowered_by_one_setting(precision):
    torch.set_float32_matmul_precision({"bf16": "medium", "tf32": "high", "ieee": "highest"}[precision])


def lowered_for_the_cpu(precision):
    torch.backends.mkldnn.matmul.fp32_precision = precision


@pytest.mark.parametrize("precision", ["bf16", "tf32"])
@pytest.mark.parametrize("lower", [lowered_by_one_setting, lowered_for_the_cpu])
def test_a_lower_matmul_precision_does_not_change_the_rank(monkeypatch, lower, precision):
    if lower is lowered_for_the_cpu and not hasattr(torch.backends.mkldnn, "matmul"):
        pytest.skip("a setting of torch 2.9 and later")
    q, k = draw(22, 20, 200, 64, dtype=torch.float32), draw(23, 20, 200, 64, dtype=torch.float32)
    # What a device may do that rounds factors: here it is done by hand, by cutting to 8 bits.
    honest = {name: getattr(torch, name) for name in ("mm", "bmm")}

    def lossy(name):
        return lambda a, b, **options: honest[name](cut(a), cut(b), **options)

    def cut(x):
        return x if x.dtype == torch.float64 else (x.view(torch.int32) & -(2**16)).view(torch.float32)

    expected = hardmax_rank(q, k)
    assert torch.equal(expected, reference_rank(q, k))
    for name in honest:
        monkeypatch.setattr(torch, name, lossy(name))
    before = hardmax_rank(q, k)
    try:
        lower(precision)
        for path in PATHS:
            force(monkeypatch, path, keys=64)
            assert torch.equal(hardmax_rank(q, k), expected)
    finally:
        lower("ieee")
    assert not torch.equal(before, expected)  # negative control: rounded factors that the bounds do not know of


def test_autocast_does_not_change_the_rank():
    q, k = draw(24, 2, 200, 8, dtype=torch.float32), draw(25, 2, 200, 8, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        counted = hardmax_rank(q, k)
        rounded = torch.stack([a.unique().new_tensor(len(a.unique())) for a in (q @ k.mT).argmax(-1)])
    assert torch.equal(counted, reference_rank(q, k))
    assert not torch.equal(counted, rounded)


def test_float16_scores_beyond_its_range_do_not_overflow():
    q = torch.full((3, 4), 60000.0, dtype=torch.float16)
    k = torch.full((5, 4), -60000.0, dtype=torch.float16)
    assert hardmax_rank(q, k) == 1


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_exact_ties_go_to_the_first_key(dtype, causal, tile):
    q, k = integers(9, 6, 30, 3, size=1).to(dtype), integers(10, 6, 30, 3, size=2).to(dtype)
    assert torch.equal(hardmax_rank(q, k, causal=causal, tile=tile), reference_rank(q, k, causal))


def test_ties_decide_ranks_that_differ_when_they_go_to_the_last_key():
    q, k = integers(9, 8, 30, 3, size=1), integers(10, 8, 30, 3, size=2)
    assert not torch.equal(reference_rank(q, k), reference_rank(q, k.flip(-2)))


@settings(max_examples=60, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 12), st.integers(1, 12), st.integers(1, 4)),
    tile=st.integers(1, 13),
    seed=st.integers(0, 2**32 - 1),
    path=st.sampled_from(PATHS),
)
def test_hardmax_rank_of_tied_integer_scores(shape, tile, seed, path):
    batch, n, m, d_h = shape
    q, k = integers(seed, batch, n, d_h, size=1), integers(seed + 1, batch, m, d_h, size=1)
    with pytest.MonkeyPatch.context() as monkeypatch:
        force(monkeypatch, path)
        for size in (tile, None):
            assert torch.equal(hardmax_rank(q, k, tile=size), reference_rank(q, k))
            if n <= m:
                counted = hardmax_rank(q, k[:, :n], causal=True, tile=size)
                assert torch.equal(counted, reference_rank(q, k[:, :n], causal=True))


STRUCTURES = {
    "one key again and again": lambda: (draw(60, 200, 5), draw(61, 1, 5).expand(200, 5).contiguous()),
    "repeated words": lambda: (draw(62, 200, 5), draw(63, 30, 5)[torch.arange(200) * 7 % 30]),
    "small integers": lambda: (integers(64, 200, 3), integers(65, 200, 3)),
    "signs": lambda: (integers(66, 200, 6, size=1).sign() + 0.0, integers(67, 200, 6, size=1).sign()),
    "one-hot queries, binary keys": lambda: (
        torch.eye(9).double()[torch.arange(200) % 9],
        integers(68, 200, 9).gt(0).double(),
    ),
    "one-hot": lambda: (torch.eye(200).double(), torch.eye(200).double()),
    "zero queries": lambda: (torch.zeros(200, 4).double(), draw(69, 200, 4)),
    "zero keys": lambda: (draw(70, 200, 4), torch.zeros(200, 4).double()),
    "one dimension": lambda: (draw(71, 200, 1), draw(72, 200, 1)),
    "sparse": lambda: (
        draw(73, 200, 8) * integers(74, 200, 8, size=1),
        draw(75, 200, 8) * integers(76, 200, 8, size=1),
    ),
    "nearly the same": lambda: nearly_tied(77, 200, 200, 4, torch.float64),
    "on a circle": lambda: (
        torch.nn.functional.normalize(draw(78, 200, 2)),
        torch.nn.functional.normalize(draw(79, 200, 2)),
    ),
}


@pytest.mark.parametrize("many", [0.0, 1 / 16, 1.0])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_structured_inputs_on_every_path(monkeypatch, structure, path, many):
    # At 0 every undecided query is decided by the matrix, at 1 by pairs; and few numbers may be held at once.
    force(monkeypatch, path, keys=30)
    for module in (blocks, search):
        monkeypatch.setattr(module, "MANY", many)
    monkeypatch.setattr(undecided, "DISTINCT", 0 if many else 1 << 20)
    monkeypatch.setattr(undecided, "GATHERED", 3000)
    monkeypatch.setattr(undecided, "SCORES", 3000)
    monkeypatch.setattr(search, "DECIDED", 3000)
    q, k = (x.contiguous() for x in STRUCTURES[structure]())
    if structure == "nearly the same":
        expected = exact_rank(q, k)
    else:
        expected = len(np.unique(repeated_first(k)[chosen_keys(q, k)]))
    assert hardmax_rank(q, k) == expected


def repeated_first(k):
    """For every key the first key that equals it, numpy."""
    return (k[:, None] == k).all(-1).int().argmax(-1).numpy()


def test_a_search_leaves_out_repeated_keys_when_many_queries_tie(monkeypatch):
    force(monkeypatch, "pruned", keys=30)
    searched = []
    honest = search.Search.choose
    monkeypatch.setattr(search.Search, "choose", lambda self, x: (searched.append(len(self.keys)), honest(self, x))[1])
    for structure, distinct in (("repeated words", 30), ("one key again and again", 1)):
        hardmax_rank(*STRUCTURES[structure]())
        assert searched == [200, distinct]
        searched.clear()
    hardmax_rank(draw(1, 300, 4), draw(2, 300, 4))
    assert searched == [300]


def test_short_keys_are_not_looked_at(monkeypatch):
    force(monkeypatch, "pruned", keys=30)
    tiles_seen = []
    honest = search.Search._highest
    monkeypatch.setattr(
        search.Search, "_highest", lambda self, q, keys: (tiles_seen.append(keys.start), honest(self, q, keys))[1]
    )
    q, k = draw(1, 300, 2), draw(2, 3000, 2)
    assert hardmax_rank(q, k) == reference_rank(q, k) and max(tiles_seen) < 600
    tiles_seen.clear()
    force(monkeypatch, "search", keys=30)
    assert hardmax_rank(q, k) == reference_rank(q, k) and max(tiles_seen) == 2970


def test_rows_without_their_repetitions():
    k = torch.tensor([[0.0, 1.0], [2.0, 1.0], [-0.0, 1.0], [1.0, -0.0], [1.0, 0.0], [2.0, 1.0], [0.0, 1.5]])
    assert [x.tolist() for x in repeated.distinct_rows(k)] == [[0, 1, 3, 6], [0, 1, 0, 2, 2, 1, 3]]


def test_the_cache_is_asked_for_its_size_and_believed_within_bounds(monkeypatch):
    assert tiles.LEAST_CACHE <= tiles.cache_bytes() <= tiles.MOST_CACHE
    for told, expected in ((1 << 21, 1 << 21), (1, tiles.LEAST_CACHE), (1 << 30, tiles.MOST_CACHE), (0, 1 << 20)):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda told=told: {"l2_cache_size": told}, raising=False)
        assert tiles.cache_bytes.__wrapped__() == expected
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {}, raising=False)
    monkeypatch.setattr(Path, "read_text", lambda *x, **y: "2048K\n")
    assert tiles.cache_bytes.__wrapped__() == 1 << 21


@pytest.mark.parametrize(
    ("batch", "threads", "matrices"), [(7, 1, [3, 3, 1]), (7, 2, [2, 2, 2, 1]), (7, 3, [3, 3, 1]), (7, 4, [3, 3, 1])]
)
def test_a_block_has_as_many_matrices_for_each_thread(monkeypatch, batch, threads, matrices):
    # Of three matrices two threads take as long as of four: 16 of 512 x 512 scores took 1.3 times as long.
    monkeypatch.setattr(blocks, "block_scores", lambda device: 350)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    seen, honest = [], blocks._close
    monkeypatch.setattr(blocks, "_close", lambda y, *rest: (seen.append(len(y)), honest(y, *rest))[1])
    q, k = integers(94, batch, 10, 4), integers(95, batch, 10, 4)
    assert torch.equal(hardmax_rank(q, k), reference_rank(q, k))
    assert seen == matrices


@pytest.mark.parametrize(("n", "m", "rows"), [(200, 8000, [64, 64, 64, 8]), (50, 8000, [50]), (300, 1000, [262, 38])])
def test_a_block_of_many_keys_has_not_too_few_queries(monkeypatch, n, m, rows):
    # 16 queries a block made a matrix of 256 x 16,384 scores take four times as long.
    monkeypatch.setattr(blocks, "block_scores", lambda device: 1 << 18)
    seen, honest = [], blocks._close
    monkeypatch.setattr(blocks, "_close", lambda y, x, *rest: (seen.append(x.shape[2]), honest(y, x, *rest))[1])
    q, k = draw(92, n, 8), draw(93, m, 8)
    assert hardmax_rank(q, k) == reference_rank(q, k)
    assert seen == rows


def repeated_rows(seed, n, m, d_h, words, dtype):
    """Queries, keys that repeat ``words`` random rows at random places, and for every key the first of its copies."""
    generator = torch.Generator().manual_seed(seed)
    place = torch.randint(words, (m,), generator=generator)
    first = (place[:, None] == place).int().argmax(-1)
    return draw(seed + 1, n, d_h, dtype=dtype), draw(seed + 2, words, d_h, dtype=dtype)[place], first


@pytest.mark.parametrize("tile", [7, None])
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


@pytest.mark.parametrize("tile", [3, 31, None])
def test_repeated_keys_in_a_batch(tile):
    drawn = [repeated_rows(seed, 60, 70, 24, 20, torch.float32) for seed in range(6)]
    q, k = torch.stack([d[0] for d in drawn]), torch.stack([d[1] for d in drawn])
    expected = [hardmax_rank(q, k, tile=tile).item() for q, k, _ in drawn]
    assert hardmax_rank(q.view(2, 3, 60, 24), k.view(2, 3, 70, 24), tile=tile).flatten().tolist() == expected
    assert max(expected) <= 20


@pytest.mark.parametrize("causal", [False, True])
def test_keys_that_differ_in_the_sign_of_zero_are_equal(causal):
    k = torch.tensor([[0.0, 1.0], [-0.0, 1.0], [1.0, -0.0], [1.0, 0.0], [-0.0, 1.0]])
    assert hardmax_rank(torch.tensor([[0.3, 1.0]] * 5), k, causal=causal) == 1


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_threads_tiles_and_batches_do_not_change_the_rank(monkeypatch, dtype, path):
    # Among these scores are some that rounding orders by the tile and the number of threads.
    q, k = draw(14, 3, 200, 16, dtype=dtype), draw(15, 3, 130, 16, dtype=dtype)
    k = torch.cat([k, last_bits(16, k)], 1)
    threads, counted = torch.get_num_threads(), []
    try:
        for number in (1, 2):
            torch.set_num_threads(number)
            for keys in (37, 512):
                force(monkeypatch, path, keys=keys)
                for tile in (None, 150):
                    counted.append(hardmax_rank(q, k, tile=tile).tolist())
                counted.append([hardmax_rank(*pair).item() for pair in zip(q, k, strict=True)])
    finally:
        torch.set_num_threads(threads)
    assert all(ranks == counted[0] for ranks in counted)


@pytest.mark.parametrize("budget", [1, 100, 1000])
def test_the_number_of_scores_held_at_once_does_not_change_the_rank(monkeypatch, budget):
    # It decides how many matrices go through together, and the shape of the tiles.
    monkeypatch.setattr(blocks, "block_scores", lambda device: budget)
    monkeypatch.setattr(search, "tile_scores", lambda device: budget)
    monkeypatch.setattr(blocks, "QUERIES", 1)
    for path in PATHS:
        force(monkeypatch, path, keys=1)
        for causal in (False, True):
            q, k = integers(52, 7, 2, 12, 3), integers(53, 7, 2, 12, 3)
            assert torch.equal(hardmax_rank(q, k, causal=causal), reference_rank(q, k, causal))
            assert torch.equal(hardmax_rank(q, k, causal=causal, tile=5), reference_rank(q, k, causal))


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("path", ["search", "pruned"])
def test_queries_that_threads_share_choose_the_same_keys(monkeypatch, path, threads):
    """Also where the last of them are not as many for each thread, and under a mask; every thread's part is used."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(search, "tile_scores", lambda device: 200)
    force(monkeypatch, path, keys=16)
    parts, honest = [], search.Search._product
    monkeypatch.setattr(search.Search, "_product", lambda *x: (parts.append(honest(*x)), parts[-1])[1])
    for q, k in ((draw(96, 70, 3), draw(97, 70, 3)), (integers(98, 70, 3), integers(99, 70, 3))):
        for causal in (False, True):
            assert hardmax_rank(q, k, causal=causal) == reference_rank(q, k, causal)
    assert {len(scores) for scores in parts} == {1, threads}


@pytest.mark.parametrize("queries", [1, 30])
def test_the_number_of_queries_searched_together_does_not_change_the_rank(monkeypatch, queries):
    force(monkeypatch, "pruned", keys=16)
    monkeypatch.setattr(search, "QUERIES", queries)
    q, k = draw(54, 70, 3), draw(55, 90, 3)
    assert hardmax_rank(q, k) == reference_rank(q, k)


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


def test_overflow_does_not_depend_on_the_order_of_summation():
    q = torch.full((1, 3), 1e19, dtype=torch.float32)
    for terms in ([2e19, -2e19, 2e19], [2e19, 2e19, -2e19], [-2e19, 2e19, 2e19]):
        with pytest.raises(ValueError, match="q and k must have finite scores"):
            hardmax_rank(q, torch.tensor([terms]))
    assert hardmax_rank(q, torch.tensor([[2e19, -2e19, 1e19]])) == 1


def test_gradients_are_neither_needed_nor_kept():
    q, k = draw(16, 9, 3).requires_grad_(), draw(17, 9, 3).requires_grad_()
    assert torch.equal(hardmax_rank(q, k), reference_rank(q.detach(), k.detach()))
    assert not hardmax_rank(q, k).requires_grad


@pytest.mark.parametrize("path", PATHS)
def test_strided_input(monkeypatch, path):
    force(monkeypatch, path)
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
    q, k = draw(50, 2048, 8), draw(51, 2048, 8)
    with LargestTensor() as tiles:
        hardmax_rank(q, k, causal=causal, tile=256)
    with LargestTensor() as matrix:
        q @ k.T
    assert tiles.size <= 256 * 256 * 8
    assert matrix.size == 2048**2 * 8


@pytest.mark.parametrize("tile", [2001, 10**9, 10**30])
def test_a_tile_is_no_larger_than_the_matrix(tile):
    q, k = draw(50, 3, 2001, 3), draw(51, 3, 2001, 3)
    with LargestTensor() as tiles:
        rank = hardmax_rank(q, k, tile=tile)
    assert tiles.size <= 2001**2 * 4 and torch.equal(rank, hardmax_rank(q, k))
    q, k = integers(52, 2, 7, 3), integers(53, 2, 900, 3)  # ties: the matrix again
    assert torch.equal(hardmax_rank(q, k, tile=tile), reference_rank(q, k))


MEMORY = """
import torch
from attnrank import hardmax_rank

def memory(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(field))

torch.set_num_threads(1)
q, k = torch.randn(2, 262144, 4, generator=torch.Generator().manual_seed(0))
before = memory("VmRSS")
hardmax_rank(q, k)
print(memory("VmHWM") - before)
(q[:16384] @ k[:16384].T).sum()
print(memory("VmHWM") - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="reads the peak memory of a process from /proc")
def test_extra_memory_of_a_process_is_far_below_the_full_matrix():
    output = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True).stdout
    tiles, part_of_the_matrix = map(int, output.split())
    # The full matrix takes 256 GiB. Tiles and what is known of each token take about 70 MiB, loaded code included.
    assert tiles < 200 * 2**20 < part_of_the_matrix
    assert part_of_the_matrix > 0.9 * 16384**2 * 4


@pytest.mark.parametrize(("n", "d_h", "few"), [(2048, 2, True), (2300, 8, True), (2300, 4, False), (4100, 8, False)])
def test_matrices_are_searched_where_keys_can_be_left_out(monkeypatch, n, d_h, few):
    # Few scores, or more of a long head, whose keys are seldom too short: all are computed, block by block.
    searched = []
    honest = hardmax.search_rank
    monkeypatch.setattr(hardmax, "search_rank", lambda *x, **y: (searched.append(1), honest(*x, **y))[1])
    monkeypatch.setattr(hardmax, "cached_numbers", lambda device: 1 << 18)  # whatever the cache of this machine
    q, k = draw(90, n, d_h), draw(91, n, d_h)
    assert hardmax_rank(q, k) == reference_rank(q, k)
    assert bool(searched) != few
