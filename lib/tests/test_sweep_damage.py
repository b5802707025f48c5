"""Sweeps: damaged tables are refused, whatever is done with them, with file, line and remedy."""
# ruff: noqa: F811

from __future__ import annotations

import json
import shutil

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from attnrank import sweep
from attnrank.sweep import _table, _tabletext
from sweep_job import bytes_of, calls, job, published, record_of, script  # noqa: F401 (fixtures)


def csv_edit(old, new, count=1):
    def edit(folder):
        content = bytes_of(folder)
        assert old in content
        (folder / "T.csv").write_bytes(content.replace(old, new, count))
    return edit


def json_edit(**fields):
    def edit(folder):
        (folder / "T.json").write_text(json.dumps(record_of(folder) | fields), encoding="utf-8")
    return edit


def json_drop(field):
    def edit(folder):
        record = record_of(folder)
        del record[field]
        (folder / "T.json").write_text(json.dumps(record), encoding="utf-8")
    return edit


def json_bytes(content):
    return lambda folder: (folder / "T.json").write_bytes(content)


ROW = b"3,gauss,0,"
DAMAGE = {
    "a number changed": (csv_edit(b"gauss,0,2,", b"gauss,0,1,"), r"T\.csv: the checksum .*restore both files"),
    "row changed into another": (csv_edit(b"3,unit,0", b"3,unit,9"), r"T\.csv line \d+: .*stored twice"),
    "last row removed": (lambda folder: (folder / "T.csv").write_bytes(bytes_of(folder).rsplit(b"\n", 2)[0] + b"\n"),
                         r"T\.csv: its 59 rows are not the 60 settings in .*T\.json"),
    "all rows removed": (lambda folder: (folder / "T.csv").write_bytes(bytes_of(folder).split(b"\n")[0] + b"\n"),
                         r"T\.csv: its 0 rows"),
    "empty file": (lambda folder: (folder / "T.csv").write_bytes(b""), r"T\.csv: its 0 rows"),
    "two rows exchanged": (lambda folder: (folder / "T.csv").write_bytes(
        b"\n".join((lines := bytes_of(folder).split(b"\n"))[:1] + lines[2:3] + lines[1:2] + lines[3:])),
                           r"T\.csv: its 60 rows are not the 60 settings"),
    "field missing": (csv_edit(b"3,gauss,4,", b"3,gauss,"), r"T\.csv line 6: 7 fields instead of 8"),
    "field added": (csv_edit(b"3,gauss,4,", b"3,gauss,4,4,"), r"T\.csv line 6: 9 fields instead of 8"),
    "empty line": (csv_edit(b"\n3,gauss,4,", b"\n\n3,gauss,4,"), r"T\.csv line 6: 0 fields instead of 8"),
    "not a number": (csv_edit(b"3,gauss,4,", b"3,gauss,four,"), r"T\.csv line 6: seed must be of type int, got 'four'"),
    "no number": (csv_edit(b"3,gauss,4,", b"3,gauss,,"), r"T\.csv line 6: seed must be of type int, got ''"),
    "NaN not as written": (csv_edit(b",nan\n", b",NaN\n"), r"T\.csv line 2: missing must be of type float, got 'NaN'"),
    "NaN emptied": (csv_edit(b",nan\n", b",\n"), r"T\.csv line 2: missing must be of type float, got ''"),
    "infinite": (csv_edit(b",nan\n", b",inf\n"), r"T\.csv line 2: missing must be of type float, got 'inf'"),
    "number reformatted": (csv_edit(b",0.125\n", b",0.1250\n"), r"missing must be of type float, got '0.1250'"),
    "truth reformatted": (csv_edit(b",False,", b",FALSE,"), r"T\.csv line 2: even must be of type bool, got 'FALSE'"),
    "quotes lost": (csv_edit(b'"gauss, ""3"""', b'gauss; "3"'), r"T\.csv line 2: not written by a sweep"),
    "quote left open": (csv_edit(b'"gauss, ""3"""', b'"gauss'), r"T\.csv line 2: unexpected end of data"),
    "not text": (csv_edit(b"gauss", b"\xff\xfe"), r"T\.csv line 2: .*utf-8"),
    "header changed": (csv_edit(b"seed", b"sead"), r"T\.csv line 1: the header must be 'n,kind,seed.*got 'n,kind,sead"),
    "header lost": (lambda folder: (folder / "T.csv").write_bytes(bytes_of(folder).split(b"\n", 1)[1]),
                    r"T\.csv line 1: the header must be"),
    "row twice": (csv_edit(b"\n" + ROW, b"\n3,gauss,1,"), r"T\.csv line 3: the setting .*'seed': 1.* is stored twice"),
    "setting not in the grid": (csv_edit(ROW, b"3,gauss,77,"), r"T\.csv line 2: .*'seed': 77\} is not in the grid of"),
    "torn": (lambda folder: (folder / "T.csv").write_bytes(bytes_of(folder)[:-3]), r"T\.csv line 61: .* torn"),
    "no JSON": (lambda folder: (folder / "T.json").unlink(), r"T\.json: the provenance of .*T\.csv is missing"),
    "no CSV": (lambda folder: (folder / "T.csv").unlink(), r"T\.csv: the file is missing"),
    "JSON cut": (lambda folder: (folder / "T.json").write_bytes((folder / "T.json").read_bytes()[:200]),
                 r"T\.json: invalid provenance: "),
    "JSON empty": (json_bytes(b""), r"T\.json: invalid provenance: "),
    "JSON not text": (json_bytes(b"\xff\xff\xff"), r"T\.json: invalid provenance: "),
    "JSON a list": (json_bytes(b"[]"), r"T\.json: invalid provenance: "),
    "another table's JSON": (json_edit(name="U"), r"T\.json: invalid provenance: it describes another table, 'U'"),
    "another grid's JSON": (json_edit(grid={"n": [3, 8, 6], "kind": ["gauss", "unit"], "seed": list(range(10))}),
                            r"T\.csv line 42: the setting \{'n': 5, .* is not in the grid of .*T\.json"),
    "larger grid's JSON": (json_edit(grid={"n": [3, 8, 5, 6], "kind": ["gauss", "unit"], "seed": list(range(10))}),
                           r"T\.csv: its 60 rows are not the 80 settings"),
    "grid of other columns": (json_edit(grid={"n": [3]}), r"T\.json: invalid provenance: grid must have columns"),
    "grid repeated": (json_edit(grid=[[3, "gauss", 0]] * 2), r"T\.json: invalid provenance: settings must differ"),
    "grid malformed": (json_edit(grid=[[3, "gauss"]]), r"T\.json: invalid provenance: "),
    "unknown status": (json_edit(status="done"), r"T\.json: invalid provenance: status is 'done'"),
    "unknown type": (json_edit(results={"rank": "complex"}), r"T\.json: invalid provenance: unknown column type"),
    "no result columns": (json_edit(results=None), r"T\.json: invalid provenance: complete without result columns"),
    "count no number": (json_edit(rows="60"), r"T\.json: invalid provenance: rows is '60'"),
    "no sessions": (json_edit(sessions=None), r"T\.json: invalid provenance: sessions is None"),
    "repeats unknown": (json_edit(repeats={"kind": "roughly"}), r"T\.json: invalid provenance: repeats must be one of"),
    "count changed": (json_edit(rows=59), r"T\.csv: its 60 rows are not"),
    "checksum changed": (json_edit(sha256="0" * 64), r"T\.csv: the checksum"),
} | {f"JSON without {field}": (json_drop(field), rf"T\.json: invalid provenance: no field '{field}'")
     for field in _table.FIELDS}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_refused(damage, job, published, tmp_path, calls):
    for name in ("T.csv", "T.json"):
        shutil.copy(published / name, tmp_path)
    assert len(sweep.read("T", folder=tmp_path)) == len(sweep.run("T", job.function, job.GRID, folder=tmp_path)) == 60
    edit, message = DAMAGE[damage]
    edit(tmp_path)
    files = {path.name: path.read_bytes() for path in tmp_path.glob("T.[cj]*")}
    uses = {"read": lambda: sweep.read("T", folder=tmp_path),
            "run": lambda: sweep.run("T", job.function, job.GRID, folder=tmp_path),
            "recompute": lambda: sweep.recompute("T", job.function, generator=torch.Generator(), folder=tmp_path)}
    for use in uses.values():
        with pytest.raises(ValueError, match=message):
            use()
    assert not calls() and files == {path.name: path.read_bytes() for path in tmp_path.glob("T.[cj]*")}


