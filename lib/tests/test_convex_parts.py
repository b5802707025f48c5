"""Parts of the solver by themselves: where one of them goes wrong, another step can mend it, and only time is lost."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from convex_cases import tensor
from scipy.optimize import nnls

from attnrank import convex
from attnrank.convex import _approach, _bounded, _factored, _gram, _group, _nuclear
from attnrank.convex._quadratic import Quadratic
from attnrank.convex.certificate import feasible
from attnrank.convex.losses import CrossEntropy, Squared
from attnrank.convex.problem import problem


def draw(*shape, seed=0):
    return tensor(np.random.default_rng(seed).standard_normal(shape))


def quadratic(seed, size):
    """h, f and the minimum over x >= 0 by the least squares of SciPy, of which about half the entries are positive."""
    r = np.random.default_rng(seed)
    a, b = r.standard_normal((2 * size, size)), r.standard_normal(2 * size)
    return a.T @ a, a.T @ b, nnls(a, b)[0]


def test_pivoting_needs_no_descent(monkeypatch):
    """From any guess; the descent, which would hide a fault of the pivoting, is for cycles."""
    monkeypatch.setattr(_bounded, "by_descent", None)
    for seed, size in enumerate((1, 2, 5, 12, 30, 250)):  # the last solves its equations by Cholesky factors
        h, f, expected = quadratic(seed, size)
        for free in (np.zeros(size, bool), np.ones(size, bool), expected > 0, expected == 0):
            before = free.copy()
            np.testing.assert_allclose(_bounded.by_pivoting(h, f, free), expected, atol=1e-9)
            assert (free == before).all()


def test_descent_from_any_feasible_point():
    for seed in range(20):
        h, f, expected = quadratic(seed, 9)
        for start in (np.zeros(9), np.ones(9), expected, np.random.default_rng(seed).random(9).round()):
            np.testing.assert_allclose(_bounded.by_descent(h, f, start), expected, atol=1e-9)


def test_pivoting_that_goes_in_circles_is_followed_by_descent(monkeypatch):
    h, f, expected = quadratic(0, 9)
    solve, guess = _bounded._minimum_of_free, np.zeros(9, bool)
    calls = iter(range(1000))
    monkeypatch.setattr(_bounded, "_minimum_of_free", lambda *a: -np.ones(9) * a[2] if next(calls) < 8 else solve(*a))
    np.testing.assert_allclose(_bounded.by_pivoting(h, f, guess), expected, atol=1e-9)


@pytest.mark.parametrize("room", [1, 3, 4, 12])
def test_sums_of_kernels_with_room_for_some(room, monkeypatch):
    a = draw(8, 12, 5)
    monkeypatch.setattr(_gram, "KERNEL_BYTES", room * 8 * 8 * 8)
    kernels = _gram.Kernels(a)
    for tokens in ([2], [2, 7], [7, 1, 2], [3, 1, 2, 7], [0, 4, 5, 6, 8], [1], list(range(12))):
        weights = draw(len(tokens), seed=len(tokens)).abs()
        expected = torch.einsum("itd,jtd,t->ij", a[:, tokens], a[:, tokens], weights)
        torch.testing.assert_close(kernels.sum(torch.tensor(tokens), weights), expected)


def test_gram_matrices_of_groups_in_any_order():
    """Of groups that were known, new and mixed, in the order asked for."""
    a, weights = draw(9, 5, 3), draw(9, 2, 2, seed=1)
    weights = weights @ weights.mT
    for gram, outputs, h in ((_gram.Gram(a, None, 1), 1, torch.ones(9, 1, 1).double()),
                             (_gram.Gram(a, weights[:, 0, 0], 1), 1, weights[:, :1, :1]),
                             (_gram.Gram(a, weights, 2), 2, weights)):  # fmt: skip
        every = torch.einsum("itd,ilm,ise->tldsme", a, h, a).reshape(5 * outputs, 3, 5 * outputs, 3)
        for groups in ([3, 1], [1, 3], [3, 1], [0, 2, 3], [4, 0, 1, 2, 3]):
            expected = every[groups][:, :, groups].reshape(3 * len(groups), -1)
            torch.testing.assert_close(gram.of(torch.tensor(groups)), expected)


@pytest.mark.parametrize("loss", ["squared", "cross_entropy"])
def test_newton_in_heads_closes_the_gap_at_settled_ranks(loss):
    """Quadratically, from a rough solution, with all second derivatives."""
    x, y = draw(12, 5, 4), torch.softmax(draw(12, 3, seed=1), 1)
    given = problem(x, y, loss, "nuclear", None)
    beta = 0.3 * given.beta_max()
    start = convex.solve(x, y, beta, loss=loss, penalty="nuclear").z
    z = _factored.polish(given, beta, start * (1 + 1e-3 * draw(*start.shape, seed=2)), steps=8)
    v = given.loss.residual(given.predict(z), given.y)
    objective = given.loss.value(given.predict(z), given.y) + beta * given.penalty.value(z)
    assert objective - feasible(given, beta, v, given.correlate(v))[1] <= 1e-12 * objective


def test_a_newton_step_in_heads_never_raises_the_objective():
    for seed in range(5):
        given = problem(draw(6, 4, 3, seed=seed), draw(6, 2, seed=seed + 50), "squared", "nuclear", None)
        for scale in (0.01, 1.0, 100.0):
            start = scale * draw(4, 3, 2, seed=seed + 100)
            before, after = (
                given.loss.value(given.predict(z), given.y) + given.penalty.value(z)
                for z in (start, _factored.polish(given, 1.0, start, steps=1))
            )
            assert after <= before * (1 + 1e-12)


def test_a_head_that_is_nothing_beside_another_is_none():
    heads = _factored.Factors(torch.tensor([0, 2]), tensor([[1.0, 2.0], [1e-9, 0.0]]), tensor([[3.0], [1e-9]]))
    assert heads.blocks(3).tolist() == [[[3.0], [6.0]], [[0.0], [0.0]], [[0.0], [0.0]]]
    heads = _factored.factors(tensor([[[3.0, 0.0], [0.0, 1e-5]], [[0.0, 0.0], [0.0, 0.0]]]))
    assert heads.token.tolist() == [0, 0]
    torch.testing.assert_close(heads.u.norm(dim=1), heads.w.norm(dim=1))  # balanced
    torch.testing.assert_close(heads.u.norm(dim=1) ** 2, tensor([3.0, 1e-5]))


def test_gradient_steps_end_at_their_limit_and_mend_a_step_that_is_too_long(monkeypatch):
    monkeypatch.setattr(_approach, "_steps_worth", lambda *_: float("inf"))
    a, y, z = draw(30, 12, 4), draw(30, seed=1), torch.zeros(12, 4).double()
    for limit in (0, 1, 2):
        assert _approach.approach(a, y, 0.5, z, 0.0, limit)[2:] == (False, limit)
    run = _approach._Run(a, 0.5, z)
    run.slope *= 1e-4
    c = (a.flatten(1).mT @ y).view_as(z)
    moved = run.chunk(z, c)
    value = 0.5 * (y - a.flatten(1) @ moved.flatten()).square().sum() + 0.5 * moved.norm(dim=1).sum()
    assert value < 0.5 * (0.5 * y.square().sum())


def test_gradient_steps_are_for_a_middling_number_of_active_columns(monkeypatch):
    monkeypatch.setattr(_approach, "SMALL", 0)
    a = torch.empty(6, 12, 2).double()
    found = [_approach.costly(a, torch.arange(12) < active) for active in range(13)]
    assert found == [6 < 2 * active <= 18 for active in range(13)]
    monkeypatch.setattr(_approach, "SMALL", 8 * 36)  # multiplications of 8 columns
    assert [_approach.costly(a, torch.arange(12) < active) for active in (4, 5)] == [False, True]


def test_steps_of_several_outputs_are_added():
    x, y = draw(20, 6, 4), draw(20, 2, seed=1)
    beta = 0.1 * min(convex.beta_max(x, y[:, j]) for j in (0, 1))
    alone = [convex.solve(x, y[:, j], beta).iterations for j in (0, 1)]
    assert convex.solve(x, y, beta).iterations == sum(alone) and min(alone) > 0


@pytest.fixture
def steps(monkeypatch):
    """How many steps each call of Newton's method and of the gradient steps says that it took."""
    found = []
    for name in ("newton", "approach"):
        honest = getattr(_group, name)

        def noted(*given, honest=honest):
            result = honest(*given)
            found.append(result[-1])
            return result

        monkeypatch.setattr(_group, name, noted)
    return found


