"""The ledger is complete by construction: the claims that the notebooks show are the rows it has."""

import json
import re
from pathlib import Path

import nbformat
import pytest

from attnrank import report

BOOK = Path(__file__).resolve().parents[1]


def claims_of(notebook):
    """The claims displayed by a notebook, as rows of the ledger; a claim that is made and not displayed is missing."""
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    found = [output["data"][report.CLAIM_MIME] for output in outputs if report.CLAIM_MIME in output.get("data", {})]
    return [{key: str(value) for key, value in claim.items()} for claim in found]


def stem(path):
    return re.sub(r"^\d+_", "", path.stem)


def differences(notebooks, ledger):
    """Ids of the claims that only one side has, or that differ, or that are stated twice."""
    shown = [claim for notebook in notebooks for claim in claims_of(notebook)]
    ids = [claim["id"] for claim in shown]
    twice = {i for i in ids if ids.count(i) > 1}
    left, right = ({json.dumps(row, sort_keys=True) for row in rows} for rows in (shown, ledger))
    return sorted(twice | {json.loads(row)["id"] for row in left ^ right})


@pytest.fixture(scope="module")
def notebooks():
    paths = sorted((BOOK.parent / "notebooks").glob("*.ipynb"))
    return [nbformat.read(path.open(encoding="utf-8"), as_version=4) for path in paths]


def test_the_ledger_has_the_claims_of_the_notebooks_and_no_others(notebooks):
    ledger = report.read_ledger(BOOK / "results")
    assert ledger, "the ledger is empty"
    assert differences(notebooks, ledger) == []


def test_every_claim_belongs_to_the_chapter_that_makes_it():
    for path in sorted((BOOK.parent / "notebooks").glob("*.ipynb")):
        claims = claims_of(nbformat.read(path.open(encoding="utf-8"), as_version=4))
        assert claims, f"{path.name} claims nothing"
        assert {claim["id"].partition("/")[0] for claim in claims} == {stem(path)}


def test_claims_of_theorems_have_power():
    """A theorem's claim comes so near its bound that it would catch a tenth of the effect of breaking its hypothesis."""
    claims = [report.Claim(**row) for row in report.read_ledger(BOOK / "results")]
    theorems = [claim for claim in claims if claim.kind == "theorem"]
    assert theorems
    assert [claim.id for claim in theorems if report.powerless(claim)] == []


def test_a_changed_a_missing_and_a_surplus_claim_are_found(notebooks):
    ledger = report.read_ledger(BOOK / "results")
    changed = [ledger[0] | {"measured": "0.123"}, *ledger[1:]]
    assert differences(notebooks, changed) == [ledger[0]["id"]]
    assert differences(notebooks, ledger[1:]) == [ledger[0]["id"]]
    assert differences(notebooks, [*ledger, ledger[0] | {"id": "barrier/surplus"}]) == ["barrier/surplus"]
    assert differences([*notebooks, notebooks[0]], ledger) == sorted(claim["id"] for claim in claims_of(notebooks[0]))
