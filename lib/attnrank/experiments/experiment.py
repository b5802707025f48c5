"""What a published table is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from attnrank.sweep import Setting


@dataclass(frozen=True)
class Experiment:
    """A function of one setting, the settings of each profile, and the question that the table answers.

    ``data`` names the column of the settings that holds the name of a data set, "" where none is used: rows can be
    computed again only where that data set is at hand. ``timed`` says that the results are measured times, which
    differ from run to run: such rows are not computed again to be compared.
    """

    question: str
    function: Callable[..., Setting]
    quick: list[Setting]
    paper: list[Setting]
    data: str = ""
    timed: bool = False
