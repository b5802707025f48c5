"""What users hand in by mistake is refused by name, in every public function; what only looks odd is taken."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import attnrank
from attnrank import convex, theory


def draw(*shape, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=dtype)


Q, K = draw(4, 6, 3), draw(4, 6, 3) + 1
X = draw(20, 6, 4)
Y = X[:, 2] @ torch.ones(4, dtype=torch.float64)
MASK = torch.ones(6, 6, dtype=torch.bool).tril()
FLOAT8 = torch.float8_e4m3fn
ATTEND = [attnrank.hardmax_rank, attnrank.attention, attnrank.head_ranks]
MATRIX = [attnrank.hardmax_rank_of, attnrank.stable_rank, attnrank.effective_rank, attnrank.singular_values,
          lambda a: attnrank.numerical_rank(a, 0.1)]  # fmt: skip


@pytest.mark.parametrize("function", ATTEND)
@pytest.mark.parametrize("causal", [MASK, MASK.numpy(), "yes", None, 2, torch.tensor(True)], ids=str)
def test_causal_is_a_truth_value_and_no_mask(function, causal):
    with pytest.raises(ValueError, match="^causal must be True or False, got "):
        function(Q, K, causal=causal)


@pytest.mark.parametrize("name, call", [
    ("hard", lambda odd: attnrank.attention(Q, K, hard=odd)),
    ("relative", lambda odd: attnrank.numerical_rank(Q, 0.1, relative=odd)),
    ("per_sample", lambda odd: attnrank.probe(torch.nn.Identity(), X, per_sample=odd)),
    ("gated", lambda odd: convex.to_heads(X, gated=odd)),
    ("causal", lambda odd: theory.lognormal_limit(0.5, causal=odd)),
    ("causal", lambda odd: theory.large_head_loss(5, 2, causal=odd)),
])  # fmt: skip
def test_other_switches_are_truth_values(name, call):
    for odd in ("no", 0.5, None, MASK):
        with pytest.raises(ValueError, match=f"^{name} must be True or False, got "):
            call(odd)


@pytest.mark.parametrize("function", ATTEND)
def test_causal_may_be_a_truth_value_of_numpy(function):
    ours, numpys = function(Q, K, causal=True), function(Q, K, causal=np.True_)
    assert ours.equals(numpys) if hasattr(ours, "equals") else torch.equal(ours, numpys)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("function", MATRIX)
def test_tensors_without_dense_numbers_are_refused(function):
    name = "attention" if function is attnrank.hardmax_rank_of else "a"
    for layout in (Q[0].to_sparse(), Q[0].to_sparse_csr()):
        with pytest.raises(ValueError, match=rf"^{name} must be dense, got .*; {name}\.to_dense\(\) makes one"):
            function(layout)
    with pytest.raises(ValueError, match=f"^{name} must hold numbers, got a tensor on the meta device"):
        function(Q.to("meta"))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_refused():
    for layout in (torch.strided, torch.jagged):
        nested = torch.nested.nested_tensor([Q[0], Q[1, :4]], layout=layout)
        with pytest.raises(ValueError, match="^q must be dense, got a nested tensor; pad it, or pass one at a time"):
            attnrank.hardmax_rank(nested, nested)


def test_formats_without_arithmetic_are_refused_where_products_would_be_in_them():
    w = torch.eye(4, dtype=FLOAT8)
    for call in (lambda: attnrank.attention(Q.to(FLOAT8), K.to(FLOAT8)),
                 lambda: attnrank.queries_keys(X.to(FLOAT8), w, w)):  # fmt: skip
        with pytest.raises(ValueError, match="^[qx] must be of a dtype with arithmetic, got torch.float8_e4m3fn: "):
            call()
    assert torch.equal(attnrank.hardmax_rank(Q.to(FLOAT8), K.to(FLOAT8)),
                       attnrank.hardmax_rank(Q.to(FLOAT8).double(), K.to(FLOAT8).double()))  # fmt: skip


# Convex programs


def test_tokens_and_targets_with_gradients_are_taken_without_them():
    expected = convex.solve(X, Y, 2.0)
    x, y = X.clone().requires_grad_(), Y.clone().requires_grad_()
    solution = convex.solve(x, y, 2.0)
    assert torch.equal(solution.z, expected.z) and not solution.z.requires_grad
    assert convex.beta_max(x, y) == convex.beta_max(X, Y)
    heads = convex.to_heads(expected.z.clone().requires_grad_())
    assert heads.value.requires_grad
    assert convex.certify_heads(x, y, 2.0, heads) == convex.certify_heads(X, Y, 2.0, convex.to_heads(expected.z))
    start = torch.zeros(6, 4, dtype=torch.float64, requires_grad=True)
    assert torch.equal(convex.solve(x, y, 2.0, start=start).active, expected.active)


def test_predictions_are_in_the_precision_of_the_solution():
    """`solve` takes float32 and gives float64: what it gives predicts for what it took."""
    x = X.float()
    solution = convex.solve(x, Y.float(), 2.0)
    found = convex.predict(x, solution.z)
    torch.testing.assert_close(found, torch.einsum("ikd,kd->i", x.double(), solution.z))
    torch.testing.assert_close(convex.to_heads(solution.z).predict(x), found)
    gates = torch.ones(20, 2)
    gated = convex.solve(x, Y.float(), 2.0, gates=gates)
    torch.testing.assert_close(convex.predict(x, gated.z, gates=gates),
                               convex.to_heads(gated.z, gated=True).predict(x, gates))  # fmt: skip
    sequence = convex.solve_sequence(x, draw(20, 6, 1, dtype=torch.float32), 50.0, tol=1e-3)
    assert sequence.predict(x).dtype == torch.float64


@pytest.mark.parametrize("call, message", [
    (lambda: convex.predict(X, draw(5, 4)), r"z must have shape \(6, 4\) or \(6, 4, outputs\) for this x, got \(5"),
    (lambda: convex.predict(X, draw(2, 6, 4), gates=torch.ones(3, 2)), "gates must have shape .*20"),
    (lambda: convex.gated(X[0], torch.ones(20, 2)), "x must have shape"),
    (lambda: convex.gated(X, torch.ones(3, 2)), "gates must have .*20"),
    (lambda: convex.gated(X, 2), "gates must be a torch.Tensor"),
    (lambda: convex.predict(X, draw(6, 4), gates=torch.ones(20, 2)), r"z must have shape \(2, 6, 4\) or"),
    (lambda: convex.predict(X.numpy(), draw(6, 4)), "x must be a torch.Tensor, got ndarray"),
    (lambda: convex.predict(X[0], draw(6, 4)), "x must have shape"),
    (lambda: convex.path(X, Y, 2.0), "betas must be several numbers, got 2.0"),
    (lambda: convex.from_heads(draw(6, 4)), "heads must be convex.Heads, got Tensor"),
    (lambda: convex.certify_heads(X, Y, 2.0, None), "heads must be convex.Heads, got NoneType"),
    (lambda: convex.solve(X.to_sparse(), Y, 2.0), "x must be dense"),
    (lambda: convex.solve(X.to("meta"), Y, 2.0), "x must hold numbers"),
    (lambda: convex.to_heads(draw(6, 4).to_sparse()), "z must be dense"),
])  # fmt: skip
def test_bad_arguments_of_convex_programs(call, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        call()


# The probe's rule


@pytest.mark.parametrize("batch, head_dims, message", [
    (X, 8, "head_dims must be several integers, got 8"), (X, None, "head_dims must be several integers, got None"),
    (None, [4, 8], "batch must be a tensor, a tuple, a mapping or an iterable of these, got NoneType"),
    (X.numpy(), [4, 8], "batch must hold torch tensors, got a numpy array"),
])  # fmt: skip
def test_bad_arguments_of_the_recommendation(batch, head_dims, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        attnrank.recommend_head_dim(lambda d, generator: torch.nn.Identity(), batch, head_dims)


# Theory


HUGE = 10**400  # beyond the range of floats
ODD = [math.nan, math.inf, -1, "3", None, True, HUGE, 1 + 2j, [3], np.array([1.0, 2.0])]


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: "10**400" if odd is HUGE else str(odd))
@pytest.mark.parametrize("function, good", [
    (theory.occupancy_bound, {"n": 64}), (theory.head_dim_bound, {"n": 64, "d_h": 8}),
    (theory.causal_bound, {"n": 64}), (theory.causal_limit, {"n": 64}), (theory.large_head_loss, {"n": 64, "d_h": 8}),
    (theory.causal_head_dim_bound, {"n": 64, "d_h": 8}), (theory.multihead_limit, {"n": 64, "heads": 2}),
    (theory.polytope_vertices, {"n": 64, "d": 3}), (theory.saturation_head_dim, {"n": 64, "gap": 0.05}),
    (theory.doubling_head_dim, {"n": 64, "level": 0.05}), (theory.window_limit, {"n": 64, "window": 8}),
    (theory.softmax_rank_limit, {"d_h": 8, "temperature": 1.0, "tol": 0.1}),
    (theory.softmax_singular_values, {"d_h": 8, "temperature": 1.0, "levels": 3}),
    (theory.latent_head_dim, {"content": 8, "rotary": 4, "query_latent": 16, "key_latent": 16}),
    (theory.increment_stop, {"threshold": 0.1}), (theory.gap_stop, {"level": 0.1}),
    (theory.stop_interval, {"threshold": 0.1, "noise": 0.01}),
    (theory.seeds_needed, {"noise": 0.01, "variance": 0.25, "comparisons": 10, "failure": 0.05}),
])  # fmt: skip
def test_odd_numbers_are_refused_by_name(function, good, odd):
    others = {theory.window_limit: {"causal": True}, theory.latent_head_dim: {"normalise": True},
              theory.increment_stop: {"ranks": [0.1, 0.2]}, theory.gap_stop: {"d_h": [1, 2], "ranks": [0.1, 0.2]},
              theory.stop_interval: {"increments": [0.1, 0.05]}}.get(function, {})  # fmt: skip
    for name in good:
        if isinstance(odd, int) and odd == -1 and name in ("threshold", "level") and "stop" in function.__name__:
            continue  # a rule that never stops, or stops at once
        with pytest.raises(ValueError, match=f"^{name} must be "):
            function(**others, **good | {name: odd})


@pytest.mark.parametrize("call, message", [
    (lambda: theory.causal_head_dim_bound(10**15, 8), "n must be at most"),
    (lambda: theory.causal_isotropic_bound(10**15), "n must be at most"),
    (lambda: theory.window_limit(10**15, 8, causal=True), "n must be at most"),
    (lambda: theory.two_head_deficit(10**15), "n must be at most"),
    (lambda: theory.token_geometry_rank(64, np.array([8.0, 9.0]), 10, 0.1), "d_h must be a finite number"),
    (lambda: theory.token_geometry_rank(64, 8, torch.ones(2), 0.1), "directions must be a finite number"),
    (lambda: theory.half_space_exponent(torch.tensor([0.1], requires_grad=True), 0.1), "p must lie in"),
    (lambda: theory.half_space_exponent("0.5", 0.1), "p must lie in"),
    (lambda: theory.half_space_exponent([0.5 + 1j], 0.1), "p must lie in"),
    (lambda: theory.increment_stop(["0.1", "0.2"], 0.1), "ranks must be a vector"),
    (lambda: theory.increment_stop(torch.ones(2, requires_grad=True), 0.1), "ranks must be a vector"),
    (lambda: theory.gap_stop([1, 2], [False, True], 0.5), "ranks must be a vector"),
    (lambda: theory.polytope_vertices(10**30, 3), "n must be at most"),
    (lambda: theory.window_limit(64, 8, causal="no"), "causal must be True or False"),
    (lambda: theory.latent_head_dim(0, 4, 16, 16, True), "content must be at least 1"),
    (lambda: theory.latent_head_dim(8, 4, 16, 16, "no"), "normalise must be True or False"),
    (lambda: theory.doubling_head_dim(64, 0.0), "level must be at least 1e-06"),
    (lambda: theory.doubling_head_dim(3, 1e-8), "level must be at least 1e-06"),
    (lambda: theory.increment_stop(0.3, 0.1), "ranks must be a vector of finite numbers"),
    (lambda: theory.increment_stop([0.3, math.nan], 0.1), "ranks must be a vector of finite numbers"),
    (lambda: theory.increment_stop("abc", 0.1), "ranks must be a vector of finite numbers"),
    (lambda: theory.gap_stop([1, 2, 3], [0.1, 0.2], 0.1), "d_h and ranks must have one length, got 3 and 2"),
    (lambda: theory.gap_stop([0, 2], [0.1, 0.2], 0.1), "d_h must be positive"),
    (lambda: theory.gap_stop([64, 16, 32], [0.6, 0.4, 0.5], 0.55), "d_h must rise from entry to entry"),
    (lambda: theory.doubling_head_dim(1, 0.05), "n must be at least 2"),
    (lambda: theory.doubling_head_dim(1024, 0.132), "level must be below the largest gain of a doubling"),
    (lambda: theory.simplex_first_order(10**16), "n must be at most"),
    (lambda: theory.gap_density(10**21), "n must be at most"),
    (lambda: theory.anisotropic_bound(10**21, 0.5), "n must be at most"),
    (lambda: theory.anisotropic_bound(64, -0.5), "cosine must be at least 0"),
    (lambda: theory.anisotropic_exponent(-0.5), "cosine must be at least 0"),
    (lambda: theory.multihead_limit(1, 2, -5), "d_h must be at least 1"),
    (lambda: theory.gap_stop([1, 2, 2], [0.4, 0.5, 0.6], 0.55), "d_h must rise from entry to entry"),
    (lambda: theory.gap_stop([-1, 2], [0.1, 0.2], 0.1), "d_h must be positive"),
    (lambda: theory.softmax_rank_limit(4, 2.0, 1.5), "tol must be at most 1"),
    (lambda: theory.seeds_needed(0.01, -0.25, 10, 0.05), "variance must be at least 0"),
    (lambda: theory.seeds_needed(0.01, 0.25, 10, 1.5), "failure must be at most 1"),
    (lambda: theory.occupancy_variance(10**160), "n must be at most"),
    (lambda: theory.small_cosine_bound(10**160, 0.1), "n must be at most"),
    (lambda: theory.normalised_second_moment(10**160, 3), "n must be at most"),
    (lambda: theory.softmax_ratio(4, 1e160), "temperature must be at most"),
    (lambda: theory.seeds_needed(1e-200, 0.25, 10, 0.05), "noise must be at least"),
    (lambda: theory.seeds_needed(1e200, 0.25, 10, 0.05), "noise must be at most"),
    (lambda: theory.latent_head_dim(1e200, 0, 1, 1, True), "content must be at most"),
    (lambda: theory.mask_bound(0.5, 10**308, keys=2, uncapped=1), "n must be at most"),
    (lambda: theory.seeds_needed(0.01, 1e308, 10, 0.05), "variance must be at most 1"),
    (lambda: theory.stop_interval([], 0.1, 0.01), "increments must be a vector of finite numbers"),
])  # fmt: skip
def test_what_else_is_refused(call, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        call()


@pytest.mark.parametrize("n", [2, 64, 10**6, 10**12])
def test_the_bound_rises_to_the_barrier_at_head_dimensions_beyond_the_quadrature(n):
    """What is missing is of order 1 / d_h; the quadrature alone exceeds the barrier from about 1e8 on."""
    barrier = theory.occupancy_bound(n)
    missing = [barrier - theory.head_dim_bound(n, 10.0**k) for k in range(4, 19)]
    assert all(before >= after - 1e-9 * barrier for before, after in zip(missing, missing[1:], strict=False))
    assert all(miss >= -1e-12 * barrier for miss in missing[3:])
    for k, miss in enumerate(missing[1:4], 5):
        assert miss == pytest.approx(missing[1] * 10.0 ** (5 - k), rel=0.03, abs=3e-8 * barrier)


@pytest.mark.parametrize("function", [
    theory.causal_head_dim_bound, theory.head_dim_lower_bound, theory.cell_second_moment, theory.normalised_lower_bound,
    theory.normalised_second_moment, theory.tied_bound,
])  # fmt: skip
def test_head_dimensions_beyond_a_quadrature_are_refused(function):
    assert math.isfinite(function(64, 10**6))
    with pytest.raises(ValueError, match=r"^d_h must be at most 1e\+06"):
        function(64, 10**6 + 1)


@pytest.mark.filterwarnings("error")
def test_limits_of_singular_values_beyond_floats_are_infinite_without_a_warning():
    assert theory.softmax_singular_values(10**6, math.sqrt(2.01e-6), 2)[0].tolist() == [math.inf, math.inf]


def test_what_only_looks_odd_is_taken():
    assert theory.softmax_rank_limit(np.float64(4.0), 2.0, 0.01) == theory.softmax_rank_limit(4, 2.0, 0.01)
    assert theory.softmax_singular_values(4.0, 2.0, 3)[1] == [1, 4, 10]
    assert theory.window_limit(40, 10**30, causal=True) == theory.window_limit(40, 40, causal=True)
    assert theory.occupancy_bound(10**30) == pytest.approx((1 - math.exp(-1)) * 1e30)
    assert theory.multihead_limit(64, 2, 1e15) <= theory.multihead_limit(64, 2)
    assert theory.head_dim_bound(np.int32(64), torch.tensor(8).item()) == theory.head_dim_bound(64, 8)


def test_a_view_that_negates_what_it_shows_is_a_matrix_like_others():
    """The imaginary part of a conjugate: torch keeps the sign beside the numbers, and numpy cannot read it."""
    whole = torch.randint(-1, 2, (2, 64, 8, 2), generator=torch.Generator().manual_seed(1)).double()
    k = torch.view_as_complex(whole).conj().imag
    q = k.flip(1) + 0.0
    large = torch.view_as_complex(draw(2, 256, 256, 2)).conj().imag
    assert k.is_neg() and large.is_neg() and not q.is_neg()
    for causal in (False, True):
        assert torch.equal(attnrank.hardmax_rank(q, k, causal=causal), attnrank.hardmax_rank(q, k + 0.0, causal=causal))
        assert torch.equal(attnrank.hardmax_rank(k, q, causal=causal), attnrank.hardmax_rank(k + 0.0, q, causal=causal))
    for relative in (False, True):
        ranks = (attnrank.numerical_rank(a, 0.5, relative=relative) for a in (large, large + 0.0))
        assert torch.equal(*ranks)
