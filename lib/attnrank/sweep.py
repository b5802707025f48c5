"""Sweeps: a grid of settings and a function of one setting give a published table, resumable and checked.

A table is two files. ``NAME.csv`` has one row a setting: the setting's columns, then the result's. ``NAME.json`` beside
it has the provenance: grid, seeds, column types, tolerance, and for each session of work its date, versions, code
fingerprints, device, wall time and rows.

While a sweep runs, the status is "running" and each finished row is appended under a lock, in one write that is forced
to disk. A crash can tear only the last line, which the next run drops and computes again. When all rows are there,
they are sorted in the order of the grid and replace the file in one step, and the status becomes "complete", with a
checksum. Before a row is computed it is claimed by a lock that the operating system frees when its process dies, so
that concurrent runs share the work; a row is stored at most once in any case.

Numbers are written so that they are read back exactly. A missing result is None, stored as nan; a result that is
computed as NaN or infinite is refused.
"""

from __future__ import annotations

import csv
import datetime
import hashlib
import inspect
import io
import itertools
import json
import math
import os
import pickle
import platform
import re
import sys
import time
import traceback
import unicodedata
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, wait
from contextlib import closing, suppress
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from filelock import FileLock, Timeout
from joblib.externals.loky import get_reusable_executor
from tqdm import tqdm

from attnrank import _check

Value = bool | int | float | str
Setting = dict[str, Value]

_KINDS = {bool: "bool", int: "int", float: "float", str: "str"}
_DTYPES = {"bool": "bool", "int": "int64", "float": "float64", "str": "str"}
_REMEDY = "restore both files from version control, or delete both and run the sweep again"
_RECORD = {"name": str, "status": str, "settings": dict, "results": (dict, type(None)), "grid": (dict, list),
           "rtol": float, "rows": (int, type(None)), "sha256": (str, type(None)), "sessions": list}


def grid(**axes: Iterable[Value]) -> list[Setting]:
    """Return the product of the axes as a list of settings, the last axis varying fastest.

    Settings can also be written by hand, and lists of settings concatenated. Raises ValueError for no axis, an empty
    axis, or a value that is not a bool, int, float (finite) or str (without control characters).
    """
    if not axes:
        raise ValueError("axes must not be empty: grid(n=[8, 16], seed=range(3))")
    for name, values in axes.items():
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise ValueError(f"{name} must be a list of values, got {values!r}")
    axes = {name: [_plain(name, value) for value in values] for name, values in axes.items()}
    for name, values in axes.items():
        if not values:
            raise ValueError(f"{name} must not be empty, got {values!r}")
    return [dict(zip(axes, values)) for values in itertools.product(*axes.values())]


def run(name: str, function: Callable[..., dict], settings: Iterable[Setting], *, folder: str | Path | None = None,
        workers: int = 1, rtol: float = 1e-9) -> pd.DataFrame:
    """Return the table of ``function(**setting)`` over the settings, computing only the rows that are not stored.

    A complete table is returned as it is. A grid that contains the stored one extends it. An interrupted run keeps
    every finished row: run it again. On a terminal a progress bar shows rate and remaining time.

    Parameters
    ----------
    name : the table's name: letters, digits, hyphens, underscores.
    function : gives a dict of result columns (bool, int, float, str, or None for a missing float), the same columns
        for every setting. It is called with one torch thread, so that rows do not depend on the number of workers.
    settings : dicts with the same keys; each key has values of one type.
    folder : see `results_folder`.
    workers : number of processes; 1 computes in this one.
    rtol : relative tolerance that `recompute` grants this table's floats.

    Raises
    ------
    ValueError : bad argument; damaged table (the message names file, line and remedy); stored rows of another grid.
    RuntimeError : the function failed; the message names the setting, and all other finished rows are stored.
    """
    if not callable(function):
        raise ValueError(f"function must be callable, got {function!r}")
    workers = _check.integer("workers", workers, minimum=1)
    rtol = _check.real("rtol", rtol, minimum=0)
    kinds, keys = _columns(settings)
    table = _Table(name, folder)
    if table.json.exists():  # a published table is read without a lock, so its folder may be read-only
        table.load()
        if table.complete and table.holds(kinds, keys, rtol):
            return table.frame()
    with table.lock:
        table.open(kinds, keys, rtol, function)
    try:
        try:
            _fill(table, function, keys, workers)
        finally:
            for key in list(table.claims):
                table.release(key)
        table.publish(keys)
    except BaseException as error:
        error.add_note(f"sweep {name}: {len(table.rows)} of {len(keys)} rows are stored in {table.csv}; "
                       "run it again for the others")
        raise
    finally:
        table.save()
    return table.frame()


