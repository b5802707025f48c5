"""What "rank at initialisation drives accuracy" predicts of the arms, and what was seen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import scipy

from attnrank import _check
from attnrank.experiments.accuracy.arms import SHAPE, same_parameters
from attnrank.experiments.accuracy.compare import ARM, Difference, difference, mean_of, one_series, spread
from attnrank.sweep import Setting

#: What accuracy should do: rise, stay, fall, or do what the measured rank at initialisation does.
EXPECTED = ("rises", "stays", "falls", "as rank")
#: A comparison is complete, and gets a verdict, with so many seeds in both of its arms.
SEEDS = 3
#: Changes of rank / n below this are none.
SAME_RANK = 0.02
#: What the predictions are about, in the words of the verdict.
CONTROL, SCORES = "attention made uniform costs accuracy", "d_qk alone moves accuracy"
SCORES_SAME_SIZE = "d_qk alone, at the same number of parameters, moves accuracy"
VALUES, INTERVENTIONS = "d_v alone does not", "accuracy follows rank, d_qk as it is"
SAME = "frozen scores, other temperatures: no change"


@dataclass(frozen=True)
class Prediction:
    """From arm ``first`` to arm ``second`` accuracy does what ``expected`` says; ``what`` is the change in words.

    ``group`` names the predictions that are counted together.
    """

    what: str
    first: Setting
    second: Setting
    expected: str
    group: str = ""

    def __post_init__(self) -> None:
        _check.choice("expected", self.expected, EXPECTED)


def predictions(base: Setting) -> list[Prediction]:
    """The predictions, after a control that says whether attention matters at all at this size and budget."""
    full = base["qk_dim"]
    scores_of_one, values_of_one = same_parameters(base)[0], same_parameters(base, "value_dim")[0]  # MLPs take the rest

    def arm(intervention: str = "none", **changes: int) -> Setting:
        chosen = {"intervention": "none"} | base | changes | {"intervention": intervention}
        return {name: chosen[name] for name in SHAPE}

    def scores(what: str, second: Setting, qk_dim: int = full) -> Prediction:
        return Prediction(f"{what}, d_qk = {qk_dim}", arm(qk_dim=qk_dim), second, "as rank", INTERVENTIONS)

    return [
        Prediction("attention made uniform (control)", arm(), arm("uniform"), "falls", CONTROL),
        *(Prediction(f"d_qk from {d} to {full}", arm(qk_dim=d), arm(), "as rank", SCORES) for d in (1, 2, 4)),
        Prediction(f"d_qk from 1 to {full}, same size", arm(**scores_of_one), arm(), "as rank", SCORES_SAME_SIZE),
        *(Prediction(f"d_v from {d} to {full}", arm(value_dim=d), arm(), "stays", VALUES) for d in (1, 2)),
        Prediction(f"d_v from 1 to {full}, same size", arm(**values_of_one), arm(), "stays", VALUES),
        *(scores("QK-norm", arm("qk_norm", qk_dim=d), d) for d in (1, 2, 4, full)),
        scores("QK-norm and tied", arm("tied_qk_norm", qk_dim=2), 2),
        scores("tied", arm("tied")),
        Prediction("QK-norm of frozen scores, d_qk = 2", arm("frozen", qk_dim=2), arm("frozen_qk_norm", qk_dim=2),
                   "as rank", INTERVENTIONS),
        Prediction(f"frozen, d_qk = {full}", arm(), arm("frozen"), "stays", SAME),
        Prediction(f"temperature / 4, d_qk = {full}", arm(), arm("sharp"), "stays", SAME),
        Prediction(f"temperature learned, d_qk = {full}", arm(), arm("learned_temperature"), "stays", SAME),
    ]


def judged(rows: pd.DataFrame, made: list[Prediction]) -> pd.DataFrame:
    """A row for each prediction: its group, change of rank / n and of accuracy with its interval, seeds, the verdict.

    ``rows`` are all runs of one series, over whose arms the spread between seeds is pooled. Verdicts: "seen", the 95 %
    interval is on the predicted side of 0; "not seen", it contains 0 where a change was predicted; "against", it is on
    another side; "no change seen", it contains 0 where none was predicted. None with fewer than `SEEDS` seeds in both
    arms.
    """
    found, pooled = [], spread(rows)
    for each in made:
        accuracy = difference(rows, each.first, each.second, pooled=pooled)
        rank = difference(rows, each.first, each.second, "rank_before")
        seeds = 0 if accuracy is None else accuracy.seeds
        expected = each.expected
        if expected == "as rank" and rank is not None:
            expected = "stays" if abs(rank.mean) < SAME_RANK else "rises" if rank.mean > 0 else "falls"
        verdict = _verdict(accuracy, expected) if accuracy is not None and seeds >= SEEDS else None
        found.append({
            "what": each.what, "group": each.group, "rank": None if rank is None else rank.mean, "expected": expected,
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


@dataclass(frozen=True)
class Slope:
    """Accuracy per unit of rank / n over this many arms, by least squares, with its 95 % interval."""

    mean: float
    low: float
    high: float
    arms: int


def rank_slope(rows: pd.DataFrame, column: str = "rank_before") -> Slope | None:
    """How accuracy changes with rank over arms, their means over seeds; None for fewer than four arms, or one rank.

    Of arms with at least `SEEDS` seeds. The interval is Student's by the scatter of the arms about the line, which is
    more than that of seeds where the arms do not lie on one.
    """
    groups = one_series(rows).groupby(ARM)
    means = groups[[column, "accuracy"]].mean()[groups.size() >= SEEDS]
    if len(means) < 4 or np.ptp(means[column]) == 0:
        return None
    line = scipy.stats.linregress(means[column], means.accuracy)
    half = scipy.stats.t.ppf(0.975, len(means) - 2) * line.stderr
    return Slope(float(line.slope), float(line.slope - half), float(line.slope + half), len(means))


def closer(rows: pd.DataFrame, first: str = "rank_before", second: str = "rank_after") -> Difference | None:
    """Does accuracy go with ``second`` more closely than with ``first``? Spearman's correlation over arms, their
    difference, mean over seeds.

    Arms that have all of the first `SEEDS` seeds; None with fewer than five of them, or where a column is the same in
    all. The interval is Student's over the seeds.
    """
    wide = _by_seed(rows, first, second)
    if len(wide) < 5 or wide["accuracy"].shape[1] < SEEDS or (np.ptp(wide.to_numpy(), axis=0) == 0).any():
        return None

    def correlation(column: str, seed: int) -> float:
        return float(scipy.stats.spearmanr(wide[column][seed], wide["accuracy"][seed]).statistic)

    return mean_of([correlation(second, seed) - correlation(first, seed) for seed in range(SEEDS)])


def _by_seed(rows: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """Accuracy and other columns by arm and seed; arms that have all of the first `SEEDS` seeds."""
    first = one_series(rows[rows.seed < SEEDS])
    return first.pivot_table(index=list(SHAPE), columns="seed", values=["accuracy", *columns]).dropna()
