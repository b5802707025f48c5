"""experiments.accuracy.predictions: verdicts and slopes on made runs whose answer is known."""

from __future__ import annotations

import pandas as pd
import pytest

from attnrank.experiments.accuracy import arms, predictions, tables
from attnrank.experiments.accuracy.predictions import Prediction

BASE = arms.BASES["digits"]


def made(effect, *, seeds=3, noise=0.001):
    """Runs of every arm whose accuracy is 0.5 + effect * rank, the rank being d_qk / 100 and 1 for tied arms."""
    rows = []
    for setting in arms.runs(arms.all_arms(BASE), dataset="digits", patch=2, epochs=12, seeds=range(seeds)):
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


def test_verdicts():
    found = predictions.judged(made(0.5), predictions.predictions(BASE)).set_index("what")
    assert found.verdict["d_qk from 1 to 8"] == found.verdict["tied, d_qk = 8"] == "seen"
    assert found.verdict["d_v from 1 to 8"] == found.verdict["frozen, d_qk = 8"] == "no change seen"
    assert found.verdict["attention made uniform (control)"] == "not seen"  # nothing falls there
    assert found.expected["QK-norm, d_qk = 4"] == "stays" and found.expected["tied, d_qk = 8"] == "rises"
    turned = predictions.judged(made(-0.5), predictions.predictions(BASE)).set_index("what")
    assert turned.verdict["d_qk from 1 to 8"] == turned.verdict["tied, d_qk = 8"] == "against"


def test_what_is_not_complete_has_no_verdict():
    rows = made(0.5)
    few = predictions.judged(rows[rows.seed < 2], predictions.predictions(BASE))
    assert few.verdict.isna().all() and (few.seeds == 2).all() and few.low.notna().all()
    none = predictions.judged(rows[rows.intervention == "none"], predictions.predictions(BASE)).set_index("what")
    assert none.seeds["tied, d_qk = 8"] == 0 and none.verdict["d_qk from 1 to 8"] == "seen"


def test_the_slope():
    """Three seeds with slopes 0.49, 0.5 and 0.51: their mean, and Student's interval with two degrees of freedom."""
    rows = made(0.5, noise=0.0)
    rows["accuracy"] += 0.01 * (rows.seed - 1) * rows.rank_before
    slope = predictions.rank_slope(rows)
    assert slope.mean == pytest.approx(0.5) and slope.seeds == 3
    half = 4.302653 * 0.01 / 3**0.5
    assert (slope.low, slope.high) == pytest.approx((0.5 - half, 0.5 + half))
    assert predictions.rank_slope(made(0.5, seeds=2)) is None
    assert predictions.rank_slope(made(0.5).assign(rank_before=0.3)) is None