@pytest.mark.parametrize("patience", [0.0, 1e4])
def test_gradient_and_newton_steps_are_added_and_limited(patience, steps, monkeypatch):
    monkeypatch.setattr(_approach, "SMALL", 0)
    monkeypatch.setattr(_approach, "_steps_worth", lambda *_: patience)
    x, y = draw(30, 12, 4), draw(30, seed=1)
    beta = 0.01 * convex.beta_max(x, y)
    whole = convex.solve(x, y, beta).iterations
    assert whole == sum(steps) and len(steps) >= 2
    for limit in (1, 2, 3, whole - 1):
        steps.clear()
        with pytest.raises(convex.NotConvergedError) as caught:
            convex.solve(x, y, beta, tol=0.0, max_iterations=limit)
        assert caught.value.solution.iterations == sum(steps) <= limit
        assert f"after {sum(steps)} steps" in str(caught.value)


def test_a_round_of_cross_entropy_is_a_step_even_where_its_program_takes_none(monkeypatch):
    """Or rounds that no step improves would go on for ever."""
    rounds, honest = [], _group.newton
    monkeypatch.setattr(_group, "newton", lambda *given: rounds.append((*honest(*given)[:2], 0)) or rounds[-1])
    x, y = draw(12, 6, 3), torch.softmax(draw(12, 2, seed=1), 1)
    beta = 0.5 * convex.beta_max(x, y, loss="cross_entropy")
    assert convex.solve(x, y, beta, loss="cross_entropy").iterations == len(rounds) > 1


