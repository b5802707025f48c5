"""The published tables: for each its function of one setting and its grid, small (quick) or as published (paper).

    python -m attnrank.sweep random_heads --profile quick

computes what is missing of a table, and :mod:`attnrank.sweep` stores it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from attnrank import _check, sweep
from attnrank.experiments import (
    almost_orthonormal,
    beyond,
    does_rank_matter,
    formulas,
    head_dimension,
    layer_encoders,
    layer_tables,
    real_tokens,
    row_costs,
    speed,
    sweeps,
    synthetic,
    vision,
)
from attnrank.experiments.experiment import Experiment

if TYPE_CHECKING:
    from distributed import Client

PROFILES = ("quick", "paper")
EXPERIMENTS: dict[str, Experiment] = (
    synthetic.EXPERIMENTS
    | vision.EXPERIMENTS
    | head_dimension.EXPERIMENTS
    | almost_orthonormal.EXPERIMENTS
    | real_tokens.EXPERIMENTS
    | row_costs.EXPERIMENTS
    | speed.EXPERIMENTS
    | beyond.EXPERIMENTS
    | formulas.EXPERIMENTS
    | sweeps.EXPERIMENTS
    | layer_tables.EXPERIMENTS
    | layer_encoders.EXPERIMENTS
    | does_rank_matter.EXPERIMENTS
)


def run(name: str, *, profile: str = "paper", folder: str | Path | None = None, workers: int = 1,
        cluster: Client | str | None = None) -> pd.DataFrame:
    """Compute what is missing of a published table and return it whole.

    Parameters
    ----------
    name : a key of ``EXPERIMENTS``.
    profile : "paper", the published table, or "quick", a small one called ``name-quick``.
    folder, workers, cluster : as for :func:`attnrank.sweep.run`.

    Raises
    ------
    ValueError : unknown name or profile, and what :func:`attnrank.sweep.run` raises.
    """
    experiment = EXPERIMENTS[_check.choice("name", name, EXPERIMENTS)]
    settings = getattr(experiment, _check.choice("profile", profile, PROFILES))
    table = name if profile == "paper" else f"{name}-{profile}"
    return sweep.run(table, experiment.function, settings, folder=folder, workers=workers, cluster=cluster)
