"""How the numbers of a table repeat on another processor, and how a row that is computed again is compared.

Other processors round differently. What is iterated (ascent, many layers, training) turns rounding into different
numbers. Every table declares one of `Exact`, `Rounding`, `Statistical` and `Measured`; its JSON holds the declaration.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any, ClassVar

import scipy

from attnrank import _check
from attnrank.sweep._values import Setting, Value


@dataclass(frozen=True)
class Exact:
    """Counts by exact routines on inputs drawn on the CPU: equal. Floats are functions of counts: equal to 1e-12.

    Floats may also differ by 1e-15: the spread of equal counts and the sum of differences that cancel are zero but for
    rounding.
    """

    kind: ClassVar[str] = "exact"
    rtol: ClassVar[float] = 1e-12
    atol: ClassVar[float] = 1e-15

    def difference(self, stored: Setting, new: Setting, rows: int) -> str | None:
        """Say where a row, setting and results, differs from the stored one, or return None. ``rows``: in the table."""
        bounds = f"exact, rtol {self.rtol:g}, atol {self.atol:g}"
        return _first(stored, new, lambda name, a, b: _near(a, b, self.rtol, self.atol), lambda name: bounds)

    def __str__(self) -> str:
        return "exact"


@dataclass(frozen=True)
class Rounding:
    """Floats differ by rounding: by at most ``rtol`` times the larger magnitude, or by ``atol``. The rest is equal."""

    rtol: float
    atol: float = 0.0
    kind: ClassVar[str] = "rounding"

    def __post_init__(self) -> None:
        object.__setattr__(self, "rtol", float(_check.real("rtol", self.rtol, minimum=0)))
        object.__setattr__(self, "atol", float(_check.real("atol", self.atol, minimum=0)))

    def difference(self, stored: Setting, new: Setting, rows: int) -> str | None:
        return _first(stored, new, lambda name, a, b: _near(a, b, self.rtol, self.atol), lambda name: self._bounds())

    def _bounds(self) -> str:
        return f"rtol {self.rtol:g}" + (f", atol {self.atol:g}" if self.atol else "")

    def __str__(self) -> str:
        return f"rounding ({self._bounds()})"


@dataclass(frozen=True)
class Statistical:
    """Columns that another processor draws anew, each within a margin that all rows of a table keep but for ``rate``.

    ``errors`` gives for each such column its standard error: a number, or the name of a column of standard errors. The
    difference of two values is taken as normal with sqrt(2) times the stored standard error, and its margin is what it
    exceeds with probability ``rate`` / (rows * columns) at most. Columns that ``errors`` does not name are compared
    with ``rtol``; those of standard errors, which are estimates, within a factor of ``factor``. A standard error can
    also be a mapping from the values of the column ``by``, as text; rows of a value that is not there, and values whose
    standard error is missing, are compared with ``rtol``. Columns that ``ignored`` names, such as the seconds that a
    run took, are facts of one computation and are not compared.

    Rows whose setting has the values of ``before``, such as epoch 0, come before what is iterated: all of their columns
    are compared with ``rtol``. They show whose draws, which weights and which temperature the others began with.
    Rows whose columns of ``early``, such as the step, are at most the numbers given there come before rounding has
    grown: where these columns are computed again the same, ``early_errors`` takes the place of ``errors``.

    A column that is named here and that a table does not have is a ValueError when its rows are compared.
    """

    errors: Mapping[str, str | float | Mapping[str, float]]
    rtol: float = 1e-9
    factor: float = 2.0
    rate: float = 1e-6
    ignored: tuple[str, ...] = ()
    before: Mapping[str, Value] = field(default_factory=dict)
    early: Mapping[str, float] = field(default_factory=dict)
    early_errors: Mapping[str, float] = field(default_factory=dict)
    by: str = ""
    kind: ClassVar[str] = "statistical"
    _names: frozenset[str] = field(init=False, repr=False, compare=False, default=frozenset())

    def __post_init__(self) -> None:
        if not self.errors:
            raise ValueError("errors must name at least one column, got none")
        _check.real("rtol", self.rtol, minimum=0.0)
        _check.real("factor", self.factor, minimum=1.0)
        if not _check.real("rate", self.rate, above=0.0) < 1:
            raise ValueError(f"rate must be less than 1, got {self.rate}")
        for column, error in {**self.errors, **self.early_errors}.items():
            for value in error.values() if isinstance(error, Mapping) else [error]:
                if not isinstance(value, str):
                    _check.real(f"the error of {column}", value, minimum=0.0)
        if bool(self.early) != bool(self.early_errors) or not set(self.early_errors) <= set(self.errors):
            raise ValueError("early_errors must name columns of errors, and be given with early: got "
                             f"early = {self.early} and early_errors = {self.early_errors}")
        if bool(self.by) != any(isinstance(error, Mapping) for error in self.errors.values()):
            raise ValueError(f"by must name a column where errors are mappings, and only there, got {self.by!r}")
        object.__setattr__(self, "errors", dict(self.errors))
        object.__setattr__(self, "ignored", tuple(self.ignored))  # a list in the JSON
        object.__setattr__(self, "_names", frozenset(e for e in self.errors.values() if isinstance(e, str)))

    def difference(self, stored: Setting, new: Setting, rows: int) -> str | None:
        if unknown := self._columns() - stored.keys():
            raise ValueError(f"repeats must name columns of the table, {', '.join(sorted(stored))}, got "
                             f"{', '.join(sorted(unknown))}")
        begins, passed = self.begins(stored), any(stored[name] != new[name] for name in self.early)

        def close(name: str, a: Any, b: Any) -> bool:
            if name in self.ignored:
                return True
            if begins:
                return _near(a, b, self.rtol)
            if name in self.errors and _numbers(a, b):
                return abs(a - b) <= self.margin(name, stored, rows, early=not passed)
            if name in self._names and _numbers(a, b):
                return _near(a, b, 1.0 - 1.0 / self.factor)
            return _near(a, b, self.rtol)

        def bounds(name: str) -> str:
            if name in self.errors and not begins:
                most = self.margin(name, stored, rows, early=not passed)
                return f"statistical, margin {most:.3g}, rate {self.rate:g} over the table"
            return f"statistical, rtol {self.rtol:g}"

        return _first(stored, new, close, bounds)

    def _columns(self) -> set[str]:
        by = {self.by} if self.by else set()
        return {*self.errors, *self._names, *self.ignored, *self.before, *self.early, *by}

    def begins(self, stored: Setting) -> bool:
        """Does a row come before what is iterated?"""
        return bool(self.before) and all(stored[name] == value for name, value in self.before.items())

    def margin(self, name: str, stored: Setting, rows: int, *, early: bool = True) -> float:
        """Largest difference of a column that passes, for a stored row of a table of so many rows.

        ``early``: are the columns of that name the same in the row that is compared with it?
        """
        if self.begins(stored):
            return self.rtol * abs(float(stored[name]))
        error = self.errors[name]
        if early and self.early and all(stored[column] <= most for column, most in self.early.items()):
            error = self.early_errors.get(name, error)
        if isinstance(error, Mapping):
            if str(stored[self.by]) not in error:
                return self.rtol * abs(float(stored[name]))
            error = error[str(stored[self.by])]
        scale = stored[error] if isinstance(error, str) else error
        if math.isnan(scale):
            return self.rtol * abs(float(stored[name]))
        return _deviations(self.rate, rows * len(self.errors)) * math.sqrt(2.0) * float(scale)

    def __str__(self) -> str:
        return f"statistical ({', '.join(self.errors)}; rate {self.rate:g})"


@dataclass(frozen=True)
class Measured:
    """Times and memory of one computation, which no other repeats: rows are not compared."""

    kind: ClassVar[str] = "measured"

    def difference(self, stored: Setting, new: Setting, rows: int) -> str:
        return "its numbers are measured and cannot be compared"

    def __str__(self) -> str:
        return "measured, not compared"


Repeats = Exact | Rounding | Statistical | Measured


def to_record(repeats: Repeats) -> dict:
    """Return what a table's JSON says of how its numbers repeat."""
    fields = {name: value for name, value in asdict(repeats).items() if not name.startswith("_")}
    fields = {name: value for name, value in fields.items() if value not in ((), {}, "")}  # said only where it is used
    fields = {
        name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()
    }  # as it is read
    return {"kind": repeats.kind, **fields}


