"""experiments.after_training: single heads of the book's own models against their runs and their queries and keys."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attnrank import sweep
from attnrank.experiments.accuracy import runs as accuracy_runs
from attnrank.experiments.after_training import own

pytestmark = pytest.mark.usefixtures("one_thread")


def test_single_heads_of_own_models_are_those_of_the_runs():
    """Two ways to the same numbers: the probe on models read back, and what the runs noted while they trained."""
    heads, vits, reviews = (sweep.read(name) for name in ("own_heads", "accuracy_ranks", "text_epochs"))
    means = heads.groupby(["dataset", "n", "weights", "seed", "layer"])["rank"].mean()
    for (dataset, n, weights, seed, layer), mean in means.items():
        setting = own.setting_of(dataset, n, seed)
        rows = reviews if dataset == "imdb" else vits
        wanted = setting | {"layer": layer, "epoch": setting["epochs"] if weights == "trained" else 0}
        found = rows[np.logical_and.reduce([rows[name] == value for name, value in wanted.items()])]
        assert len(found) == 1 and abs(found["hardmax"].iloc[0] - mean) < 1e-12


def test_a_head_of_an_untrained_own_model_by_its_queries_and_keys():
    row = own.own_heads("digits", 16, "random", 0, 2, 1)
    model = accuracy_runs.untrained(own.setting_of("digits", 16, 0)).double()
    q, k = model.queries_keys(accuracy_runs.probe_images("digits").double())[1]
    best = (q @ k.mT).argmax(-1)[:, 1]
    assert row["rank"] == pytest.approx(np.mean([len(set(line)) / 16 for line in best.tolist()]), abs=1e-12)
    assert row["own"] == pytest.approx((best == torch.arange(16)).double().mean().item(), abs=1e-12)
    assert row["largest"] == pytest.approx(np.mean([max(map(line.count, line)) / 16 for line in best.tolist()]))


def test_own_models_are_asked_for_by_name():
    with pytest.raises(ValueError, match="dataset and n must be one of"):
        own.own_heads("digits", 64, "random", 0, 1, 0)
    with pytest.raises(ValueError, match="weights"):
        own.own_heads("digits", 16, "drawn", 0, 1, 0)
