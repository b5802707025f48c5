"""scores: attention matrices against numpy, weights by their moments."""

import math
import operator
from fractions import Fraction
from statistics import NormalDist

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnrank import attention, gaussian_weights, hardmax_rank, queries_keys
from bad_calls import assert_refused, bad_calls

FALSE_ALARM = 1e-6


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def draw(seed, *shape, dtype=torch.float64):
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64).to(dtype)


def softmax_reference(q, k, temperature=1.0, causal=False):
    scores = np.einsum("...ic,...jc->...ij", q.numpy(), k.numpy()) / temperature
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


# ------------------------------------------------------------------------------------------------------ attention


@pytest.mark.parametrize("temperature", [1e-3, 0.5, 1.0, 7.0, 1e300])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (6, 1), (6, 4), (2, 6, 4), (2, 3, 6, 4)])
def test_attention_is_the_softmax_of_the_scores(shape, causal, temperature):
    q, k = draw(1, *shape), draw(2, *shape)
    a = attention(q, k, temperature=temperature, causal=causal)
    assert a.dtype == torch.float64
    assert a.numpy() == pytest.approx(softmax_reference(q, k, temperature, causal), rel=1e-10, abs=1e-14)


def test_more_or_fewer_keys_than_queries():
    for m in (1, 3, 20):
        q, k = draw(3, 2, 7, 4), draw(4, 2, m, 4)
        assert attention(q, k).numpy() == pytest.approx(softmax_reference(q, k), rel=1e-12)


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize(
    ("batch_q", "batch_k"), [((), (3,)), ((2, 1), (3,)), ((1,), ()), ((2, 3), (1, 3)), ((5, 1, 2), (4, 1))]
)
def test_leading_dimensions_broadcast(batch_q, batch_k, hard):
    q, k = draw(5, *batch_q, 6, 3), draw(6, *batch_k, 8, 3)
    batch = np.broadcast_shapes(batch_q, batch_k)
    a = attention(q, k, hard=hard)
    assert a.shape == (*batch, 6, 8)
    expected = attention(q.expand(*batch, 6, 3), k.expand(*batch, 8, 3), hard=hard)
    assert a.numpy() == pytest.approx(expected.numpy(), rel=1e-14)


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 12),
    d_h=st.integers(1, 6),
    temperature=st.floats(1e-6, 1e6),
    causal=st.booleans(),
    hard=st.booleans(),
)
def test_rows_are_probabilities(seed, n, d_h, temperature, causal, hard):
    a = attention(draw(seed, n, d_h), draw(seed + 1, n, d_h), temperature=temperature, causal=causal, hard=hard)
    assert (a >= 0).all()
    assert a.sum(-1).numpy() == pytest.approx(np.ones(n), abs=1e-14)
    if causal:
        assert not a.triu(1).any()
        assert a[0, 0] == 1


@pytest.mark.parametrize(
    ("dtype", "rounding"), [(torch.float32, 2**-23), (torch.float16, 2**-10), (torch.bfloat16, 2**-7)]
)
@pytest.mark.parametrize("hard", [False, True])
def test_the_dtype_of_the_queries_is_kept(dtype, rounding, hard):
    q, k = draw(7, 9, 4, dtype=dtype), draw(8, 9, 4, dtype=dtype)
    a = attention(q, k, hard=hard)
    assert a.dtype == dtype
    assert a.double().sum(-1).numpy() == pytest.approx(np.ones(9), abs=9 * rounding)


@pytest.mark.parametrize("causal", [False, True])
def test_hardmax_is_one_hot_at_the_argmax(causal):
    q, k = draw(9, 4, 15, 3), draw(10, 4, 15, 3)
    scores = q.numpy() @ k.numpy().swapaxes(-1, -2)
    if causal:
        scores[..., ~np.tri(15, dtype=bool)] = -np.inf
    assert np.array_equal(attention(q, k, hard=True, causal=causal).numpy(), np.eye(15)[scores.argmax(-1)])


@pytest.mark.parametrize("causal", [False, True])
def test_hardmax_is_the_limit_of_small_temperature(causal):
    q, k = draw(11, 4, 15, 3), draw(12, 4, 15, 3)
    hard = attention(q, k, hard=True, causal=causal)
    distance = [(attention(q, k, temperature=t, causal=causal) - hard).abs().max().item() for t in (1e-1, 1e-3, 1e-9)]
    assert distance[0] > distance[1] > distance[2] and distance[2] < 1e-15


