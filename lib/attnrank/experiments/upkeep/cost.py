"""What rows, tables and the whole book cost, on one processor and on many; and how the time of a row grows."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import scipy
from numpy.typing import ArrayLike

from attnrank import _check, sweep
from attnrank.experiments.experiment import Experiment
from attnrank.experiments.growth import HEAD_DIMS as CURVE
from attnrank.sweep import Setting

#: Columns that say how often something is repeated, each time at the same cost.
REPETITIONS = (
    "samples", "draws", "heads", "images", "sequences", "repetitions", "steps", "layers", "epochs", "instances",
    "problems", "texts", "starts",
    "seeds",
)  # fmt: skip
#: Columns that say how large something is, and so neither repeat nor leave it alone. Every whole number but the seed is
#: in one of the two, so that a new column cannot be forgotten.
SIZES = (
    "n", "d", "d_h", "head_dim", "largest", "content", "rotary", "query_latent", "key_latent", "width", "embed_dim",
    "window", "patch", "depth", "layer", "vocabulary", "digits", "batch", "threads", "rounds", "qk_dim", "wanted",
    "value_dim", "mlp_width", "epoch", "step", "head", "rank", "outputs", "resample",
    "p", "gates", "point", "passes", "count", "tested", "look", "position", "length", "ngrams",
)  # fmt: skip
#: The head dimension under each of its names.
HEAD_DIM = ("d_h", "head_dim", "qk_dim", "largest", "content")
#: What it costs, in products, to draw an entry of a query and of a key, to draw and compare a score, to begin a row:
#: rounded. `head_law` fits one to eight times as much to the processors of the table row_costs.
ENTRY, SCORE, ROW = 1000, 20, 4e6


def operations(setting: Setting) -> float:
    """About how many products a row is worth, up to a constant of its table.

    For each head n^2 (d_h + SCORE) for the scores, and for queries and keys ENTRY n d_h if they are drawn, 2 n d d_h if
    they come from tokens of width d; n is the number of patches for images. Closed forms all cost the same.
    """
    heads, n, d_h, width = _shape(setting)
    return ROW + heads * (n**2 * (d_h + SCORE) + (2 * width or ENTRY) * n * d_h)


def products(setting: Setting) -> float:
    """About how many floating-point operations of a row are those of the products of queries and keys, and of tokens.

    A multiplication and an addition are two. 0 for closed forms.
    """
    heads, n, d_h, width = _shape(setting)
    return 2.0 * heads * (n**2 * d_h + 2 * n * width * d_h)


def _shape(setting: Setting) -> tuple[float, float, float, float]:
    """Number of heads in all, tokens, head dimension, and width of the tokens (0 if queries are drawn as such)."""
    repetitions = [setting[name] for name in REPETITIONS if name in setting]
    if not repetitions:
        return 0.0, 0.0, 0.0, 0.0
    n = float(setting.get("n") or setting.get("length") or _patches(setting))
    heads, d_h = math.prod(repetitions) * setting.get("layer", 1), 0.0
    if "repetitions" in setting:  # a whole curve of heads
        heads, d_h = heads * len(CURVE), sum(CURVE) / len(CURVE)
    for name in HEAD_DIM:
        d_h = d_h or setting.get(name, 0)
    return heads, n, d_h, float(setting["d"] if "d" in setting else setting.get("width", 0))


def _patches(setting: Setting) -> int:
    size = 8 if setting.get("dataset") == "digits" else 32
    return max(1, size // setting.get("patch", 4)) ** 2


def table_seconds(name: str, *, folder: str | Path | None = None) -> float:
    """Seconds of work that the rows of a published table took: those of its rows where recorded, else of its sessions.

    A session's seconds include those that its process spent waiting for the processor of a busy machine.
    """
    sessions = sweep.provenance(name, folder=folder)["sessions"]
    return sum(session.get("row_seconds", session["wall_seconds"]) for session in sessions)


def row_seconds(name: str, experiment: Experiment, *, folder: str | Path | None = None) -> np.ndarray:
    """Predicted seconds of each row of the experiment's paper grid: the table's, in proportion to `operations`."""
    work = np.array([operations(setting) for setting in experiment.paper])
    return table_seconds(name, folder=folder) * work / work.sum()


def seconds_again(name: str, experiment: Experiment, *, folder: str | Path | None = None) -> np.ndarray:
    """Predicted seconds to compute each row again: `row_seconds`, unless the experiment has its own prediction."""
    if experiment.seconds_again is None:
        return row_seconds(name, experiment, folder=folder)
    return np.array([experiment.seconds_again(setting) for setting in experiment.paper])


def book_rows(experiments: dict[str, Experiment], *, folder: str | Path | None = None) -> pd.DataFrame:
    """Every row of every complete published table: ``table``, predicted ``seconds``, and operations of ``products``."""
    parts = []
    for name, experiment in experiments.items():
        if not (sweep.results_folder(folder) / f"{name}.json").exists():
            continue
        if sweep.provenance(name, folder=folder)["status"] == "complete":
            seconds = row_seconds(name, experiment, folder=folder)
            parts.append(pd.DataFrame({"table": name, "seconds": seconds, "products": map(products, experiment.paper)}))
    return pd.concat(parts, ignore_index=True)


@dataclass(frozen=True)
class PowerLaw:
    """time = constant * product of column ** exponent. ``intervals``: 95%. ``residuals``: log(measured / fitted)."""

    exponents: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    constant: float
    residuals: np.ndarray

    @property
    def scatter(self) -> float:
        """Root mean square of the residuals: about the relative error."""
        return float(np.sqrt(np.mean(self.residuals**2)))


def power_law(table: pd.DataFrame, time: str, columns: Iterable[str]) -> PowerLaw:
    """Fit the logarithm of a column of times by least squares, linearly in the logarithms of other columns.

    Raises ValueError for values that are not positive, or too few rows or too little variation to fit.
    """
    columns = list(columns)
    logs = table[[*columns, time]].to_numpy(dtype=float)
    if not (logs > 0).all():
        raise ValueError(f"the columns {[*columns, time]} must be positive")
    logs = np.log(logs)
    x, y = np.column_stack([logs[:, :-1], np.ones(len(logs))]), logs[:, -1]
    free = len(y) - x.shape[1]
    if free < 1 or np.linalg.matrix_rank(x) < x.shape[1]:
        raise ValueError(f"{len(y)} rows do not determine the exponents of {columns}")
    coefficients = np.linalg.lstsq(x, y, rcond=None)[0]
    residuals = y - x @ coefficients
    covariance = np.linalg.inv(x.T @ x) * (residuals @ residuals) / free
    half = scipy.stats.t.ppf(0.975, free) * np.sqrt(np.diag(covariance))
    return PowerLaw(
        {name: float(c) for name, c in zip(columns, coefficients)},
        {name: (float(c - h), float(c + h)) for name, c, h in zip(columns, coefficients, half)},
        float(np.exp(coefficients[-1])), residuals,
    )


@dataclass(frozen=True)
class HeadLaw:
    """Seconds of a row of S heads: row + S (draw n d_h + score n^2 + product n^2 d_h). ``scatter`` as in `PowerLaw`."""

    row: float
    draw: float
    score: float
    product: float
    scatter: float

    def seconds(self, n: ArrayLike, d_h: ArrayLike, samples: ArrayLike) -> np.ndarray:
        n, d_h, samples = (np.asarray(x, dtype=float) for x in (n, d_h, samples))
        return self.row + samples * (self.draw * n * d_h + self.score * n**2 + self.product * n**2 * d_h)


def head_law(table: pd.DataFrame) -> HeadLaw:
    """Fit the law to the columns n, d_h, samples and seconds > 0: least squares of the relative error, terms >= 0."""
    n, d_h, samples, seconds = (table[name].to_numpy(dtype=float) for name in ("n", "d_h", "samples", "seconds"))
    if len(seconds) < 5 or not (seconds > 0).all():
        raise ValueError(f"table must have at least 5 rows with seconds > 0, got {len(seconds)}")
    terms = np.column_stack([np.ones(len(n)), samples * n * d_h, samples * n**2, samples * n**2 * d_h])
    coefficients, _ = scipy.optimize.nnls(terms / seconds[:, None], np.ones(len(n)))
    row, draw, score, product = map(float, coefficients)
    law = HeadLaw(row, draw, score, product, scatter=0.0)
    residuals = np.log(seconds / law.seconds(n, d_h, samples))
    return replace(law, scatter=float(np.sqrt(np.mean(residuals**2))))


def schedule(seconds: ArrayLike, workers: int) -> float:
    """Time until all rows are done if each idle worker takes the next row of the list, whatever rows are left."""
    workers = _check.integer("workers", workers, minimum=1)
    idle = [0.0] * min(workers, max(1, len(np.atleast_1d(seconds))))  # when each worker is idle again
    for row in _times(seconds):
        heapq.heapreplace(idle, idle[0] + row)
    return max(idle)


def schedule_bounds(seconds: ArrayLike, workers: int) -> tuple[float, float]:
    """Bounds on `schedule` in any order of the rows: max(total / N, longest) and total / N + (1 - 1/N) longest.

    Source: Graham, Bounds for certain multiprocessing anomalies, Bell System Technical Journal 45 (1966).
    """
    workers, rows = _check.integer("workers", workers, minimum=1), _times(seconds)
    share, longest = rows.sum() / workers, rows.max()
    return float(max(share, longest)), float(share + (1 - 1 / workers) * longest)


def _times(seconds: ArrayLike) -> np.ndarray:
    rows = np.atleast_1d(np.asarray(seconds, dtype=float))
    if rows.ndim != 1 or not len(rows) or not (rows >= 0).all() or not np.isfinite(rows).all():
        raise ValueError(f"seconds must be a vector of times >= 0, got {seconds!r}")
    return rows
