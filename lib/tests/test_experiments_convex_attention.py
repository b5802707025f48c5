"""experiments.convex_attention: gradients and projections of training, and what its rivals solve."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from attnrank import convex, sweep
from attnrank.experiments import EXPERIMENTS
from attnrank.experiments.convex_attention import rivals, training


def draw(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def test_gradients_of_training_are_those_of_autograd():
    x, y, beta = training.data("toy")
    attention, value, output = torch.softmax(draw(2, 3, 6), -1), draw(2, 3, 4, seed=1), draw(2, 3, seed=2)
    parts = [p.requires_grad_() for p in (attention.detach(), value, output)]
    total = 0.0
    for w1, w2, w3 in zip(*parts, strict=True):
        u = torch.einsum("ikd,hk,hd,h->i", x, w1, w2, w3)
        total = total + 0.5 * (u - y).square().sum() + 0.5 * beta * (w2.square().sum() + w3.square().sum())
    total.backward()
    found = training._gradients(x.flatten(1), y, beta, *(p.detach() for p in parts))
    for p, gradient in zip(parts, found, strict=True):
        assert torch.allclose(p.grad, gradient, rtol=1e-10, atol=1e-10)


def test_projection_to_the_simplex():
    for seed in range(20):
        v = draw(5, seed=seed)
        w = training.to_simplex(v)
        assert (w >= 0).all() and w.sum().item() == pytest.approx(1.0)
        best = minimize(
            lambda p, v=v: ((p - v.numpy()) ** 2).sum(), np.full(5, 0.2), bounds=[(0, None)] * 5,
            constraints={"type": "eq", "fun": lambda p: p.sum() - 1}, tol=1e-12,
        )  # fmt: skip
        np.testing.assert_allclose(w, best.x, atol=1e-5)


def test_training_never_ends_below_the_optimum():
    row = training.nonconvex_runs("toy", "projected", 3, 1.0, 3)
    assert 0 <= row["gap"] <= row["certificate"] and row["least_excess"] >= -1e-9 and row["ratio"] >= 1


def test_rivals_solve_the_same_program():
    x, y = rivals.program(30, 6, 3, 0)
    beta = 0.1 * convex.beta_max(x, y)
    best = convex.solve(x, y, beta)
    for rival in ("celer", "CVXPY, CLARABEL"):
        z, _ = rivals.prepare(rival, x, y, beta, "squared", "group")(1e-9)
        assert abs(rivals.verified_gap(x, y, beta, z, best.dual)) < 1e-7, rival


def test_the_least_of_fifty_runs_may_be_another_elsewhere():
    """On an Intel Xeon a row had another least excess, and all else within its margins; a whole unit is too much."""
    table, repeats = sweep.read("nonconvex_runs"), EXPERIMENTS["nonconvex_runs"].repeats
    row = table[(table.problem == "medium") & (table["heads"] == 1) & (table.method == "projected")].iloc[0].to_dict()
    assert row["least_excess"] == pytest.approx(1.685, abs=1e-3)
    assert repeats.difference(row, row | {"least_excess": 1.712063944956847}, len(table)) is None
    assert "least_excess" in repeats.difference(row, row | {"least_excess": row["least_excess"] + 1}, len(table))
