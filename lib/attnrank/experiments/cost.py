"""What rows and tables cost: recorded seconds, shared out over the rows by a law of the number of operations."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from attnrank import sweep
from attnrank.experiments.experiment import Experiment
from attnrank.sweep import Setting

#: Columns that say how often something is repeated, each time at the same cost.
REPETITIONS = ("samples", "draws", "heads", "images", "sequences", "steps", "layers")
#: The rest of the work on a score (drawing, comparing), in products: n^2 (d_h + 30), see the table row_costs.
SCORE_OVERHEAD = 30
#: The cost of a row that does nothing, in operations: about a millisecond.
ROW_OVERHEAD = 1e6


def operations(setting: Setting) -> float:
    """About how many operations a row takes, up to a constant of its table.

    Repetitions times n^2 (d_h + constant) for the scores of a head and 2 n d d_h for its queries and keys; n is the
    number of patches for images. Rows without repetitions are closed forms, which cost the same.
    """
    repetitions = [setting[name] for name in REPETITIONS if name in setting]
    if not repetitions:
        return 1.0
    n = setting.get("n") or _patches(setting)
    d_h = setting.get("d_h", setting.get("head_dim", setting.get("largest", setting.get("content", n))))
    width = setting.get("d", setting.get("width", 0))
    depth = setting.get("layer", 1)
    return ROW_OVERHEAD + math.prod(repetitions) * depth * (n**2 * (d_h + SCORE_OVERHEAD) + 2 * n * width * d_h)


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