def test_hardmax_does_not_depend_on_the_temperature():
    q, k = draw(13, 15, 3), draw(14, 15, 3)
    for temperature in (1e-320, 1e-3, 1e300):
        assert torch.equal(attention(q, k, hard=True, temperature=temperature), attention(q, k, hard=True))


def test_exact_ties_go_to_the_first_key_where_the_softmax_shares():
    q, k = torch.tensor([[1.0], [-1.0], [0.0]]), torch.tensor([[2.0], [3.0], [3.0], [2.0]])
    hard, soft = attention(q, k, hard=True), attention(q, k, temperature=1e-3)
    assert hard.tolist() == [[0, 1, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0]]
    assert soft.tolist() == [[0, 0.5, 0.5, 0], [0.5, 0, 0, 0.5], [0.25, 0.25, 0.25, 0.25]]


@pytest.mark.parametrize("causal", [False, True])
def test_the_rank_of_the_hardmax_matrix_is_the_hardmax_rank(causal):
    q, k = draw(15, 3, 30, 3), draw(16, 3, 30, 3)
    rank = np.linalg.matrix_rank(attention(q, k, hard=True, causal=causal).numpy())
    assert hardmax_rank(q, k, causal=causal).tolist() == rank.tolist()


def test_large_scores_neither_overflow_nor_vanish():
    k = torch.tensor([[1e153], [2e153], [2e153], [-1e153]], dtype=torch.float64)
    for query in (1e154, -1e154):
        a = attention(torch.full((1, 1), query, dtype=torch.float64), k)
        assert a.tolist() == ([[0, 0.5, 0.5, 0]] if query > 0 else [[0, 0, 0, 1]])


def numbers(*rows, dtype):
    return torch.tensor(rows, dtype=torch.float64).to(dtype)


LOGISTIC = 1 / (1 + math.e)


@pytest.mark.parametrize("dtype, temperature, q, k", [
    (torch.float32, 1e39, 1e30, 1e9),  # a temperature beyond the range
    (torch.float32, 1e-50, 1e-30, 1e-20),
    (torch.float16, 1e9, 3e4, 33333.33),
    (torch.float16, 1e-9, 1e-5, 1e-4),
    (torch.bfloat16, 1e40, 1e20, 1e20),
    (torch.float32, 1e30, 1e-8, 1e38),  # a quotient beyond the range, or too small to have all digits
    (torch.float32, 1e-30, 1e10, 1e-40),
    (torch.float16, 1e-2, 2e3, 5e-6),
    (torch.float16, 1e3, 0.1, 1e4),
    (torch.float64, 1e-300, 1e10, 1e-310),
    (torch.float64, 1e-300, 1e-310, 1e10),
    (torch.float64, 1e300, 1e-7, 1e307),
])  # fmt: skip
def test_temperatures_and_quotients_beyond_the_dtype(dtype, temperature, q, k):
    """Scores 0 and 1."""
    for queries, keys in (([q], [k]), ([k], [q])):
        a = attention(numbers(queries, dtype=dtype), numbers([0.0], keys, dtype=dtype), temperature=temperature)
        rounding = 2e-2 if dtype == torch.bfloat16 or min(q, k) < torch.finfo(dtype).tiny else torch.finfo(dtype).eps
        assert a.dtype == dtype and a[0].tolist() == pytest.approx([LOGISTIC, 1 - LOGISTIC], abs=rounding)


def test_quotients_that_lose_digits_are_not_multiplied_with_long_keys():
    """64 quotients of 1.4 times the least number of float32, which would round them to 1 times it."""
    temperature = 2.0**40
    q = torch.full((1, 64), 1.4 * 2.0**-149 * temperature, dtype=torch.float32)
    k = torch.tensor([[0.0], [8e37]], dtype=torch.float32).expand(2, 64)
    expected = softmax_reference(q.double(), k.double(), temperature)
    assert attention(q, k, temperature=temperature).tolist()[0] == pytest.approx(expected[0], abs=1.2e-7)


def test_scores_that_the_dtype_holds_are_not_refused_for_a_small_temperature():
    half = attention(numbers([1000.0], dtype=torch.float16), numbers([1e-3], [2e-3], dtype=torch.float16),
                     temperature=1e-2)  # fmt: skip
    assert half.tolist() == [[0.0, 1.0]]
    zero = torch.zeros(2, 3)
    assert attention(zero, zero, temperature=1e-300).tolist() == [[0.5, 0.5]] * 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_usual_temperatures_are_one_product_in_the_dtype_itself(dtype):
    q, k = draw(50, 2, 30, 16, dtype=dtype), 3 * draw(51, 2, 30, 16, dtype=dtype)
    for temperature in (0.1, 1.0, 4.0, 64.0):
        assert torch.equal(attention(q, k, temperature=temperature), ((q / temperature) @ k.mT).softmax(-1))


