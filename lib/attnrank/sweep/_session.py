"""One session of work on a table: rows are claimed, stored one by one under a lock, and published when all are there.

A claim is a lock file ``NAME.KEY.lock`` that the operating system frees when its process dies. ``NAME.lock`` is held
for each change of the two files.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from attnrank._files import replace
from attnrank.sweep._manner import checkpoint_folder, row_name
from attnrank.sweep._table import Table
from attnrank.sweep._tabletext import json_text, line_of, pack, sha256
from attnrank.sweep._values import Kinds, Row, Value, kinds_of

SAVE_SECONDS = 10  # how often the JSON records the progress of a session
SAME = ("version", "function", "repeats")  # what sessions that share a table have in common


class Session(Table):
    """A table, the rows that this process has claimed, and its entry in the list of sessions of the JSON."""

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(name, folder)
        self.lock = FileLock(folder / f"{name}.lock")
        self.claims: dict[Row, FileLock] = {}
        self.entry: dict = {}
        self.declared: dict = {}  # what this session has said of the experiment, and the columns of its settings
        self.opened: Kinds = {}
        self._read: tuple[int, ...] | None = None  # which file the record was read from
        self.devices: set[str] = set()

    def open(self, kinds: Kinds, keys: list[Row], declared: dict, environment: dict[str, str]) -> None:
        """Begin a table, or continue a stored one whose rows all belong to the grid and are of this version."""
        self.declared, self.opened = declared, kinds
        with self.lock:
            if self.json.exists() or self.csv.exists():
                self.load()
            self.entry = {"id": uuid.uuid4().hex[:8], **environment, "wall_seconds": 0.0, "rows": 0, "row_seconds": 0.0,
                          "longest_row_seconds": 0.0}
            self._started = self._saved = time.monotonic()
            if not self.rows:
                self.csv.unlink(missing_ok=True)
                self._begin(kinds, keys, declared, results=None, sessions=[])
            elif not self.holds(kinds, keys, declared):
                self._refuse_another_chapter(declared)
                self._refuse_other_version(declared)
                self._refuse_other_function(declared)
                self._refuse_other_grid(kinds, keys)
                self._begin(kinds, keys, declared, results=self.results, sessions=self.record["sessions"])

    def _begin(
        self, kinds: Kinds, keys: list[Row], declared: dict, results: Kinds | None, sessions: list[dict]
    ) -> None:
        seeds = list(dict.fromkeys(dict(zip(kinds, key))["seed"] for key in keys)) if "seed" in kinds else []
        self.save(name=self.name, status="running", settings=kinds, results=results, grid=pack(kinds, keys),
                  seeds=seeds, **declared, rows=None, sha256=None, sessions=sessions)
        self.load_record()

    def _refuse_another_chapter(self, declared: dict) -> None:
        """Keep a published table to the grid of its experiment: rows of one's own would make it a table of no grid.

        A function of the same package may have moved, or be declared anew; one of another package is the user's.
        """
        packages = {fields["module"].partition(".")[0] for fields in (self.record, declared)}
        if self.record["chapter"] and (not declared["chapter"] or len(packages) > 1):
            name, profile = self._experiment()
            self.refuse(self.json, f"this is a published table of the chapter {self.record['chapter']}",
                        f"to add rows, add them to its grid, {self._grid()}, and run python -m attnrank.sweep "
                        f"{name} --profile {profile}; a table of your own needs another name, or another folder")

    def _experiment(self) -> tuple[str, str]:
        """Name and profile of the experiment of a published table: only another profile than "paper" is in its name."""
        name, _, profile = self.name.partition("-")
        return name, profile or "paper"

    def _grid(self) -> str:
        """Where the settings of a published table are written."""
        name, profile = self._experiment()
        return f"EXPERIMENTS[{name!r}].{profile} in attnrank.experiments.{self.record['chapter']}"

    def _refuse_other_version(self, declared: dict) -> None:
        stored, own = self.record["version"], declared["version"]
        if stored != own:
            self.refuse(
                self.json,
                f"its rows are of version {stored} of {declared['function']}, the code is version {own}",
                "delete both files to compute the table anew",
            )

    def _refuse_other_function(self, declared: dict) -> None:
        """Rows of two functions would be one table. A lambda has no name to tell it by; the book's functions may be
        renamed, and have a version."""
        stored, own = (fields["function"].rpartition(".")[2] for fields in (self.record, declared))
        if stored != own and "<lambda>" not in (stored, own) and not self.record["chapter"]:
            self.refuse(self.json, f"its rows are of the function {stored}, not of {own}",
                        f"use another name; delete both files to start over; or, if {stored} was only renamed, write "
                        f"{own} as its function in the file")

    def _refuse_other_grid(self, kinds: Kinds, keys: list[Row]) -> None:
        """Refuse a grid that does not contain the stored rows; say what it lacks and what it adds."""
        over = "use another name, or delete both files to start over"
        keep = f"keep the stored settings to extend the table; {over}"
        if self.record["chapter"]:  # its rows may have taken days
            over = keep = f"put these settings back in {self._grid()}, or restore both files from version control"
        if list(kinds.items()) != list(self.settings.items()):
            self.refuse(self.json, f"the stored setting columns are {self.settings}, this grid's are {kinds}", over)
        wanted, stored = set(keys), set(self.keys)
        lost = [self.setting(key) for key in self.rows if key not in wanted]
        new = [self.setting(key) for key in keys if key not in stored]
        if lost:
            fresh = f"{len(new)} settings are new, the first {new[0]}" if new else "no setting is new"
            self.refuse(self.json, f"another grid: {len(lost)} stored rows are not in this grid, the first {lost[0]}; "
                        f"{fresh}", keep)

    def load_record(self) -> None:
        self._read = stamp(self.json)  # before it is read: one that replaces it meanwhile is then read again
        super().load_record()

    def _refuse_begun_anew(self) -> None:
        """Refuse to go on where another process has declared another experiment since this session opened the table.

        It may: a table without rows is begun anew, however many processes compute its first row. The lock must be held.
        """
        if self._read != stamp(self.json):  # a large grid takes long to read
            self.load_record()
        pairs = [(field, self.record[field], self.declared[field]) for field in SAME]
        pairs.append(("setting columns", list(self.settings.items()), list(self.opened.items())))
        for what, stored, own in pairs:
            if stored != own:
                self.refuse(self.json, f"another process began this table with another {what}, {stored} instead of "
                            f"{own}", "run this sweep again, or under another name")

    def _refuse_unknown(self, key: Row) -> None:
        """Refuse a row that is not in the grid that another process has given the table meanwhile."""
        if key not in self._known:
            self.refuse(self.json, f"another process began this table with another grid, without {self.setting(key)}",
                        "run this sweep again, or under another name")

    def claim(self, key: Row) -> bool:
        """Reserve a missing row for this process; False if it is stored, or another process computes it."""
        claim = FileLock(self.folder / f"{self.name}.{row_name(key)}.lock")
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

    def release(self, key: Row) -> None:
        claim = self.claims.pop(key)
        claim.release()
        with suppress(OSError):  # another process may have taken it already
            Path(claim.lock_file).unlink()

    def store(self, key: Row, result: dict[str, Value], seconds: float = 0.0, device: str | None = None) -> None:
        """Append a row, unless it is stored already, and note what it took."""
        with self.lock:
            self._refuse_begun_anew()
            self._refuse_unknown(key)
            self.refresh()
            if key in self.rows:
                return
            line = line_of(key + self.ordered(result))
            if self.lines:
                self._append(line)
            else:
                if self.results is None:
                    self.save(results=kinds_of(result))
                    self.load_record()
                write(self.csv, line_of(self.columns()) + line)
            self._note(seconds, device)
            self.refresh()
        kept = checkpoint_folder(self.folder, self.name, self.declared["version"], key)
        shutil.rmtree(kept, ignore_errors=True)
        if time.monotonic() - self._saved > SAVE_SECONDS:
            self.save()

    def _note(self, seconds: float, device: str | None) -> None:
        entry = self.entry
        entry["rows"] += 1
        entry["row_seconds"] = round(entry["row_seconds"] + seconds, 3)
        entry["longest_row_seconds"] = max(entry["longest_row_seconds"], round(seconds, 3))
        if device:
            self.devices.add(device)
            entry["device"] = " and ".join(sorted(self.devices))

    def _append(self, line: str) -> None:
        with self.csv.open("r+b", buffering=0) as file:
            file.truncate(self.offset)  # drops the torn line that a crash may have left
            file.seek(self.offset)
            file.write(line.encode())
            os.fsync(file.fileno())

    def save(self, **changes) -> None:
        """Write fields of the JSON, and what this session has done so far."""
        with self.lock:
            if not changes and not (self.entry["rows"] and self.json.exists()):
                return
            record = (json.loads(self.json.read_bytes()) if self.json.exists() else {}) | changes
            self.entry["wall_seconds"] = round(time.monotonic() - self._started, 3)
            sessions = [session for session in record["sessions"] if session["id"] != self.entry["id"]]
            record["sessions"] = sessions + [self.entry] * bool(self.entry["rows"])
            record["wall_seconds"] = round(sum(session["wall_seconds"] for session in record["sessions"]), 3)
            write(self.json, json_text(record))
            self._saved = time.monotonic()

    def publish(self, keys: list[Row]) -> None:
        """Sort the complete table, replace the file in one step, and record its checksum."""
        with self.lock:
            self._refuse_begun_anew()
            self.refresh()
            if set(self.keys) != set(keys):
                self.refuse(self.json, "another process is computing another grid for this table", "run that sweep")
            if self.complete:  # another process was faster
                return
            self.rows = {key: self.rows[key] for key in self.keys}  # the order in which it was begun last
            text = self.text()
            write(self.csv, text)
            self.save(status="complete", rows=len(keys), sha256=sha256(text))
            for claim in self.folder.glob(f"{self.name}.*.lock"):  # left by processes that were killed
                with suppress(OSError):
                    claim.unlink()


def stamp(path: Path) -> tuple[int, ...] | None:
    """What tells a file from the one that replaces it; None if there is none."""
    with suppress(FileNotFoundError):
        status = path.stat()
        return status.st_ino, status.st_mtime_ns, status.st_size
    return None


def write(path: Path, text: str) -> None:
    """Replace a file in one step; the table's lock must be held."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())
    replace(temporary, path)
