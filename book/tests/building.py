"""``jupyter-book build`` as a reader runs it, and from a process that has imported most of what a build imports: that
takes longer than to build a book of three pages, of which the tests build many."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from functools import cache
from multiprocessing.context import ForkServerContext
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRELOADED = [
    "jupyter_book.cli.main", "jupyter_book.sphinx", "jupytext", "myst_nb.sphinx_ext", "sphinx.builders.html",
    "sphinx_book_theme", "sphinx_design", "sphinx_exercise", "sphinx_external_toc", "sphinx_jupyterbook_latex",
    "sphinx_proof", "sphinxcontrib.bibtex", "a11y_pygments", "fontTools.subset", "PIL.Image", "unittest.mock",
]  # fmt: skip


@cache
def server() -> ForkServerContext | None:
    """Of processes that begin with the imports done; None where the system has none, or where what a library does when
    it is imported may not survive a fork (macOS)."""
    if sys.platform != "linux":
        return None
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def in_a_fork(arguments: list[str], folder: str, environment: dict[str, str], output: str) -> None:
    """Run the command in this process, as in one of its own: no path of the tests, all that is printed to a file."""
    from jupyter_book.cli.main import main

    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[:] = ["", *(path for path in sys.path if path and not Path(path).is_relative_to(ROOT))]
    with open(output, "wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="replace")
    main(arguments)


def run(arguments: list[str], folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """The command in a folder; what it prints on both streams is in stdout."""
    context = server()
    if context is None:
        command = [sys.executable, "-c", "from jupyter_book.cli.main import main; main()", *arguments]
        return subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              encoding="utf-8", errors="replace")  # fmt: skip
    with tempfile.TemporaryDirectory() as around:
        output = Path(around, "output")
        process = context.Process(target=in_a_fork, args=(arguments, str(folder), environment, str(output)))
        process.start()
        process.join()
        text = output.read_text(encoding="utf-8", errors="replace") if output.exists() else ""
        return subprocess.CompletedProcess(arguments, process.exitcode or 0, text)
