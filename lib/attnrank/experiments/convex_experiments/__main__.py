"""Train the runs of a series that are neither published nor finished, in order; several processes share the work.

    ATTNRANK_RUNS=/folder/of/runs nice python -m attnrank.experiments.convex_experiments "p = 17" "p = 31"

A run that is interrupted goes on from its checkpoint. When runs are finished, raise their number in ``FINISHED`` of
:mod:`attnrank.experiments.convex_experiments.tables` and let the sweep write the tables from the same folder.
"""

from __future__ import annotations

import argparse
import sys
import time

import torch

from attnrank._files import RUNS
from attnrank.experiments.convex_experiments.grokking import is_finished, run_file
from attnrank.experiments.convex_experiments.modular import modular_runs
from attnrank.experiments.convex_experiments.series import SERIES
from attnrank.experiments.convex_experiments.tables import FINISHED
from attnrank.experiments.shared.runs import exit_status, runs_folder, unfinished
from attnrank.sweep import Setting


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit status."""
    what = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m attnrank.experiments.convex_experiments", description=what)
    parser.add_argument("series", nargs="+", choices=SERIES, help="series of runs, in this order")
    parser.add_argument("--first", type=int, metavar="K", help="only the first K runs of each")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)

    def work() -> None:
        for name in options.series:
            wanted = SERIES[name][FINISHED.get(name, 0) :]
            outcome = _train(wanted, options.first) if wanted else f"all {len(SERIES[name])} runs are published"
            print(f"{name}: {outcome}", flush=True)

    return exit_status(work)


def _train(wanted: list[Setting], first: int | None) -> str:
    """Train what is missing of the first runs, with a line for each, and say what is finished then."""
    folder = runs_folder()
    if folder is None:
        raise ValueError(f"set {RUNS} to the folder in which runs are kept")
    for setting, path in unfinished(wanted[:first], lambda setting: run_file(setting, folder), is_finished):
        row = modular_runs(**setting)
        learned = row["stopped"] or f"fits at {row['fitted_at']}, generalises at {row['generalised_at']}"
        print(time.strftime("%H:%M:%S"), path.stem, learned, flush=True)
    return f"{sum(map(is_finished, wanted))} of {len(wanted)} runs are finished in {folder}"


if __name__ == "__main__":
    sys.exit(main())
