"""Rows of the tables of the runs on modular division."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import torch

from attnrank import _check
from attnrank.experiments.convex_experiments.grokking import LOOK, learned_at, step_flops, trained
from attnrank.experiments.convex_experiments.moments import FOLLOWED, movement, rise
from attnrank.experiments.shared.runs import setting_of
from attnrank.sweep import Setting
from attnrank.training import Run

#: A run is shown at this many looks and its beginning, evenly spread.
POINTS = 40
SHOWN = ("fit_loss", "fit_accuracy", "test_loss", "test_accuracy", *FOLLOWED)


def modular_runs(
    p: int, fraction: float, attention: str, width: int, depth: int, decay: float, steps: int, seed: int, *,
    folder: str | Path | None = None,
) -> Setting:
    """Train one network on a share of the equations modulo p, or go on with it: when it fits, when it generalises.

    ``attention`` is that of `network.ATTENTIONS`. A run ends after ``steps``, or some looks after it has generalised;
    ``done`` is the step of its end. ``fitted_at`` and ``generalised_at`` are the steps of the first looks, every 50
    steps, at which 95 % of the equations trained on, and of the others, are right, ``half_at`` that at which half of
    the others are; ``rising_at`` is that of the last look before ``generalised_at`` at which at most 25 % of them are.
    For the columns ``_before``, ``_after`` and ``_share`` see `moments.movement`. ``early_loss`` is the loss on the
    equations trained on at the first look. On another processor it differs by rounding, while rounding decides when,
    and whether, a run generalises, and so all else that is said of its end.
    """
    setting = setting_of(locals(), "folder")
    model, run, stopped = trained(setting, folder)
    looks, found = run.epochs, rise(run.epochs)
    result: Setting = {
        "parameters": sum(value.numel() for value in model.parameters() if value.requires_grad),
        "early_loss": looks[1]["fit_loss"] if len(looks) > 1 else None,
        "done": float(LOOK * looks[-1]["epoch"]),
        "fitted_at": _real(learned_at(looks, "fit")),
        "rising_at": None if found is None else float(LOOK * found[0]),
        "half_at": _real(learned_at(looks, "test", 0.5)),
        "generalised_at": _real(learned_at(looks, "test")),
        "fit_accuracy": looks[-1]["fit_accuracy"],
        "test_accuracy": looks[-1]["test_accuracy"],
        "best_accuracy": max(look["test_accuracy"] for look in looks),
    }
    for name in FOLLOWED:
        result |= movement(looks, name)
    return result | {
        "seconds": round(run.seconds, 1), "threads": run.threads or torch.get_num_threads(), "device": run.device,
        "stopped": stopped,
    }  # fmt: skip


def modular_curves(
    p: int, fraction: float, attention: str, width: int, depth: int, decay: float, steps: int, seed: int, point: int
) -> Setting:
    """One look at a run of `modular_runs`: ``point`` 0 is the untrained network, ``POINTS`` the end of the run."""
    setting = setting_of(locals(), "point")
    if _check.integer("point", point, minimum=0) > POINTS:
        raise ValueError(f"point must be at most {POINTS}, got {point}")
    looks = _run(tuple(setting.items())).epochs
    look = looks[round(point / POINTS * (len(looks) - 1))]
    return {"step": float(LOOK * look["epoch"])} | {name: look[name] for name in SHOWN}


def seconds_to_train(setting: Setting) -> float:
    """About what it takes to train a run to the end of its budget, on one core that is shared with others."""
    return setting["steps"] * (0.004 + step_flops(setting) / 1e10)


@lru_cache(maxsize=2)
def _run(key: tuple) -> Run:
    return trained(dict(key), None)[1]


def _real(value: int | None) -> float | None:
    return None if value is None else float(value)
