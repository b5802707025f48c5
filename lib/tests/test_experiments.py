"""Experiments: grids, functions against numpy, rows of the published tables computed again, and their cost."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import math
import types
from pathlib import Path

import numpy as np
import pytest
import torch

from attnrank import experiments, sweep
from attnrank.data import SOURCES
from attnrank.experiments import EXPERIMENTS, PROFILES
from attnrank.experiments.after_training import HUB
from attnrank.experiments.experiment import Exact, Experiment, merge
from attnrank.experiments.shared.heads import random_heads
from attnrank.experiments.upkeep.copies import EMBEDDED
from attnrank.models import pretrained
from attnrank.sweep import _values
from table_values import impossible

pytestmark = pytest.mark.usefixtures("one_thread")  # as in a sweep, where the published rows were computed


# Registry -----------------------------------------------------------------------------------------------------------


def test_registry():
    assert {"random_heads", "vit_hardmax", "vit_softmax", "vit_tokens", "vit_layers"} <= EXPERIMENTS.keys()
    assert PROFILES == ("quick", "paper")
    questions = [experiment.question for experiment in EXPERIMENTS.values()]
    assert len(set(questions)) == len(questions) and all(question.endswith("?") for question in questions)


def test_a_table_says_where_its_code_is():
    """Its chapter is the module or folder that lists it, and its function can be imported by the names given."""
    for chapter in experiments.chapters():
        stem = chapter.__name__.rpartition(".")[2]
        for table, experiment in chapter.EXPERIMENTS.items():
            assert experiment.chapter == stem, table
            assert getattr(importlib.import_module(experiment.module), experiment.name) is experiment.function, table
    assert sum(len(chapter.EXPERIMENTS) for chapter in experiments.chapters()) == len(EXPERIMENTS)


def test_tests_of_chapters_are_named_by_stem():
    rooms = {chapter.__name__.rpartition(".")[2] for chapter in experiments.chapters()} | {"shared", "upkeep"}
    paths = Path(__file__).parent.glob("test_experiments_*.py")
    names = [path.stem.removeprefix("test_experiments_") for path in paths]
    assert [name for name in names if not any(name == room or name.startswith(f"{room}_") for room in rooms)] == []


def test_a_name_that_two_modules_use_is_refused():
    experiment = EXPERIMENTS["random_heads"]
    modules = []
    for stem, tables in (("one", ["a", "b"]), ("two", ["c", "b"])):
        modules.append(types.ModuleType(f"attnrank.experiments.{stem}"))
        modules[-1].EXPERIMENTS = dict.fromkeys(tables, experiment)
    assert set(merge(modules[:1])) == {"a", "b"}
    message = r"table 'b' is defined twice, in attnrank\.experiments\.one and in attnrank\.experiments\.two"
    with pytest.raises(ValueError, match=message):
        merge(modules)


def test_chapters_of_several_modules_merge_them_too():
    """The union of dicts would keep the second of two tables of one name without a word."""
    paths = sorted(Path(experiments.__path__[0]).rglob("*.py"))
    made = [node.value for path in paths for node in ast.parse(path.read_text(encoding="utf-8")).body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "EXPERIMENTS"]
    joined = [ast.unparse(value) for value in made if not isinstance(value, ast.Dict)]
    assert len(made) > len(joined) > 1 and all(value.startswith("merge(") for value in joined)


@pytest.mark.parametrize("change, message", [
    ({"repeats": 1e-9}, "repeats must be Exact"), ({"chapter": "02 barrier"}, "chapter must be the stem"),
    ({"chapter": 2}, "chapter must be the stem"), ({"repeats": None}, "repeats must be Exact"),
    ({"version": 0}, "version must be at least 1"), ({"threads": "two"}, "threads must be one of all, one"),
])
def test_bad_experiments(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(EXPERIMENTS["random_heads"], **change)


def test_what_a_table_is_unless_it_says_otherwise():
    """Rows are compared, need no data, and are computed by one thread without a folder."""
    table = Experiment("Is it?", random_heads, [], [], chapter="barrier", repeats=Exact())
    assert (table.version, table.data, table.threads, table.checkpoint) == (1, "", "one", False)
    assert (table.module, table.name) == ("attnrank.experiments.shared.heads", "random_heads")


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_grids(name, profile):
    """Both grids suit the function, and the sweep: it refuses an empty grid, repeated rows, columns of two types."""
    experiment = EXPERIMENTS[name]
    settings = getattr(experiment, profile)
    kinds, keys = _values.columns(settings)
    assert len(keys) == len(settings) >= 1
    for setting in settings:
        inspect.signature(experiment.function).bind(**setting)
    if experiment.data:
        used = {setting[experiment.data] for setting in settings}
        assert used <= SOURCES.keys() | EMBEDDED | pretrained.FILES.keys() | set(HUB)
        random = all(setting.get("weights") == "random" for setting in settings)  # no file of a trained model is needed
        assert profile == "paper" or used <= EMBEDDED or random
    else:
        assert not kinds.keys() & {"dataset", "data"}


# Running ------------------------------------------------------------------------------------------------------------


def test_quick_table(tmp_path):
    table = experiments.run("random_heads", profile="quick", folder=tmp_path)
    files = ["random_heads-quick.csv", "random_heads-quick.json", "random_heads-quick.lock"]
    assert sorted(path.name for path in tmp_path.iterdir()) == files
    assert table[["n", "d_h", "samples", "seed"]].to_dict("records") == EXPERIMENTS["random_heads"].quick
    # Var = SE^2 samples; a rank is between 1 and n, and for d_h = 1 it is 2 (1 if all queries share a sign).
    np.testing.assert_allclose(table.rank_standard_error**2 * table.samples, table.rank_variance, rtol=1e-12)
    assert ((table.rank_mean >= 1) & (table.rank_mean <= table.n)).all()
    assert table.query("d_h == 1").rank_mean.between(1.9, 2).all()


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_some_quick_rows(name, tmp_path):
    experiment = EXPERIMENTS[name]
    some = experiment.quick[:: max(1, len(experiment.quick) // 2)][:2]
    table = sweep.run(name, experiment.function, some, folder=tmp_path, repeats=experiment.repeats)
    assert list(table)[: len(some[0])] == list(some[0]) and len(table) == len(some)
    assert impossible(table, list(table)[len(some[0]) :]) == []
    if isinstance(experiment.repeats, sweep.Measured):
        with pytest.raises(ValueError, match="its numbers are measured and cannot be compared"):
            sweep.recompute(name, experiment.function, generator=torch.Generator(), rows=1, folder=tmp_path)
    else:
        again = sweep.recompute(name, experiment.function, generator=torch.Generator(), rows=1, folder=tmp_path)
        assert len(again) == 1


def test_bad_name_and_profile(tmp_path):
    with pytest.raises(ValueError, match="name must be one of .*random_heads.*; got 'heads'"):
        experiments.run("heads", folder=tmp_path)
    with pytest.raises(ValueError, match="profile must be one of paper, quick; got 'small'"):
        experiments.run("random_heads", profile="small", folder=tmp_path)
    assert not list(tmp_path.iterdir())


# Functions against numpy --------------------------------------------------------------------------------------------


def test_random_heads_against_a_loop():
    n, d_h, samples, seed = 12, 3, 7, 5
    generator = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(samples, n, d_h, generator=generator, dtype=torch.float64).numpy() for _ in range(2))
    ranks = [np.linalg.matrix_rank(np.eye(n)[np.argmax(q[s] @ k[s].T, axis=1)]) for s in range(samples)]
    assert random_heads(n, d_h, samples, seed) == pytest.approx({
        "rank_mean": np.mean(ranks), "rank_variance": np.var(ranks, ddof=1),
        "rank_standard_error": np.std(ranks, ddof=1) / math.sqrt(samples)}, rel=1e-12)


# Bad input ------------------------------------------------------------------------------------------------------------

HEADS = {"n": 16, "d_h": 4, "samples": 10, "seed": 0}


@pytest.mark.parametrize("change, message", [
    ({"n": 0}, "n must be at least 1, got 0"),
    ({"d_h": 0}, "d_h must be at least 1, got 0"),
    ({"samples": 1}, "samples must be at least 2, got 1"),
    ({"seed": -1}, "seed must be at least 0, got -1"),
    ({"n": 2.5}, "n must be an integer, got 2.5"),
])
def test_bad_input(change, message):
    with pytest.raises(ValueError, match=message):
        random_heads(**HEADS | change)