def read(name: str, *, folder: str | Path | None = None) -> pd.DataFrame:
    """Return a published table: int64, float64, bool and str columns, rows in the order of the grid.

    Raises ValueError for a table that is missing, unfinished or damaged, with the file, the line and the remedy.
    """
    return _published(name, folder).frame()


def recompute(name: str, function: Callable[..., dict], *, generator: torch.Generator, rows: int = 5,
              folder: str | Path | None = None) -> pd.DataFrame:
    """Recompute a random sample of the rows of a published table, and return the recomputed rows.

    Floats may differ by the table's ``rtol`` times the larger magnitude; everything else must be equal. Raises
    ValueError at the first difference, naming file, line, setting, and both values.
    """
    _check.generator("generator", generator)
    rows = _check.integer("rows", rows, minimum=1)
    table = _published(name, folder)
    sample = sorted(torch.randperm(len(table.keys), generator=generator)[:rows].tolist())
    recomputed = []
    for index in sample:
        key, setting = table.keys[index], table.setting(table.keys[index])
        result = _call(function, setting)
        if isinstance(result, Exception):
            raise RuntimeError(f"recompute {name}: the function failed for {setting}: {result!r}") from result
        values = table.ordered(result)
        for column, kind, stored, value in zip(result, table.results.values(), table.rows[key][len(key):], values):
            same = _close(stored, value, table.record["rtol"]) if kind == "float" else stored == value
            if not same:
                raise ValueError(f"{table.csv} line {index + 2}: {column} is {stored!r}, recomputed {value!r}, "
                                 f"for {setting} (rtol {table.record['rtol']})")
        recomputed.append(key + values)
    return _frame(table.settings | table.results, recomputed, sample)


def results_folder(folder: str | Path | None = None) -> Path:
    """Return the folder of the published tables.

    That is the argument, else the environment variable ATTNRANK_RESULTS, else the nearest ``book/results`` in the
    current folder or its parents. Raises ValueError if it does not exist.
    """
    for source, path in (("folder", folder), ("ATTNRANK_RESULTS", os.environ.get("ATTNRANK_RESULTS"))):
        if path is not None:
            if not Path(path).is_dir():
                raise ValueError(f"{source} must be an existing folder, got {str(path)!r}")
            return Path(path)
    here = Path.cwd()
    for parent in (here, *here.parents):
        if (parent / "book" / "results").is_dir():
            return parent / "book" / "results"
    raise ValueError(f"folder: no book/results in {here} or its parents; pass folder=, or set ATTNRANK_RESULTS")


def code_fingerprint() -> str:
    """Return the sha256 (hexadecimal) of the package's Python sources, the same on every platform."""
    root = Path(__file__).parent
    sources = {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*.py")}
    digest = hashlib.sha256()
    for name in sorted(sources):
        digest.update(name.encode() + b"\0" + sources[name].replace(b"\r\n", b"\n") + b"\0")
    return digest.hexdigest()


# Values, settings and results ---------------------------------------------------------------------------------------

def _plain(name: str, value: object) -> Value:
    """Return ``value`` as a bool, int, float or str that a table holds exactly, or raise ValueError."""
    if isinstance(value, (np.generic, torch.Tensor)) and value.ndim == 0:
        value = value.item()
    if type(value) not in _KINDS:
        raise ValueError(f"{name} must be a bool, int, float or str, got {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value!r} (a missing result is None)")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError(f"{name} must fit in 64 bits, got {value!r}")
    if isinstance(value, str) and (len(value) > 1000 or any(unicodedata.category(c) in ("Cc", "Cs") for c in value)):
        raise ValueError(f"{name} must have at most 1000 characters and no control characters, got {value[:60]!r}")
    return value


def _named(what: str, value: object) -> dict:
    """Return ``value`` if it is a non-empty dict whose keys can be column names, or raise ValueError."""
    if not isinstance(value, dict) or not value:
        raise ValueError(f"{what} must be a non-empty dict, got {value!r}")
    for name in value:
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"{what} must have identifiers as keys, got {name!r}")
    return value