def from_record(record: dict) -> Repeats:
    """Return the declaration that a table's JSON holds, or raise ValueError or TypeError."""
    fields = dict(record)
    kind = _check.choice("repeats", fields.pop("kind", None), KINDS)
    return KINDS[kind](**fields)


KINDS: dict[str, type] = {kind.kind: kind for kind in (Exact, Rounding, Statistical, Measured)}


@lru_cache
def _deviations(rate: float, comparisons: int) -> float:
    """What a standard normal value exceeds in magnitude with probability rate / comparisons."""
    return float(scipy.stats.norm.isf(rate / (2 * comparisons)))


def _numbers(a: Value, b: Value) -> bool:
    return all(isinstance(x, int | float) and not isinstance(x, bool) and math.isfinite(x) for x in (a, b))


def _near(a: Value, b: Value, rtol: float, atol: float = 0.0) -> bool:
    if not isinstance(a, float) or not isinstance(b, float):
        return a == b
    return abs(a - b) <= max(rtol * max(abs(a), abs(b)), atol) or (math.isnan(a) and math.isnan(b))


def _first(stored: Setting, new: Setting, close, bounds: Callable[[str], str]) -> str | None:
    """The first column that is not close, with both values and its bounds."""
    for name, old in stored.items():
        if not close(name, old, new[name]):
            return f"{name} is {old!r}, recomputed {new[name]!r} ({bounds(name)})"
    return None
