"""theory: vertices of Gaussian polytopes and Poisson-Voronoi cells, against mpmath, convex hulls and simulation."""

import math
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, spatial

from attnrank import hardmax_rank, theory

QUANTILE = 4.9  # Phi(-4.9) < 1e-6 / 2


def angle(vertices, r):
    """E[Phi(sqrt(r) x)^vertices], x normal, with enough digits to bear the cancellation for r < 0."""
    mp.mp.dps = 20 if r > 0 else 20 + vertices
    root = mp.sqrt(mp.mpf(abs(r.numerator)) / r.denominator) * (1 if r > 0 else 1j)
    power = lambda x: mp.re(((1 + mp.erf(root * x / mp.sqrt(2))) / 2) ** vertices)  # noqa: E731
    return mp.quad(lambda x: power(x) * mp.npdf(x), mp.linspace(-16, 16, 17))


def exact_vertices(n, d):
    total = mp.mpf(0)
    for m in range(d, 0, -2):
        internal = angle(m - 1, Fraction(-1, m)) if m > 1 else 1
        total += mp.binomial(n, m) * m * internal * angle(n - m, Fraction(1, m))
    return float(2 * total)


@pytest.mark.parametrize(
    ("n", "d", "vertices"),
    [
        (100, 2, 8.889), (100, 3, 21.852), (100, 4, 39.119), (100, 5, 57.147), (100, 6, 72.722), (100, 8, 91.69),
        (100, 10, 98.21), (100, 12, 99.716), (20, 2, 6.620), (20, 3, 12.024),
    ],
)  # fmt: skip
def test_polytope_vertices_has_the_reference_values(n, d, vertices):
    digits = 2 if vertices in (91.69, 98.21) else 3
    assert theory.polytope_vertices(n, d) == pytest.approx(vertices, abs=0.51 * 10**-digits)


@pytest.mark.parametrize(("n", "d"), [(5, 2), (20, 3), (30, 9), (24, 16)])
def test_polytope_vertices_agrees_with_mpmath(n, d):
    assert theory.polytope_vertices(n, d) == pytest.approx(exact_vertices(n, d), rel=1e-10)


@pytest.mark.parametrize("n", [2, 3, 100, 10**6, 10**12])
def test_on_the_line_the_hull_has_two_vertices(n):
    assert theory.polytope_vertices(n, 1) == pytest.approx(2, rel=1e-9)


@pytest.mark.parametrize("n", [4, 50, 10**4, 10**8, 10**12])
def test_in_the_plane_it_is_a_single_real_integral(n):
    """Renyi and Sulanke (1963): as many edges as vertices, and a pair of points is an edge when all others lie on one
    side of its line, whose distance from the origin has the density of a normal of variance 1/2."""
    peak = float(-mp.mpf(2) ** 0.5 * mp.erfinv(mp.mpf(2) / n - 1))
    density = lambda p: math.exp(-p * p + (n - 2) * math.log1p(-0.5 * math.erfc(p / math.sqrt(2))))  # noqa: E731
    integral = integrate.quad(density, peak - 4, peak + 8, points=[peak - 1, peak, peak + 1], epsabs=0, epsrel=1e-11)[0]
    assert theory.polytope_vertices(n, 2) == pytest.approx(n * (n - 1.0) * integral / math.sqrt(math.pi), rel=1e-7)


@pytest.mark.parametrize(("n", "d"), [(12, 2), (40, 3), (30, 4), (25, 5)])
def test_polytope_vertices_is_the_mean_over_convex_hulls(n, d):
    generator = np.random.default_rng(n + d)
    counts = [len(spatial.ConvexHull(generator.standard_normal((n, d))).vertices) for _ in range(300)]
    assert abs(np.mean(counts) - theory.polytope_vertices(n, d)) <= QUANTILE * np.std(counts) / math.sqrt(300)


@given(n=st.integers(1, 10**12), d=st.integers(1, 1200))
@settings(max_examples=40, deadline=None)
def test_polytope_vertices_rises_with_both_arguments(n, d):
    vertices = theory.polytope_vertices(n, d)
    assert min(n, 2) * (1 - 1e-9) <= vertices <= n
    assert theory.polytope_vertices(n, d + 1) >= vertices * (1 - 1e-8)
    assert theory.polytope_vertices(n + 1 + n // 3, d) >= vertices * (1 - 1e-8)
    if d >= n - 1:
        assert vertices == n


def test_polytope_vertices_bounds_the_rank_where_the_head_is_small():
    n, d_h, samples = 200, 2, 400
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, samples, n, d_h, generator=generator, dtype=torch.float64)
    rank = hardmax_rank(q, k).double()
    assert rank.mean() <= theory.polytope_vertices(n, d_h) + QUANTILE * rank.std() / math.sqrt(samples)
    assert theory.polytope_vertices(n, d_h) < theory.head_dim_bound(n, d_h)  # it takes over there
    keys_on_circle = hardmax_rank(q, torch.nn.functional.normalize(k, dim=-1)).double()  # the negative control
    assert keys_on_circle.mean() > theory.polytope_vertices(n, d_h)