def _columns(settings: Iterable[Setting]) -> tuple[dict[str, str], list[tuple]]:
    """Return the kinds of the setting columns, and the settings as tuples of values."""
    if isinstance(settings, (str, dict)) or not isinstance(settings, Iterable):
        raise ValueError(f"settings must be a list of dicts, got {settings!r}")
    settings = [_named("settings", setting) for setting in settings]
    if not settings:
        raise ValueError("settings must not be empty, got []")
    kinds = {name: _KINDS[type(_plain(name, value))] for name, value in settings[0].items()}
    keys = []
    for setting in settings:
        if setting.keys() != kinds.keys():
            raise ValueError(f"settings must have the same keys: {list(kinds)} and {list(setting)}")
        key = tuple(_plain(name, setting[name]) for name in kinds)
        for name, value in zip(kinds, key):
            if _KINDS[type(value)] != kinds[name]:
                raise ValueError(f"{name} must be of one type in all settings: {kinds[name]}, got {value!r}")
        keys.append(key)
    if repeated := len(keys) - len(set(keys)):
        first = next(key for i, key in enumerate(keys) if key in keys[:i])
        raise ValueError(f"settings must differ: {repeated} repeated, the first {dict(zip(kinds, first))}")
    return kinds, keys


def _call(function: Callable[..., dict], setting: Setting) -> dict[str, Value] | Exception:
    """Return the result columns for a setting, or the exception that the function raised."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        result = _named("the function's result", function(**setting))
        if shared := result.keys() & setting.keys():
            raise ValueError(f"the function's result must not repeat the setting {sorted(shared)}")
        return {name: math.nan if value is None else _plain(name, value) for name, value in result.items()}
    except Exception as error:
        return error
    finally:
        torch.set_num_threads(threads)


def _call_in_worker(function: Callable[..., dict], setting: Setting) -> dict[str, Value] | Exception:
    """As `_call`; an exception becomes one that can always be sent to another process."""
    result = _call(function, setting)
    if isinstance(result, Exception):
        plain = RuntimeError(f"{type(result).__name__}: {result}")
        plain.add_note("".join(traceback.format_exception(result)))
        return plain
    return result


def _close(a: float, b: float, rtol: float) -> bool:
    return abs(a - b) <= rtol * max(abs(a), abs(b)) or (math.isnan(a) and math.isnan(b))


def _frame(kinds: dict[str, str], rows: list[tuple], index: list[int] | None = None) -> pd.DataFrame:
    columns = zip(kinds.items(), zip(*rows))
    return pd.DataFrame({name: pd.Series(values, index=index, dtype=_DTYPES[kind]) for (name, kind), values in columns})


# Text of the two files ----------------------------------------------------------------------------------------------

def _line(values: Iterable[Value]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(values)  # floats by repr, which is read back exactly
    return text.getvalue()


def _values(line: str, kinds: dict[str, str]) -> tuple:
    """Return the values of a line, or raise ValueError if it is not exactly what `_line` writes for them."""
    fields = next(csv.reader([line], strict=True))
    if len(fields) != len(kinds):
        raise ValueError(f"{len(fields)} fields instead of {len(kinds)}")
    convert = {"int": int, "float": float, "str": str, "bool": lambda field: field == "True"}
    values = []
    for (name, kind), field in zip(kinds.items(), fields):
        try:
            values.append(convert[kind](field))
            if str(values[-1]) != field or field in ("inf", "-inf") and kind == "float":
                raise ValueError
        except ValueError:
            raise ValueError(f"{name} must be of type {kind}, got {field!r}") from None
    if _line(values) != line + "\n":
        raise ValueError(f"not written by a sweep: {line[:60]!r}")
    return tuple(values)


def _json_text(record: dict) -> str:
    """JSON with one line for each field, setting and session: short enough to read, and to compare in git."""
    def show(value):
        if isinstance(value, list) and value and isinstance(value[0], (list, dict)):
            return "[\n    " + ",\n    ".join(map(json.dumps, value)) + "\n  ]"
        return json.dumps(value)
    return "{\n" + ",\n".join(f"  {json.dumps(name)}: {show(value)}" for name, value in record.items()) + "\n}\n"


def _pack(kinds: dict[str, str], keys: list[tuple]) -> dict[str, list] | list[list]:
    """The grid for the JSON: its axes if it is their product, else the list of settings."""
    axes = {name: list(dict.fromkeys(column)) for name, column in zip(kinds, zip(*keys))}
    product = math.prod(map(len, axes.values())) == len(keys) and list(itertools.product(*axes.values())) == keys
    return axes if product else [list(key) for key in keys]


def _unpack(kinds: dict[str, str], packed: dict[str, list] | list[list]) -> list[tuple]:
    settings = grid(**packed) if isinstance(packed, dict) else [dict(zip(kinds, key, strict=True)) for key in packed]
    found, keys = _columns(settings)
    if list(found.items()) != list(kinds.items()):
        raise ValueError(f"grid must have columns {kinds}, got {found}")
    return keys


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _write(path: Path, text: str) -> None:
    """Replace a file in one step; the table's lock must be held."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())
    for _ in range(100):  # Windows refuses while another process has the file open for reading
        with suppress(PermissionError):
            return os.replace(temporary, path)
        time.sleep(0.02)
    os.replace(temporary, path)