@pytest.mark.parametrize("hard", [False, True])
def test_scores_may_overflow_where_the_mask_hides_them(hard):
    q, k = torch.tensor([[1e30], [1.0]]), torch.tensor([[1.0], [1e30]])
    q.requires_grad_(not hard)
    a = attention(q, k, causal=True, hard=hard)
    assert a.tolist() == [[1.0, 0.0], [0.0, 1.0]]
    if hard:  # only compares them
        assert attention(q, k, hard=True).tolist() == [[0.0, 1.0], [0.0, 1.0]]
        return
    with pytest.raises(ValueError, match="must be finite"):
        attention(q, k)
    with pytest.raises(ValueError, match="must be finite"):
        attention(q.flip(0), k, causal=True)  # seen by the second query
    a[1, 1].backward()
    assert q.grad.isfinite().all()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype, scale, scale_k", [
    (torch.float16, 1e-3, 1.0), (torch.float16, 3e-4, 3e-4), (torch.float16, 1e4, 1e4), (torch.bfloat16, 1e-20, 1e-20),
    (torch.float32, 1e-22, 1e-22), (torch.float32, 1e-36, 1e36), (torch.float32, 1e37, 1e37),
    (torch.float64, 2.0**-538, 2.0**-538), (torch.float64, 2.0**-960, 2.0**-600), (torch.float64, 2.0**1020, 2.0**1020),
])  # fmt: skip
def test_the_hardmax_of_no_scale_over_or_underflows(dtype, scale, scale_k, causal):
    """Against exact rational arithmetic; a row of zeros goes to the first key."""
    q, k = (scale * draw(52, 30, 4)).to(dtype), (scale_k * draw(53, 30, 4)).to(dtype)
    q[7] = 0
    queries, keys = ([[Fraction(x) for x in row] for row in rows.double().tolist()] for rows in (q, k))
    hard = attention(q, k, hard=True, causal=causal)
    assert hard.dtype == dtype and hard.sum(-1).tolist() == [1.0] * 30
    for i, query in enumerate(queries):
        scores = [sum(map(operator.mul, query, key)) for key in keys[: i + 1 if causal else None]]
        assert hard[i].argmax() == scores.index(max(scores))


def test_a_query_attends_to_the_past_only():
    q, k = draw(17, 10, 4), draw(18, 10, 4)
    before = attention(q, k, causal=True)
    q[6:], k[6:] = draw(19, 4, 4), draw(20, 4, 4)
    after = attention(q, k, causal=True)
    assert torch.equal(before[:6], after[:6])
    assert not torch.equal(before[6:], after[6:])
    assert not torch.equal(attention(q, k)[:6], before[:6])  # without the mask the future counts


def test_gradients_flow_through_the_softmax():
    q, k = draw(21, 5, 3).requires_grad_(), draw(22, 5, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda q, k: attention(q, k, temperature=2.0, causal=True), (q, k))


# --------------------------------------------------------------------------------------------------- queries, keys


@pytest.mark.parametrize("heads", [None, 1, 3])
@pytest.mark.parametrize("batch", [(), (2,), (2, 5), (3,)])
def test_queries_and_keys_are_products_with_the_weights(batch, heads):
    x = draw(23, *batch, 6, 4)
    weights = gaussian_weights(4, 7, heads=heads, generator=seeded(24))
    form = "...nd,de->...ne" if heads is None else "...nd,hde->...hne"
    for result, w in zip(queries_keys(x, *weights), weights, strict=True):
        expected = np.einsum(form, x.numpy(), w.numpy())
        assert result.shape == expected.shape
        assert result.numpy() == pytest.approx(expected, rel=1e-12, abs=1e-13)


# --------------------------------------------------------------------------------------------------------- weights


@pytest.mark.parametrize(("heads", "shape"), [(None, (3, 5)), (1, (1, 3, 5)), (4, (4, 3, 5))])
def test_shape_dtype_and_seed_of_the_weights(heads, shape):
    w_q, w_k = gaussian_weights(3, 5, heads=heads, generator=seeded(25))
    assert w_q.shape == w_k.shape == shape
    assert w_q.dtype == w_k.dtype == torch.float64
    again = gaussian_weights(3, 5, heads=heads, generator=seeded(25))
    assert torch.equal(w_q, again[0]) and torch.equal(w_k, again[1])
    other = gaussian_weights(3, 5, heads=heads, generator=seeded(26))
    assert not torch.equal(w_q, other[0]) and not torch.equal(w_k, other[1])