@pytest.mark.parametrize("loss, curvature", [("squared", 1.0), ("cross_entropy", 0.5)])
@pytest.mark.parametrize("samples", [8, 80])
def test_no_slope_of_a_gradient_is_above_its_bound(loss, curvature, samples):
    """Along the first singular vector, with two outputs that move apart from evens, the slope is as large as any."""
    x, y = draw(samples, 5, 4), torch.full((samples, 2), 0.5).double()
    gradient = _nuclear._Gradient(problem(x, y, loss, "nuclear", None))
    _, sigma, right = torch.linalg.svd(x.flatten(1), full_matrices=False)
    z = 1e-6 * (right[0][:, None] * tensor([0.5**0.5, -(0.5**0.5)])).view(5, 4, 2)
    slope = ((gradient(z) - gradient(-z)).norm() / (2 * z).norm()).item()
    assert slope == pytest.approx(curvature * sigma[0].item() ** 2, rel=1e-6)
    assert slope <= gradient.slope <= 1.02 * slope


def test_chunks_of_steps_on_working_sets_are_added_and_limited(monkeypatch):
    """Tokens that violate optimality are added in turn; each working set has what is left of the steps."""
    taken, honest = [], _nuclear._restricted
    monkeypatch.setattr(_nuclear, "_restricted", lambda *given: taken.append(honest(*given)) or taken[-1])
    x, y = draw(15, 40, 3), draw(15, 2, seed=1)
    beta = 0.1 * convex.beta_max(x, y, penalty="nuclear")
    whole = convex.solve(x, y, beta, penalty="nuclear").iterations
    assert whole == sum(steps for _, steps in taken) and len(taken) >= 2
    for limit in (1, 2, whole - 1):
        taken.clear()
        with pytest.raises(convex.NotConvergedError) as caught:
            convex.solve(x, y, beta, penalty="nuclear", tol=0.0, max_iterations=limit)
        assert caught.value.solution.iterations == sum(steps for _, steps in taken) <= limit


def test_a_secular_step_solves_one_group_of_orthogonal_columns():
    """From zero, however small beta is; Newton's steps for the program itself take more the smaller it is."""
    a = torch.linalg.qr(draw(20, 4))[0][:, None]
    y = draw(20, seed=1)
    for share in (0.5, 1e-2, 1e-6):
        solution = convex.solve(3.0 * a, y, share * convex.beta_max(3.0 * a, y), tol=1e-12)
        assert solution.iterations == 1


def test_values_of_the_logistic_loss_keep_their_digits():
    for u in (0.0, 3.0, 21.0, 30.0, 700.0):
        for y in (0.0, 0.25, 1.0):
            expected = y * np.logaddexp(0, -u) + (1 - y) * np.logaddexp(0, u)
            assert CrossEntropy().value(tensor([[u]]), tensor([[y]])) == pytest.approx(expected, rel=4e-16, abs=0)


def test_best_scales_are_in_their_range():
    v = tensor([[1.0], [2.0]])
    assert Squared().best_scale(v, 3 * v, 10.0) == 3.0 and Squared().best_scale(v, 3 * v, 2.0) == 2.0
    assert Squared().best_scale(v, -v, 10.0) == 0.0 == Squared().best_scale(0 * v, v, 10.0)
    assert CrossEntropy().best_scale(v, v, 10.0) == 1.0 and CrossEntropy().best_scale(v, v, 0.5) == 0.5