def test_the_variance_of_voronoi_cells_is_known_on_the_line_in_the_plane_and_in_space():
    """Gilbert (1962): 1/2, 0.280176, 0.179033."""
    assert theory.poisson_voronoi_variance(1) == 0.5
    assert theory.poisson_voronoi_variance(2) == pytest.approx(0.280176, abs=1e-6)
    assert theory.poisson_voronoi_variance(3) == pytest.approx(0.179033, abs=1e-6)


@pytest.mark.parametrize("dimension", [2, 3, 7, 20])
def test_the_variance_of_voronoi_cells_agrees_with_a_plain_double_integral(dimension):
    """E V^2 = integral of 1 / union^2, with caps from one-dimensional integrals of slices."""
    d = dimension
    ball = integrate.quad(lambda a: math.sin(a) ** d, 0, math.pi)[0]

    def cap(a):
        return integrate.quad(lambda b: math.sin(b) ** d, 0, a)[0] / ball

    def slice_(t):
        def integrand(psi):
            alpha = math.atan2(t * math.sin(psi), 1 - t * math.cos(psi))
            union = 1 + t**d - cap(alpha) - t**d * cap(math.pi - psi - alpha)
            return math.sin(psi) ** (d - 2) / union**2

        return t ** (d - 1) * integrate.quad(integrand, 0, math.pi, limit=200, epsrel=1e-7)[0]

    nodes, weights = np.polynomial.legendre.leggauss(20)
    area = (d - 1) * math.gamma(d / 2 + 1) / (math.sqrt(math.pi) * math.gamma((d + 1) / 2))
    square = area * sum(w * slice_((x + 1) / 2) for x, w in zip(nodes, weights, strict=True))
    assert theory.poisson_voronoi_variance(d) == pytest.approx(square - 1, abs=2e-5)


def test_qk_norm_limit_is_exact_at_two_and_rises_to_the_barrier():
    assert theory.qk_norm_limit(1) == 0
    assert theory.qk_norm_limit(2) == pytest.approx(5 / 9, rel=1e-12)
    limits = [theory.qk_norm_limit(d_h) for d_h in (*range(1, 40), 128, 4096)]
    assert all(np.diff(limits) >= 0)
    assert limits[-1] == pytest.approx(1 - 1 / math.e, rel=1e-12)


@pytest.mark.parametrize(("d_h", "measured"), [(2, 0.5546), (3, 0.5859), (4, 0.6009), (5, 0.6103), (6, 0.6151),
                                               (8, 0.6222), (12, 0.6265), (16, 0.6300)])  # fmt: skip
def test_qk_norm_limit_is_near_the_reference_values(d_h, measured):
    """Measured at n = 2048 (+-.0006). The limit is approached from below, and slowly in high dimension."""
    gap = theory.qk_norm_limit(d_h) - measured
    assert -0.0006 < gap < (0.0012 if d_h <= 5 else 0.0035)


@pytest.mark.parametrize("d_h", [2, 3, 5, 8])
def test_qk_norm_limit_is_what_normalised_keys_reach(d_h):
    n, samples = 1024, 40
    q, k = torch.randn(2, samples, n, d_h, generator=torch.Generator().manual_seed(d_h), dtype=torch.float64)
    share = hardmax_rank(q, torch.nn.functional.normalize(k, dim=-1)).double() / n
    margin = QUANTILE * float(share.std()) / math.sqrt(samples)
    assert abs(float(share.mean()) - theory.qk_norm_limit(d_h)) <= margin + (0.001 if d_h <= 5 else 0.003)
    assert float((hardmax_rank(q, k).double() / n).mean()) < theory.qk_norm_limit(d_h) - 0.1  # keys with their norms


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: theory.polytope_vertices(0, 2), "n"),
        (lambda: theory.polytope_vertices(5, 0), "d"),
        (lambda: theory.polytope_vertices(5, 2.5), "d"),
        (lambda: theory.qk_norm_limit(0), "d_h"),
        (lambda: theory.qk_norm_limit(2.5), "d_h"),
        (lambda: theory.poisson_voronoi_variance(0), "dimension"),
    ],
)
def test_bad_input_is_named(call, name):
    with pytest.raises(ValueError, match=rf"^{name} must"):
        call()