def standard_scores(w_q, w_k):
    """Standardised sums that are nearly N(0, 1) each if the entries of the weights are i.i.d. N(0, 1)."""
    both = torch.stack([w_q, w_k]).flatten().numpy()
    n = both.size
    pairs = {"q with k": w_q * w_k, "heads": w_q[1:] * w_q[:-1], "rows": w_k[:, 1:] * w_k[:, :-1]}
    return {
        "mean": both.sum() / math.sqrt(n),
        "variance": (both**2 - 1).sum() / math.sqrt(2 * n),
        "fourth moment": (both**4 - 3).sum() / math.sqrt(96 * n),
        **{name: product.sum().item() / math.sqrt(product.numel()) for name, product in pairs.items()},
    }


# Two-sided with probability FALSE_ALARM for the six together, by the normal approximation: 5.1 standard deviations.
LIMIT = NormalDist().inv_cdf(1 - FALSE_ALARM / 12)


def test_weights_are_independent_standard_normal():
    w_q, w_k = gaussian_weights(100, 200, heads=20, generator=seeded(27))
    scores = standard_scores(w_q, w_k)
    assert max(map(abs, scores.values())) < LIMIT, scores


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        (lambda q, k: (q + 0.01, k + 0.01), "mean"),
        (lambda q, k: (1.01 * q, 1.01 * k), "variance"),
        (lambda q, k: (3**0.5 * (q / 2**0.5).erf(), k), "fourth moment"),
        (lambda q, k: (q, 0.02 * q + k), "q with k"),
        (lambda q, k: (q[:1].expand_as(q), k), "heads"),
        (lambda q, k: (q, k + 0.02 * k.roll(1, 1)), "rows"),
    ],
)
def test_the_test_of_the_weights_sees_a_fault(fault, name):
    faulty = fault(*gaussian_weights(100, 200, heads=20, generator=seeded(27)))
    assert abs(standard_scores(*faulty)[name]) > LIMIT


# ------------------------------------------------------------------------------------------------------- bad input

Q, K, X = draw(40, 2, 5, 3), draw(41, 2, 5, 3), draw(42, 2, 5, 3)
W_Q, W_K = draw(43, 4, 3, 6), draw(44, 4, 3, 6)


def bad_matrix(name, rows, columns):
    """What is wrong with any matrix argument; ``rows`` and ``columns`` make the faulty one fit the others."""
    good = torch.ones(rows, columns, dtype=torch.float64)
    nan, infinite = good.clone(), good.clone()
    nan[0, 0], infinite[-1, -1] = math.nan, -math.inf
    return [
        (
            {name: good.numpy()},
            rf"^{name} must be a torch\.Tensor, got ndarray; torch\.from_numpy\({name}\) makes one$",
        ),
        ({name: None}, rf"^{name} must be a torch\.Tensor, got NoneType$"),
        ({name: good[0]}, rf"^{name} must have shape \(\.\.\., rows, columns\), got \({columns},\)$"),
        ({name: good[:0]}, rf"^{name} must not be empty, got shape \(0, {columns}\)$"),
        ({name: good[:, :0]}, rf"^{name} must not be empty, got shape \({rows}, 0\)$"),
        ({name: good.int()}, rf"^{name} must be floating point, got torch\.int32$"),
        ({name: nan}, rf"^{name} must be finite, got NaN in a tensor of shape \({rows}, {columns}\)$"),
        ({name: infinite}, rf"^{name} must be finite, got infinite values in a tensor of shape \({rows}, {columns}\)$"),
    ]


def bad_integer(name):
    return [
        ({name: 0}, rf"^{name} must be at least 1, got 0$"),
        ({name: -5}, rf"^{name} must be at least 1, got -5$"),
        ({name: 2.0}, rf"^{name} must be an integer, got 2\.0$"),
        ({name: "2"}, rf"^{name} must be an integer, got '2'$"),
        ({name: True}, rf"^{name} must be an integer, got True$"),
    ]


