"""experiments.convex_attention: gradients and projections of training, and what its rivals solve."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from attnrank import convex, sweep
from attnrank.benchmarks import processor
from attnrank.experiments import EXPERIMENTS
from attnrank.experiments.convex_attention import contests, rivals, scale, training


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
    found = training.gradients(x.flatten(1), y, beta, *(p.detach() for p in parts))
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


def test_what_is_said_of_runs_against_numpy(monkeypatch):
    """Shares, means, standard errors and quartiles of known gaps and certificates."""
    gap = np.array([1e-3, 2e-3, 0.0, 0.5])
    certificate, ratio = gap + np.array([0.2, 0.1, 0.0, 0.4]), 1 + gap
    monkeypatch.setattr(training, "_measured", lambda *_: (gap, certificate, ratio))
    row = training.nonconvex_runs("toy", "projected", 3, 1.0, 4)
    assert row["global_share"] == 0.5 and row["global_share_se"] == pytest.approx(0.25)
    assert row["least_excess"] == pytest.approx(0.0, abs=1e-15)
    for name, values in (("gap", gap), ("certificate", certificate), ("ratio", ratio)):
        assert row[name] == pytest.approx(values.mean())
        assert row[f"{name}_se"] == pytest.approx(values.std(ddof=1) / 2, rel=1e-6)
    every = (np.ones(4), certificate, ratio)
    monkeypatch.setattr(training, "_measured", lambda *_: every)
    assert training.nonconvex_runs("toy", "projected", 3, 1.0, 4)["global_share_se"] == 0.25  # 1 / n for none and all
    trace = training.nonconvex_trace("toy", "projected", 3, 1.0, 4, 100)
    assert [trace[f"certificate_{q}"] for q in (25, 50, 75)] == pytest.approx(
        np.quantile(certificate, [0.25, 0.5, 0.75])
    )


def test_steps_of_softmax_are_those_of_adam():
    x, y, beta = training.data("toy")
    logits, value, output = draw(2, 3, 6), draw(2, 3, 4, seed=1), draw(2, 3, seed=2)
    found = list(itertools.islice(training._softmax_steps(x.flatten(1), y, beta, logits, value, output), 6))
    parts = [part.clone().requires_grad_() for part in (logits, value, output)]
    optimiser = torch.optim.Adam(parts, eps=1e-10)
    for step in range(6):
        for part, own in zip((torch.softmax(parts[0], -1), *parts[1:]), found[step], strict=True):
            torch.testing.assert_close(part.detach(), own)
        z = torch.einsum("shn,shd,sh->snd", torch.softmax(parts[0], -1), *parts[1:])
        loss = 0.5 * (torch.einsum("snd,ind->si", z, x) - y).square().sum()
        loss = loss + 0.5 * beta * (parts[1].square().sum() + parts[2].square().sum())
        optimiser.zero_grad()
        loss.backward()
        optimiser.param_groups[0]["lr"] = 0.05 * (1 - 0.99 * (step + 1) / training.STEPS)
        optimiser.step()


def test_no_projected_step_is_longer_than_the_clip():
    x, y, beta = training.data("toy")
    start = draw(2, 3, 6), 30 * draw(2, 3, 4, seed=1), 30 * draw(2, 3, seed=2)
    first, second = itertools.islice(training._projected_steps(x.flatten(1), y, beta, *start), 2)
    moved = sum((after - before).flatten(1).square().sum(1) for before, after in zip(first, second, strict=True)).sqrt()
    assert (moved <= 0.01 * training.CLIP * (1 + 1e-12)).all() and (moved > 0.5 * 0.01 * training.CLIP).all()


def test_gaps_of_training_are_relative_to_the_optimum(monkeypatch):
    x, y, beta = training.data("toy")
    heads = (torch.eye(6).double()[None, :2], torch.zeros(1, 2, 4).double(), torch.zeros(1, 2).double())
    monkeypatch.setattr(training, "_run", lambda *_: {0: heads})
    [gap], _, _ = training._measured("toy", "projected", 2, 1.0, 1, 0)
    assert gap == pytest.approx(0.5 * y.square().sum().item() / 0.526259984 - 1, rel=1e-6)


@pytest.mark.parametrize("loss, penalty, outputs", [
    ("squared", "nuclear", 2), ("cross_entropy", "group", 0), ("cross_entropy", "group", 2),
])  # fmt: skip
def test_cvxpy_solves_the_other_programs_too(loss, penalty, outputs):
    x, y = rivals.program(15, 6, 3, 0, outputs=outputs)
    if loss == "cross_entropy":
        y = torch.softmax(y, 1) if outputs else (y > 0).double()
    options = {"loss": loss, "penalty": penalty}
    beta = 0.2 * convex.beta_max(x, y, **options)
    best = convex.solve(x, y, beta, **options)
    z, seconds = rivals.prepare("CVXPY, CLARABEL", x, y, beta, loss, penalty)(1e-9)
    assert abs(rivals.verified_gap(x, y, beta, z, best.dual, **options)) < 1e-6 and seconds > 0
    nothing = rivals.verified_gap(x, y, beta, torch.zeros_like(z), 0.5 * best.dual, **options)
    at_zero = convex.check(x, y, beta, torch.zeros_like(z), torch.zeros_like(y), **options)[0]
    assert nothing == pytest.approx((at_zero - 0.5 * best.dual) / at_zero)


@pytest.fixture
def rival(monkeypatch):
    """A rival that is our solver at its tolerances, of 9 s by its own clock; by ours, 1, 2, 3, ... s pass in turn."""
    monkeypatch.setitem(contests.TOLERANCES, "slow, one", (1e-1, 1e-12))
    monkeypatch.setattr(contests, "available", lambda rival: rival != "nowhere")
    monkeypatch.setattr(contests, "version", lambda rival: "slow 1.0")
    clock = itertools.accumulate(itertools.count())
    monkeypatch.setattr(contests, "time", SimpleNamespace(perf_counter=lambda: float(next(clock))))

    def prepare(rival, x, y, beta, loss, penalty):
        return lambda tol: (convex.solve(x, y, beta, loss=loss, penalty=penalty, tol=tol).z, 9.0)

    monkeypatch.setattr(contests, "prepare", prepare)


def contest(rival, gap=1e-9, bar=">= 1", rounds=1):
    return contests.convex_contest("squared", rival, 20, 6, 3, 0.2, gap, bar, rounds, processor())


def test_a_contest_is_of_a_rival_at_a_tolerance_that_suffices(rival):
    row = contest("slow, one")
    assert row["rival_seconds"] == 9.0 and row["ratio"] == pytest.approx(9.0 / row["seconds"])
    assert row["rival_reached"] <= 1e-9 and row["reached"] <= 1e-9 and row["verdict"] == "met"
    assert row["against"] == "slow 1.0" and row["active"] > 0
    assert contest("slow, one", bar=">= 10000")["verdict"] == "missed"


def test_a_tolerance_that_nearly_suffices_does_not(rival, monkeypatch):
    gaps = iter([1.1e-9, 1e-9, 1e-9])
    monkeypatch.setattr(contests, "verified_gap", lambda *_, **__: next(gaps))
    row = contest("slow, one")
    assert row["rival_reached"] == 1e-9 and row["verdict"] == "met" and not list(gaps)  # tried twice, and timed once


def test_a_rival_that_does_not_reach_the_gap_is_told(rival, monkeypatch):
    monkeypatch.setitem(contests.TOLERANCES, "slow, one", (0.5, 0.3))
    row = contest("slow, one")
    assert row["verdict"] == "not reached, met" and row["rival_reached"] > 1e-9 >= row["reached"]
    row = contest("nowhere")
    assert row["verdict"] == "not measured" and row["seconds"] is row["ratio"] is row["reached"] is None


def test_a_path_costs_so_many_cold_solves(rival):
    """The clock says 1 s for the path and 2 s for the cold solve after it."""
    row = contest("path", bar="<= 0.5")
    assert row["ratio"] == pytest.approx(0.5) and row["seconds"] == 2.0 and row["rival_seconds"] == 1.0
    assert row["verdict"] == "met" and row["against"] == "50 betas" and row["reached"] <= 1e-9


def test_a_trace_is_of_the_least_of_three_runs(monkeypatch):
    for seconds, least in (([0.5, 0.2, 0.7], 0.2), ([1.5, 0.1], 1.5), ([0.3, 1.2, 0.1], 0.3)):
        times = iter(seconds)
        monkeypatch.setattr(contests, "_timed", lambda run, tol, times=times: (next(times), run(tol)[0]))
        row = contests.convex_trace("attnrank", 20, 6, 3, 0.2, 1e-6, processor())
        assert row["seconds"] == least and 1e-16 <= row["gap"] <= 1e-6


def test_memory_is_in_gib(monkeypatch):
    monkeypatch.setattr(scale, "extra_memory_and_output", lambda code: (3 * 2**30, "1.5 7 1e-10 4"))
    row = scale.convex_scale(2**20, 16, 8, 0.1, processor())
    assert row.pop("machine")
    assert row == {"tokens_gib": 1.0, "peak_gib": 3.0, "seconds": 1.5, "active": 7, "gap": 1e-10, "steps": 4}
    assert "seconds" not in scale.convex_memory("cross_entropy", 2, 2, 2, 0.1)
