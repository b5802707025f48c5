"""The published tables: they belong to experiments, their rows are computed again, and a changed row is seen."""

from __future__ import annotations

import dataclasses
import random
import re
import subprocess
from pathlib import Path

import pandas as pd
import pytest
import torch

from attnrank import sweep
from attnrank.experiments import EXPERIMENTS
from attnrank.experiments.experiment import Measured
from attnrank.experiments.upkeep import compared
from attnrank.experiments.upkeep.verification import Verdict, verify
from attnrank.sweep import _provenance
from table_values import impossible

RESULTS = Path(__file__).resolve().parents[2] / "book" / "results"
pytestmark = pytest.mark.usefixtures("one_thread")  # as in a sweep, where the published rows were computed
PUBLISHED = sorted(path.stem for path in RESULTS.glob("*.json"))
#: Tables without a column whose name says which values it can have.
UNNAMED = {
    "attention_svm", "convex_memory", "depth_ranks", "formula_lines", "increment_rule", "layer_causes",
    "layer_finals", "layer_search", "linear_heads", "nonconvex_trace", "probe_memory", "rank_ascent", "saturation",
    "saturation_trials", "sizing", "softmax_vertices", "student_maps", "text_shares", "token_conditions",
}  # fmt: skip


def committed(name: str) -> bool:
    """Is the table part of the book? Without git, every table is."""
    try:
        return not subprocess.run(["git", "ls-files", "--error-unmatch", f"{name}.json"], cwd=RESULTS,
                                  capture_output=True).returncode
    except OSError:
        return True


@pytest.fixture(params=PUBLISHED or [
    pytest.param(None, marks=pytest.mark.skip(reason="no table is in book/results"))])
def published(request):
    """The name of a table in book/results; one that is still being computed is left alone until it is committed."""
    if b'"status": "running"' in (RESULTS / f"{request.param}.json").read_bytes() and not committed(request.param):
        pytest.skip(f"{request.param} is being computed, and not committed")
    return request.param


def verified(name: str, rows: int, seconds: float, **changes) -> Verdict:
    """The verdict of the command ``python -m attnrank.sweep NAME --verify ROWS --seconds SECONDS``."""
    generator = torch.Generator()
    generator.seed()
    experiment = dataclasses.replace(EXPERIMENTS[name], **changes)
    return verify(name, experiment, rows=rows, seconds=seconds, generator=generator, folder=RESULTS)


@pytest.mark.parametrize("name", [name for name, of in EXPERIMENTS.items() if isinstance(of.repeats, Measured)])
def test_measured_times_are_of_a_processor_that_the_row_names_and_are_not_measured_on_another(name):
    experiment = EXPERIMENTS[name]
    if not {"seconds", "ratio", "rate"} & set(sweep.provenance(name)["results"]):
        return  # memory
    assert all("processor" in row for row in (*experiment.paper, *experiment.quick))
    row = experiment.quick[0] | {"processor": "another one"}
    with pytest.raises(ValueError, match="processor must be the one at hand, .* got 'another one'"):
        experiment.function(**row)


def test_published_table_belongs_to_an_experiment_and_is_small(published):
    assert published in EXPERIMENTS
    # Every clone carries them; the largest has a row for each run, epoch and layer, of every run that was finished:
    # all that are wanted are made, and it has 2.54 MB.
    assert all((RESULTS / f"{published}.{end}").stat().st_size < 2_600_000 for end in ("csv", "json"))


def test_published_rows_are_computed_again(published):
    """Three rows that take little, or one of those that take a second, drawn anew each time: whichever they are, the
    code gives them. A failure names file and setting."""
    for rows, seconds in ((3, 0.25), (1, 1.0)):
        verdict = verified(published, rows, seconds)
        assert verdict.failure is None, verdict.failure
        if verdict.compared:
            break
    else:
        pytest.skip(str(verdict))
    assert 1 <= verdict.compared <= min(rows, verdict.drawable)


def other(value, by):
    """A value that differs from a stored one by little."""
    if isinstance(value, float):
        return value * (1 + by) or by
    return value if value is None else not value if isinstance(value, bool) else value + type(value)(1)


