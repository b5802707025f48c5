"""experiments.accuracy.predictions: verdicts and slopes on made runs whose answer is known."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from attnrank.experiments.accuracy import arms, compare, predictions, runs, tables, words
from attnrank.experiments.accuracy.predictions import Prediction

BASE = arms.BASES["digits"]


def made(effect, *, seeds=3, noise=0.001):
    """Runs of every arm whose accuracy is 0.5 + effect * rank, the rank being d_qk / 100 and 1 for tied arms."""
    rows = []
    every = [*arms.all_arms(BASE), *arms.same_parameters(BASE, "value_dim")]
    for setting in arms.runs(every, dataset="digits", patch=2, epochs=12, seeds=range(seeds)):
        rank = 1.0 if "tied" in setting["intervention"] else setting["qk_dim"] / 100
        wobble = noise * ((setting["seed"] * 7 + setting["qk_dim"]) % 5 - 2)
        rows.append(setting | {"rank_before": rank, "accuracy": 0.5 + effect * rank + wobble})
    return pd.DataFrame(rows)


def test_every_prediction_is_between_arms_that_are_wanted():
    wanted = {tuple(s[name] for name in arms.SHAPE) for s in tables.SERIES["digits"]}
    for each in predictions.predictions(BASE):
        assert {tuple(each.first.values()), tuple(each.second.values())} <= wanted, each.what
    with pytest.raises(ValueError, match="expected must be one of"):
        Prediction("x", {}, {}, "goes up")


def test_what_each_prediction_compares():
    """In its direction: the sign of a difference, and with it the verdict, turns with the arms."""
    base = {"intervention": "none", "qk_dim": 8, "value_dim": 8}
    few = [({"qk_dim": d}, {}) for d in (1, 2, 4)], [({"value_dim": d}, {}) for d in (1, 2)]
    norms = [({"qk_dim": d}, {"qk_dim": d, "intervention": "qk_norm"}) for d in (1, 2, 4, 8)]
    expected = [
        ({}, {"intervention": "uniform"}), *few[0], ({"qk_dim": 1}, {}), *few[1], ({"value_dim": 1}, {}), *norms,
        ({"qk_dim": 2}, {"qk_dim": 2, "intervention": "tied_qk_norm"}), ({}, {"intervention": "tied"}),
        ({"qk_dim": 2, "intervention": "frozen"}, {"qk_dim": 2, "intervention": "frozen_qk_norm"}),
        *(({}, {"intervention": name}) for name in ("frozen", "sharp", "learned_temperature")),
    ]  # fmt: skip
    found = [({name: arm[name] for name in base} for arm in (each.first, each.second))
             for each in predictions.predictions(BASE)]  # fmt: skip
    assert [tuple(pair) for pair in found] == [tuple(base | change for change in pair) for pair in expected]


def test_verdicts():
    found = predictions.judged(made(0.5), predictions.predictions(BASE)).set_index("what")
    assert found.verdict["d_qk from 1 to 8"] == found.verdict["tied, d_qk = 8"] == "seen"
    assert found.verdict["d_v from 1 to 8"] == found.verdict["frozen, d_qk = 8"] == "no change seen"
    assert found.verdict["attention made uniform (control)"] == "not seen"  # nothing falls there
    assert found.expected["QK-norm, d_qk = 4"] == "stays" and found.expected["tied, d_qk = 8"] == "rises"
    turned = predictions.judged(made(-0.5), predictions.predictions(BASE)).set_index("what")
    assert turned.verdict["d_qk from 1 to 8"] == turned.verdict["tied, d_qk = 8"] == "against"


def test_dimensions_of_the_same_size_are_compared_at_the_same_number_of_parameters():
    """But for the whole units of the MLP: half of one in each block."""
    for name, base in arms.BASES.items():
        dataset = "digits" if name == "digits" else "cifar10"
        for each in predictions.predictions(base):
            if "same size" in each.what:
                settings = ({"dataset": dataset, "patch": 4, "seed": 0} | arm for arm in (each.first, each.second))
                sizes = [sum(w.numel() for w in runs.untrained(s).parameters()) for s in settings]
                assert abs(sizes[1] - sizes[0]) <= base["depth"] * (2 * base["width"] + 1) / 2
                assert each.first["mlp_width"] > each.second["mlp_width"]


def test_what_is_not_complete_has_no_verdict():
    rows = made(0.5)
    few = predictions.judged(rows[rows.seed < 2], predictions.predictions(BASE))
    assert few.verdict.isna().all() and (few.seeds == 2).all() and few.low.notna().all()
    none = predictions.judged(rows[rows.intervention == "none"], predictions.predictions(BASE)).set_index("what")
    assert none.seeds["tied, d_qk = 8"] == 0 and none.verdict["d_qk from 1 to 8"] == "seen"


@pytest.mark.parametrize(("expected", "verdicts"), [
    ("rises", ("seen", "not seen", "against")), ("falls", ("against", "not seen", "seen")),
    ("stays", ("against", "no change seen", "against")),
])  # fmt: skip
def test_a_verdict_for_every_side(expected, verdicts):
    """An interval above 0, around it, below it; and the rank decides what "as rank" expects, from 0.02 on."""
    rows = made(0.0, noise=0.0)
    first, second = (BASE | {"intervention": "none", "qk_dim": d} for d in (1, 2))
    for effect, verdict in zip((0.1, 0.0, -0.1), verdicts, strict=True):
        wobble = 0.001 * ((rows.seed * 7 + rows.qk_dim) % 5)
        changed = rows.assign(accuracy=0.5 + effect * (rows.qk_dim == 2) + wobble)
        found = predictions.judged(changed, [Prediction("x", first, second, expected)])
        assert found.verdict[0] == verdict
        ranks = {0.0201: "rises", -0.0201: "falls", 0.0199: "stays"}
        for rank, same in ((rank, does == expected) for rank, does in ranks.items()):
            ranked = changed.assign(rank_before=rank * (rows.qk_dim == 2))
            again = predictions.judged(ranked, [Prediction("x", first, second, "as rank")])
            assert (again.expected[0] == expected) == same


def test_the_slope():
    """Of least squares over means of arms, against numpy's; what is off the line widens the interval, seeds do not."""
    rows = made(0.5, noise=0.0)
    rows["accuracy"] += 0.01 * (rows.seed - 1) * rows.rank_before + 0.02 * (rows.intervention == "sharp")
    slope = predictions.rank_slope(rows)
    means = rows.groupby(compare.ARM)[["rank_before", "accuracy"]].mean()
    design = np.stack([means.rank_before, np.ones(len(means))], axis=1)
    solved, residual, *_ = np.linalg.lstsq(design, means.accuracy.to_numpy(), rcond=None)
    error = np.sqrt(residual[0] / (len(means) - 2) * np.linalg.inv(design.T @ design)[0, 0])
    half = stats.t.ppf(0.975, len(means) - 2) * error
    assert slope.arms == len(means) and slope.mean == pytest.approx(solved[0], abs=1e-12)
    assert (slope.low, slope.high) == pytest.approx((solved[0] - half, solved[0] + half), abs=1e-12)
    assert predictions.rank_slope(made(0.5, seeds=2)) is None
    four = rows[rows.intervention.isin(["tied", "frozen"])]  # each with d_qk = 2 and 8
    three = four[(four.intervention == "tied") | (four.qk_dim == 8)]
    assert predictions.rank_slope(three) is None and predictions.rank_slope(four).arms == 4
    assert predictions.rank_slope(made(0.5).assign(rank_before=0.3)) is None


