"""theory: head dimensions at which the rank saturates, and the log-normal limit."""

import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnrank import theory


@pytest.mark.parametrize(
    ("n", "d_h"),
    [(10**2, 23.5), (10**3, 71.8), (10**4, 150), (10**5, 259), (10**6, 400), (10**8, 777), (10**10, 1282),
     (10**12, 1918)],
)  # fmt: skip
def test_saturation_head_dim_has_the_reference_values(n, d_h):
    assert theory.saturation_head_dim(n, 0.1) == pytest.approx(d_h, abs=0.5 if d_h > 100 else 0.05)


@given(n=st.integers(3, 10**12), gap=st.floats(0.005, 0.6))
@settings(max_examples=25, deadline=None)
def test_saturation_head_dim_is_the_smallest_head_within_the_gap(n, gap):
    d_h = theory.saturation_head_dim(n, gap)

    def gap_at(d):
        return (theory.occupancy_bound(n) - theory.head_dim_bound(n, d)) / n

    assert d_h >= 1 and gap_at(d_h) <= gap + 1e-6
    if d_h > 1:
        assert gap_at(d_h) == pytest.approx(gap, abs=1e-6)
        assert all(gap_at(1 + (d_h - 1) * share) >= gap - 1e-6 for share in (0.0, 0.5, 0.9))


@pytest.mark.parametrize(("n", "gap"), [(1, 0.01), (2, 0.01), (3, 0.2), (10**6, 0.64)])
def test_a_head_of_dimension_one_may_be_within_the_gap(n, gap):
    assert theory.saturation_head_dim(n, gap) == 1.0
    assert n < 10**6 or theory.saturation_head_dim(n, 0.63) > 1.0


def test_closeness_takes_log_squared_and_not_log():
    """The theorem of chapter growth: d_h ~ a_n^4 / (2 v) with F(v) = 1 - 1/e - gap."""
    gap = 0.1
    v = mp.findroot(lambda v: theory.lognormal_limit(float(v)) - (1 - 1 / math.e - gap), 0.7)
    scale = [theory.lognormal_variance(10**k, 1) / float(v) for k in (3, 6, 12)]
    ratio = [theory.saturation_head_dim(10**k, gap) / s for k, s in zip((3, 6, 12), scale, strict=True)]
    assert ratio[0] > ratio[1] > ratio[2] > 1 and ratio[2] < 1.35
    by_log = [theory.saturation_head_dim(10**k, gap) / math.log(10**k) for k in (3, 6, 12)]
    assert by_log[2] > 2 * by_log[1] > 4 * by_log[0]


@given(n=st.integers(3, 10**12), gain=st.floats(1e-4, 0.05))
@settings(max_examples=8, deadline=None)
def test_beyond_marginal_head_dim_no_dimension_adds_more_than_the_gain(n, gain):
    d_h = theory.marginal_head_dim(n, gain)

    def added(d):
        return (theory.head_dim_bound(n, d + 1) - theory.head_dim_bound(n, d)) / n

    assert all(added(d_h * factor) <= gain + 1e-6 for factor in (1.0, 1.1, 2.0, 7.0))
    if d_h > 1:
        assert added(d_h) == pytest.approx(gain, abs=1e-6)


def test_marginal_head_dim_finds_no_saturation_where_nothing_rises_so_fast():
    assert theory.marginal_head_dim(10**4, 0.01) > 18 and theory.marginal_head_dim(10**5, 0.01) == 1
    assert theory.marginal_head_dim(1, 0.01) == theory.marginal_head_dim(2, 0.01) == 1
    # for a small gain a_n^2 / (2 sqrt(e gain))
    small = [theory.marginal_head_dim(n, 1e-5) * 2 * math.sqrt(math.e * 1e-5) for n in (10**3, 10**6)]
    asymptotic = [math.sqrt(2 * theory.lognormal_variance(n, 1)) for n in (10**3, 10**6)]
    assert small == pytest.approx(asymptotic, rel=0.15)


