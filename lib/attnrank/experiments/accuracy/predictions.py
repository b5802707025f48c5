"""What "rank at initialisation drives accuracy" predicts of the arms, and what was seen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from attnrank import _check
from attnrank.experiments.accuracy.arms import SHAPE
from attnrank.experiments.accuracy.compare import Difference, difference
from attnrank.sweep import Setting

#: What accuracy should do: rise, stay, fall, or do what the measured rank at initialisation does.
EXPECTED = ("rises", "stays", "falls", "as rank")
#: A comparison is complete, and gets a verdict, with so many seeds in both of its arms.
SEEDS = 3
#: Changes of rank / n below this are none.
SAME_RANK = 0.02


@dataclass(frozen=True)
class Prediction:
    """From arm ``first`` to arm ``second`` accuracy does what ``expected`` says; ``what`` is the change in words."""

    what: str
    first: Setting
    second: Setting
    expected: str

    def __post_init__(self) -> None:
        _check.choice("expected", self.expected, EXPECTED)


def predictions(base: Setting) -> list[Prediction]:
    """The predictions, after a control that says whether attention matters at all at this size and budget."""
    full = base["qk_dim"]

    def arm(intervention: str = "none", **changes: int) -> Setting:
        chosen = {"intervention": "none"} | base | changes | {"intervention": intervention}
        return {name: chosen[name] for name in SHAPE}

    return [
        Prediction("attention made uniform (control)", arm(), arm("uniform"), "falls"),
        *(Prediction(f"d_qk from {d} to {full}", arm(qk_dim=d), arm(), "as rank") for d in (1, 2, 4)),
        *(Prediction(f"d_v from {d} to {full}", arm(value_dim=d), arm(), "stays") for d in (1, 2)),
        *(Prediction(f"QK-norm, d_qk = {d}", arm(qk_dim=d), arm("qk_norm", qk_dim=d), "as rank") for d in (1, 2, 4)),
        Prediction("QK-norm and tied, d_qk = 2", arm(qk_dim=2), arm("tied_qk_norm", qk_dim=2), "as rank"),
        Prediction(f"tied, d_qk = {full}", arm(), arm("tied"), "as rank"),
        Prediction(f"frozen, d_qk = {full}", arm(), arm("frozen"), "stays"),
        Prediction(f"temperature / 4, d_qk = {full}", arm(), arm("sharp"), "stays"),
    ]


def judged(rows: pd.DataFrame, made: list[Prediction]) -> pd.DataFrame:
    """A row for each prediction: change of rank / n and of accuracy with its interval, seeds, and the verdict.

    Verdicts: "seen", the 95 % interval of the paired differences is on the predicted side of 0; "not seen", it contains
    0 where a change was predicted; "against", it is on another side; "no change seen", it contains 0 where none was
    predicted. None with fewer than `SEEDS` seeds in both arms.
    """
    found = []
    for each in made:
        accuracy = difference(rows, each.first, each.second)
        rank = difference(rows, each.first, each.second, "rank_before")
        seeds = 0 if accuracy is None else accuracy.seeds
        expected = each.expected
        if expected == "as rank" and rank is not None:
            expected = "stays" if abs(rank.mean) < SAME_RANK else "rises" if rank.mean > 0 else "falls"
        verdict = _verdict(accuracy, expected) if accuracy is not None and seeds >= SEEDS else None
        found.append({
            "what": each.what, "rank": None if rank is None else rank.mean, "expected": expected,
            "accuracy": None if accuracy is None else accuracy.mean,
            "low": None if accuracy is None or seeds < 2 else accuracy.low,
            "high": None if accuracy is None or seeds < 2 else accuracy.high, "seeds": seeds, "verdict": verdict,
        })  # fmt: skip
    return pd.DataFrame(found)


def _verdict(accuracy: Difference, expected: str) -> str:
    side = 1 if accuracy.low > 0 else -1 if accuracy.high < 0 else 0
    wanted = {"rises": 1, "stays": 0, "falls": -1}[expected]
    if wanted == 0:
        return "no change seen" if side == 0 else "against"
    return "seen" if side == wanted else "not seen" if side == 0 else "against"


def rank_slope(rows: pd.DataFrame, column: str = "rank_before") -> Difference | None:
    """Accuracy per unit of rank / n over arms whose scores alone differ: mean over seeds of least squares slopes.

    Arms that have all of the first `SEEDS` seeds; None with fewer than four of them, or without spread in ``column``.
    The interval is Student's over the seeds.
    """
    wide = rows[rows.seed < SEEDS].pivot_table(index=list(SHAPE), columns="seed", values=["accuracy", column]).dropna()
    if len(wide) < 4 or wide["accuracy"].shape[1] < SEEDS or np.ptp(wide[column].to_numpy()) == 0:
        return None
    slopes = pd.DataFrame({
        "seed": range(SEEDS), "arm": 1,
        "slope": [np.polyfit(wide[column][seed], wide["accuracy"][seed], 1)[0] for seed in range(SEEDS)],
    })  # fmt: skip
    zero = slopes.assign(arm=0, slope=0.0)
    return difference(pd.concat([zero, slopes]), {"arm": 0}, {"arm": 1}, "slope")
