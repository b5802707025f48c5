"""The sequence program against CVXPY, and the values by which its two readings differ."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from convex_cases import ACCURACY, sequence_optimum, tensor

from attnrank import convex

INSTANCES = 60


def draw(*shape, seed=0):
    return tensor(np.random.default_rng(seed).standard_normal(shape))


def instance(seed, loss):
    r = np.random.default_rng(seed)
    samples, n, d = r.integers(1, 5), r.integers(2, 5), r.integers(1, 3)
    x = tensor(r.standard_normal((samples, n, d)))
    y = tensor(r.standard_normal((samples, n, 2) if seed % 2 else (samples, n)))
    if loss == "cross_entropy":
        y = torch.softmax(3 * y, -1) if seed % 2 else (y > 0).double()
    return x, y, float(r.uniform(0.05, 1.5))


@pytest.mark.parametrize("loss", ["squared", "cross_entropy"])
@pytest.mark.parametrize("reading", ["stochastic", "max_row_sum"])
def test_optima_are_those_of_cvxpy(loss, reading):
    some = 0
    for seed in range(INSTANCES):
        x, y, beta = instance(seed, loss)
        solution = convex.solve_sequence(x, y, beta, loss=loss, reading=reading)
        value = sequence_optimum(x, y, beta, loss=loss, reading=reading)
        assert solution.primal == pytest.approx(value, rel=ACCURACY, abs=1e-8)
        assert_certified(solution, x, y, beta, loss, reading)
        some += bool((solution.t_plus > 0).any())
    assert some > INSTANCES / 2


def assert_certified(solution, x, y, beta, loss, reading):
    """The objective from C, the dual value, and feasibility: the most that any selection correlates with."""
    assert solution.dual_point.shape == y.shape
    y = y if y.ndim == 3 else y[..., None]
    u = solution.predict(x)
    v = solution.dual_point.view(y.shape)
    q = y - v
    entropy = torch.special.entr
    if loss == "squared":
        value, dual = 0.5 * (u - y).square().sum(), (y * v - v.square() / 2).sum()
    elif y.shape[2] == 1:
        value, dual = (torch.logaddexp(u, 0 * u) - y * u).sum(), (entropy(q) + entropy(1 - q)).sum()
    else:
        value, dual = torch.logsumexp(u, 2).sum() - (y * u).sum(), entropy(q.clamp_min(0)).sum()
    g = torch.einsum("irl,isq->qlrs", v, x)
    best = g.abs() if reading == "max_row_sum" else torch.stack([g, -g])
    assert best.amax(-1).sum(-1).max() <= beta * (1 + 1e-12)
    total = (solution.t_plus + solution.t_minus).sum()
    assert (value + beta * total).item() == pytest.approx(solution.primal, rel=1e-9)
    assert dual.item() == pytest.approx(solution.dual, rel=1e-12)
    assert solution.gap <= 1e-9 * solution.primal + 1e-15
    # Both parts of the gap are nonnegative: what optimality asks of the attention, and of the residual.
    most = 1e-9 * solution.primal + 1e-12
    assert -most <= (beta * total - (v * u).sum()).item() <= 2 * most
    p = u if loss == "squared" else torch.sigmoid(u) if y.shape[2] == 1 else torch.softmax(u, 2)
    assert 0.5 * (y - p - v).square().sum() <= 2 * most
    if reading == "stochastic":
        for c, t in ((solution.plus, solution.t_plus), (solution.minus, solution.t_minus)):
            assert (c >= 0).all() and torch.allclose(c.sum(-1), t[..., None].expand(c.shape[:-1]), rtol=0, atol=1e-9)
    else:
        assert (solution.plus.abs().sum(-1).amax(-1) <= solution.t_plus + 1e-9).all()


def test_golden_values():
    x, y = torch.ones(1, 2, 1, dtype=torch.float64), tensor([[1.0, 0.0]])
    assert convex.solve_sequence(x, y, 0.1).primal == pytest.approx(0.2975, abs=1e-8)
    assert convex.solve_sequence(x, y, 0.1, reading="max_row_sum").primal == pytest.approx(0.095, abs=1e-8)
    # The squared error without the half is twice the half-squared loss with half the beta.
    x, y = tensor([[[1.0], [-1.0]]]), tensor([[1.0, 1.0]])
    assert 2 * convex.solve_sequence(x, y, 0.5).primal == pytest.approx(7 / 8, abs=1e-8)


def test_standard_attention_cannot_fit_what_the_alternative_fits():
    # Scores of tokens 1 and -1 are opposite, so that predictions are (a, -a): the loss against (1, 1) is 2 + 2 a^2.
    x = tensor([[1.0], [-1.0]])
    for seed in range(50):
        wq, wk, wv, wo = draw(4, 3, seed=seed) * 3
        attention = torch.softmax(torch.einsum("h,r,s->hrs", wq * wk, x[:, 0], x[:, 0]), -1)
        prediction = torch.einsum("h,hrs,s->r", wv * wo, attention, x[:, 0])
        assert (prediction - 1).square().sum() >= 2.0 - 1e-12


def test_exact_answers():
    x, y = draw(3, 3, 2), draw(3, 3, seed=1)
    assert convex.solve_sequence(x, torch.zeros_like(y), 0.1).primal == 0.0
    assert not convex.solve_sequence(torch.zeros_like(x), y, 0.1).plus.any()
    assert not convex.solve_sequence(x, y, 1e3).t_plus.any()


def test_bad_input_is_named():
    x, y = draw(3, 3, 2), draw(3, 3, seed=1)
    for arguments, options, message in (
        ((x, y[:, :2], 0.1), {}, "y must have one row for each of the 3 tokens of x, got 2"),
        ((x, y, 0.0), {}, "beta must be greater than 0"),
        ((x, y, 0.1), {"reading": "loose"}, "reading must be one of"),
        ((x, y, 0.1), {"loss": "cross_entropy"}, "y must be probabilities"),
        ((x[0], y, 0.1), {}, "x must have shape"),
        ((x * 1e200, y, 0.1), {}, "x must have its largest entry in"),
        ((x, y * 1e-170, 0.1), {}, "y must have its largest entry in"),
    ):
        with pytest.raises(ValueError, match=message):
            convex.solve_sequence(*arguments, **options)
    with pytest.raises(convex.NotConvergedError, match="was not reached"):
        convex.solve_sequence(x, y, 0.01, tol=0.0, max_iterations=1)


def test_predictions_of_sequences_need_shapes_that_fit():
    x = torch.ones(2, 3, 2, dtype=torch.float64)
    solution = convex.solve_sequence(x, x[..., 0], 0.1)
    for wrong in (x[:, :1], x[:, :, :1], x[0]):
        with pytest.raises(ValueError, match=r"x must have shape \(samples, 3, 2\)"):
            solution.predict(wrong)