# A table on disk ----------------------------------------------------------------------------------------------------

class _Table:
    """The two files of a table, the rows read from them so far, and this session's work on them."""

    def __init__(self, name: str, folder: str | Path | None):
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_-]+", name):
            raise ValueError(f"name must consist of letters, digits, hyphens and underscores, got {name!r}")
        self.name = name
        self.folder = results_folder(folder)
        self.csv, self.json = self.folder / f"{name}.csv", self.folder / f"{name}.json"
        self.lock = FileLock(self.folder / f"{name}.lock")
        self.claims: dict[tuple, FileLock] = {}
        self.session: dict = {}
        self.forget()

    def refuse(self, path: Path, why: str, remedy: str = _REMEDY):
        raise ValueError(f"{path}: {why}; {remedy}")

    def setting(self, key: tuple) -> Setting:
        return dict(zip(self.settings, key))

    @property
    def complete(self) -> bool:
        return self.record["status"] == "complete"

    def holds(self, kinds: dict[str, str], keys: list[tuple], rtol: float) -> bool:
        return list(self.settings.items()) == list(kinds.items()) and self.keys == keys and self.record["rtol"] == rtol

    def frame(self) -> pd.DataFrame:
        return _frame(self.settings | self.results, [self.rows[key] for key in self.keys])

    # Reading

    def load(self) -> None:
        """Read both files; a complete table is checked in full, a running one may end in a torn line."""
        self.load_record()
        self.forget()
        self.refresh()
        if self.complete:
            if not self.csv.exists():
                self.refuse(self.csv, "the file is missing, and its provenance says that it is complete")
            self.refuse_torn(_REMEDY)
            text = self.text()
            if list(self.rows) != self.keys or len(self.rows) != self.record["rows"]:
                self.refuse(self.csv, f"its {len(self.rows)} rows are not the {len(self.keys)} settings in {self.json}")
            if _sha256(text) != self.record["sha256"]:
                self.refuse(self.csv, f"the checksum in {self.json} is not that of the file")

    def load_record(self) -> None:
        try:
            record = json.loads(self.json.read_bytes())
            for field, types in _RECORD.items():
                if not isinstance(record[field], types) or isinstance(record[field], bool):
                    raise ValueError(f"{field} is {record[field]!r}")
            if record["name"] != self.name:
                raise ValueError(f"it describes another table, {record['name']!r}")
            if record["status"] not in ("running", "complete"):
                raise ValueError(f"status is {record['status']!r}")
            if not {*record["settings"].values(), *(record["results"] or {}).values()} <= _DTYPES.keys():
                raise ValueError("unknown column type")
            if record["status"] == "complete" and not record["results"]:
                raise ValueError("complete without result columns")
            keys = _unpack(record["settings"], record["grid"])
        except FileNotFoundError:
            if self.csv.exists():
                self.refuse(self.json, f"the provenance of {self.csv} is missing")
            self.refuse(self.csv, "there is no such table", f"run the sweep {self.name} to compute it")
        except KeyError as error:
            self.refuse(self.json, f"invalid provenance: no field {error}")
        except (ValueError, TypeError, AttributeError) as error:
            self.refuse(self.json, f"invalid provenance: {error}")
        self.record, self.keys, self.known = record, keys, set(keys)
        self.settings, self.results = record["settings"], record["results"]

    def forget(self) -> None:
        self.rows: dict[tuple, tuple] = {}
        self.inode, self.offset, self.lines, self.torn = None, 0, 0, False

    def refresh(self) -> None:
        """Read the lines that were stored since the last call; a torn last line is left for `append` to drop."""
        try:
            with self.csv.open("rb") as file:
                status = os.fstat(file.fileno())
                if status.st_ino != self.inode or status.st_size < self.offset:  # replaced, or damaged: read it anew
                    self.forget()
                    self.inode = status.st_ino
                file.seek(self.offset)
                whole, newline, torn = file.read().rpartition(b"\n")
        except FileNotFoundError:
            return self.forget()
        self.torn = bool(torn)
        if newline:
            for line in whole.split(b"\n"):
                self.add(line.removesuffix(b"\r"))  # git may have checked the file out with Windows line ends
            self.offset += len(whole) + 1

    def add(self, raw: bytes) -> None:
        """Take one line of the CSV, or refuse it."""
        self.lines += 1
        try:
            line = raw.decode()
            if self.results is None:  # the columns are recorded just before the first row is stored
                self.load_record()
            if self.results is None:
                raise ValueError(f"rows, but no result columns in {self.json}")
            kinds = self.settings | self.results
            if self.lines == 1:
                if line + "\n" != _line(kinds):
                    raise ValueError(f"the header must be {_line(kinds).strip()!r}, got {line[:60]!r}")
                return
            values = _values(line, kinds)
            key = values[:len(self.settings)]
            if any(value != value for value in key):
                raise ValueError("NaN in a setting")
            if key not in self.known:  # another process may have extended the grid
                self.load_record()
            if key not in self.known:
                raise ValueError(f"the setting {self.setting(key)} is not in the grid of {self.json}")
            if key in self.rows:
                raise ValueError(f"the setting {self.setting(key)} is stored twice")
        except (ValueError, csv.Error) as error:
            raise ValueError(f"{self.csv} line {self.lines}: {error}; {_REMEDY}") from None
        self.rows[key] = values

    def refuse_torn(self, remedy: str) -> None:
        if self.torn:
            raise ValueError(f"{self.csv} line {self.lines + 1}: the line is torn (it has no line end); {remedy}")

    # Writing

    def open(self, kinds: dict[str, str], keys: list[tuple], rtol: float, function: Callable) -> None:
        """Begin a table, or continue a stored one whose rows all belong to the grid; the lock must be held."""
        if self.json.exists() or self.csv.exists():
            self.load()
            if self.rows:
                self.refuse_other_grid(kinds, keys)
        self.session = {"id": uuid.uuid4().hex[:8], **_environment(function), "wall_seconds": 0.0, "rows": 0}
        self.started = self.saved = time.monotonic()
        if not self.rows or not self.holds(kinds, keys, rtol):
            seeds = list(dict.fromkeys(dict(zip(kinds, key))["seed"] for key in keys)) if "seed" in kinds else []
            results, sessions = (self.results, self.record["sessions"]) if self.rows else (None, [])
            if not self.rows:
                self.csv.unlink(missing_ok=True)
            self.save(name=self.name, status="running", settings=kinds, results=results, grid=_pack(kinds, keys),
                      seeds=seeds, rtol=rtol, rows=None, sha256=None, sessions=sessions)
            self.load_record()

    def refuse_other_grid(self, kinds: dict[str, str], keys: list[tuple]) -> None:
        over = "use another name, or delete both files to start over"
        if list(kinds.items()) != list(self.settings.items()):
            self.refuse(self.json, f"the stored setting columns are {self.settings}, this grid's are {kinds}", over)
        wanted = set(keys)
        lost = [self.setting(key) for key in self.rows if key not in wanted]
        new = [self.setting(key) for key in keys if key not in self.known]
        if lost:
            fresh = f"{len(new)} settings are new, the first {new[0]}" if new else "no setting is new"
            self.refuse(self.json, f"another grid: {len(lost)} stored rows are not in this grid, the first {lost[0]}; "
                        f"{fresh}", f"keep the stored settings to extend the table; {over}")

    def claim(self, key: tuple) -> bool:
        """Reserve a missing row for this process; False if it is stored, or another process computes it."""
        claim = FileLock(self.folder / f"{self.name}.{_sha256(_line(key))[:16]}.lock")
        try:
            claim.acquire(timeout=0)
        except Timeout:
            return False
        self.claims[key] = claim
        self.refresh()
        if key in self.rows:
            self.release(key)
            return False
        return True

    def release(self, key: tuple) -> None:
        claim = self.claims.pop(key)
        claim.release()
        with suppress(OSError):  # another process may have taken it already
            Path(claim.lock_file).unlink()

    def ordered(self, result: dict[str, Value]) -> tuple:
        """Return the values of a result in the order of the stored columns, or raise ValueError if they differ."""
        kinds = {name: _KINDS[type(value)] for name, value in result.items()}
        if self.results is not None and kinds != self.results:
            raise ValueError(f"function must return the same columns for every setting: {self.results}, got {kinds}")
        return tuple(result[name] for name in self.results or kinds)

    def store(self, key: tuple, result: dict[str, Value]) -> None:
        """Append a row, unless it is stored already."""
        with self.lock:
            self.refresh()
            if key in self.rows:
                return
            if self.results is None:
                self.load_record()
            line = _line(key + self.ordered(result))
            if not self.lines:
                if self.results is None:
                    self.save(results={name: _KINDS[type(value)] for name, value in result.items()})
                    self.load_record()
                _write(self.csv, _line(self.settings | self.results) + line)
            else:
                with self.csv.open("r+b", buffering=0) as file:
                    file.truncate(self.offset)  # drops the torn line that a crash may have left
                    file.seek(self.offset)
                    file.write(line.encode())
                    os.fsync(file.fileno())
            self.session["rows"] += 1
            self.refresh()
        if time.monotonic() - self.saved > 10:
            self.save()

    def save(self, **changes) -> None:
        """Write fields of the JSON, and what this session has done so far."""
        with self.lock:
            if not changes and not (self.session["rows"] and self.json.exists()):
                return
            record = (json.loads(self.json.read_bytes()) if self.json.exists() else {}) | changes
            self.session["wall_seconds"] = round(time.monotonic() - self.started, 3)
            sessions = [session for session in record["sessions"] if session["id"] != self.session["id"]]
            record["sessions"] = sessions + [self.session] * bool(self.session["rows"])
            record["wall_seconds"] = round(sum(session["wall_seconds"] for session in record["sessions"]), 3)
            _write(self.json, _json_text(record))
            self.saved = time.monotonic()

    def text(self) -> str:
        return _line(self.settings | self.results) + "".join(_line(row) for row in self.rows.values())

    def publish(self, keys: list[tuple]) -> None:
        """Sort the complete table, replace the file in one step, and record its checksum."""
        with self.lock:
            self.refresh()
            self.load_record()
            if self.keys != keys:
                self.refuse(self.json, "another process is computing another grid for this table", "run that sweep")
            if not self.complete:
                self.rows = {key: self.rows[key] for key in keys}
                text = self.text()
                _write(self.csv, text)
                self.save(status="complete", rows=len(keys), sha256=_sha256(text))
                for claim in self.folder.glob(f"{self.name}.*.lock"):  # left by processes that were killed
                    with suppress(OSError):
                        claim.unlink()


