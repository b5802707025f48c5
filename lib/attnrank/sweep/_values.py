"""Settings and results of a sweep: plain values that a table holds exactly, in columns of one type each."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
import torch

Value = bool | int | float | str
Setting = dict[str, Any]  # plain values of the kinds of Value
Kinds = dict[str, str]  # the kind of each column, by name
Row = tuple[Value, ...]

KINDS = {bool: "bool", int: "int", float: "float", str: "str"}
DTYPES = {"bool": "bool", "int": "int64", "float": "float64", "str": "str"}


def plain(name: str, value: Any) -> Value:
    """Return ``value`` as a bool, int, float or str that a table holds exactly, or raise ValueError."""
    if isinstance(value, (np.generic, torch.Tensor)) and value.ndim == 0:
        value = value.item()
    if type(value) not in KINDS:
        raise ValueError(f"{name} must be a bool, int, float or str, got {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value!r} (a missing result is None)")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError(f"{name} must fit in 64 bits, got {value!r}")
    # A row is one line of UTF-8, which line ends and lone surrogates would break; the csv module reads no huge field.
    if isinstance(value, str) and not (value.isprintable() and len(value) <= 1000):
        raise ValueError(f"{name} must be printable text of at most 1000 characters, got {value[:60]!r}")
    return value


def grid(**axes: Iterable[Value]) -> list[Setting]:
    """Return the product of the axes as a list of settings, the last axis varying fastest.

    Settings can also be written by hand, and lists of settings concatenated. Raises ValueError for no axis, an empty
    axis, or a value that is not a bool, int, float (finite) or str (printable).

    Examples
    --------
    >>> from attnrank import sweep
    >>> sweep.grid(n=[64, 128], seed=range(2))
    [{'n': 64, 'seed': 0}, {'n': 64, 'seed': 1}, {'n': 128, 'seed': 0}, {'n': 128, 'seed': 1}]
    """
    if not axes:
        raise ValueError("axes must not be empty: grid(n=[8, 16], seed=range(3))")
    for name, values in axes.items():
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise ValueError(f"{name} must be a list of values, got {values!r}")
    axes = {name: [plain(name, value) for value in values] for name, values in axes.items()}
    for name, values in axes.items():
        if not values:
            raise ValueError(f"{name} must not be empty, got {values!r}")
    return [dict(zip(axes, values)) for values in itertools.product(*axes.values())]


def named(what: str, value: object) -> dict:
    """Return ``value`` if it is a non-empty dict whose keys can be column names, or raise ValueError."""
    if not isinstance(value, dict) or not value:
        raise ValueError(f"{what} must be a non-empty dict, got {value!r}")
    for name in value:
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"{what} must have identifiers as keys, got {name!r}")
    return value


def kinds_of(values: dict[str, Value]) -> Kinds:
    return {name: KINDS[type(value)] for name, value in values.items()}


def columns(settings: Iterable[Setting]) -> tuple[Kinds, list[Row]]:
    """Return the kinds of the setting columns, and each setting as its values: the key of its row."""
    if isinstance(settings, (str, dict)) or not isinstance(settings, Iterable):
        raise ValueError(f"settings must be a list of dicts, got {settings!r}")
    settings = [named("settings", setting) for setting in settings]
    if not settings:
        raise ValueError("settings must not be empty, got []")
    kinds = kinds_of({name: plain(name, value) for name, value in settings[0].items()})
    keys = _keys_at_once(kinds, settings) or [_key(kinds, setting) for setting in settings]
    if repeated := len(keys) - len(set(keys)):
        first = next(key for index, key in enumerate(keys) if key in keys[:index])
        raise ValueError(f"settings must differ: {repeated} repeated, the first {dict(zip(kinds, first))}")
    return kinds, keys


def _keys_at_once(kinds: Kinds, settings: list[Setting]) -> list[Row] | None:
    """The keys, column by column; None where a value is not of the type of its column: `_key` makes it so, or says why
    not."""
    if any(setting.keys() != kinds.keys() for setting in settings):
        return None
    of_columns = [[setting[name] for setting in settings] for name in kinds]
    for (name, kind), column in zip(kinds.items(), of_columns):
        if {KINDS.get(type(value)) for value in column} != {kind}:
            return None
        for value in set(column):
            plain(name, value)
    return list(zip(*of_columns))


def _key(kinds: Kinds, setting: Setting) -> Row:
    if setting.keys() != kinds.keys():
        raise ValueError(f"settings must have the same keys: {list(kinds)} and {list(setting)}")
    key = tuple(plain(name, setting[name]) for name in kinds)
    for (name, kind), value in zip(kinds.items(), key):
        if KINDS[type(value)] != kind:
            raise ValueError(f"{name} must be of one type in all settings: {kind}, got {value!r}")
    return key


def frame(kinds: Kinds, rows: list[Row], index: list[int] | None = None) -> pd.DataFrame:
    """Return rows as a DataFrame with int64, float64, bool and str columns."""
    data = zip(kinds.items(), zip(*rows))
    return pd.DataFrame({name: pd.Series(values, index=index, dtype=DTYPES[kind]) for (name, kind), values in data})