RUNNING_DAMAGE = {key: DAMAGE[key] for key in (
    "field missing", "field added", "empty line", "not a number", "NaN not as written", "infinite", "quotes lost",
    "header changed", "row twice", "setting not in the grid", "no JSON", "JSON cut", "another table's JSON",
    "grid of other columns", "JSON without grid")}


@pytest.mark.parametrize("damage", RUNNING_DAMAGE)
def test_damage_is_refused_while_running(damage, job, published, tmp_path, calls):
    for name in ("T.csv", "T.json"):
        shutil.copy(published / name, tmp_path)
    json_edit(status="running", rows=None, sha256=None)(tmp_path)
    (tmp_path / "T.csv").write_bytes(b"\n".join(bytes_of(tmp_path).split(b"\n")[:31]) + b"\n")
    (tmp_path / "sound").mkdir()
    for name in ("T.csv", "T.json"):
        shutil.copy(tmp_path / name, tmp_path / "sound")
    edit, message = RUNNING_DAMAGE[damage]
    edit(tmp_path)
    for use in (lambda: sweep.run("T", job.function, job.GRID, folder=tmp_path),
                lambda: sweep.read("T", folder=tmp_path)):
        with pytest.raises(ValueError, match=message):
            use()
    assert not calls()
    if damage == "no JSON":  # the undamaged table goes on; once is enough
        sweep.run("T", job.function, job.GRID, folder=tmp_path / "sound")
        assert bytes_of(tmp_path / "sound") == bytes_of(published) and len(calls()) == 30


