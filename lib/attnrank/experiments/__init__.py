"""The published tables: for each its function of one setting and its grid, small (quick) or as published (paper).

One module or folder a chapter, named by the stem of its notebook: each has a dict ``EXPERIMENTS`` of tables by name.
`shared` holds what chapters have in common, `upkeep` what serves the tables: verification, cost, copies of data.

    python -m attnrank.sweep random_heads --profile quick

computes what is missing of a table, and :mod:`attnrank.sweep` stores it.
"""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pandas as pd

from attnrank import _check, sweep
from attnrank.experiments.experiment import Experiment, merge

if TYPE_CHECKING:
    from distributed import Client

PROFILES = ("quick", "paper")
#: What is not a chapter: `experiment` itself, what chapters have in common, and what serves the tables.
_NOT_CHAPTERS = {"experiment", "shared", "upkeep"}


def chapters() -> list[ModuleType]:
    """Import and return the modules and folders of this package that hold the tables of a chapter, by name."""
    stems = sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name not in _NOT_CHAPTERS)
    return [importlib.import_module(f"{__name__}.{stem}") for stem in stems]


EXPERIMENTS: dict[str, Experiment] = merge(chapters())


def run(name: str, *, profile: str = "paper", folder: str | Path | None = None, workers: int = 1,
        cluster: Client | str | None = None) -> pd.DataFrame:
    """Compute what is missing of a published table and return it whole.

    Parameters
    ----------
    name : a key of ``EXPERIMENTS``.
    profile : "paper", the published table, or "quick", a small one called ``name-quick``.
    folder, workers, cluster : as for :func:`attnrank.sweep.publish`.

    Raises
    ------
    ValueError : unknown name or profile, and what :func:`attnrank.sweep.publish` raises.
    """
    experiment = EXPERIMENTS[_check.choice("name", name, EXPERIMENTS)]
    settings = getattr(experiment, _check.choice("profile", profile, PROFILES))
    table = name if profile == "paper" else f"{name}-{profile}"
    return sweep.publish(
        table, experiment.function, settings, experiment.chapter, folder=folder, workers=workers, cluster=cluster,
        repeats=experiment.repeats, version=experiment.version,
        threads=experiment.threads, checkpoint=experiment.checkpoint,
    )  # fmt: skip
