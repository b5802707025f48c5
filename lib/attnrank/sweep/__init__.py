"""Sweeps: a grid of settings and a function of one setting give a published table, resumable and checked.

A table is two files. ``NAME.csv`` has one row a setting: the setting's columns, then the result's. ``NAME.json`` beside
it has the provenance: grid, seeds, column types, the function with its module, chapter and version, how its numbers
repeat, and for each session of work its date, versions, device, wall time and rows.

While a sweep runs, the status is "running" and each finished row is appended under a lock, in one write that is forced
to disk. A crash can tear only the last line, which the next run drops and computes again. When all rows are there,
they are sorted in the order of the grid and replace the file in one step, and the status becomes "complete", with a
checksum. Before a row is computed it is claimed by a lock that the operating system frees when its process dies, so
that concurrent runs share the work; a row is stored at most once in any case.

Why plain text and locks, and no database: a running table is the published one but for its order, so that it can be
read, compared in git and mended by hand, and one reader checks both. A transaction would do away with the torn line
alone; that a killed process gives up its claims, and that others wait for them, needs locks and waiting in any case.
Tried with the standard library's sqlite3, `_session` and `_table` went from 389 lines to 399, without what Windows
needs to remove a database that another process has open.

Numbers are written so that they are read back exactly. A missing result is None, stored as nan; a result that is
computed as NaN or infinite is refused.
"""

from attnrank.sweep._device import device
from attnrank.sweep._provenance import results_folder
from attnrank.sweep._recompute import differences, provenance, read, recompute
from attnrank.sweep._run import publish, run
from attnrank.sweep._values import Setting, grid
from attnrank.sweep.repeats import Exact, Measured, Repeats, Rounding, Statistical

__all__ = [
    "Exact",
    "Measured",
    "Repeats",
    "Rounding",
    "Setting",
    "Statistical",
    "device",
    "differences",
    "grid",
    "provenance",
    "publish",
    "read",
    "recompute",
    "results_folder",
    "run",
]
