"""A table on disk as it is read: two files that are checked against each other, the CSV line by line.

``NAME.json`` says what ``NAME.csv`` must hold. A complete table is compared with its grid, its number of rows and its
checksum. The CSV of a running table grows while others read it, and its last line may be torn.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import pandas as pd

from attnrank.sweep._tabletext import line_of, rows_of, sha256, text_of, unpack, values_of
from attnrank.sweep._values import DTYPES, Kinds, Row, Setting, Value, frame, kinds_of
from attnrank.sweep.repeats import from_record

REMEDY = "restore both files from version control, or delete both and run the sweep again"
FIELDS: dict[str, Any] = {
    "name": str,
    "status": str,
    "settings": dict,
    "results": (dict, type(None)),
    "grid": (dict, list),
    "chapter": str,
    "module": str,
    "function": str,
    "version": int,
    "repeats": dict,
    "rows": (int, type(None)),
    "sha256": (str, type(None)),
    "sessions": list,
}


class Table:
    """The provenance of a table, and the rows read from it so far by their settings' values (the keys)."""

    record: dict
    keys: list[Row]
    settings: Kinds
    results: Kinds | None  # None until the first row is stored

    def __init__(self, name: str, folder: Path) -> None:
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_-]+", name):
            raise ValueError(f"name must consist of letters, digits, hyphens and underscores, got {name!r}")
        self.name, self.folder = name, folder
        self.csv, self.json = folder / f"{name}.csv", folder / f"{name}.json"
        self._forget()

    @property
    def complete(self) -> bool:
        return self.record["status"] == "complete"

    def columns(self) -> Kinds:
        """The kinds of all columns; those of results are known once a row is stored."""
        return self.settings | (self.results or {})

    def setting(self, key: Row) -> Setting:
        return dict(zip(self.settings, key))

    def frame(self) -> pd.DataFrame:
        return frame(self.columns(), [self.rows[key] for key in self.keys])

    def holds(self, kinds: Kinds, keys: list[Row], declared: dict) -> bool:
        """Is the table for this grid, in this order, and of an experiment that is declared so?"""
        same = all(self.record[field] == value for field, value in declared.items())
        return same and list(self.settings.items()) == list(kinds.items()) and self.keys == keys

    def ordered(self, result: dict[str, Value]) -> Row:
        """Return the values of a result in the order of the stored columns, or raise ValueError if they differ."""
        kinds = kinds_of(result)
        if self.results is not None and kinds != self.results:
            raise ValueError(f"function must return the same columns for every setting: {self.results}, got {kinds}")
        return tuple(result[name] for name in self.results or kinds)

    def text(self) -> str:
        """Return what the CSV must contain for the rows read so far."""
        return line_of(self.columns()) + text_of(self.rows.values())

    def refuse(self, path: Path, why: str, remedy: str = REMEDY) -> NoReturn:
        raise ValueError(f"{path}: {why}; {remedy}")

    def load(self) -> None:
        """Read both files; a complete table is checked in full, a running one may end in a torn line."""
        self.load_record()
        self._forget()
        self.refresh()
        if self.complete:
            self._check_complete()

    def require_complete(self) -> None:
        again = f"run the sweep {self.name} again to finish it"
        self._refuse_torn(again)
        if not self.complete:
            self.refuse(self.csv, f"the table is unfinished, {len(self.rows)} of {len(self.keys)} rows", again)

    def _check_complete(self) -> None:
        if not self.csv.exists():
            self.refuse(self.csv, "the file is missing, and its provenance says that it is complete")
        self._refuse_torn(REMEDY)
        if list(self.rows) != self.keys or len(self.rows) != self.record["rows"]:
            self.refuse(self.csv, f"its {len(self.rows)} rows are not the {len(self.keys)} settings in {self.json}")
        if sha256(self.text()) != self.record["sha256"]:
            self.refuse(self.csv, f"the checksum in {self.json} is not that of the file")

    def _refuse_torn(self, remedy: str) -> None:
        if self.torn:
            raise ValueError(f"{self.csv} line {self.lines + 1}: the line is torn (it has no line end); {remedy}")

    def load_record(self) -> None:
        """Read the JSON."""
        try:
            record = json.loads(self.json.read_bytes())
            self._check_record(record)
            keys = unpack(record["settings"], record["grid"])
        except FileNotFoundError:
            if self.csv.exists():
                self.refuse(self.json, f"the provenance of {self.csv} is missing")
            self.refuse(self.csv, "there is no such table", f"run the sweep {self.name} to compute it")
        except KeyError as error:
            self.refuse(self.json, f"invalid provenance: no field {error}")
        except (ValueError, TypeError) as error:
            self.refuse(self.json, f"invalid provenance: {error}")
        self.record, self.keys, self._known = record, keys, set(keys)
        self.settings, self.results = record["settings"], record["results"]

    def _check_record(self, record: dict) -> None:
        for field, types in FIELDS.items():
            if not isinstance(record[field], types):
                raise ValueError(f"{field} is {record[field]!r}")
        if record["name"] != self.name:
            raise ValueError(f"it describes another table, {record['name']!r}")
        if record["status"] not in ("running", "complete"):
            raise ValueError(f"status is {record['status']!r}")
        if not {*record["settings"].values(), *(record["results"] or {}).values()} <= DTYPES.keys():
            raise ValueError("unknown column type")
        from_record(record["repeats"])
        if record["status"] == "complete" and not record["results"]:
            raise ValueError("complete without result columns")

    def _forget(self) -> None:
        self.rows: dict[Row, Row] = {}
        self.lines, self.offset = 0, 0  # whole lines read so far, and their bytes
        self.torn = False
        self._inode: int | None = None

    def refresh(self) -> None:
        """Read the lines that were stored since the last call; a torn last line is left where it is."""
        try:
            with self.csv.open("rb") as file:
                status = os.fstat(file.fileno())
                if status.st_ino != self._inode or status.st_size < self.offset:  # replaced, or cut: read it anew
                    self._forget()
                    self._inode = status.st_ino
                file.seek(self.offset)
                whole, newline, torn = file.read().rpartition(b"\n")
        except FileNotFoundError:
            return self._forget()
        self.torn = bool(torn)
        if newline:
            # git may have checked the file out with Windows line ends
            lines = [line.removesuffix(b"\r") for line in whole.split(b"\n")]
            for line, values in zip(lines, self._at_once(lines)):
                self._take(line, values)
            self.offset += len(whole) + 1

    def _at_once(self, lines: list[bytes]) -> Sequence[Row | None]:
        """The values of each line; None for a header, and for all where something is wrong, or not known yet."""
        headers = int(self.lines == 0)
        with suppress(UnicodeDecodeError):
            rows = self.results and rows_of([line.decode() for line in lines[headers:]], self.columns())
            if rows:
                return [None] * headers + rows
        return [None] * len(lines)

    def _take(self, raw: bytes, values: Row | None) -> None:
        """Take a line; without its values they are read here, or what is wrong with it is said."""
        self.lines += 1
        try:
            line = raw.decode()
            if self.results is None:  # the columns are recorded just before the first row is stored
                self.load_record()
            if self.results is None:
                raise ValueError(f"rows, but no result columns in {self.json}")
            if self.lines == 1:
                self._check_header(line)
            else:
                self._add(values or values_of(line, self.columns()))
        except ValueError as error:
            raise ValueError(f"{self.csv} line {self.lines}: {error}; {REMEDY}") from None

    def _check_header(self, line: str) -> None:
        header = line_of(self.columns())
        if line + "\n" != header:
            raise ValueError(f"the header must be {header.strip()!r}, got {line[:60]!r}")

    def _add(self, values: Row) -> None:
        key = values[:len(self.settings)]
        if key not in self._known:  # another process may have extended the grid
            self.load_record()
        if key not in self._known:
            raise ValueError(f"the setting {self.setting(key)} is not in the grid of {self.json}")
        if key in self.rows:
            raise ValueError(f"the setting {self.setting(key)} is stored twice")
        self.rows[key] = values