def lognormal_reference(v, causal):
    mp.mp.dps = 20
    s = math.sqrt(v)

    def integrand(g):
        y = mp.exp(s * g - mp.mpf(s) ** 2 / 2)
        return (y / (1 + y) if causal else -mp.expm1(-y)) * mp.npdf(g)

    breaks = {-12, -6, -3, 0, 3, 6, 12, *(s / 2 + x for x in (-3, -1, 0, 1, 3)), s, s + 6}
    return float(mp.quad(integrand, sorted(breaks)))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("v", [0, 1e-8, 0.01, 0.3, 1, 4, 25, 100])
def test_lognormal_limit_agrees_with_mpmath(v, causal):
    assert theory.lognormal_limit(v, causal=causal) == pytest.approx(lognormal_reference(v, causal), rel=1e-11)


def test_lognormal_limit_at_its_ends():
    assert theory.lognormal_limit(0) == pytest.approx(1 - 1 / math.e, rel=1e-15)
    assert theory.lognormal_limit(0, causal=True) == pytest.approx(1 / 2, rel=1e-15)
    slope = (theory.lognormal_limit(1e-4) - theory.lognormal_limit(0)) / 1e-4
    assert slope == pytest.approx(-1 / (2 * math.e), rel=1e-4)
    assert theory.lognormal_limit(1e6) == 0


@given(v=st.floats(0, 1000), more=st.floats(1e-3, 100))
def test_lognormal_limit_falls(v, more):
    for causal in (False, True):
        assert theory.lognormal_limit(v + more, causal=causal) < theory.lognormal_limit(v, causal=causal)
    assert theory.lognormal_limit(v, causal=True) < theory.lognormal_limit(v)


@pytest.mark.parametrize("v", [0.5, 1.0, 2.0, 4.0])
def test_all_n_and_head_dims_collapse(v):
    """Bound and lower bound at fixed a_n^4 / (2 d_h) come nearer to F(v) as n grows."""
    distance = []
    for n in (10**3, 10**6, 10**12):
        d_h = round(theory.lognormal_variance(n, 1) / v)
        bounds = np.array([theory.head_dim_bound(n, d_h), theory.head_dim_lower_bound(n, d_h)]) / n
        distance.append(np.abs(bounds - theory.lognormal_limit(theory.lognormal_variance(n, d_h))).max())
    assert distance[0] > distance[1] > distance[2] and distance[2] < 0.01


def test_lognormal_variance_is_its_formula():
    quantile = float(mp.sqrt(2) * mp.erfinv(1 - mp.mpf(2) / 1000))
    assert theory.lognormal_variance(1000, 7) == pytest.approx(quantile**4 / 14, rel=1e-12)
    assert theory.lognormal_variance(2, 1) == pytest.approx(0, abs=1e-60)
    assert np.isfinite(theory.lognormal_variance(10**15, 1))


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: theory.saturation_head_dim(0, 0.1), "n"),
        (lambda: theory.saturation_head_dim(100, 0), "gap"),
        (lambda: theory.saturation_head_dim(100, -0.1), "gap"),
        (lambda: theory.saturation_head_dim(100, math.nan), "gap"),
        (lambda: theory.saturation_head_dim(10**12, 1e-3), "gap"),
        (lambda: theory.marginal_head_dim(0, 0.1), "n"),
        (lambda: theory.marginal_head_dim(100, 1e-7), "gain"),
        (lambda: theory.lognormal_limit(-0.1), "v"),
        (lambda: theory.lognormal_limit(math.inf), "v"),
        (lambda: theory.lognormal_variance(1, 3), "n"),
        (lambda: theory.lognormal_variance(5, 0.5), "d_h"),
    ],
)
def test_bad_input_is_named(call, name):
    with pytest.raises(ValueError, match=rf"^{name} must"):
        call()
