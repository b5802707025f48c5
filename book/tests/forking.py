"""Processes that begin with the imports done, which take longer than to build a small book or to run most notebooks.

They are forked from one that has imported the libraries, and nothing of this project.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # Windows has none
    from multiprocessing.context import ForkServerContext

ROOT = Path(__file__).resolve().parents[2]
# Not pandas, nor what imports it: when it is imported it asks whether it is in a notebook.
PRELOADED = [
    "jupyter_book.cli.main", "jupyter_book.sphinx", "jupytext", "myst_nb.sphinx_ext", "sphinx.builders.html",
    "sphinx_book_theme", "sphinx_design", "sphinx_exercise", "sphinx_external_toc", "sphinx_jupyterbook_latex",
    "sphinx_proof", "sphinxcontrib.bibtex", "a11y_pygments", "fontTools.subset", "PIL.Image", "unittest.mock",
    "ipykernel.kernelapp", "torch", "scipy.stats", "matplotlib.pyplot", "joblib",
]  # fmt: skip


@cache
def server() -> ForkServerContext | None:
    """What forks; None where the system does not, or where what a library does when it is imported may not survive it
    (macOS)."""
    if sys.platform != "linux":
        return None
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def become(folder: str, environment: dict[str, str], output: str) -> None:
    """Make this process, just forked, like one that was started in a folder; all that is printed goes to a file."""
    gc.freeze()  # what was imported stays
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    tests = [ROOT / "book", ROOT / "lib/tests"]
    sys.path[:] = [path for path in sys.path if path and not any(map(Path(path).is_relative_to, tests))]
    with open(output, "wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="replace")
