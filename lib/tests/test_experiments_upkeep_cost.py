"""upkeep.cost: what rows cost, by recorded seconds and by counted operations, and how long workers take for them."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pandas as pd
import pytest
import scipy
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from attnrank import sweep
from attnrank.experiments import EXPERIMENTS, growth
from attnrank.experiments.upkeep import cost

pytestmark = pytest.mark.usefixtures("one_thread")  # as in a sweep, where the published rows were computed


def test_recorded_seconds_are_shared_out(tmp_path):
    experiment = EXPERIMENTS["random_heads"]
    sweep.run("random_heads", lambda **_: {"rank": 1}, experiment.paper, folder=tmp_path)
    path = tmp_path / "random_heads.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    sessions = [record["sessions"][0] | {"row_seconds": 70.0}, {"wall_seconds": 30.0, **{
        name: value for name, value in record["sessions"][0].items() if name not in ("wall_seconds", "row_seconds")}}]
    path.write_text(json.dumps(record | {"sessions": sessions}), encoding="utf-8")
    seconds = cost.row_seconds("random_heads", experiment, folder=tmp_path)
    assert cost.table_seconds("random_heads", folder=tmp_path) == 100 == pytest.approx(seconds.sum())
    of = {(setting["n"], setting["d_h"]): row for setting, row in zip(experiment.paper, seconds, strict=True)}

    def work(n, d_h):
        return cost.ROW + 400 * (n**2 * (d_h + cost.SCORE) + cost.ENTRY * n * d_h)
    for n, d_h in ((16, 1), (1024, 64), (4096, 1), (4096, 512)):
        assert of[n, d_h] / of[256, 8] == pytest.approx(work(n, d_h) / work(256, 8), rel=1e-12)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_row_has_a_cost(name):
    """Every whole number of a setting repeats or is a size: a new column cannot be forgotten, and count as nothing."""
    experiment = EXPERIMENTS[name]
    whole = {column for column, value in experiment.paper[0].items() if type(value) is int}
    unknown = whole - set(cost.REPETITIONS) - set(cost.SIZES) - {"seed"}
    assert not unknown, f"upkeep.cost does not know what {sorted(unknown)} cost"
    repeated = [s for s in experiment.paper if any(column in s for column in cost.REPETITIONS)]
    work = [cost.operations(setting) for setting in experiment.paper]
    assert max(work) < 1e15 and all(cost.operations(setting) > 1.001 * cost.ROW for setting in repeated)


def test_repetitions_of_a_curve_are_counted():
    """A row of saturation_trials has a head at each of its head dimensions for every repetition."""
    one, many = ({"distribution": "gaussian", "n": 50, "d": 64, "design": "nested", "repetitions": r} for r in (1, 300))
    assert cost.products(many) == pytest.approx(300 * cost.products(one))
    heads = [{"n": 50, "d": 64, "d_h": d_h, "samples": 1} for d_h in growth.HEAD_DIMS]
    assert cost.products(one) == pytest.approx(sum(map(cost.products, heads)), rel=1e-12)
    third = heads[0] | {"layer": 3}  # the layers below have as many heads
    assert cost.products(third) == pytest.approx(3 * cost.products(heads[0]))


def test_counted_operations_are_those_of_pytorch():
    q, k = torch.ones(3, 16, 8), torch.ones(3, 8, 16)
    with FlopCounterMode(display=False) as counter:
        q @ k
    assert counter.get_total_flops() == cost.products({"n": 16, "d_h": 8, "samples": 3})
    x, w = torch.ones(3, 16, 32), torch.ones(32, 8)
    with FlopCounterMode(display=False) as counter:
        (x @ w) @ (x @ w).mT
    assert counter.get_total_flops() == cost.products({"n": 16, "d_h": 8, "heads": 3, "width": 32})


def test_power_law():
    generator = np.random.default_rng(0)
    n, d_h = (generator.integers(1, 1000, 400).astype(float) for _ in range(2))
    exact = pd.DataFrame({"n": n, "d_h": d_h, "seconds": 3.0 * n**2 / d_h})
    law = cost.power_law(exact, "seconds", ["n", "d_h"])
    assert law.exponents == pytest.approx({"n": 2.0, "d_h": -1.0}) and law.constant == pytest.approx(3.0)
    assert law.scatter < 1e-12
    noisy = exact.assign(seconds=exact.seconds * np.exp(0.1 * generator.standard_normal(400)))
    law = cost.power_law(noisy, "seconds", ["n", "d_h"])
    x = np.column_stack([np.log(n), np.log(d_h), np.ones(400)])
    fit = scipy.stats.linregress(np.log(n), np.log(noisy.seconds * d_h))  # nearly the same problem in one variable
    assert law.exponents["n"] == pytest.approx(fit.slope, abs=5e-3)
    spread = np.sqrt(law.residuals @ law.residuals / 397 * np.linalg.inv(x.T @ x)[0, 0])
    low, high = law.intervals["n"]
    assert (high - low) / 2 == pytest.approx(scipy.stats.t.ppf(0.975, 397) * spread) and low < 2 < high
    assert law.scatter == pytest.approx(0.1, rel=0.15)


@pytest.mark.parametrize("table, message", [
    ({"n": [1.0, 2.0, 3.0], "seconds": [1.0, 0.0, 1.0]}, "must be positive"),
    ({"n": [1.0, 2.0], "seconds": [1.0, 2.0]}, "2 rows do not determine"),
    ({"n": [2.0, 2.0, 2.0], "seconds": [1.0, 2.0, 3.0]}, "3 rows do not determine"),
])
def test_power_law_refuses(table, message):
    with pytest.raises(ValueError, match=message):
        cost.power_law(pd.DataFrame(table), "seconds", ["n"])


def test_head_law():
    table = pd.DataFrame(sweep.grid(n=[16, 64, 256, 1024], d_h=[1, 8, 64], samples=[1, 10]))
    true = cost.HeadLaw(row=1e-4, draw=4e-8, score=2e-9, product=4e-11, scatter=0.0)
    law = cost.head_law(table.assign(seconds=true.seconds(table.n, table.d_h, table.samples)))
    assert dataclasses.astuple(law)[:4] == pytest.approx(dataclasses.astuple(true)[:4], rel=1e-6) and law.scatter < 1e-8
    with pytest.raises(ValueError, match="at least 5 rows with seconds > 0"):
        cost.head_law(table.assign(seconds=0.0))


@given(st.lists(st.integers(0, 50), min_size=1, max_size=12), st.integers(1, 5))
def test_schedule(seconds, workers):
    """Against a simulation by clock ticks, and Graham's bounds."""
    rows, idle_at, tick = list(seconds), [0] * workers, 0
    while rows:
        for worker in range(workers):
            while rows and idle_at[worker] <= tick:
                idle_at[worker] = tick + rows.pop(0)
                if idle_at[worker] > tick:
                    break
        tick += 1
    assert cost.schedule(seconds, workers) == max(idle_at)
    low, high = cost.schedule_bounds(seconds, workers)
    assert low - 1e-9 <= max(idle_at) <= high + 1e-9 and high <= 2 * low + 1e-9


def test_graham_bound_is_reached():
    """N (N - 1) rows of one second, and then one of N seconds: every worker but one waits for it."""
    for n in (2, 3, 10):
        seconds = [1.0] * (n * (n - 1)) + [float(n)]
        assert cost.schedule(seconds, n) == pytest.approx(cost.schedule_bounds(seconds, n)[1]) == 2 * n - 1
        assert cost.schedule(seconds[::-1], n) == n  # longest first is best here


@pytest.mark.parametrize("seconds", [[], [-1.0], [math.nan], [[1.0]]])
def test_schedule_refuses(seconds):
    with pytest.raises(ValueError, match="seconds must be a vector of times"):
        cost.schedule(seconds, 2)
