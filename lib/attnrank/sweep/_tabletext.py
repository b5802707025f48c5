"""The text of a table's two files: lines of CSV that are read back exactly, and JSON that is short to compare."""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import json
import math
from collections.abc import Callable, Iterable

from attnrank.sweep._values import Kinds, Row, Value, columns

_FROM_TEXT: dict[str, Callable[[str], Value | None]] = {
    "bool": {"True": True, "False": False}.get,
    "int": int,
    "float": float,
    "str": str,
}


def line_of(values: Iterable[Value]) -> str:
    """Return a line of CSV with its line end."""
    return text_of([values])


def text_of(rows: Iterable[Iterable[Value]]) -> str:
    """Return the lines of rows."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)  # floats by repr, which is read back exactly
    return text.getvalue()


def rows_of(lines: list[str], kinds: Kinds) -> list[Row] | None:
    """Return the values of lines, column by column, which is faster than `values_of` of each.

    None if one is not exactly what `line_of` writes: which, and why, `values_of` says.
    """
    try:
        fields = list(csv.reader(lines, strict=True))
        if not fields or {len(row) for row in fields} != {len(kinds)}:
            return None
        of_columns = [list(map(_FROM_TEXT[kind], column)) for kind, column in zip(kinds.values(), zip(*fields))]
    except (csv.Error, ValueError):
        return None
    for kind, column in zip(kinds.values(), of_columns):
        if kind == "bool" and None in column or kind == "float" and not {math.inf, -math.inf}.isdisjoint(column):
            return None
    rows = list(zip(*of_columns))
    return rows if text_of(rows) == "".join(f"{line}\n" for line in lines) else None


def values_of(line: str, kinds: Kinds) -> Row:
    """Return the values of a line, or raise ValueError if it is not exactly what `line_of` writes for them."""
    try:
        fields = next(csv.reader([line], strict=True))
    except csv.Error as error:
        raise ValueError(error) from None
    if len(fields) != len(kinds):
        raise ValueError(f"{len(fields)} fields instead of {len(kinds)}")
    values = tuple(_value(name, kind, field) for (name, kind), field in zip(kinds.items(), fields))
    if line_of(values) != line + "\n":
        raise ValueError(f"not written by a sweep: {line[:60]!r}")
    return values


def _value(name: str, kind: str, field: str) -> Value:
    try:
        value = _FROM_TEXT[kind](field)
    except ValueError:
        value = None
    if value is None or str(value) != field or (isinstance(value, float) and math.isinf(value)):
        raise ValueError(f"{name} must be of type {kind}, got {field!r}")
    return value


def json_text(record: dict) -> str:
    """Return JSON with one line for each field, setting and session: short to read, and to compare in git."""

    def show(value: object) -> str:
        if isinstance(value, list) and value and isinstance(value[0], (list, dict)):
            return "[\n    " + ",\n    ".join(map(json.dumps, value)) + "\n  ]"
        return json.dumps(value)

    return "{\n" + ",\n".join(f"  {json.dumps(name)}: {show(value)}" for name, value in record.items()) + "\n}\n"


def pack(kinds: Kinds, keys: list[Row]) -> dict[str, list] | list[list]:
    """Return the grid for the JSON: its axes if it is their product, else the list of settings."""
    axes = {name: list(dict.fromkeys(column)) for name, column in zip(kinds, zip(*keys))}
    product = math.prod(map(len, axes.values())) == len(keys) and list(itertools.product(*axes.values())) == keys
    return axes if product else [list(key) for key in keys]


def unpack(kinds: Kinds, packed: dict[str, list] | list[list]) -> list[Row]:
    """Return the keys of a grid in the JSON, or raise ValueError or TypeError if it does not have these columns."""
    names, rows = (packed, itertools.product(*packed.values())) if isinstance(packed, dict) else (kinds, packed)
    found, keys = columns([dict(zip(names, row, strict=True)) for row in rows])
    if list(found.items()) != list(kinds.items()):
        raise ValueError(f"grid must have columns {kinds}, got {found}")
    return keys


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
