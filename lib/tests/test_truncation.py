"""Truncated query and key weights against the best approximation of the product by a plain SVD."""

from __future__ import annotations

import pytest
import torch

from attnrank.models.truncation import truncate_query_key


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("heads", [(), (3,), (2, 3)])
@pytest.mark.parametrize("rank", [1, 3, 5])
def test_the_best_approximation(heads, rank):
    w_q, w_k = draw(*heads, 12, 5), draw(*heads, 12, 5, seed=1)
    one, two, sigma = truncate_query_key(w_q, w_k, rank)
    assert one.shape == two.shape == (*heads, 12, rank)
    u, s, v = torch.linalg.svd(w_q @ w_k.mT)
    torch.testing.assert_close(one @ two.mT, u[..., :rank] * s[..., None, :rank] @ v[..., :rank, :])
    torch.testing.assert_close(sigma, s[..., :5])
    error = torch.linalg.matrix_norm(w_q @ w_k.mT - one @ two.mT)
    torch.testing.assert_close(error, s[..., rank:].square().sum(-1).sqrt(), atol=1e-10, rtol=1e-10)


def test_nothing_is_lost_at_full_rank_and_the_type_stays():
    w_q, w_k = draw(7, 7).float(), draw(7, 7, seed=1).float()
    one, two, sigma = truncate_query_key(w_q, w_k, 7)
    assert one.dtype == torch.float32 and sigma.dtype == torch.float64
    exact = torch.linalg.svdvals(w_q.double() @ w_k.double().mT)
    torch.testing.assert_close(sigma, exact, rtol=1e-12, atol=1e-12)  # also the smallest, for weights of any type
    assert [y.dtype for y in truncate_query_key(w_q, w_k.half(), 3)] == [torch.float32, torch.float16, torch.float64]
    torch.testing.assert_close(one @ two.mT, w_q @ w_k.mT, atol=1e-4, rtol=1e-4)


def test_weights_that_are_not_finite_are_refused_by_name():
    for at, name in enumerate(("w_q", "w_k")):
        given = [draw(4, 3), draw(4, 3)]
        given[at][1, 1] = torch.nan
        with pytest.raises(ValueError, match=f"^{name} must"):
            truncate_query_key(*given, 2)


def test_weights_of_eight_bits_are_refused_by_name():
    with pytest.raises(ValueError, match="^w_q must be of a dtype with arithmetic"):
        truncate_query_key(draw(4, 3).to(torch.float8_e4m3fn), draw(4, 3), 2)


@pytest.mark.parametrize(("q", "k", "rank", "message"), [
    ((4, 3), (4, 2), 1, "must have one shape"),
    ((2, 3), (2, 3), 1, "with d >= d_h"),
    ((4, 3), (4, 3), 4, "at most the head dimension 3"),
    ((4, 3), (4, 3), 0, "rank must be at least 1"),
])  # fmt: skip
def test_bad_arguments(q, k, rank, message):
    with pytest.raises(ValueError, match=message):
        truncate_query_key(draw(*q), draw(*k), rank)