def wrong(repeats, setting, row, rows):
    """A stored row with results that are off: by 1e-6 or ten times the tolerance, or, where rows are compared within
    statistical margins, by a hundredth more than the margin in one column, drawn at random; a number where a row that
    could not be computed has none, and 1e-6 more where a margin is nothing."""
    if not isinstance(repeats, sweep.Statistical):
        by = max(1e-6, 10 * repeats.rtol)
        return {name: other(value, by) for name, value in row.items()}
    columns = [name for name in repeats.errors if isinstance(row[name], float)]
    if not columns:
        return row | {random.choice(list(repeats.errors)): 0.5}
    column = random.choice(columns)
    by = 1.01 * repeats.margin(column, setting | row, rows) or 1e-6
    return row | {column: row[column] + random.choice([-by, by])}


def stored_rows(published):
    """The setting and the results of every row of a table; None for what is missing."""
    rows, names = sweep.read(published, folder=RESULTS).to_dict("records"), EXPERIMENTS[published].paper[0]
    return [
        ({name: row[name] for name in names},
         {name: None if value != value else value for name, value in row.items() if name not in names})
        for row in rows
    ]  # fmt: skip


def test_a_changed_row_is_seen_whichever_it_is(published):
    """Negative control of the comparison, over all rows: the next test draws one."""
    if EXPERIMENTS[published].repeats == sweep.Measured():
        pytest.skip("measured: not compared")
    repeats, rows = EXPERIMENTS[published].repeats, stored_rows(published)
    unseen = [
        setting for setting, row in rows
        if repeats.difference(setting | row, setting | wrong(repeats, setting, row, len(rows)), len(rows)) is None
    ]  # fmt: skip
    assert unseen == []


def test_a_changed_function_is_found(published):
    """Negative control, with a function that gives the published rows but for such an error. It takes no time, so that
    every row may be drawn."""
    experiment, table = EXPERIMENTS[published], sweep.read(published, folder=RESULTS)
    settings = list(experiment.paper[0])
    stored = {tuple(row[name] for name in settings): row for row in table.to_dict("records")}

    def changed(**setting):
        row = stored[tuple(setting.values())]
        results = {name: None if value != value else value for name, value in row.items() if name not in settings}
        return wrong(experiment.repeats, setting, results, len(table))

    free = {"seconds_again": lambda setting: 0.0, "data": "", "checkpoint": False, "threads": "one"}
    verdict = verified(published, 1, 1.0, function=changed, **free)
    if verdict.failure is None and not verdict.compared:
        pytest.skip(str(verdict))
    assert re.search(r"\.csv line \d+: .* recomputed", verdict.failure)


def test_published_values_are_possible(published):
    """A share lies between 0 and 1, a mean rank below n, no deviation is negative; and a planted value is found."""
    table, settings = sweep.read(published, folder=RESULTS), EXPERIMENTS[published].paper[0]
    results = [name for name in table if name not in settings]
    assert impossible(table, results) == []
    ruled = [name for name in results if impossible(table.assign(**{name: -2.0}), [name])]
    assert bool(ruled) != (published in UNNAMED), "is there a rule of table_values for its columns?"


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_table_names_the_code_that_made_it(name):
    """Chapter, module, function, version and how its numbers repeat are those of its experiment: no stale pointer."""
    experiment, record = EXPERIMENTS[name], sweep.provenance(name, folder=RESULTS)
    declared = _provenance.declaration(experiment.function, experiment.chapter, experiment.version, experiment.repeats)
    assert {field: record[field] for field in declared} == declared, (
        f"run: python -m attnrank.sweep {name} --profile paper"
    )


def test_rows_under_other_roundings_are_of_these_tables():
    """What ``verified.csv`` counts belongs to the tables as they are now, and nothing differed."""
    counts = pd.read_csv(RESULTS / "verified.csv", keep_default_na=False)
    assert not counts.duplicated(["table", "processor", "rounding", "threads"]).any()
    for row in counts.itertuples():
        experiment = EXPERIMENTS[row.table]
        assert row.version == experiment.version, f"{row.table} has a new version: verify its rows again"
        assert 0 == row.different <= row.compared <= row.rows <= len(experiment.paper)
        assert experiment.repeats != sweep.Measured()
        named = compared.known(row._asdict(), experiment)
        assert len(named) == (row.compared if row.same else 0), f"{row.table} has another grid: verify its rows again"
    emulated = {
        (rounding, threads) for threads in (1, 2)
        for rounding in ("ATEN_CPU_CAPABILITY=avx2", "ATEN_CPU_CAPABILITY=default", "MKL_CBWR=COMPATIBLE")
    }  # fmt: skip
    assert emulated <= set(zip(counts["rounding"], counts["threads"])) <= emulated | {("", 1), ("", 2)}