def test_does_accuracy_go_with_one_rank_more_closely():
    """Rank after training orders the arms as accuracy does, rank before in reverse: Spearman's 1 against -1; and by
    hand where one seed differs."""
    rows = made(0.5, noise=0.0)
    rows["rank_after"], rows["rank_before"] = rows.rank_before, -rows.rank_before
    found = predictions.closer(rows)
    assert (found.mean, found.low, found.high, found.seeds) == pytest.approx((2, 2, 2, 3))
    rows.loc[rows.seed == 1, "rank_before"] *= -1  # that seed alone has both in the same order
    one = predictions.closer(rows)
    half = 4.302653 * pd.Series([2, 0, 2]).std() / 3**0.5
    assert (one.mean, one.high - one.mean) == pytest.approx((4 / 3, half))
    assert predictions.closer(rows[rows.seed < 2]) is None and predictions.closer(rows.assign(rank_after=0.3)) is None
    further = pd.concat([rows, rows[rows.qk_dim == 1].assign(seed=3)])  # of few arms: their other seeds count as before
    assert predictions.closer(further) == one
    lines = rows[(rows.intervention == "none") & (rows.value_dim == 8) & (rows.mlp_width == 64) & (rows.heads == 4)]
    assert predictions.closer(lines[lines.qk_dim < 16]) is None  # four arms
    assert predictions.closer(lines[lines.qk_dim < 32]).seeds == 3


def test_groups_are_those_of_the_verdict():
    found = predictions.judged(made(0.5), predictions.predictions(BASE)).set_index("what").group
    assert found.iloc[0] == predictions.CONTROL and (found == predictions.CONTROL).sum() == 1
    assert found["d_qk from 1 to 8, same size"] == predictions.SCORES_SAME_SIZE
    for what, group in found.iloc[1:].drop("d_qk from 1 to 8, same size").items():
        changed = {"d_qk from": predictions.SCORES, "d_v from": predictions.VALUES, "frozen": predictions.SAME,
                   "temperature": predictions.SAME}  # fmt: skip
        assert group == next((g for start, g in changed.items() if what.startswith(start)), predictions.INTERVENTIONS)


@pytest.mark.parametrize(("seen", "complete", "found"), [
    (0, 14, "nothing"), (1, 14, "little"), (1, 4, "little"), (4, 14, "something"), (3, 4, "something"), (4, 5, "much"),
    (7, 7, "much"),
])  # fmt: skip
def test_the_words_of_the_verdict_follow_the_counts(seen, complete, found):
    assert words.words(seen, complete).found == found


def test_words_of_no_comparison_or_too_many_are_refused():
    for seen, complete, shown in ((0, 0, "complete"), (-1, 2, "seen"), (3, 2, "seen must be at most the 2")):
        with pytest.raises(ValueError, match=shown):
            words.words(seen, complete)
    assert [words.listed(list(names)) for names in ("", "a", "ab", "abc")] == ["none", "a", "a and b", "a, b and c"]


def test_runs_of_several_series_are_not_taken_together():
    """They would be pooled, or averaged, without a word: the same arms and seeds with other epochs."""
    rows = made(0.5)
    both = pd.concat([rows, rows.assign(epochs=2)])
    for of in (compare.spread, compare.by_arm, predictions.rank_slope):
        with pytest.raises(ValueError, match="table must hold the runs of one series, got several for {"):
            of(both)
