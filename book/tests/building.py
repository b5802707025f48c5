"""``jupyter-book build`` as a reader runs it."""

from __future__ import annotations

import gc
import subprocess
import sys
import tempfile
from pathlib import Path

import forking


def in_a_fork(arguments: list[str], folder: str, environment: dict[str, str], output: str) -> None:
    """Run the command in this process, as in one of its own."""
    from jupyter_book.cli.main import main

    forking.become(folder, environment, output)
    sys.path[:] = ["", *(path for path in sys.path if not Path(path).is_relative_to(forking.ROOT))]
    gc.disable()  # a sixth of the time, for a process that ends in a minute
    main(arguments)


def run(arguments: list[str], folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """The command in a folder; what it prints on both streams is in stdout."""
    context = forking.server()
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
