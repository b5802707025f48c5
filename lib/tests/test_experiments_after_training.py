"""experiments.after_training: single heads of the book's own models against their runs and their queries and keys."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attnrank import sweep, theory
from attnrank.experiments.accuracy import runs as accuracy_runs
from attnrank.experiments.after_training import others, own
from attnrank.probe._attention import Attention
from attnrank.probe._masks import Mask

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
        error = 1e-12 if dataset == "imdb" else 5.1e-7  # accuracy_ranks has six decimals
        assert len(found) == 1 and abs(found["hardmax"].iloc[0] - mean) < error


def test_a_head_of_an_untrained_own_model_by_its_queries_and_keys():
    row = own.own_heads("digits", 16, "random", 0, 2, 1)
    model = accuracy_runs.untrained(own.setting_of("digits", 16, 0)).double()
    q, k = model.queries_keys(accuracy_runs.probe_images("digits").double())[1]
    best = (q @ k.mT).argmax(-1)[:, 1]
    assert row["rank"] == pytest.approx(np.mean([len(set(line)) / 16 for line in best.tolist()]), abs=1e-12)
    assert row["own"] == pytest.approx((best == torch.arange(16)).double().mean().item(), abs=1e-12)
    assert row["largest"] == pytest.approx(np.mean([max(map(line.count, line)) / 16 for line in best.tolist()]))
    sigma = torch.linalg.svdvals((q @ k.mT / 8**0.5).softmax(-1)[:, 1])  # of all 32 images
    assert row["numerical"] == pytest.approx((sigma >= 0.1).sum(-1).double().mean().item() / 16, abs=1e-12)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("other", [False, True])
def test_every_column_by_hand(causal, other):
    """Of six sequences, four heads and two key heads, of which heads 0 and 1 share the first; spectra of three."""
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(6, heads, 10, 3, generator=generator, dtype=torch.float64) for heads in (4, 2))
    given = Attention("layer", q, k, v=k, output=q, scale=2.0, mask=Mask(10, 10, causal=causal), crosses=False)
    found = others.measured_heads(given, other_keys=other, spectra=3)
    bound, barrier = theory.head_dim_bound(10, 3), theory.occupancy_bound(10)
    if causal:
        bound, barrier = theory.causal_head_dim_bound(10, 3), theory.causal_limit(10)
    for head in range(4):
        best, numerical = [], []
        for s in range(6):
            scores = q[s, head] @ k[s - 1 if other else s, head // 2].T
            scores = scores.masked_fill(~torch.ones(10, 10, dtype=torch.bool).tril(), -torch.inf) if causal else scores
            best.append(scores.argmax(-1).tolist())
            numerical.append((torch.linalg.svdvals((2 * scores).softmax(-1)) >= 0.1).sum().item() / 10)
        ranks = [len(set(line)) / 10 for line in best]
        share = {name: np.mean([[one == at for at, one in enumerate(line, start)] for line in best])
                 for name, start in (("own", 0), ("previous", -1))}  # fmt: skip
        expected = share | {
            "rank": np.mean(ranks), "rank_std": np.std(ranks, ddof=1), "numerical": np.mean(numerical[:3]),
            "bound": bound / 10, "barrier": barrier / 10, "first": np.mean([line.count(0) / 10 for line in best]),
            "largest": np.mean([max(map(line.count, line)) / 10 for line in best]),
        }  # fmt: skip
        assert {name: values[head].item() for name, values in found.items()} == pytest.approx(expected)


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
