"""Experiments: grids, functions against numpy, rows of the published tables computed again, and their cost."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import math
import random
import re
import subprocess
import types
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import erf
from torch.utils.flop_counter import FlopCounterMode

from attnrank import data, experiments, sweep
from attnrank.data import SOURCES
from attnrank.experiments import EXPERIMENTS, PROFILES, growth
from attnrank.experiments.after_training import HUB
from attnrank.experiments.experiment import merge
from attnrank.experiments.shared.gram import mean_cosine as mean_cosines
from attnrank.experiments.shared.heads import random_heads
from attnrank.experiments.upkeep import cost
from attnrank.experiments.upkeep.copies import EMBEDDED
from attnrank.experiments.upkeep.verification import Verdict, verify
from attnrank.experiments.vit_initialisation import blocks as vision
from attnrank.models import TransformerConfig, VisionTransformer, pretrained
from attnrank.sweep import _provenance, _values

RESULTS = Path(__file__).resolve().parents[2] / "book" / "results"


@pytest.fixture(autouse=True)
def one_thread():
    """As in a sweep, where the published rows were computed."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


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


@pytest.mark.parametrize("change, message", [
    ({"repeats": 1e-9}, "repeats must be Exact"), ({"chapter": "02 barrier"}, "chapter must be the stem"),
    ({"version": 0}, "version must be at least 1"), ({"threads": "two"}, "threads must be one of all, one"),
])
def test_bad_experiments(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(EXPERIMENTS["random_heads"], **change)


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
    some = experiment.quick[:: max(1, len(experiment.quick) // 3)][:3]
    table = sweep.run(name, experiment.function, some, folder=tmp_path, repeats=experiment.repeats)
    assert list(table)[: len(some[0])] == list(some[0]) and len(table) == len(some)
    for column in table:
        if "fraction" in column and "std" not in column:
            assert table[column].between(0, 1).all(), column
    if not experiment.timed:
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


class NumpyTransformer:
    """The random Vision Transformer of an experiment on digits, in numpy, one image and one head at a time."""

    def __init__(self, width, heads, head_dim, *, init="lecun", depth=1, seed):
        config = TransformerConfig(width, heads, head_dim, depth, init=init)
        generator = torch.Generator().manual_seed(seed)
        model = VisionTransformer(config, image_size=8, patch_size=2, classes=10, channels=1, pool="mean",
                                  generator=generator, dtype=torch.float64)
        self.weight = {name: value.numpy() for name, value in model.state_dict().items()}
        self.width, self.heads, self.head_dim = width, heads, head_dim

    def linear(self, name, x):
        return x @ self.weight[name + ".weight"].T + self.weight[name + ".bias"]

    def embed(self, image):
        corners = [(row, column) for row in range(0, 8, 2) for column in range(0, 8, 2)]
        x = np.array([image[0, row : row + 2, column : column + 2].ravel() for row, column in corners])
        return self.linear("embedding", x) + self.weight["position"]

    @staticmethod
    def norm(x):  # gain 1 and bias 0 at initialisation
        return (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)

    def queries_keys(self, layer, x):
        """For each head its queries and its keys."""
        for head in range(self.heads):
            own = slice(head * self.head_dim, (head + 1) * self.head_dim)
            yield tuple(self.linear(f"encoder.blocks.{layer}.attention.{name}", x)[:, own] for name in ("query", "key"))

    def softmax(self, q, k):
        scores = np.exp(q @ k.T / math.sqrt(self.head_dim))
        return scores / scores.sum(1, keepdims=True)

    def block(self, layer, x):
        name, y = f"encoder.blocks.{layer}.", self.norm(x)
        values = np.split(self.linear(name + "attention.value", y), self.heads, axis=1)
        mixed = [self.softmax(q, k) @ v for (q, k), v in zip(self.queries_keys(layer, y), values)]
        x = x + self.linear(name + "attention.output", np.hstack(mixed))
        hidden = self.linear(name + "mlp.0", self.norm(x))
        return x + self.linear(name + "mlp.2", hidden * (1 + erf(hidden / math.sqrt(2))) / 2)


def digits(count, seed):
    """The images of an experiment with this seed."""
    generator = torch.Generator().manual_seed(10_000 + seed)
    return data.images("digits", count=count, generator=generator, standardise=True)[0].numpy()


def treated(x, treatment):
    if treatment == "whitened":
        values, vectors = np.linalg.eigh(x @ x.T)
        return vectors @ np.diag(values**-0.5) @ vectors.T @ x
    return x - x.mean(0) if treatment == "centred" else x


def hardmax_ranks(pairs):
    return [len(np.unique([np.argmax([query @ key for key in k]) for query in q])) for q, k in pairs]


def mean_cosine(x):
    n = len(x)
    return np.mean([x[i] @ x[j] / np.linalg.norm(x[i]) / np.linalg.norm(x[j])
                    for i in range(n) for j in range(n) if i != j])


@pytest.mark.parametrize("treatment", vision.TREATMENTS)
def test_vit_hardmax_against_numpy(treatment):
    model = NumpyTransformer(24, 5, 3, seed=2)
    fractions = [np.array(hardmax_ranks(model.queries_keys(0, treated(model.norm(model.embed(image)), treatment)))) / 16
                 for image in digits(2, 2)]
    result = vision.vit_hardmax("digits", 2, 24, 5, 3, treatment, images=2, seed=2)
    expected = {"n": 16, "rank_fraction": np.mean(fractions),
                "rank_fraction_over_images_std": np.std([fraction.mean() for fraction in fractions], ddof=1)}
    assert result == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("init", ["normal", "lecun", "truncated_normal"])
def test_vit_softmax_against_numpy(init):
    heads = vision.SPECTRA_PER_IMAGE + 2  # of which the last two are left out
    model = NumpyTransformer(24, heads, 3, init=init, seed=4)
    spectra, variances = [], []
    for image in digits(2, 4):
        pairs = list(model.queries_keys(0, model.norm(model.embed(image))))[: vision.SPECTRA_PER_IMAGE]
        spectra += [np.linalg.svd(model.softmax(q, k), compute_uv=False) for q, k in pairs]
        variances += [np.var(row) / 3 for q, k in pairs for row in q @ k.T]
    result = vision.vit_softmax("digits", 2, 24, heads, 3, init, images=2, seed=4)
    assert result.pop("n") == 16 and result.pop("score_std") == pytest.approx(math.sqrt(np.mean(variances)), rel=1e-12)
    shares = [np.mean(np.array(spectra) >= tolerance) for tolerance in (1e-1, 1e-2, 1e-3)]
    assert list(result.values()) == pytest.approx(shares, rel=1e-12) and 0 < shares[0] < shares[2]


@pytest.mark.parametrize("layer", [1, 3])
def test_vit_layers_against_numpy(layer):
    model = NumpyTransformer(24, 2, 4, depth=3, seed=1)
    fractions, cosines = [], []
    for image in digits(2, 1):
        x = model.embed(image)
        for before in range(layer - 1):
            x = model.block(before, x)
        x = model.norm(x)
        fractions += [rank / 16 for rank in hardmax_ranks(model.queries_keys(layer - 1, x))]
        cosines.append(mean_cosine(x))
    result = vision.vit_layers("digits", 2, 24, 2, 4, "lecun", depth=3, layer=layer, images=2, seed=1)
    expected = {"n": 16, "rank_fraction": np.mean(fractions), "mean_cosine": np.mean(cosines)}
    assert result == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("treatment", vision.TREATMENTS)
def test_vit_tokens_against_numpy(treatment):
    model = NumpyTransformer(24, 3, 64, seed=3)
    cosines, directions = [], []
    for image in digits(2, 3):
        x = treated(model.norm(model.embed(image)), treatment)
        s = np.linalg.eigvalsh(np.cov(x.T, bias=True))
        cosines.append(mean_cosine(x))
        directions.append(s.sum() ** 2 / (s**2).sum())
    result = vision.vit_tokens("digits", 2, 24, treatment, images=2, seed=3)
    expected = {"n": 16, "mean_cosine": np.mean(cosines), "directions": np.mean(directions)}
    assert result == pytest.approx(expected, rel=1e-10, abs=1e-12)  # orthonormal tokens have mean cosine 0


def gaussian(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_treatments():
    x = gaussian(3, 7, 12) + 2
    assert vision._treat(x, "none") is x
    centred, whitened = vision._treat(x, "centred"), vision._treat(x, "whitened")
    torch.testing.assert_close(centred.sum(-2), torch.zeros(3, 12, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(centred - x, (centred - x)[:, :1].expand_as(x), rtol=0, atol=1e-12)  # one shift each
    torch.testing.assert_close(whitened @ whitened.mT, torch.eye(7, dtype=torch.float64).expand(3, 7, 7),
                               rtol=0, atol=1e-10)
    mix = whitened @ x.mT  # (X X^T)^{1/2}: of all orthonormal frames in the span of the tokens, the nearest to them
    torch.testing.assert_close(mix, mix.mT, rtol=0, atol=1e-10)
    assert torch.linalg.eigvalsh(mix).min() > 0


def test_mean_cosine():
    x = gaussian(3, 7, 5)
    assert mean_cosines(x).mean().item() == pytest.approx(
        np.mean([mean_cosine(tokens) for tokens in x.numpy()]), rel=1e-12
    )
    assert mean_cosines(torch.ones(1, 4, 5, dtype=torch.float64)).item() == pytest.approx(1, rel=1e-12)


# Bad input ----------------------------------------------------------------------------------------------------------

HEADS = {"n": 16, "d_h": 4, "samples": 10, "seed": 0}
HARDMAX = {"dataset": "digits", "patch": 2, "width": 24, "heads": 2, "head_dim": 4, "treatment": "none", "images": 2,
           "seed": 0}
SOFTMAX = {name: value for name, value in HARDMAX.items() if name != "treatment"} | {"init": "lecun"}


@pytest.mark.parametrize("function, good, change, message", [
    (random_heads, HEADS, {"n": 0}, "n must be at least 1, got 0"),
    (random_heads, HEADS, {"d_h": 0}, "d_h must be at least 1, got 0"),
    (random_heads, HEADS, {"samples": 1}, "samples must be at least 2, got 1"),
    (random_heads, HEADS, {"seed": -1}, "seed must be at least 0, got -1"),
    (random_heads, HEADS, {"n": 2.5}, "n must be an integer, got 2.5"),
    (vision.vit_hardmax, HARDMAX, {"dataset": "mnist"}, "name must be one of .*digits.*; got 'mnist'"),
    (vision.vit_hardmax, HARDMAX, {"dataset": "docstrings"}, "name must be a set of images, got 'docstrings'"),
    (vision.vit_hardmax, HARDMAX, {"patch": 3}, "patch_size must divide image_size 8, got 3"),
    (vision.vit_hardmax, HARDMAX, {"heads": 0}, "heads must be at least 1, got 0"),
    (vision.vit_hardmax, HARDMAX, {"head_dim": 0}, "head_dim must be at least 1, got 0"),
    (vision.vit_hardmax, HARDMAX, {"treatment": "scaled"}, "treatment must be one of .*whitened; got 'scaled'"),
    (vision.vit_hardmax, HARDMAX, {"images": 1}, "images must be at least 2, got 1"),
    (vision.vit_hardmax, HARDMAX, {"seed": -1}, "seed must be at least 0, got -1"),
    (vision.vit_hardmax, HARDMAX, {"treatment": "whitened", "width": 8}, "'whitened' needs linearly independent"),
    (vision.vit_softmax, SOFTMAX, {"init": "he"}, "init must be one of .*lecun.*; got 'he'"),
    (vision.vit_layers, SOFTMAX | {"depth": 2}, {"layer": 0}, "layer must be at least 1, got 0"),
    (vision.vit_layers, SOFTMAX | {"depth": 2}, {"layer": 3}, "layer must be at most the depth 2, got 3"),
])
def test_bad_input(function, good, change, message):
    with pytest.raises(ValueError, match=message):
        function(**good | change)


# Published tables ---------------------------------------------------------------------------------------------------

PUBLISHED = sorted(path.stem for path in RESULTS.glob("*.json"))


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


def verified(name: str, **changes) -> Verdict:
    """The verdict of the command ``python -m attnrank.sweep NAME --verify 5`` in at most two seconds a row."""
    generator = torch.Generator()
    generator.seed()
    experiment = dataclasses.replace(EXPERIMENTS[name], **changes)
    return verify(name, experiment, rows=1 if changes else 5, seconds=2, generator=generator, folder=RESULTS)


def test_published_table_belongs_to_an_experiment_and_is_small(published):
    assert published in EXPERIMENTS
    assert all((RESULTS / f"{published}.{end}").stat().st_size < 1_000_000 for end in ("csv", "json"))


def test_published_rows_are_computed_again(published):
    """Five rows, drawn anew each time: whichever they are, the code gives them. A failure names file and setting."""
    verdict = verified(published)
    assert verdict.failure is None, verdict.failure
    if not verdict.compared:
        pytest.skip(str(verdict))
    assert 1 <= verdict.compared <= min(5, verdict.drawable)


def other(value, by):
    """A value that differs from a stored one by little."""
    if isinstance(value, float):
        return value * (1 + by) or by
    return value if value is None else not value if isinstance(value, bool) else value + type(value)(1)


def wrong(repeats, row, rows):
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
    by = 1.01 * repeats.margin(column, row, rows) or 1e-6
    return row | {column: row[column] + random.choice([-by, by])}


def stored_results(published):
    """The results of every row of a table, without its setting; None for what is missing."""
    table, settings = sweep.read(published, folder=RESULTS), EXPERIMENTS[published].paper[0]
    rows = table.drop(columns=list(settings), errors="ignore").to_dict("records")
    return [{name: None if value != value else value for name, value in row.items()} for row in rows]


def test_a_changed_row_is_seen_whichever_it_is(published):
    """Negative control of the comparison, over all rows: the next test draws one."""
    repeats, rows = EXPERIMENTS[published].repeats, stored_results(published)
    changed = [wrong(repeats, row, len(rows)) for row in rows]
    unseen = [k for k, row in enumerate(rows) if repeats.difference(row, changed[k], len(rows)) is None]
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
        return wrong(experiment.repeats, results, len(table))

    free = {"seconds_again": lambda setting: 0.0, "data": "", "checkpoint": False, "threads": "one"}
    verdict = verified(published, function=changed, **free)
    if verdict.failure is None and not verdict.compared:
        pytest.skip(str(verdict))
    assert re.search(r"\.csv line \d+: .* recomputed", verdict.failure)


# Cost -----------------------------------------------------------------------------------------------------------------


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


# What the tables say of themselves -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_table_names_the_code_that_made_it(name):
    """Chapter, module, function, version and how its numbers repeat are those of its experiment: no stale pointer."""
    experiment, record = EXPERIMENTS[name], sweep.provenance(name, folder=RESULTS)
    declared = _provenance.declaration(experiment.function, experiment.chapter, experiment.version, experiment.repeats)
    assert {field: record[field] for field in declared} == declared, (
        f"run: python -m attnrank.sweep {name} --profile paper"
    )
