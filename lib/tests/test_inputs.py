"""inputs: the property that defines each kind of tokens, exactly or by a test of stated false-alarm rate."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from attnrank import inputs
from attnrank.inputs import tokens

FALSE_ALARM = 1e-6  # of each statistical test; the seeds are fixed, so a test that passes once passes always


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def draw(kind, n, d, seed, **options):
    return tokens(kind, n, d, generator=seeded(seed), **options).numpy()


def repeat(kind, n, d, times, seed, **options):
    """Independent sequences, one after the other from one generator."""
    generator = seeded(seed)
    return np.stack([tokens(kind, n, d, generator=generator, **options).numpy() for _ in range(times)])


def follows(sample, distribution):
    return stats.kstest(np.ravel(sample), distribution.cdf).pvalue > FALSE_ALARM


def has_mean(sample, mean, variance):
    z = (np.mean(sample) - mean) / math.sqrt(variance / np.size(sample))
    return abs(z) < stats.norm.isf(FALSE_ALARM / 2)


class SphereCoordinate:
    """A coordinate x of a uniform point of the unit sphere: (1 + x) / 2 follows Beta((d - 1) / 2, (d - 1) / 2)."""

    def __init__(self, d):
        self.beta = stats.beta((d - 1) / 2, (d - 1) / 2)

    def cdf(self, x):
        return self.beta.cdf((1 + x) / 2)


# ---------------------------------------------------------------------------------------------------- every kind

KINDS = sorted(inputs.KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_drawn_on_the_cpu_whatever_the_default_device(kind):
    expected = tokens(kind, 4, 6, generator=seeded(1))
    with torch.device("meta"):
        x = tokens(kind, 4, 6, generator=seeded(1))
    assert x.device.type == "cpu" and torch.equal(x, expected)


@pytest.mark.parametrize(("n", "d"), [(1, 1), (1, 7), (4, 4), (5, 30)])
@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_float64_on_the_cpu_and_depend_on_nothing_but_the_generator(kind, n, d):
    torch.manual_seed(0)
    x = tokens(kind, n, d, generator=seeded(1))
    assert x.shape == (n, d) and x.dtype == torch.float64 and x.device.type == "cpu" and x.isfinite().all()
    state = torch.manual_seed(1).get_state()
    assert torch.equal(x, tokens(kind, n, d, generator=seeded(1)))
    assert torch.equal(torch.get_rng_state(), state)  # torch's global generator is left alone


@pytest.mark.parametrize("kind", KINDS)
def test_another_seed_or_a_second_call_draws_other_tokens(kind):
    generator = seeded(1)
    first, second = (tokens(kind, 5, 30, generator=generator) for _ in range(2))
    other = tokens(kind, 5, 30, generator=seeded(2))
    assert not torch.equal(first, second) and not torch.equal(first, other)
    generator = seeded(1)
    assert torch.equal(tokens(kind, 5, 30, generator=generator), first)
    assert torch.equal(tokens(kind, 5, 30, generator=generator), second)


def test_threads_do_not_change_the_tokens():
    threads, drawn = torch.get_num_threads(), []
    try:
        for number in (1, 2):
            torch.set_num_threads(number)
            drawn.append([tokens(kind, 40, 50, generator=seeded(1)).numpy() for kind in KINDS])
    finally:
        torch.set_num_threads(threads)
    for one, two in zip(*drawn, strict=True):
        assert one == pytest.approx(two, abs=1e-13)


# ----------------------------------------------------------------------------------------------- orthonormal kinds


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 20), extra=st.integers(0, 20), seed=st.integers(0, 2**32 - 1))
def test_orthonormal_tokens_are_orthonormal(n, extra, seed):
    x = draw("orthonormal", n, n + extra, seed)
    assert x @ x.T == pytest.approx(np.eye(n), abs=1e-12)


@pytest.mark.parametrize(("n", "d"), [(1, 3), (3, 3), (4, 7)])
def test_orthonormal_frames_are_uniformly_distributed(n, d):
    # Every direction looks the same: an axis, a diagonal, and for the first as for the last token.
    frames = repeat("orthonormal", n, d, 3000, 1)
    assert follows(frames[:, 0, 0], SphereCoordinate(d))
    assert follows(frames[:, -1, -1], SphereCoordinate(d))
    assert follows(frames[:, -1].sum(-1) / math.sqrt(d), SphereCoordinate(d))
    if n > 1:  # a combination of two tokens is a uniform direction as well
        assert follows((frames[:, 0, 0] + frames[:, 1, 0]) / math.sqrt(2), SphereCoordinate(d))


def test_the_test_of_uniformity_sees_the_signs_of_a_bare_qr_and_a_gaussian():
    generator = np.random.default_rng(1)
    bare = np.stack([np.linalg.qr(generator.standard_normal((7, 4)))[0].T for _ in range(3000)])
    assert bare[0] @ bare[0].T == pytest.approx(np.eye(4), abs=1e-12)
    assert not follows(bare[:, 0, 0], SphereCoordinate(7))
    assert not follows(generator.standard_normal(3000) / math.sqrt(3), SphereCoordinate(3))


@settings(max_examples=40, deadline=None)
@given(n=st.integers(2, 20), extra=st.integers(0, 20), seed=st.integers(0, 2**32 - 1), share=st.floats(0, 0.99))
def test_almost_orthonormal_tokens_are_off_by_exactly_epsilon(n, extra, seed, share):
    epsilon = share / (n - 1)  # |E| < 1 by Gershgorin, so that I + E is positive definite
    x = draw("almost_orthonormal", n, n + extra, seed, epsilon=epsilon)
    error = x @ x.T - np.eye(n)
    assert np.diag(error) == pytest.approx(np.zeros(n), abs=1e-12)
    assert np.abs(error).max() == pytest.approx(epsilon, abs=1e-12)


def test_almost_orthonormal_tokens_have_errors_of_both_signs_and_many_sizes():
    x = draw("almost_orthonormal", 60, 80, 1)
    error = (x @ x.T)[np.triu_indices(60, 1)]
    assert np.abs(error).max() == pytest.approx(0.01, abs=1e-12)  # the default
    assert follows(error / 0.01, stats.uniform(-1, 2))
    assert not follows(np.abs(error) / 0.01, stats.uniform(-1, 2))


def test_almost_orthonormal_tokens_are_numbers_or_refused():
    refused = 0
    for epsilon in torch.linspace(0.1, 1.5, 29).tolist():
        try:
            x = tokens("almost_orthonormal", 4, 6, generator=seeded(0), epsilon=epsilon)
        except ValueError as error:
            refused += "is too large for n = 4" in str(error)
        else:
            assert not refused and torch.isfinite(x).all()
    assert 0 < refused < 29


def test_a_single_almost_orthonormal_token_has_norm_one():
    assert np.linalg.norm(draw("almost_orthonormal", 1, 5, 1, epsilon=0.5)) == pytest.approx(1, abs=1e-14)


# ---------------------------------------------------------------------------------------------- independent tokens


@pytest.mark.parametrize(("n", "d"), [(400, 1), (100, 40)])
def test_gaussian_tokens_have_norm_about_one(n, d):
    x = draw("gaussian", n, d, 1)
    assert follows(x * math.sqrt(d), stats.norm)
    assert has_mean((x**2).sum(-1), 1, 2 / d)
    assert not has_mean((x**2).sum(-1), 1 + 10 / math.sqrt(n * d), 2 / d)


@pytest.mark.parametrize("d", [2, 3, 10])
def test_sphere_tokens_are_uniform_on_the_sphere(d):
    x = draw("sphere", 4000, d, 1)
    assert np.linalg.norm(x, axis=-1) == pytest.approx(np.ones(4000), abs=1e-15)
    assert follows(x[:, 0], SphereCoordinate(d))
    assert follows(x.sum(-1) / math.sqrt(d), SphereCoordinate(d))
    drawn_to_the_axes = x**3 / np.linalg.norm(x**3, axis=-1, keepdims=True)
    assert not follows(drawn_to_the_axes[:, 0], SphereCoordinate(d))
    assert not follows(drawn_to_the_axes.sum(-1) / math.sqrt(d), SphereCoordinate(d))


def test_sphere_tokens_on_a_line_are_signs():
    x = draw("sphere", 4000, 1, 1)
    assert set(x.ravel()) == {-1.0, 1.0}
    assert stats.binomtest((x > 0).sum().item(), 4000).pvalue > FALSE_ALARM


@pytest.mark.parametrize(
    "options", [{}, {"low": -3.0}, {"high": 0.25}, {"low": 5, "high": 7}, {"low": -1e300, "high": 1e300}]
)
def test_uniform_tokens_fill_their_interval(options):
    x = draw("uniform", 200, 20, 1, **options)
    low, high = options.get("low", 0), options.get("high", 1)
    assert low <= x.min() and x.max() <= high
    unit = (x / 2 - low / 2) / (high / 2 - low / 2)
    assert follows(unit, stats.uniform)
    assert not follows(unit**1.2, stats.uniform)


# ------------------------------------------------------------------------------------------------ dependent tokens


def innovations(x, correlation):
    """g_t of x_t = r x_{t-1} + sqrt(1 - r^2) g_t / sqrt(d), standard normal if r is the correlation; g_0 = x_0."""
    g = np.vstack([x[:1], (x[1:] - correlation * x[:-1]) / math.sqrt(1 - correlation**2)])
    return g * math.sqrt(x.shape[1])


@pytest.mark.parametrize("correlation", [-0.99, -0.5, 0.0, 0.3, 0.9, 0.999])
def test_autoregressive_tokens_have_independent_innovations(correlation):
    n, d = 300, 30
    x = draw("autoregressive", n, d, 1, correlation=correlation)
    g = innovations(x, correlation)
    assert follows(g, stats.norm)
    past = math.sqrt(d) * x[:-1]
    assert abs((g[1:] * past).sum()) / np.linalg.norm(past) < stats.norm.isf(FALSE_ALARM / 2)
    wrong = innovations(x, correlation - math.copysign(0.1, correlation))
    assert abs((wrong[1:] * past).sum()) / np.linalg.norm(past) > stats.norm.isf(FALSE_ALARM / 2)


def test_autoregressive_tokens_are_stationary():
    x = repeat("autoregressive", 40, 20, 200, 1) * math.sqrt(20)  # the default correlation, 0.9
    for t in (0, 1, 5, 39):
        assert follows(x[:, t], stats.norm)
    for lag in (1, 2, 10):  # E x_t x_{t+lag} = r^lag with variance 1 + r^(2 lag)
        assert has_mean(x[:, 3] * x[:, 3 + lag], 0.9**lag, 1 + 0.9 ** (2 * lag))
        assert not has_mean(x[:, 3] * x[:, 3 + lag], 0.9**lag - 0.15, 1 + 0.9 ** (2 * lag))


def test_autoregressive_tokens_by_default_and_at_the_ends_of_the_range():
    assert np.array_equal(draw("autoregressive", 9, 4, 1, correlation=0.0), draw("gaussian", 9, 4, 1))
    assert np.array_equal(draw("autoregressive", 9, 4, 1, correlation=0.9), draw("autoregressive", 9, 4, 1))
    x = draw("autoregressive", 9, 4, 1, correlation=1)
    assert np.array_equal(x, np.repeat(x[:1], 9, 0))
    x = draw("autoregressive", 9, 4, 1, correlation=-1)
    assert np.array_equal(x[1:], -x[:-1])


@pytest.mark.parametrize("cosine", [0.0, 0.1, 0.5, 0.9])
def test_anisotropic_tokens_have_the_mean_inner_product(cosine):
    d, c = 10, cosine
    x = repeat("anisotropic", 2, d, 3000, 1, cosine=c)
    inner, squares = (x[:, 0] * x[:, 1]).sum(-1), (x[:, 0] ** 2).sum(-1)
    assert has_mean(inner, c, (2 * c * (1 - c) + (1 - c) ** 2) / d)
    assert not has_mean(inner, c + 0.05, (2 * c * (1 - c) + (1 - c) ** 2) / d)
    # |x|^2 = 1 + 2 sqrt(c (1 - c)) z, with z a coordinate of a uniform point of the sphere
    if c:
        assert follows((squares - 1) / (2 * math.sqrt(c * (1 - c))), SphereCoordinate(d))
    else:
        assert squares == pytest.approx(np.ones(3000), abs=1e-14)


def test_the_common_direction_of_anisotropic_tokens_is_uniform_and_theirs_around_it_too():
    assert follows(repeat("anisotropic", 1, 6, 3000, 1, cosine=1.0)[:, 0, 0], SphereCoordinate(6))
    x = draw("anisotropic", 3, 6, 2, cosine=1)
    assert np.array_equal(x, np.repeat(x[:1], 3, 0))
    assert np.linalg.norm(x[0]) == pytest.approx(1, abs=1e-15)


@pytest.mark.parametrize("options", [{}, {"cosine": 0.2}])
def test_the_mean_cosine_of_wide_anisotropic_tokens(options):
    x = draw("anisotropic", 300, 4000, 1, **options)
    x /= np.linalg.norm(x, axis=-1, keepdims=True)
    cosines = (x @ x.T)[np.triu_indices(300, 1)]
    # The standard deviation of the mean is about 2 sqrt(c (1 - c)) / sqrt(300 d) < 0.001; the bias is of order 1 / d.
    assert cosines.mean() == pytest.approx(options.get("cosine", 0.5), abs=0.006)


def test_repeated_vocabulary_draws_uniformly_from_gaussian_words():
    x = draw("repeated_vocabulary", 20000, 12, 1)
    words, counts = np.unique(x, axis=0, return_counts=True)
    assert len(words) == 50  # the default; that a word is missing has probability 50 * 0.98^20000
    assert stats.chisquare(counts).pvalue > FALSE_ALARM
    assert follows(words * math.sqrt(12), stats.norm)
    assert stats.chisquare(counts + np.linspace(-60, 60, 50).round()).pvalue < FALSE_ALARM


@pytest.mark.parametrize("vocabulary", [1, 2, 7, 1000])
def test_a_sequence_has_at_most_its_vocabulary(vocabulary):
    x = draw("repeated_vocabulary", 200, 3, 1, vocabulary=vocabulary)
    distinct = len(np.unique(x, axis=0))
    assert distinct == vocabulary if vocabulary < 10 else 150 < distinct < 200  # expected 1000 (1 - 0.999^200) = 181


@pytest.mark.parametrize("options", [{}, {"components": 3, "cosine": 0.8}])
def test_a_mixture_has_gaussian_clusters_of_the_mean_inner_product(options):
    d, c = 400, options.get("cosine", 0.5)
    x = draw("mixture", 300, d, 1, **options)
    assert follows(x[0] * math.sqrt(d), stats.norm) and follows((x**2).sum(-1)[:1] - 1, stats.norm(0, math.sqrt(2 / d)))
    inner = (x @ x.T)[np.triu_indices(300, 1)]
    within = inner > c / 2  # the two groups are many standard deviations, each about 1 / sqrt(d), from c / 2
    # A pair of one cluster has the inner product c |m|^2 + noise, |m|^2 being common to the cluster.
    assert abs(inner[within].mean() - c) < stats.norm.isf(FALSE_ALARM / 2) * math.sqrt(2 / d)
    assert abs(inner[~within].mean()) < stats.norm.isf(FALSE_ALARM / 2) / math.sqrt(d)


@pytest.mark.parametrize("options", [{}, {"components": 3, "cosine": 0.8}])
def test_inner_products_of_a_wide_mixture_are_the_cosine_or_nothing(options):
    """Within 6.3 times sqrt(2 / d), at least their standard deviations; 780 of them: false-alarm rate 1e-6."""
    c, x = options.get("cosine", 0.5), draw("mixture", 40, 8000, 1, **options)
    inner = (x @ x.T)[np.triu_indices(40, 1)]
    assert np.minimum(abs(inner), abs(inner - c)).max() < 0.1
    assert inner.min() < c / 2 < inner.max() and abs((x**2).sum(-1) - 1).max() < 0.1


def test_the_components_of_a_mixture_are_drawn_uniformly():
    assert np.unique(draw("mixture", 400, 3, 1, components=7, cosine=1.0), axis=0).shape[0] == 7
    many = draw("mixture", 20000, 4, 1, cosine=1.0)
    counts = np.unique(many, axis=0, return_counts=True)[1]
    assert len(counts) == 10 and stats.chisquare(counts).pvalue > FALSE_ALARM
    assert stats.chisquare(counts + np.linspace(-300, 300, 10).round()).pvalue < FALSE_ALARM
    assert follows(draw("mixture", 300, 20, 1, cosine=0.0) * math.sqrt(20), stats.norm)


@pytest.mark.parametrize("options", [{}, {"freedom": 1}, {"freedom": 0.5}, {"freedom": 2.5}, {"freedom": 40.0}])
def test_heavy_tailed_tokens_have_student_entries(options):
    freedom = options.get("freedom", 3.0)
    x = draw("heavy_tailed", 300, 40, 1, **options) * math.sqrt(40)
    assert follows(x, stats.t(freedom)) and not follows(x, stats.t(2 * freedom if freedom < 30 else 3))
    for other in (np.roll(x, 1, 0), np.roll(x, 1, 1)):  # neither the entries of a token nor its neighbours depend on it
        assert stats.spearmanr(x.ravel(), other.ravel()).pvalue > FALSE_ALARM


# ------------------------------------------------------------------------------------------------------- bad input

VALID = {"kind": "gaussian", "n": 4, "d": 6, "generator": seeded(0)}


def option(kind, name, bad):
    return [({"kind": kind, name: value}, rf"^{name} must be {message}$") for value, message in bad]


NUMBER = [
    (math.nan, "a finite number, got nan"),
    (math.inf, "a finite number, got inf"),
    ("0.1", r"a finite number, got '0\.1'"),
    (None, "a finite number, got None"),
    (True, "a finite number, got True"),
]
WHOLE = [
    (0, "at least 1, got 0"),
    (-2, "at least 1, got -2"),
    (3.0, r"an integer, got 3\.0"),
    ("3", "an integer, got '3'"),
    (None, "an integer, got None"),
    (True, "an integer, got True"),
]

BAD = [
    ({"kind": "gaussan"}, r"^kind must be one of almost_orthonormal, anisotropic, .*; got 'gaussan'$"),
    ({"kind": ""}, r"^kind must be one of .*; got ''$"),
    ({"kind": None}, r"^kind must be one of .*; got None$"),
    ({"kind": ["gaussian"]}, r"^kind must be one of .*; got \['gaussian'\]$"),
    *option("gaussian", "n", WHOLE),
    *option("sphere", "d", WHOLE),
    ({"generator": None}, r"^generator must be a torch\.Generator, got NoneType$"),
    ({"generator": 0}, r"^generator must be a torch\.Generator, got int$"),
    ({"kind": "orthonormal", "d": 3}, r"^d must be at least n for orthonormal tokens, got d = 3 and n = 4$"),
    ({"kind": "almost_orthonormal", "d": 3}, r"^d must be at least n for orthonormal tokens, got d = 3 and n = 4$"),
    ({"epsilon": 0.1}, r"^options of kind 'gaussian' are none, got \['epsilon'\]$"),
    ({"kind": "uniform", "hi": 0.1, "a": 1}, r"^options of kind 'uniform' are \['high', 'low'\], got \['a', 'hi'\]$"),
    *option("almost_orthonormal", "epsilon", [*NUMBER, (-0.1, r"at least 0\.0, got -0\.1")]),
    ({"kind": "almost_orthonormal", "epsilon": 2.0}, r"^epsilon = 2\.0 is too large for n = 4: I \+ E is not"),
    *option("uniform", "low", [*NUMBER]),
    *option("uniform", "high", [*NUMBER, (0.0, r"greater than 0\.0, got 0\.0"), (-1, r"greater than 0\.0, got -1")]),
    ({"kind": "uniform", "low": -1e308, "high": 1e308}, r"^high - low must be a finite number, got inf$"),
    *option("autoregressive", "correlation", [*NUMBER, (1.1, "at most 1.0, got 1.1"), (-2, "at least -1.0, got -2")]),
    *option("anisotropic", "cosine", [*NUMBER, (1.1, r"at most 1\.0, got 1\.1"), (-0.1, r"at least 0\.0, got -0\.1")]),
    *option("repeated_vocabulary", "vocabulary", WHOLE),
    *option("mixture", "components", WHOLE),
    *option("mixture", "cosine", [*NUMBER, (1.1, r"at most 1\.0, got 1\.1"), (-0.1, r"at least 0\.0, got -0\.1")]),
    *option("heavy_tailed", "freedom", [*NUMBER, (0.0, r"at least 0\.1, got 0\.0"), (-1, r"at least 0\.1, got -1")]),
]


@pytest.mark.parametrize(("bad", "message"), BAD)
def test_bad_input_is_refused_by_name(bad, message):
    tokens(**VALID | {"kind": bad["kind"]} if bad.get("kind") in KINDS else VALID)  # without the fault the call passes
    with pytest.raises(ValueError, match=message):
        tokens(**VALID | bad)
