"""Arms of the published runs compared: differences over seeds with their intervals, and correlations over arms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import scipy

from attnrank import _check
from attnrank.experiments.accuracy.arms import SHAPE

ARM = [name for name in SHAPE if name not in ("width", "depth")]


def one_series(table: pd.DataFrame) -> pd.DataFrame:
    """The table, or ValueError where an arm has several runs of one seed: with other data, patches or epochs."""
    several = table[table.duplicated([*ARM, "seed"])]
    if len(several):
        arm = several[[*ARM, "seed"]].iloc[0].to_dict()
        raise ValueError(f"table must hold the runs of one series, got several for {arm}")
    return table


def by_arm(table: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds of the accuracies and ranks of each arm, the number of seeds beside them."""
    ranks = ["rank_before", "rank_after", "rank_before_all", "rank_after_all"]
    numbers = ["accuracy", "best_accuracy", *ranks, "parameters"]
    groups = one_series(table).groupby(ARM, sort=False)
    return groups[numbers].mean().assign(seeds=groups.size(), spread=groups.accuracy.std()).reset_index()


@dataclass(frozen=True)
class Difference:
    """Mean difference over the seeds that both arms have, its 95 % interval (infinite where nothing says how far seeds
    spread), their number."""

    mean: float
    low: float
    high: float
    seeds: int


@dataclass(frozen=True)
class Spread:
    """Standard deviation over the seeds of an arm, the same for every arm, and its degrees of freedom."""

    deviation: float
    freedom: int

    def half(self, share: float, level: float = 0.975) -> float:
        """Half the width of Student's interval for a sum of runs whose variance is ``share`` times that of one run."""
        if not self.freedom:
            return np.inf
        return float(scipy.stats.t.ppf(level, self.freedom) * self.deviation * np.sqrt(share))


def spread(table: pd.DataFrame, column: str = "accuracy") -> Spread:
    """Of the runs of one series, pooled over its arms: what differs between seeds is taken to differ alike in all.

    Raises ValueError for a column that the table does not have, or several runs of an arm with one seed.
    """
    groups = one_series(table).groupby(ARM)[_check.choice("column", column, table.columns)]
    free = groups.count() - 1
    freedom = int(free.sum())
    return Spread(float(np.sqrt((groups.var().fillna(0.0) * free).sum() / max(1, freedom))), freedom)


def difference(
    table: pd.DataFrame, first: dict, second: dict, column: str = "accuracy", *, together: int = 1,
    pooled: Spread | None = None,
) -> Difference | None:
    """Arm ``second`` minus arm ``first``, over the seeds that both have; None while no seed has both.

    Arms are dicts of columns. The interval is Student's: that of the differences of seeds, taken as normal; or with
    ``pooled`` that of two independent means of runs with this spread. With ``together`` comparisons it is as wide as
    lets the intervals of all of them hold at once at 95 % (Bonferroni). Raises ValueError for a column that the table
    does not have, or for ``together`` < 1.
    """
    _check.choice("column", column, table.columns)
    level = 1 - 0.025 / _check.integer("together", together, minimum=1)
    before, after = (_by_seed(table, arm, column) for arm in (first, second))
    pairs = (after - before).dropna().tolist()
    if not pairs:
        return None
    return mean_of(pairs, level) if pooled is None else _around(pairs, pooled.half(2 / len(pairs), level))


def mean_of(values: Sequence[float], level: float = 0.975) -> Difference:
    """Mean of one number a seed, at least one, with the ends of Student's interval at 1 - ``level`` and ``level``."""
    numbers, half = np.asarray(values, dtype=float), np.inf
    if len(numbers) > 1:
        half = scipy.stats.t.ppf(level, len(numbers) - 1) * numbers.std(ddof=1) / np.sqrt(len(numbers))
    return _around(values, half)


def _around(values: Sequence[float], half: float) -> Difference:
    mean = float(np.mean(values))
    return Difference(mean, float(mean - half), float(mean + half), len(values))


def _by_seed(table: pd.DataFrame, arm: dict, column: str) -> pd.Series:
    # one comparison of all columns: pages ask for hundreds of arms, and pandas takes long for each column by itself
    of, wanted = table[list(arm)].to_numpy(dtype=object), np.array(list(arm.values()), dtype=object)
    rows = (of == wanted).all(axis=1)
    values = pd.Series(table[column].to_numpy()[rows], index=table["seed"].to_numpy()[rows])
    if values.index.has_duplicates:
        raise ValueError(f"the columns {sorted(arm)} must single out one arm, got several runs of one seed for {arm}")
    return values


def rank_correlation(table: pd.DataFrame, first: str, second: str) -> tuple[float, float, float, int]:
    """Spearman's correlation of two columns over arms (means over seeds), its 95 % interval, and the number of arms.

    The interval is Fisher's with the variance of Bonett and Wright (2000). NaN for fewer than five arms.
    """
    means = by_arm(table)
    count = len(means)
    if count < 5:
        return (float("nan"),) * 3 + (count,)
    rho = float(scipy.stats.spearmanr(means[first], means[second]).statistic)
    half = scipy.stats.norm.ppf(0.975) * np.sqrt((1 + rho**2 / 2) / (count - 3))
    with np.errstate(divide="ignore"):  # at 1 and -1 the interval is a point
        low, high = np.tanh(np.arctanh(rho) + np.array([-half, half]))
    return rho, float(low), float(high), count