def test_targets_are_divided_by_their_sum():
    x, y = draw(6, 4, 3), torch.softmax(draw(6, 3, seed=1), 1)
    given = problem(x, y * (1 + 5e-10), "cross_entropy", "group", None)
    assert (given.y.sum(1) - 1).abs().max() <= 3e-16 and torch.allclose(given.y, y, rtol=1e-15, atol=0)


@pytest.mark.parametrize("name", ["x", "y"])
def test_negative_entries_count_as_much_as_positive_ones(name):
    parts = {"x": draw(6, 4, 3), "y": draw(6, seed=1)}
    for scale in (1e70, 1e-170):
        with pytest.raises(ValueError, match=f"{name} must have its largest entry in"):
            problem(**parts | {name: -parts[name].abs() * scale}, loss="squared", penalty="group", gates=None)


def test_a_point_of_many_sizes_has_its_residual_to_rounding():
    """Large sizes of correlated tokens make the equations of the samples ill-conditioned: a solution is refined."""
    x = draw(10, 6, 4) + 30 * draw(10, 1, 1, seed=1)
    given = problem(x, draw(10, seed=2), "squared", "group", None)
    quadratic = Quadratic(given, given.y)
    point = quadratic.evaluate(torch.logspace(0, 6, 6, dtype=torch.float64), 1.0)
    missed = given.y - point.v - quadratic.predict(point.active, point.z)
    assert missed.norm() <= 1e-9 * given.y.norm()


@pytest.mark.parametrize("options", [{}, {"loss": "cross_entropy"}, {"penalty": "nuclear"}])
def test_a_start_is_started_from(options):
    """A solution as a start is one; a path starts each solution from the one before."""
    x, y = draw(12, 6, 3), torch.softmax(draw(12, 3, seed=1), 1)
    beta = 0.3 * convex.beta_max(x, y, **options)
    found = convex.solve(x, y, beta, **options)
    again = convex.solve(x, y, beta, start=found.z, tol=1e-5, **options)
    assert found.iterations > again.iterations == 0 and torch.allclose(again.z, found.z, atol=1e-12)
    assert [s.iterations for s in convex.path(x, y, [beta, beta], **options)] == [found.iterations, 0]


def test_predictions_need_shapes_that_fit():
    x, gates = draw(6, 4, 3), draw(6, 2, seed=1)
    torch.testing.assert_close(convex.predict(x, draw(4, 3), gates=None), torch.einsum("ikd,kd->i", x, draw(4, 3)))
    for z, given, name in (
        (draw(4, 2), None, "z"), (draw(4, 3, 2, 1), None, "z"), (draw(2, 4, 3), gates[:5], "gates"),
        (draw(2, 4, 3), gates[0], "gates"), (draw(4, 3), gates, "z"), (draw(2, 4, 3, 2, 1), gates, "z"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"{name} must have shape"):
            convex.predict(x, z, gates=given)
    with pytest.raises(ValueError, match="x must have shape"):
        convex.predict(x[0], draw(4, 3))


@pytest.mark.parametrize("loss", ["squared", "cross_entropy"])
def test_derivatives_in_heads_are_those_of_autograd(loss):
    given = problem(draw(7, 3, 4), torch.softmax(draw(7, 3, seed=1), 1), loss, "nuclear", None)
    token = torch.tensor([0, 2, 2, 1])

    def value(point):
        heads = _factored.Factors(token, point[:16].view(4, 4), point[16:].view(4, 3))
        u = torch.einsum("ihd,hd,hl->il", given.a[:, token], heads.u, heads.w)
        fit = 0.5 * (u - given.y).square() if loss == "squared" else u.logsumexp(1) - (given.y * u).sum(1)
        return fit.sum() + 0.7 * 0.5 * (heads.u.square().sum() + heads.w.square().sum())

    point = draw(28, seed=2)
    heads = _factored.Factors(token, point[:16].view(4, 4), point[16:].view(4, 3))
    gradient, hessian = _factored._derivatives(given, 0.7, heads)
    assert _factored._value(given, 0.7, heads) == pytest.approx(value(point).item(), rel=1e-13)
    torch.testing.assert_close(gradient, torch.autograd.functional.jacobian(value, point))
    torch.testing.assert_close(hessian, torch.autograd.functional.hessian(value, point))


def test_a_start_without_real_numbers_is_refused_by_name():
    x, y = draw(6, 4, 3), draw(6)
    for start in (torch.zeros(4, 3, device="meta"), torch.zeros(4, 3).to_sparse(), torch.zeros(4, 3) + 1j):
        with pytest.raises(ValueError, match="start must"):
            convex.solve(x, y, 0.1, start=start)
