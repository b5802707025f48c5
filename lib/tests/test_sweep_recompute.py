"""Sweeps: rows of published tables computed again."""
# ruff: noqa: F811

from __future__ import annotations

import os

import pandas as pd
import pytest
import torch

from attnrank import sweep
from sweep_job import calls, job, published, script  # noqa: F401 (fixtures)


def test_recompute(job, published, calls):
    first = sweep.recompute("T", job.function, generator=torch.Generator().manual_seed(1), rows=4, folder=published)
    again = sweep.recompute("T", job.function, generator=torch.Generator().manual_seed(1), rows=4, folder=published)
    other = sweep.recompute("T", job.function, generator=torch.Generator().manual_seed(2), rows=4, folder=published)
    pd.testing.assert_frame_equal(first, sweep.read("T", folder=published).loc[first.index])
    pd.testing.assert_frame_equal(first, again)
    assert len(first) == 4 and len(calls()) == 12 and list(first.index) != list(other.index)
    everything = sweep.recompute("T", job.function, generator=torch.Generator(), rows=1000, folder=published)
    pd.testing.assert_frame_equal(everything, sweep.read("T", folder=published))


@pytest.mark.parametrize("column, change, fails", [
    ("mean", lambda v: v * (1 + 1e-8), True), ("mean", lambda v: v * (1 + 1e-10), False),
    ("mean", lambda v: None, True),
    ("rank", lambda v: v + 1, True), ("even", lambda v: not v, True), ("note", lambda v: v + " ", True),
    ("missing", lambda v: 1.0, True), ("missing", lambda v: v, False),
])
def test_recompute_finds_a_difference(column, change, fails, job, published):
    def changed(n, kind, seed):
        result = job.function(n, kind, seed)
        return result | {column: change(result[column])} if (n, kind, seed) == (3, "unit", 7) else result
    arguments = {"generator": torch.Generator(), "rows": 60, "folder": published}
    if not fails:
        assert len(sweep.recompute("T", changed, **arguments)) == 60
        return
    with pytest.raises(
        ValueError, match=rf"T\.csv line 19: {column} is .*, recomputed .* \(rtol 1e-09\), .*'seed': 7\}}"
    ):
        sweep.recompute("T", changed, **arguments)


def test_recompute_draws_only_what_is_accepted(job, published, calls):
    """Whatever the seed, only accepted rows are computed; all of them, once, when more are asked for."""
    def accept(setting):
        assert setting.keys() == {"n", "kind", "seed"}
        return setting["n"] == 8 and setting["seed"] < 3
    everything = sweep.read("T", folder=published)
    expected = everything.query("n == 8 and seed < 3")
    assert len(expected) == 6
    for seed in range(8):
        arguments = {"generator": torch.Generator().manual_seed(seed), "folder": published, "accept": accept}
        pd.testing.assert_frame_equal(sweep.recompute("T", job.function, rows=100, **arguments), expected)
        few = sweep.recompute("T", job.function, rows=2, **arguments)
        assert len(few) == 2 and set(few.index) <= set(expected.index)
    assert len(calls()) == 8 * 8 and {line[:2] for line in calls()} == {"8,"}
    arguments = {"rows": 4, "folder": published}  # accepting all changes nothing
    one = sweep.recompute("T", job.function, generator=torch.Generator().manual_seed(1), **arguments)
    two = sweep.recompute("T", job.function, generator=torch.Generator().manual_seed(1), accept=bool, **arguments)
    pd.testing.assert_frame_equal(one, two)


def test_a_difference_in_an_accepted_row_is_found(job, published):
    def changed(n, kind, seed):
        return job.function(n, kind, seed) | {"rank": -1}
    last = {"n": 5, "kind": "unit", "seed": 9}
    with pytest.raises(ValueError, match=rf"T\.csv line 61: rank is \d, recomputed -1 \(rtol 1e-09\), for {last}"):
        sweep.recompute("T", changed, generator=torch.Generator(), folder=published, accept=lambda s: s == last)


def test_recompute_bad_arguments(job, published):
    with pytest.raises(ValueError, match="accept must accept a row of the table T, got none of 60"):
        sweep.recompute("T", job.function, generator=torch.Generator(), folder=published, accept=lambda setting: False)
    with pytest.raises(ValueError, match="accept must be callable or None, got 'digits'"):
        sweep.recompute("T", job.function, generator=torch.Generator(), folder=published, accept="digits")
    with pytest.raises(ValueError, match="generator must be a torch.Generator"):
        sweep.recompute("T", job.function, generator=0, folder=published)
    with pytest.raises(ValueError, match="rows must be at least 1"):
        sweep.recompute("T", job.function, generator=torch.Generator(), rows=0, folder=published)
    with pytest.raises(ValueError, match="same columns"):
        sweep.recompute("T", lambda **_: {"x": 1}, generator=torch.Generator(), folder=published)
    with pytest.raises(RuntimeError, match=r"recompute T: the function failed for \{'n'"):
        sweep.recompute("T", lambda **_: 1 / 0, generator=torch.Generator(), folder=published)


def test_runs_that_are_kept_are_not_compared_with_themselves(monkeypatch, tmp_path):
    """A row read from the folder of ATTNRANK_RUNS would be compared with the file that it came from."""
    kept, other = tmp_path / "kept", tmp_path / "other"
    kept.mkdir(), other.mkdir()
    seen = []

    def function(n):
        seen.append(os.environ.get("ATTNRANK_RUNS"))
        return {"value": n / 2}

    monkeypatch.setenv("ATTNRANK_RUNS", str(kept))
    sweep.run("T", function, sweep.grid(n=[1, 2]), folder=tmp_path)
    sweep.recompute("T", function, generator=torch.Generator(), folder=tmp_path)
    assert list(sweep.differences("T", function, rows=[0], folder=tmp_path)) == [(0, None)]
    assert list(sweep.differences("T", function, rows=[1], folder=tmp_path, runs=other)) == [(1, None)]
    assert seen == [str(kept)] * 2 + [None] * 3 + [str(other)] and os.environ["ATTNRANK_RUNS"] == str(kept)
    monkeypatch.delenv("ATTNRANK_RUNS")
    assert list(sweep.differences("T", function, rows=[1], folder=tmp_path, runs=other)) == [(1, None)]
    assert seen[-1] == str(other) and "ATTNRANK_RUNS" not in os.environ
