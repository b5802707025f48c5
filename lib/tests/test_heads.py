"""Ranks of the heads that one already has, against explicit counts."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnrank import LayoutWarning, attention, hardmax_rank, hardmax_rank_of, head_ranks, theory


def heads(*shape, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype) for _ in range(2))


def counted(q, k, causal=False):
    """Distinct best keys, first of equals, of one head by plain loops in Python's numbers."""
    best = set()
    for i, query in enumerate(q.double().tolist()):
        scores = [math.fsum(a * b for a, b in zip(query, key, strict=True)) for key in k.double().tolist()]
        best.add(scores.index(max(scores[: i + 1] if causal else scores)))
    return len(best)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_every_head_has_its_row(causal, dtype):
    q, k = heads(2, 3, 12, 4, dtype=dtype)
    table = head_ranks(q, k, causal=causal)
    assert list(table) == [
        "batch", "head", "n", "m", "head_dim", "causal", "hardmax_rank", "share", "barrier", "bound",
    ]  # fmt: skip
    assert list(zip(table.batch, table["head"], strict=True)) == [(b, h) for b in range(2) for h in range(3)]
    bound = (theory.causal_head_dim_bound if causal else theory.head_dim_bound)(12, 4)
    for row in table.to_dict("records"):
        expected = counted(q[row["batch"], row["head"]], k[row["batch"], row["head"]], causal)
        assert row["hardmax_rank"] == expected and row["share"] == expected / 12
        assert (row["n"], row["m"], row["head_dim"], row["causal"]) == (12, 12, 4, causal)
        assert row["barrier"] == (theory.causal_bound(12) if causal else theory.occupancy_bound(12))
        assert row["bound"] == bound
    assert table.attrs["layout"] == "batch 2, head 3, n 12, head_dim 4"


def test_other_leading_dimensions_and_fewer_keys():
    q, _ = heads(7, 5)
    _, k = heads(9, 5)
    table = head_ranks(q, k)
    assert (
        len(table) == 1
        and "head" not in table
        and math.isnan(table.bound[0])
        and table.attrs["layout"] == "n 7, head_dim 5"
    )
    assert table.barrier[0] == theory.occupancy_bound(7, 9) and table.hardmax_rank[0] == counted(q, k)
    q, k = heads(2, 3, 4, 6, 5)
    assert list(head_ranks(q, k).columns[:3]) == ["batch_0", "batch_1", "head"] and len(head_ranks(q, k)) == 24


def test_queries_and_keys_of_a_torch_layer():
    """The recipe of the docstring gives the attention that the layer itself computes."""
    torch.manual_seed(0)
    layer = torch.nn.MultiheadAttention(24, 3, batch_first=True, dtype=torch.float64)
    torch.nn.init.normal_(layer.in_proj_bias)
    x = torch.randn(2, 10, 24, dtype=torch.float64)
    w_q, w_k, _ = layer.in_proj_weight.chunk(3)
    b_q, b_k, _ = layer.in_proj_bias.chunk(3)
    q, k = (torch.nn.functional.linear(x, w, b) for w, b in ((w_q, b_q), (w_k, b_k)))
    q, k = (y.unflatten(-1, (3, -1)).transpose(1, 2) for y in (q, k))
    mask = torch.ones(10, 10, dtype=torch.bool).triu(1)
    _, weights = layer(x, x, x, attn_mask=mask, need_weights=True, average_attn_weights=False)
    torch.testing.assert_close(
        attention(q.detach(), k.detach(), temperature=math.sqrt(8), causal=True), weights.detach()
    )
    table = head_ranks(q, k, causal=True)  # tensors with a gradient will do
    assert table.hardmax_rank.tolist() == hardmax_rank_of(weights).flatten().tolist()
    assert not table.hardmax_rank.equals(head_ranks(q, k).hardmax_rank)


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 10**6), st.sampled_from([torch.float64, torch.float16]))
def test_rank_of_a_matrix_counts_the_first_largest_entries(n, m, seed, dtype):
    """Few different values, so that most rows have ties."""
    a = torch.randint(-1, 2, (2, n, m), generator=torch.Generator().manual_seed(seed)).to(dtype)
    expected = [len({int(np.argmax(row)) for row in matrix.double().numpy()}) for matrix in a]
    assert hardmax_rank_of(a).tolist() == expected and hardmax_rank_of(a).dtype == torch.int64


def test_rank_of_masked_scores_and_of_hard_attention():
    q, k = heads(4, 20, 3)
    scores = (q @ k.mT).masked_fill(torch.ones(20, 20, dtype=torch.bool).triu(1), -math.inf)
    assert torch.equal(hardmax_rank_of(scores), hardmax_rank(q, k, causal=True))
    hard = attention(q, k, hard=True)
    assert torch.equal(hardmax_rank_of(hard), hardmax_rank(q, k))
    assert torch.equal(hardmax_rank_of(hard), torch.linalg.matrix_rank(hard))


@pytest.mark.parametrize(
    "matrix, message",
    [
        (torch.tensor([[1.0, math.nan]]), "finite largest entry"),
        (torch.tensor([[1.0, math.inf]]), "finite largest entry"),
        (torch.tensor([[1.0, 0.0], [-math.inf, -math.inf]]), "finite largest entry"),
        (torch.ones(3), "attention must have shape"),
        (torch.ones(0, 3), "must not be empty"),
        (torch.ones(2, 2, dtype=torch.int64), "must be floating point"),
        (np.ones((2, 2)), r"torch\.from_numpy\(attention\)"),
    ],
)
def test_matrices_without_an_answer(matrix, message):
    with pytest.raises(ValueError, match=message):
        hardmax_rank_of(matrix)


