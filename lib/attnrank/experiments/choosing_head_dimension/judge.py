"""The recommended head dimension beside the default and the best one: what each costs, and how accurate it is."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import scipy

from attnrank import _check
from attnrank.experiments.accuracy.arms import coupled, only_scores
from attnrank.experiments.accuracy.compare import Spread, spread
from attnrank.experiments.accuracy.predictions import SEEDS
from attnrank.experiments.choosing_head_dimension.rule import CANDIDATES, LENGTH, PATCH, N, base_of
from attnrank.experiments.does_rank_matter.tasks import Task
from attnrank.sweep import Setting

#: Epochs of the series of the chapter accuracy that are looked at, and of the tasks of does_rank_matter.
EPOCHS, TASK_EPOCHS = {"digits": 12, "cifar10": 5}, 4
SHAPE = ["width", "depth", "heads", "qk_dim", "value_dim", "mlp_width"]


def trained_rows(task: str, family: str, tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Finished runs of a task along a family of head dimensions: head_dim, seed, accuracy, parameters, flops.

    ``tables`` has the tables accuracy, text_accuracy and task_heads, as far as the task needs them. Parameters are
    those of the whole model, of a text model without its embeddings, and for one layer on a task those of W_q and W_k;
    flops are of one forward pass over one image, text or sequence.
    """
    if _check.choice("task", task, CANDIDATES) in PATCH:
        line = {"scores": only_scores, "coupled": coupled}[_check.choice("family", family, ("scores", "coupled"))]
        rows = _plain(_series(task, tables), line(base_of(task))).rename(columns={"flops_per_image": "flops"})
    elif task in LENGTH:
        arms = [base_of(task) | {"qk_dim": d} for d in CANDIDATES[task]]
        rows = _plain(_series(task, tables), arms).drop(columns="parameters")
        rows = rows.rename(columns={"flops_per_text": "flops", "parameters_without_embedding": "parameters"})
    else:
        of = tables["task_heads"]
        of = of[(of.task == task) & (of.readout == "pointer") & (of.n == N) & (of.heads == 1) & (of.stopped == "")]
        of = of[(of.intervention == "none") & (of.epochs == TASK_EPOCHS)]
        rows = of.rename(columns={"qk_dim": "head_dim", "flops_per_sequence": "flops"})
    return rows[["head_dim", "seed", "accuracy", "parameters", "flops"]].reset_index(drop=True)


def pooled_spread(task: str, tables: Mapping[str, pd.DataFrame]) -> Spread | None:
    """Standard deviation of a run's accuracy, pooled over all arms of the task's series; None for one-layer tasks.

    There some head dimensions answer everything right at every seed, and others do not: they do not spread alike.
    """
    if _check.choice("task", task, CANDIDATES) not in PATCH | LENGTH:
        return None
    return spread(_series(task, tables))


def _series(task: str, tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """The finished runs of the series that a task on images or texts is judged by, of the base's width."""
    of = tables["accuracy" if task in PATCH else "text_accuracy"]
    of = of[(of.dataset == task) & (of.width == base_of(task)["width"]) & (of.stopped == "")]
    if task in PATCH:
        return of[(of.patch == PATCH[task]) & (of.epochs == EPOCHS[task])]
    return of[of.length == LENGTH[task]]


def _plain(of: pd.DataFrame, arms: list[Setting]) -> pd.DataFrame:
    """The runs of these shapes to whose scores nothing was done."""
    wanted = pd.DataFrame(arms)[SHAPE].drop_duplicates()
    return of[of.intervention == "none"].merge(wanted).rename(columns={"qk_dim": "head_dim"})


def default_head_dim(task: str) -> int:
    """Width over number of heads, or the largest trained where that is larger."""
    if task in PATCH or task in LENGTH:
        base = base_of(task)
        return base["width"] // base["heads"]
    return min(Task(task, N, N, 0).width, max(CANDIDATES[task]))


def choices(rows: pd.DataFrame, recommended: int, default: int, pooled: Spread | None = None) -> pd.DataFrame:
    """The recommended, default and best head dimension: accuracy and its loss against the best, cost beside the best.

    ``rows`` as from `trained_rows`. Best is the highest mean accuracy over the seeds that all head dimensions share,
    the smallest of equals; one with fewer than three seeds is left out where another has as many. ``interval`` is the
    half-width of the 95 % interval of the accuracy (Student's; missing for one seed). ``behind`` is the mean over
    paired seeds of best minus this one, with the half-width of its interval: with ``pooled`` that of two independent
    means of runs with this spread, else Student's for the differences.
    A head dimension that has not been trained gives missing values.
    """
    groups = rows.groupby("head_dim")
    mean, seeds = groups.accuracy.mean(), groups.seed.nunique()
    best = int(_by_seed(rows).loc[:, seeds >= min(SEEDS, seeds.max())].dropna().mean().idxmax())
    found = []
    for name, head_dim in (("recommended", recommended), ("default", default), ("best", best)):
        row = {"choice": name, "head_dim": head_dim, "seeds": int(seeds.get(head_dim, 0))}
        if head_dim in mean.index:
            here = groups.get_group(head_dim)
            behind = _paired(rows, best, head_dim)
            row |= {
                "accuracy": mean[head_dim], "interval": _half_width(here.accuracy.to_numpy()), "behind": behind.mean(),
                "half_width": _half_of(behind, pooled) if head_dim != best else None,
                "parameters": int(here.parameters.iloc[0]), "flops": float(here.flops.iloc[0]),
            }  # fmt: skip
        found.append(row)
    return pd.DataFrame(found)


def _by_seed(rows: pd.DataFrame) -> pd.DataFrame:
    """Accuracies, a row for each seed and a column for each head dimension."""
    return rows.pivot_table(index="seed", columns="head_dim", values="accuracy")


def _paired(rows: pd.DataFrame, best: int, other: int) -> np.ndarray:
    wide = _by_seed(rows)
    return (wide[best] - wide[other]).dropna().to_numpy()


def _half_of(behind: np.ndarray, pooled: Spread | None) -> float | None:
    return _half_width(behind) if pooled is None else pooled.half(2 / len(behind))


def _half_width(values: np.ndarray) -> float | None:
    count = len(values)
    if count < 2:
        return None
    return float(scipy.stats.t.ppf(0.975, count - 1) * values.std(ddof=1) / count**0.5)
