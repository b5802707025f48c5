"""Where the published tables are, and what a session of work is computed with."""

from __future__ import annotations

import datetime
import hashlib
import os
import platform
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch

from attnrank.sweep._device import device_name
from attnrank.sweep.repeats import Repeats, to_record

PACKAGE = Path(__file__).parents[1]


def results_folder(folder: str | Path | None = None, *, make: bool = False) -> Path:
    """Return the folder of the published tables, from the root: a worker may be in another folder.

    That is the argument, else the environment variable ATTNRANK_RESULTS unless it is empty, else the nearest
    ``book/results`` in the current folder or its parents. Raises ValueError if it does not exist; with ``make``, the
    argument is made.
    """
    if make and folder is not None:
        with suppress(FileExistsError, NotADirectoryError):  # a file is there: refused below
            Path(folder).mkdir(parents=True, exist_ok=True)
    for source, path in (("folder", folder), ("ATTNRANK_RESULTS", os.environ.get("ATTNRANK_RESULTS") or None)):
        if path is not None:
            if not Path(path).is_dir():
                raise ValueError(f"{source} must be an existing folder, got {str(path)!r}; make it, or name the one "
                                 "that has the tables")
            return Path(path).resolve()
    here = Path.cwd()
    for parent in (here, *here.parents):
        if (parent / "book" / "results").is_dir():
            return parent / "book" / "results"
    raise ValueError(
        f"folder: no book/results in {here} or its parents; go to a copy of the book's repository, or name the folder "
        "of the tables by folder= (in a command --folder) or ATTNRANK_RESULTS"
    )


def code_fingerprint() -> str:
    """Return the sha256 (hexadecimal) of the package's Python sources, the same on every platform."""
    sources = {path.relative_to(PACKAGE).as_posix(): path.read_bytes() for path in PACKAGE.rglob("*.py")}
    digest = hashlib.sha256()
    for name in sorted(sources):
        digest.update(name.encode() + b"\0" + sources[name].replace(b"\r\n", b"\n") + b"\0")
    return digest.hexdigest()


def versions() -> dict[str, str]:
    """What two processes must share to compute the same rows."""
    return {"attnrank": code_fingerprint(), "numpy": np.__version__, "torch": torch.__version__}


def declaration(function: Callable, chapter: str, version: int, repeats: Repeats) -> dict:
    """What a table's JSON says of its function, and how its numbers repeat."""
    return {
        "chapter": chapter, "module": getattr(function, "__module__", ""),
        "function": getattr(function, "__qualname__", repr(type(function))), "version": version,
        "repeats": to_record(repeats),
    }  # fmt: skip


def environment() -> dict[str, str]:
    """What a session's rows are computed with; its device is noted anew with each row."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device": device_name(), "platform": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(), "numpy": np.__version__, "torch": torch.__version__,
        "attnrank": version("attnrank"),
    }
