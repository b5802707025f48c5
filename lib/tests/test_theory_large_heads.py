"""theory.large_head_loss: the first term of what large random heads lose."""

import itertools
import math

import mpmath as mp
import numpy as np
import pytest
import scipy

from attnrank import theory


def three_alike(m):
    """Density of three alike that are the largest of m standard normals."""
    with mp.workdps(40):
        middle = mp.sqrt(2 * mp.log(m)) - 0.5
        ends = [middle - 6, middle - 1, middle, middle + 1, middle + 6]
        return mp.quad(lambda x: mp.npdf(x) ** 3 * mp.ncdf(x) ** (m - 3), ends)


def test_the_smallest_lengths_have_closed_forms():
    assert theory.large_head_loss(1, 8) == theory.large_head_loss(2, 8) == 0
    assert [theory.large_head_loss(n, 8, causal=True) for n in (1, 2, 3)] == [0, 0, 0]
    assert theory.large_head_loss(3, 8) == pytest.approx((2 / 3) ** 3 * 3**6 / (16 * 12 * math.pi**2) / 8, rel=1e-12)
    assert theory.large_head_loss(4, 8, causal=True) == pytest.approx(1 / (4 * math.pi**2) / 8, rel=1e-12)


@pytest.mark.parametrize("n", [5, 300, 10**6, 10**12])
def test_large_head_loss_agrees_with_mpmath(n):
    with mp.workdps(40):
        exact = (1 - mp.mpf(1) / n) ** n * mp.mpf(n) ** 6 * (n - 2) * three_alike(n) ** 2 / 16
    assert theory.large_head_loss(n, 2.5) == pytest.approx(float(exact / mp.mpf(2.5)), rel=1e-8)


def test_the_causal_loss_is_the_sum_over_pairs_of_rows():
    n, e = 8, {m: three_alike(m) for m in range(3, 9)}
    pairs = [(i, m) for m in range(3, n + 1) for i in range(3, m)]
    total = sum(i**2 * (i - 1) * (i - 2) * mp.mpf(m) ** 3 / (m - 1) * e[i] * e[m] for i, m in pairs)
    assert theory.large_head_loss(n, 7, causal=True) == pytest.approx(float(total / (16 * n * 7)), rel=1e-11)


@pytest.mark.parametrize("n", [4, 16, 64, 256])
def test_lengths_alone_lose_their_share_of_it(n):
    """The bound for lengths is a quadrature of its own, and leaves out the rest."""
    loss = theory.occupancy_bound(n) - theory.head_dim_bound(n, 10**4)
    share = (n - 1) * (n - 2) / n**2
    assert loss == pytest.approx(share * theory.large_head_loss(n, 10**4), rel=2e-3)


@pytest.mark.parametrize("n", [64, 256])
def test_normalised_keys_lose_the_share_of_their_angles(n):
    """The second moment of a cell of normalised keys is a quadrature of its own, too: n^2 E p^2 = 1 + n^2 Var p."""
    d_h = 1000
    variance = 2 / n * theory.large_head_loss(n, d_h) / (n * math.comb(n, 2) * (1 - 1 / n) ** (n - 2))
    assert theory.normalised_second_moment(n, d_h) - 1 == pytest.approx(n**2 * variance, rel=0.03)


def test_long_sequences_lose_what_the_log_normal_limit_says():
    ratios = [theory.large_head_loss(10**k, 1) / (10**k * theory.lognormal_variance(10**k, 1) / (2 * math.e))
              for k in (2, 4, 8, 15)]  # fmt: skip
    assert sorted(ratios, reverse=True) == ratios and 1 < ratios[-1] < 1.006


def test_four_causal_tokens_lose_it():
    """Given four keys, the probabilities of their cells are angles; only the keys are random."""
    d_h, samples = 256, 50_000
    gram = scipy.stats.wishart.rvs(d_h, np.eye(4), samples, random_state=0)
    agree = np.zeros(samples)
    for b in range(4):
        x, y = np.array([key for key in itertools.permutations(range(4), 2) if b not in key and key[0] < key[1]]).T
        products = gram[:, b, b, None] - gram[:, b, x] - gram[:, b, y] + gram[:, x, y]
        lengths = [(gram[:, b, b, None] - 2 * gram[:, b, z] + gram[:, z, z]) ** 0.5 for z in (x, y)]
        both = 0.25 + np.arcsin(products / (lengths[0] * lengths[1])) / (2 * math.pi)  # preferred to each of two others
        agree += ((both.sum(-1) - 0.5) / 2) ** 2
    loss = (agree - 0.25) / 4  # 5/2 less the mean rank, by the proposition on four tokens
    margin = 5.3 * loss.std() / samples**0.5  # normal, false-alarm rate 1e-7
    expected = theory.large_head_loss(4, d_h, causal=True)
    assert margin < 0.02 * expected  # a fault of 3% is seen
    assert loss.mean() == pytest.approx(expected, abs=margin + 0.01 * expected)


@pytest.mark.parametrize(("call", "message"), [
    (lambda: theory.large_head_loss(0, 8), "n must be at least 1"),
    (lambda: theory.large_head_loss(10**16, 8), "n must be at most"),
    (lambda: theory.large_head_loss(10**6, 8, causal=True), "n must be at most"),
    (lambda: theory.large_head_loss(8, 0.5), "d_h must be"),
    (lambda: theory.large_head_loss(8, 8, causal=1), "causal must be True or False"),
])  # fmt: skip
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        call()