def _published(name: str, folder: str | Path | None) -> _Table:
    table = _Table(name, folder)
    table.load()
    again = f"run the sweep {name} again to finish it"
    table.refuse_torn(again)
    if not table.complete:
        table.refuse(table.csv, f"the table is unfinished, {len(table.rows)} of {len(table.keys)} rows", again)
    return table


# The work -----------------------------------------------------------------------------------------------------------

def _environment(function: Callable) -> dict[str, str | None]:
    """What a session's rows were computed with; the device is the accelerator that was available."""
    try:
        source = _sha256(inspect.getsource(inspect.unwrap(getattr(function, "func", function))).replace("\r\n", "\n"))
    except (OSError, TypeError):  # typed at a prompt, or not written in Python
        source = None
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "platform": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(), "numpy": np.__version__, "torch": torch.__version__,
        "attnrank": version("attnrank"), "package_fingerprint": code_fingerprint(),
        "function": getattr(function, "__qualname__", repr(type(function))), "function_fingerprint": source,
    }


def _outcomes(function: Callable, claimed: Iterator[tuple[tuple, Setting]], workers: int) -> Iterator[tuple]:
    """Yield each claimed key with its result or exception, as they finish; claim as workers fall idle."""
    if workers == 1:
        for key, setting in claimed:
            yield key, _call(function, setting)
        return
    executor = get_reusable_executor(max_workers=workers)
    pending = {}
    try:
        while True:
            for key, setting in itertools.islice(claimed, workers - len(pending)):
                pending[executor.submit(_call_in_worker, function, setting)] = key
            if not pending:
                return
            for future in wait(pending, return_when=FIRST_COMPLETED).done:
                try:
                    outcome = future.result()
                except pickle.PicklingError as error:
                    outcome = error
                yield pending.pop(future), outcome
    except BaseException:
        executor.shutdown(wait=False, kill_workers=True)
        raise