ATTENTION_VALID = {"q": Q, "k": K, "temperature": 2.0, "causal": True}
ATTENTION_BAD = [
    *bad_matrix("q", 5, 3),
    *bad_matrix("k", 5, 3),
    ({"k": K[..., :2]}, r"^q has head dimension 3 but k has 2$"),
    ({"k": K[:, :4]}, r"^causal needs as many keys as queries, got 5 and 4$"),
    (
        {"k": K.float()},
        r"^q and k must share dtype and device, got torch\.float64 on cpu, torch\.float32 on cpu; take k\.to\(q\)$",
    ),
    (
        {"k": draw(45, 3, 5, 3)},
        r"^leading dimensions of q and k must broadcast, got q of shape \(2, 5, 3\) and k of shape \(3, 5, 3\)$",
    ),
    (
        {"q": draw(45, 6, 5, 3)},
        r"must broadcast, got q of shape \(6, 5, 3\) and k of shape \(2, 5, 3\): "
        r"for grouped queries pass k\.repeat_interleave\(3, dim=-3\)$",
    ),
    (
        {"q": 1e200 * Q, "k": 1e200 * K},
        r"^q k\^T / temperature must be finite, got (NaN|infinite values) in .*\(2, 5, 5\)$",
    ),
    ({"temperature": 5e-324}, r"^q k\^T / temperature must be finite"),
    ({"temperature": 0.0}, r"^temperature must be greater than 0\.0, got 0\.0$"),
    ({"temperature": -1}, r"^temperature must be greater than 0\.0, got -1$"),
    ({"temperature": math.nan}, r"^temperature must be a finite number, got nan$"),
    ({"temperature": math.inf}, r"^temperature must be a finite number, got inf$"),
    ({"temperature": "1"}, r"^temperature must be a finite number, got '1'$"),
    ({"temperature": None}, r"^temperature must be a finite number, got None$"),
    ({"temperature": True}, r"^temperature must be a finite number, got True$"),
]

QUERIES_KEYS_VALID = {"x": X, "w_q": W_Q, "w_k": W_K}
QUERIES_KEYS_BAD = [
    *bad_matrix("x", 5, 3),
    *bad_matrix("w_q", 3, 6),
    *bad_matrix("w_k", 3, 6),
    ({"w_k": W_K[..., :2]}, r"^w_q and w_k must have one shape.* \(4, 3, 6\) and w_k of shape \(4, 3, 2\)$"),
    ({"w_q": W_Q[None], "w_k": W_K[None]}, r"^w_q and w_k must have one shape, \(d, d_h\) or \(heads, d, d_h\);"),
    ({"x": X[..., :2]}, r"^x has width 2 but w_q expects 3$"),
    ({"x": X.float()}, r"^x, w_q and w_k must share dtype and device, got torch\.float32 on cpu, torch\.float64"),
    ({"w_k": W_K.half()}, r"^x, w_q and w_k must share dtype and device, got .*; take w_q\.to\(x\), w_k\.to\(x\)$"),
]

WEIGHTS_VALID = {"d": 3, "d_h": 2, "heads": 2, "generator": seeded(0)}
WEIGHTS_BAD = [
    *bad_integer("d"),
    *bad_integer("d_h"),
    *bad_integer("heads"),
    ({"generator": None}, r"^generator must be a torch\.Generator, got NoneType$"),
    ({"generator": 0}, r"^generator must be a torch\.Generator, got int$"),
    ({"generator": np.random.default_rng(0)}, r"^generator must be a torch\.Generator, got Generator$"),
]

BAD = bad_calls(
    (attention, ATTENTION_VALID, ATTENTION_BAD),
    (queries_keys, QUERIES_KEYS_VALID, QUERIES_KEYS_BAD),
    (gaussian_weights, WEIGHTS_VALID, WEIGHTS_BAD),
)


@pytest.mark.parametrize(("function", "valid", "bad", "message"), BAD)
def test_bad_input_is_refused_by_name(function, valid, bad, message):
    assert_refused(function, valid, bad, message)


def test_weights_are_drawn_on_the_cpu_whatever_the_default_device():
    expected = gaussian_weights(5, 3, heads=2, generator=seeded(1))
    with torch.device("meta"):
        found = gaussian_weights(5, 3, heads=2, generator=seeded(1))
    assert all(x.device.type == "cpu" and torch.equal(x, y) for x, y in zip(found, expected, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_autocast_changes_neither_dtype_nor_numbers(dtype):
    q, k = draw(1, 6, 4, dtype=dtype), draw(2, 6, 4, dtype=dtype)
    calls = [
        lambda: attention(q, k, temperature=0.5),
        lambda: attention(q, k, causal=True),
        lambda: attention(q, k, hard=True),
        lambda: queries_keys(q, k.mT.contiguous(), 2 * k.mT)[1],
    ]
    expected = [call() for call in calls]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = [call() for call in calls]
    assert all(x.dtype == dtype for x in found)
    assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))
