"""Runs of the network of the equations: when it fits, when it generalises, and what its attention does meanwhile."""

from __future__ import annotations

from pathlib import Path

import torch

from attnrank import _check, training
from attnrank.experiments.convex_experiments.equations import LENGTH, Equations
from attnrank.experiments.convex_experiments.network import EquationNetwork
from attnrank.experiments.shared import runs
from attnrank.experiments.shared.runs import runs_folder
from attnrank.models import TransformerConfig
from attnrank.sweep import Setting
from attnrank.training import NonFiniteLoss, Recipe, Run

#: Steps between two looks at a run.
LOOK = 50
#: A part is learned at the first look at which this share of its equations is right.
LEARNED = 0.95


class _Enough(Exception):
    """The run has generalised, and some more looks are taken."""


def network(setting: Setting) -> EquationNetwork:
    """The network of a setting as it is drawn from its seed."""
    width = setting["width"]
    config = TransformerConfig(width, 4, width // 4, setting["depth"], init="lecun")
    generator = torch.Generator().manual_seed(_check.integer("seed", setting["seed"], minimum=0))
    return EquationNetwork(setting["p"], config, setting["attention"], generator)


def recipe(setting: Setting, equations: int) -> Recipe:
    """AdamW as in Power et al. (2022): ten steps of warm-up, then a constant step size, no clipping, no smoothing."""
    looks = setting["steps"] // LOOK
    return Recipe(
        looks, batch=min(512, equations // 2), rate=1e-3, warmup=10 / (looks * LOOK), final=1.0,
        decay=setting["decay"], smoothing=0.0, clip=None, beta2=0.98,
    )  # fmt: skip


def learned_at(looks: list[dict], part: str, bar: float = LEARNED) -> int | None:
    """The step of the first look at which the accuracy on a part ("fit" or "test") is at least ``bar``, or None."""
    return next((LOOK * each["epoch"] for each in looks if each[f"{part}_accuracy"] >= bar), None)


def is_enough(looks: list[dict], steps: int) -> bool:
    """Is the run at its end: the budget of steps, or a quarter of its length and 250 steps past generalisation?"""
    if not looks:
        return False
    done, learned = LOOK * looks[-1]["epoch"], learned_at(looks, "test")
    return done >= LOOK * (steps // LOOK) or (learned is not None and done >= 1.25 * learned + 250)


def run_file(setting: Setting, folder: str | Path) -> Path:
    """The checkpoint of a run in a folder."""
    return runs.run_file(setting, folder, "modular-")


def is_finished(setting: Setting) -> bool:
    """Is there a checkpoint of the whole run in the folder of runs?"""
    folder = runs_folder()
    if folder is None or not run_file(setting, folder).exists():
        return False
    return is_enough(training.load(run_file(setting, folder))[1]["progress"]["epochs"], setting["steps"])


def trained(setting: Setting, folder: str | Path | None) -> tuple[EquationNetwork, Run, str]:
    """The network of a setting after its run, the run, and why it was stopped early by a loss not finite ("" if not).

    Its checkpoint is kept in `runs_folder` if there is one, else in ``folder``; None: nothing is kept.
    """
    model, stopped, folder = network(setting), "", runs_folder() or folder
    equations = Equations(setting["p"], setting["fraction"], setting["seed"], LOOK)
    runs: list[Run] = []

    def stop(_: object) -> None:
        if is_enough(runs[0].epochs, setting["steps"]):
            raise _Enough

    def started(run: Run) -> None:
        runs.append(run)
        stop(None)

    try:
        training.train(
            model, equations, recipe(setting, len(equations.train)), seed=setting["seed"], progress=stop,
            started=started, checkpoint=None if folder is None else run_file(setting, folder),
            label=setting["attention"],
        )  # fmt: skip
    except _Enough:
        pass
    except NonFiniteLoss as error:
        stopped = str(error)[:900]
    return model, runs[0], stopped


def step_flops(setting: Setting) -> float:
    """About the operations of a step of a run: three times the forward pass, matrix products of the blocks only."""
    equations = min(512, round(setting["fraction"] * setting["p"] * (setting["p"] - 1)) // 2)
    return 3 * 2 * equations * 12 * LENGTH * setting["depth"] * setting["width"] ** 2