def test_an_attention_matrix_in_place_of_queries_and_keys_is_refused():
    q, k = heads(2, 9, 4)
    a = attention(q, k)
    with pytest.raises(ValueError, match="hardmax_rank_of takes attention matrices"):
        head_ranks(a, a)
    with pytest.raises(ValueError, match="it and its transpose; hardmax_rank_of takes attention matrices"):
        head_ranks(a, a.mT)
    with pytest.raises(ValueError, match="k must be|shape"):
        head_ranks(a, k)
    square, other = heads(9, 9)
    head_ranks(square, square), head_ranks(square.softmax(-1), other)  # queries and keys may be square, or tied
    head_ranks(square, square.mT)  # a transpose of what is no attention


def test_one_hot_tokens_are_no_attention_matrix_given_twice():
    """As queries and keys they have the rank that they have as an attention matrix."""
    for tokens in (torch.eye(8), torch.eye(8)[[3, 1, 3, 3, 0, 0, 5, 1]], torch.eye(4).expand(2, 3, 4, 4)):
        for causal in (False, True):
            table = head_ranks(tokens, tokens.clone(), causal=causal)
            assert table.hardmax_rank.tolist() == hardmax_rank_of(tokens).flatten().tolist()
    turned = torch.eye(4).roll(1, 0)
    soft = torch.full((4, 4), 0.25)
    for q, k in ((turned, turned.mT), (torch.stack([turned, soft]),) * 2):
        with pytest.raises(ValueError, match="hardmax_rank_of takes attention matrices"):
            head_ranks(q, k)


@pytest.mark.parametrize(
    "shape, remedy",
    [
        ((2, 300, 8, 16), "q.transpose(-3, -2)"),
        ((2, 8, 300, 16), ""),  # (batch, n, heads, head_dim), and as it should be
        ((300, 8, 16), "q.transpose(-3, -2)"),
        ((128, 8, 64), "q.transpose(-3, -2)"),  # (n, heads, head_dim)
        ((512, 12, 64), "q.transpose(-3, -2)"),
        ((4, 40, 768), "q.unflatten(-1, (heads, -1)).transpose(1, 2)"),
        ((12, 40, 64), ""),
        ((2, 197, 384), "q.unflatten(-1, (heads, -1)).transpose(1, 2)"),
        ((8, 40, 256), ""),  # heads not split, and split
        ((1, 128, 4, 8), "q.transpose(-3, -2)"),
        ((64, 64, 12, 8), "q.transpose(-3, -2)"),
        ((1, 12, 5, 8), ""),
        ((1, 32, 100, 8), ""),  # more heads than tokens, and few of both
        ((128, 2, 8, 64), "q.movedim(0, -2)"),
        ((128, 8, 2, 64), "q.movedim(0, -2)"),  # (n, batch, heads, head_dim)
        ((3, 50, 2, 8, 64), "q.movedim(0, -2)"),
        ((8, 12, 17, 64), ""),
        ((1000, 4, 17, 8), ""),
        ((2, 16, 8, 64), ""),  # small batches, or more than 16 tokens
        ((2, 8, 64, 1024), "q.mT"),
        ((2, 8, 64, 256), ""),  # (batch, heads, head_dim, n), and large heads
        ((300, 2, 8, 1024), "q.movedim(0, -2)"),
        ((300, 8, 1024), "q.transpose(-3, -2)"),  # one warning where two would do
        ((40, 768), "q.unflatten(-1, (heads, -1)).transpose(0, 1)"),
        ((40, 256), ""),  # a head
    ],
)
def test_a_layout_that_few_models_have_is_said(shape, remedy):
    q, k = heads(*shape)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        head_ranks(q, k)
    assert [w.category for w in caught] == [LayoutWarning] * bool(remedy)
    silence = "; if it is meant, warnings.simplefilter('ignore', attnrank.LayoutWarning)"
    assert not remedy or f"give {remedy}, and k likewise{silence}" in str(caught[0].message)


def test_an_attention_matrix_of_a_half_format_is_refused_and_a_single_token_is_none():
    q, k = heads(2, 9, 4)
    a = attention(q, k).to(torch.bfloat16)  # its rows add up to 1 up to 2^-9
    assert ((a.double().sum(-1) - 1).abs() > 1e-5).any()
    with pytest.raises(ValueError, match="hardmax_rank_of takes attention matrices"):
        head_ranks(a, a)
    token = torch.tensor([[0.999]])
    assert head_ranks(token, token).hardmax_rank.tolist() == [1]


@pytest.mark.parametrize("shape, warned", [
    ((17, 16, 8), True), ((16, 4, 8), False), ((17, 17, 8), False),  # heads of tokens
    ((17, 2, 16, 8), True), ((16, 2, 16, 8), False), ((17, 2, 17, 8), False),  # batches
    ((2, 4, 20, 257), True), ((2, 4, 20, 256), False), ((4, 20, 257), True),  # dimensions of a head
])  # fmt: skip
def test_layouts_are_doubted_from_a_size_on(shape, warned):
    q, k = heads(*shape)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        head_ranks(q, k)
    assert [w.filename for w in caught] == [__file__] * warned  # the line that called


def test_shares_are_of_the_queries():
    q, _ = heads(9, 2)
    _, k = heads(3, 2, seed=1)
    table = head_ranks(q, k)
    assert table.hardmax_rank[0] == counted(q, k) and table.share[0] == counted(q, k) / 9
    assert table.barrier[0] == theory.occupancy_bound(9, 3) and math.isnan(table.bound[0])