def _fill(table: _Table, function: Callable, keys: list[tuple], workers: int) -> None:
    """Compute and store the missing rows; stop at the first failure, once the rows in progress are stored."""
    failures = []

    def claimed():
        for key in keys:
            if failures:
                return
            if key not in table.rows and table.claim(key):
                yield key, table.setting(key)

    # In a notebook, or when captured, sys.stderr is not the process's own.
    shown = sys.stderr is not None and sys.stderr is sys.__stderr__ and sys.stderr.isatty()
    table.refresh()
    with tqdm(total=len(keys), initial=len(table.rows), desc=table.name, unit="row", disable=not shown) as bar:
        while any(key not in table.rows for key in keys):
            computed = False
            with closing(_outcomes(function, claimed(), workers)) as outcomes:
                for key, outcome in outcomes:
                    computed = True
                    try:
                        if isinstance(outcome, Exception):
                            raise outcome
                        table.store(key, outcome)
                    except Exception as error:
                        failures.append((key, error))
                    finally:
                        table.release(key)
                    bar.update(len(table.rows) - bar.n)
            if failures:
                key, error = failures[0]
                raise RuntimeError(f"sweep {table.name} failed for {table.setting(key)}: {error}") from error
            if not computed:  # the rows that are missing are being computed by other processes
                time.sleep(0.1)
            table.refresh()
            bar.update(len(table.rows) - bar.n)