def test_missing_table(tmp_path):
    with pytest.raises(ValueError, match=r"T\.csv: there is no such table; run the sweep T to compute it"):
        sweep.read("T", folder=tmp_path)


KINDS = {"flag": "bool", "count": "int", "number": "float", "name": "str"}
TEXT = st.text(st.characters(categories=["L", "N", "P", "S"], include_characters=[" "]), max_size=4)
ROWS = st.tuples(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_infinity=False), TEXT)


@given(st.lists(ROWS, min_size=1, max_size=4), st.integers(0), st.sampled_from(["", *',"\r _.-+0eEnNiI']))
@example([(True, 1, 2.0, "a")] * 2, 0, "")
@example([(True, 1, 2.0, "a,b"), (False, 1, 2.0, "a,b")], 9, "")
def test_lines_are_read_at_once_as_one_by_one(rows, place, character):
    """A character of the lines is replaced, or left out: either way finds them whole, or neither does."""
    text = "\n".join(_tabletext.line_of(row).rstrip("\n") for row in rows)
    place %= len(text)
    if text[place] != "\n":
        text = text[:place] + character + text[place + 1:]
    lines = text.split("\n")
    try:
        one_by_one = [_tabletext.values_of(line, KINDS) for line in lines]
    except ValueError:
        one_by_one = None
    assert repr(_tabletext.rows_of(lines, KINDS)) == repr(one_by_one)  # as text: a NaN is not equal to itself


@pytest.mark.parametrize("line", ["", ",1,2.0,a", "True,,2.0,a", "True,1,,a", "true,1,2.0,a", "True,1,2.00,a",
                                  "True,1,-inf,a", 'True,1,2.0,"a', "True,1,2.0,a,b", "True,1,2.0"])
def test_a_line_that_no_sweep_writes_is_not_read(line):
    assert _tabletext.rows_of(["True,1,2.0,a", line], KINDS) is None
    with pytest.raises(ValueError):
        _tabletext.values_of(line, KINDS)
