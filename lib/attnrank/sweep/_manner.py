"""How the rows of a table are computed: with one thread or all, and with a folder in which a row keeps what is done.

A function so wrapped can be sent to another process, as it could before.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from attnrank import _check
from attnrank.sweep._tabletext import line_of, sha256
from attnrank.sweep._values import Row, Setting

THREADS = ("one", "all")


@dataclass(frozen=True)
class Manner:
    """``threads``: "one", so that rows do not depend on the number of workers, or "all" of the process.

    A row with all threads is alone: other such rows of this user's processes on the machine wait, so that it also has
    the accelerator for itself. ``checkpoint``: the function is given ``folder``, which persists until the row is
    stored.
    """

    threads: str = "one"
    checkpoint: bool = False

    def __post_init__(self) -> None:
        _check.choice("threads", self.threads, THREADS)
        if not isinstance(self.checkpoint, bool):
            raise ValueError(f"checkpoint must be True or False, got {self.checkpoint!r}")

    def require_place(self, workers: int, cluster: object) -> None:
        """Refuse places where rows cannot be computed in this manner."""
        if self.threads == "all" and (workers != 1 or cluster is not None):
            raise ValueError("workers must be 1, without a cluster, for a table whose rows use all threads")
        if self.checkpoint and cluster is not None:
            raise ValueError("cluster must be left out for a table whose rows keep checkpoints in the folder")

    def wrap(self, function: Callable[..., Setting], name: str, folder: Path, version: int) -> Callable[..., Setting]:
        """Return the function of one setting that computes a row of the table ``name`` in this manner."""
        if self == Manner():
            return function
        return _Wrapped(function, name, folder, version, torch.get_num_threads() if self.threads == "all" else 1, self)


@dataclass(frozen=True)
class _Wrapped:
    function: Callable[..., Setting]
    name: str
    folder: Path
    version: int
    threads: int
    manner: Manner

    def __call__(self, **setting: Any) -> Setting:
        before = torch.get_num_threads()
        with _alone() if self.manner.threads == "all" else nullcontext():
            torch.set_num_threads(self.threads)
            try:
                if not self.manner.checkpoint:
                    return self.function(**setting)
                kept = checkpoint_folder(self.folder, self.name, self.version, tuple(setting.values()))
                kept.mkdir(exist_ok=True)
                return self.function(**setting, folder=kept)
            finally:
                torch.set_num_threads(before)


def checkpoint_folder(folder: Path, name: str, version: int, key: Row) -> Path:
    """Where a row keeps what it has done: beside the table, named by the row and the version of its function."""
    return folder / f"{name}.{row_name(key)}.{version}.partial"


def row_name(key: Row) -> str:
    """A short name of a row, the same in every process."""
    return sha256(line_of(key))[:16]


def _alone() -> AbstractContextManager:
    """The lock of this user's rows that use all threads; another user could not open it, and has another."""
    user = os.getuid() if hasattr(os, "getuid") else "user"  # Windows has a temporary folder for each user
    return FileLock(Path(tempfile.gettempdir()) / f"attnrank-alone-{user}.lock")
