"""When a run generalises, and whether a quantity moves then more than it moves otherwise."""

from __future__ import annotations

import numpy as np
import pandas as pd

from attnrank.experiments.convex_experiments.grokking import LOOK, learned_at
from attnrank.sweep import Setting

#: Generalisation begins at the last look before it at which at most this share of the test is right.
RISING = 0.25
#: What is followed: ranks of the first attention, and how many tokens the row of the answer attends to in the second.
FOLLOWED = ("hardmax_1", "rank_at_tenth_1", "stable_1", "attended_2")


def rise(looks: list[dict]) -> tuple[int, int] | None:
    """Numbers of the looks between which a run generalises: the last with test accuracy at most ``RISING`` before the
    first with ``LEARNED``; None for a run that does not."""
    learned = learned_at(looks, "test")
    if learned is None:
        return None
    end = learned // LOOK
    before = [i for i in range(end) if looks[i]["test_accuracy"] <= RISING]
    return (before[-1] if before else 0), end


def movement(looks: list[dict], name: str) -> Setting:
    """How far ``name`` moves while a run generalises, beside its movement over as many steps before.

    ``before`` and ``after`` are its values at both ends of `rise`; ``share`` is the share of the windows of the same
    length, from the first look at which the run fits to the beginning of the rise, in which it moves at least as far.
    None where there is no rise, or no such window.
    """
    found, fitted = rise(looks), learned_at(looks, "fit")
    if found is None or fitted is None:
        return {f"{name}_before": None, f"{name}_after": None, f"{name}_share": None}
    start, end = found
    values = np.array([look[name] for look in looks])
    first, length = fitted // LOOK, end - start
    moves = np.empty(0)
    if start >= first + length:
        moves = np.abs(values[first + length : start + 1] - values[first : start + 1 - length])
    share = float(np.mean(moves >= abs(values[end] - values[start]))) if len(moves) else None
    return {f"{name}_before": float(values[start]), f"{name}_after": float(values[end]), f"{name}_share": share}


def windows(runs: pd.DataFrame) -> pd.Series:
    """How many windows `movement` compares the rise of each run with: rows of ``modular_runs`` -> counts."""
    return (2 * runs.rising_at - runs.fitted_at - runs.generalised_at) / LOOK + 1


def place(runs: pd.DataFrame, name: str) -> pd.Series:
    """(1 + c) / (1 + m) for each run, where in c of its m `windows` ``name`` moves at least as far as in the rise.

    Were the rise one of the m + 1 in random order, this would be at most q with probability at most q. ``c / m`` would
    be so more often: 0 with probability 1 / (m + 1). Phipson and Smyth (2010), Permutation P-values should never be 0.
    """
    m = windows(runs)
    return (1 + np.rint(runs[f"{name}_share"] * m)) / (1 + m)
