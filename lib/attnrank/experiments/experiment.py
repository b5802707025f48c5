"""What a published table is made of, and the registry of them all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from types import ModuleType

from attnrank import _check
from attnrank.sweep import Exact, Measured, Repeats, Rounding, Setting, Statistical

__all__ = ["Exact", "Experiment", "Measured", "Repeats", "Rounding", "Statistical", "merge"]

THREADS = ("one", "all")


@dataclass(frozen=True)
class Experiment:
    """A function of one setting, the settings of each profile, and the question that the table answers.

    Attributes
    ----------
    chapter : stem of the chapter that the table belongs to, such as "barrier".
    repeats : how the numbers repeat on another processor, which decides how rows are verified.
    version : raised when the numbers change. A table of another version is computed anew.
    data : the column of the settings that holds the name of a data set, "" where none is used: rows can be computed
        again only where that data set is at hand.
    threads : "one", so that rows do not depend on the number of workers, or "all" of this process, one row at a time.
    seconds_again : predicts what it takes to compute a row again, for tables whose sessions only collected what had
        been computed before; None: the sessions say.
    checkpoint : the function is given ``folder``, an existing `pathlib.Path` in which it may keep what it has done of
        the row. It persists when the row is interrupted, and is removed when the row is stored.
    """

    question: str
    function: Callable[..., Setting]
    quick: list[Setting]
    paper: list[Setting]
    _: KW_ONLY
    chapter: str
    repeats: Repeats
    version: int = 1
    data: str = ""
    threads: str = "one"
    checkpoint: bool = False
    seconds_again: Callable[[Setting], float] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.repeats, Repeats):
            raise ValueError("repeats must be Exact(), Rounding(...), Statistical(...) or Measured(), "
                             f"got {self.repeats!r}")
        if not isinstance(self.chapter, str) or not self.chapter.isidentifier():
            raise ValueError(f"chapter must be the stem of a chapter, such as 'barrier', got {self.chapter!r}")
        _check.integer("version", self.version, minimum=1)
        _check.choice("threads", self.threads, THREADS)

    @property
    def module(self) -> str:
        """Name of the module that defines the function."""
        return self.function.__module__

    @property
    def name(self) -> str:
        """Name of the function."""
        return self.function.__qualname__


def merge(modules: Iterable[ModuleType]) -> dict[str, Experiment]:
    """Return the tables of all modules by name. Raises ValueError for a name that two modules use, naming both."""
    merged: dict[str, Experiment] = {}
    owner: dict[str, str] = {}
    for module in modules:
        for table, experiment in module.EXPERIMENTS.items():
            if table in merged:
                raise ValueError(f"table {table!r} is defined twice, in {owner[table]} and in {module.__name__}")
            merged[table], owner[table] = experiment, module.__name__
    return merged
