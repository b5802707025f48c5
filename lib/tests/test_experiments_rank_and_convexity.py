"""Experiments of the chapter rank_and_convexity: norms, vertices and margins against independent computations."""

import cvxpy as cp
import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from attnrank import convex, sweep
from attnrank.experiments import EXPERIMENTS
from attnrank.experiments.rank_and_convexity import margins, norms, vertices
from attnrank.experiments.shared.statistics import seeded


def draw(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


@pytest.mark.parametrize("outputs", [1, 2])
def test_nuclear_norm_program_is_that_of_cvxpy(outputs):
    design, y, beta = draw(15, 6), draw(15, outputs, seed=1), 2.0
    shape = (3, 2 * outputs)
    found = norms.nuclear_norm_program(design, y, beta, shape)
    z = cp.Variable((6, outputs))
    matrix = cp.reshape(z, shape, order="C")
    loss = cp.sum_squares(design.numpy() @ z - y.numpy()) / 2
    best = cp.Problem(cp.Minimize(loss + beta * cp.normNuc(matrix))).solve(solver=cp.CLARABEL)
    assert found.primal == pytest.approx(best, rel=1e-6)
    assert 0 <= found.primal - found.dual <= 1e-10 * found.primal
    with pytest.raises(ValueError, match="was not reached in 20 steps"):
        norms.nuclear_norm_program(design, y, 0.001, shape, tol=0.0, max_steps=20)


def test_features_of_linear_attention_predict_what_heads_do():
    x, q, v = draw(5, 4, 3), draw(2, 3, 3, seed=1), draw(2, 3, 2, seed=2)
    z = torch.einsum("hak,hlo->aklo", q, v).reshape(27, 2)
    expected = sum(x @ q[h] @ x.mT @ x @ v[h] for h in range(2))
    torch.testing.assert_close((norms.linear_design(x) @ z).view(5, 4, 2), expected)
    torch.testing.assert_close(norms.linear_attention(x, q, v), expected)


def test_heads_never_beat_the_certified_optimum():
    row = norms.linear_heads(0, 0.05, 2, 1)
    assert row["excess"] > -1e-9 and 1 <= row["rank"] <= 6


@pytest.mark.parametrize("seed", range(3))
def test_separating_matrices_of_least_norm(seed):
    differences, queries = margins.task(seed)
    frobenius, nuclear = margins.least_frobenius(differences, queries), margins.least_nuclear(differences, queries)
    for w in (frobenius, nuclear):
        assert margins.margin(w, differences, queries) == pytest.approx(1.0, abs=1e-6)
    rows = torch.einsum("ita,ib->itab", differences, queries).reshape(-1, 36).numpy()
    best = minimize(
        lambda w: 0.5 * w @ w, frobenius.flatten().numpy() + 0.1, jac=lambda w: w, method="SLSQP",
        constraints={"type": "ineq", "fun": lambda w: rows @ w - 1, "jac": lambda w: rows},
        options={"maxiter": 500, "ftol": 1e-14},
    )  # fmt: skip
    assert frobenius.square().sum().item() / 2 == pytest.approx(best.fun, rel=1e-6)
    assert torch.linalg.matrix_norm(nuclear, "nuc") <= torch.linalg.matrix_norm(frobenius, "nuc") + 1e-6


def test_slope_of_the_margin_loss_is_that_of_autograd():
    differences, queries = margins.task(0)
    w = 0.1 * draw(6, 6)
    w.requires_grad_()
    scores = torch.einsum("ita,ab,ib->it", differences, w, queries)
    p = 1 / (1 + torch.exp(-scores).sum(1))
    torch.nn.functional.softplus(-p).sum().backward()
    (found,) = margins._slope(w.detach()[None], differences[None], queries[None])
    torch.testing.assert_close(found / found.norm(), w.grad / w.grad.norm())


def test_the_rounding_of_long_training_is_within_what_is_declared(monkeypatch):
    """Keys and queries after 10,000 steps: a start changed by 1e-14 is no difference, another start is one."""
    experiment, rows = EXPERIMENTS["attention_svm"], sweep.read("attention_svm").to_dict("records")
    setting, stored = experiment.paper[-1], rows[-1]
    start = margins._start

    def difference():
        margins._trained.cache_clear()
        return experiment.repeats.difference(stored, setting | margins.attention_svm(**setting), len(rows))

    monkeypatch.setattr(margins, "_start", lambda seed: start(seed) + 1e-16 * draw(2, 6, 6, seed=seed))
    assert difference() is None
    monkeypatch.setattr(margins, "_start", lambda seed: start(seed + 1))
    assert difference() is not None
    margins._trained.cache_clear()


def test_sequence_beta_max_is_where_attention_begins():
    x, y = vertices.sequence_targets("noise", 12, 4, seeded(0))
    largest = vertices.sequence_beta_max(x, y)
    assert convex.solve_sequence(x, y, 1.0001 * largest).t_plus.sum() == 0
    found = convex.solve_sequence(x, y, 0.999 * largest)
    assert found.t_plus.sum() + found.t_minus.sum() > 0


def test_projected_weights_arrive_and_a_softmax_does_not():
    rows = {kind: vertices.softmax_vertices(kind, 0.02, 2, 3000) for kind in ("softmax", "projected")}
    assert rows["projected"]["gap"] < 0.01 * rows["softmax"]["gap"] and rows["softmax"]["missing"] > 0
    assert rows["softmax"]["logit_gap"] > vertices.softmax_vertices("softmax", 0.02, 2, 100)["logit_gap"]


def test_projected_weights_end_at_the_vertices():
    row = vertices.softmax_vertices("projected", 0.02, 2, 3000)
    assert row["missing"] == 0.0 == row["logit_gap"] and abs(row["gap"]) < 1e-6


@pytest.mark.parametrize("target", norms.TARGETS)
def test_what_is_said_of_an_optimum_against_numpy(target):
    x, y, truth = norms.regression(target, 1)
    assert x.shape == (norms.SAMPLES, norms.TOKENS, norms.DIMENSION) and len(y) == norms.SAMPLES
    rows = truth.norm(dim=1).gt(0).sum().item()
    assert (rows, np.linalg.matrix_rank(truth.numpy())) == {"two tokens": (2, 2), "rank one": (12, 1)}[target]
    row, errors, tokens = norms.constraint_norms(target, "simplex", 2), [], []
    for seed in (0, 1):
        z, truth = (part.numpy() for part in norms.fitted(target, "simplex", seed))
        errors.append(np.linalg.norm(z - truth) / np.linalg.norm(truth))
        assert norms.error(target, "simplex", seed) == pytest.approx(errors[-1])
        tokens.append(sum(np.linalg.norm(line) > 1e-5 * np.linalg.norm(z) for line in z))
    assert row["error_mean"] == pytest.approx(np.mean(errors))
    assert row["error_standard_error"] == pytest.approx(np.std(errors, ddof=1) / 2**0.5)
    assert [row[f"tokens_{end}"] for end in ("least", "mean", "most")] == [min(tokens), np.mean(tokens), max(tokens)]
    assert row["rank_most"] <= min(max(tokens), norms.DIMENSION)


def test_the_best_of_several_starts_reaches_the_optimum_with_enough_heads():
    """Seed 0 has an optimum of rank 2: two heads reach it, and one, which is stuck above it, has a worst start."""
    enough, few = norms.linear_heads(0, 0.05, 2, 2), norms.linear_heads(0, 0.05, 1, 3)
    assert abs(enough["excess"]) < 1e-9 and enough["rank"] == 2
    assert 0.05 < few["excess"] < few["worst_excess"]


def test_excess_is_over_the_least_norm_and_a_matrix_that_does_not_separate_has_none(monkeypatch):
    least = [margins._least(seed) for seed in range(3)]
    for which, name in enumerate(("frobenius", "nuclear")):
        found = torch.stack([3.0 * pair[which] for pair in least])  # at margin 3: norms are those at margin 1
        found[2] /= -30.0  # at margin -0.1
        monkeypatch.setattr(margins, "_trained", lambda *_, found=found: {100: found})
        row = margins.attention_svm("W", 100, 3)
        other = {"frobenius": "nuclear", "nuclear": "frobenius"}[name]
        assert row[f"{name}_excess"] == pytest.approx(0.0, abs=1e-6) and row[f"{other}_excess"] > 1e-3
        assert row["not_separated"] == 1 and row["rank"] == row[f"rank_{name}"]


def test_the_larger_side_of_what_a_sequence_program_learns_counts():
    """A permutation that is hardly noisy is learned, and its hardmax rank is n; its negative is on the other side."""
    row = vertices.trained_selections("permutation", 4, 64, 0.5, 2)
    assert row["hardmax_share_mean"] == 1.0 and row["rank_mean"] == 4.0


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="target must be one of"):
        norms.regression("dense", 0)
    with pytest.raises(ValueError, match="kind must be one of"):
        vertices.sequence_targets("signal", 4, 4, seeded(0))
    with pytest.raises(ValueError, match="steps must be one of"):
        margins.attention_svm("W", 5, 1)
