"""experiments.after_training: single heads of the book's own models against their runs and their queries and keys."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attnrank import sweep
from attnrank.experiments.accuracy import runs as accuracy_runs
from attnrank.experiments.after_training import others, own

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


@pytest.mark.parametrize("causal", [False, True])
def test_of_scores_that_are_equal_up_to_rounding_the_first_is_the_best(causal):
    """Without positions equal tokens have equal keys. Which of their scores rounds up differs between processors."""
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(8, (40,), generator=generator)
    q, k = (torch.randn(2, 1, size, 8, generator=generator, dtype=torch.float64) for size in (40, 8))
    k = k[:, :, words]
    signs = torch.randn(k.shape, generator=generator, dtype=torch.float64).sign()
    noisy = k * (1 + 2.0**-51 * signs)
    best = others._best(q, k, causal)
    assert torch.equal(others._best(q, noisy, causal), best)
    assert not torch.equal(others._best(q, k * (1 + 1e-6 * signs), causal), best)  # more than rounding
    scores = (q @ k.mT).round(decimals=9)
    for row in range(40):
        seen = scores[0, 0, row, : row + 1 if causal else 40].tolist()
        assert best[0, 0, row] == seen.index(max(seen))


def test_own_models_are_asked_for_by_name():
    with pytest.raises(ValueError, match="dataset and n must be one of"):
        own.own_heads("digits", 64, "random", 0, 1, 0)
    with pytest.raises(ValueError, match="weights"):
        own.own_heads("digits", 16, "drawn", 0, 1, 0)
