"""Train the runs of a series that are neither published nor finished, in order; several processes share the work.

    ATTNRANK_RUNS=/folder/of/runs nice python -m attnrank.experiments.accuracy "cifar10, short"

A run that is interrupted goes on from its checkpoint. When runs are finished, raise their number in ``FINISHED`` of
:mod:`attnrank.experiments.accuracy.tables` and let the sweep write the tables from the same folder.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping

import torch

from attnrank import _check, training
from attnrank._files import RUNS
from attnrank.experiments.accuracy.runs import accuracy
from attnrank.experiments.accuracy.tables import FINISHED, SERIES
from attnrank.experiments.shared.runs import exit_status, path_of, run_file, runs_folder, unfinished
from attnrank.sweep import Setting


def main(
    arguments: list[str] | None = None, *, series: Mapping[str, list[Setting]] = SERIES,
    published: Mapping[str, int] = FINISHED, compute: Callable[..., Setting] = accuracy,
    program: str = "attnrank.experiments.accuracy",
) -> int:
    """Run the command and return its exit status; other chapters have other series and another function of a run.

    ``published`` says how many runs of a series, from the first, the tables hold: these are passed over.
    """
    what = __doc__.splitlines()[0]
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=what)
    parser.add_argument("series", choices=series, help="a series of runs")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads of this process (default 1)")
    options = parser.parse_args(arguments)
    runs = series[options.series]
    wanted = runs[published[options.series] :]

    def work() -> None:
        torch.set_num_threads(_check.integer("--threads", options.threads, minimum=1))
        outcome = _train(wanted, compute) if wanted else f"all {len(runs)} runs are published"
        print(f"{options.series}: {outcome}")

    return exit_status(work)


def _train(wanted: list[Setting], compute: Callable[..., Setting]) -> str:
    """Train what is missing, with a line for each run, and say what is finished then."""
    folder = runs_folder()
    if folder is None:
        raise ValueError(f"set {RUNS} to the folder in which runs are kept")
    for setting, path in unfinished(wanted, lambda setting: run_file(setting, folder), is_finished):
        row = compute(**setting)
        print(time.strftime("%H:%M:%S"), path.stem, row["stopped"] or f"{row['accuracy']:.4f}", flush=True)
    return f"{sum(map(is_finished, wanted))} of {len(wanted)} runs are finished in {folder}"


def is_finished(setting: Setting) -> bool:
    """Is there a checkpoint of the whole run in the folder of runs?"""
    path = path_of(setting)
    if path is None or not path.exists():
        return False
    return training.load(path)[1]["progress"]["epochs"][-1]["epoch"] == setting["epochs"]


if __name__ == "__main__":
    sys.exit(main())
