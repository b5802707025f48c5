"""The recommended head dimension beside the default and the best one: what each costs, and how accurate it is."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy import stats

from attnrank import _check
from attnrank.experiments.accuracy.arms import BASES, coupled, only_scores
from attnrank.experiments.choosing_head_dimension.rule import CANDIDATES, PATCH
from attnrank.experiments.does_rank_matter.tasks import Task

#: Epochs of the series of the chapter accuracy that are looked at.
EPOCHS = {"digits": 12, "cifar10": 5}
N = 16


def trained_rows(task: str, family: str, accuracy: pd.DataFrame, task_heads: pd.DataFrame) -> pd.DataFrame:
    """Finished runs of a task along a family of head dimensions: head_dim, seed, accuracy, parameters, flops.

    ``accuracy`` and ``task_heads`` are the tables of these names. Parameters are those of the whole model, for one
    layer on a task those of W_q and W_k; flops are of one forward pass over one image or sequence.
    """
    if _check.choice("task", task, CANDIDATES) in PATCH:
        base = BASES["digits" if task == "digits" else "photographs"]
        arms = {"scores": only_scores, "coupled": coupled}[_check.choice("family", family, ("scores", "coupled"))](base)
        of = accuracy[(accuracy.dataset == task) & (accuracy.patch == PATCH[task]) & (accuracy.epochs == EPOCHS[task])]
        of = of[(of.intervention == "none") & (of.stopped == "")]
        wanted = pd.DataFrame(arms)[["width", "depth", "heads", "qk_dim", "value_dim", "mlp_width"]].drop_duplicates()
        rows = of.merge(wanted).rename(columns={"qk_dim": "head_dim", "flops_per_image": "flops"})
    else:
        of = task_heads[(task_heads.task == task) & (task_heads.readout == "pointer") & (task_heads.n == N)]
        rows = of[(of.intervention == "none") & (of.heads == 1)].rename(columns={"qk_dim": "head_dim"})
        width = Task(task, N, N, 0).width
        rows = rows.assign(parameters=2 * (width + 1) * rows.head_dim,
                           flops=2 * N * (2 * width + N) * rows.head_dim)  # fmt: skip
    return rows[["head_dim", "seed", "accuracy", "parameters", "flops"]].reset_index(drop=True)


def default_head_dim(task: str) -> int:
    """Width over number of heads, or the largest trained where that is larger."""
    if task in PATCH:
        base = BASES["digits" if task == "digits" else "photographs"]
        return base["width"] // base["heads"]
    return min(Task(task, N, N, 0).width, max(CANDIDATES[task]))


def choices(rows: pd.DataFrame, recommended: int, default: int) -> pd.DataFrame:
    """The recommended, default and best head dimension: accuracy and its loss against the best, cost beside the best.

    ``rows`` as from `trained_rows`. Best is the highest mean accuracy among the head dimensions with the most seeds,
    the smallest of equals. ``behind`` is the mean over paired seeds of best minus this one, with the half-width of its
    95 % interval (Student's; missing for one seed). A head dimension that has not been trained gives missing values.
    """
    groups = rows.groupby("head_dim")
    mean, seeds = groups.accuracy.mean(), groups.seed.nunique()
    whole = mean[seeds == seeds.max()]
    best = int(whole.idxmax())
    found = []
    for name, head_dim in (("recommended", recommended), ("default", default), ("best", best)):
        row = {"choice": name, "head_dim": head_dim, "seeds": int(seeds.get(head_dim, 0))}
        if head_dim in mean.index:
            here = groups.get_group(head_dim)
            behind = _paired(rows, best, head_dim)
            row |= {
                "accuracy": mean[head_dim], "behind": behind.mean(),
                "half_width": _half_width(behind) if head_dim != best else None,
                "parameters": int(here.parameters.iloc[0]), "flops": float(here.flops.iloc[0]),
            }  # fmt: skip
        found.append(row)
    return pd.DataFrame(found)


def _paired(rows: pd.DataFrame, best: int, other: int) -> np.ndarray:
    wide = rows.pivot_table(index="seed", columns="head_dim", values="accuracy")
    return (wide[best] - wide[other]).dropna().to_numpy()


def _half_width(values: np.ndarray) -> float | None:
    count = len(values)
    if count < 2:
        return None
    return float(stats.t.ppf(0.975, count - 1) * values.std(ddof=1) / count**0.5)
