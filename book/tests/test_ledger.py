"""The ledger is complete by construction: the claims that the notebooks show are the rows it has."""

import ast
import json
import re
from pathlib import Path

import claim_links
import nbformat
import pytest

import browsing
import html_checks
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
    """A theorem's claim comes so near its bound that it would catch a tenth of the effect of breaking its
    hypothesis."""
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


class TestLinks:
    """Theorem, claim and test lead to one another."""

    def test_the_files_of_links_name_what_exists(self):
        claims = {row["id"]: row["kind"] for row in report.read_ledger(BOOK / "results")}
        for row in claim_links.read("claim_theorems.csv"):
            assert claims[row["claim"]] == "theorem"
            assert not row["theorem"] or row["theorem"] in claim_links.results(), row
        for theorem, tests in claim_links.tests().items():
            assert theorem in claim_links.results()
            for test in tests:
                file, _, name = test.partition("::")
                tree = ast.parse((BOOK.parent / file).read_text(encoding="utf-8"))
                assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, test

    def test_a_claim_tests_the_last_result_before_it(self, tmp_path, monkeypatch):
        """In its own chapter; unless the file of links names another, or none. Measurements test no theorem."""

        def text(*results):
            return {"cell_type": "markdown", "source": [
                "".join(f"```{{prf:{kind}}} A title\n:label: {label}\n```\n" for kind, label in results)
            ]}  # fmt: skip

        def claim(name, kind="theorem"):
            data = {report.CLAIM_MIME: {"id": name, "kind": kind}}
            return {"cell_type": "code", "source": [], "outputs": [{"name": "stdout"}, {"data": data}]}

        chapters = {
            "01_one": [text(("theorem", "t1"), ("lemma", "l2")), claim("one/a"), text(), claim("one/b"),
                       claim("one/c", "measurement"), text(("definition", "d3")), claim("one/d")],
            "02_two": [claim("two/e"), text(("corollary", "c4")), claim("two/f"), text(("proposition", "p5"))],
        }  # fmt: skip
        (tmp_path / "notebooks").mkdir()
        for page, cells in chapters.items():
            (tmp_path / f"notebooks/{page}.ipynb").write_text(json.dumps({"cells": cells}), encoding="utf-8")
        contents = "parts:\n- caption: Part\n  chapters:\n  - file: notebooks/01_one\n  - file: book/other\n"
        (tmp_path / "_toc.yml").write_text(contents + "- chapters:\n  - file: notebooks/02_two\n", encoding="utf-8")
        monkeypatch.setattr(claim_links, "read", lambda name: [
            {"claim": "one/b", "theorem": ""}, {"claim": "one/d", "theorem": "t1"},
        ])  # fmt: skip
        assert claim_links.chapters(tmp_path) == {"one": ("notebooks/01_one", "Part"), "two": ("notebooks/02_two", "")}
        assert claim_links.theorems(tmp_path) == {"one/a": "l2", "one/d": "t1", "two/f": "c4"}
        assert claim_links.results(tmp_path) == ["t1", "l2", "c4", "p5"]

    def test_a_statement_has_no_code_of_a_reviewer(self):
        assert claim_links.statement("objection R4: ranks fall: all") == "Objection: ranks fall: all"
        assert claim_links.statement("theorem 2: objection R4: x") == "Theorem 2: objection R4: x"

    def test_no_other_claim_names_a_theorem(self):
        kinds = {row["id"]: row["kind"] for row in report.read_ledger(BOOK / "results")}
        assert {kinds[claim] for claim in claim_links.theorems()} == {"theorem"}

    def test_nearly_every_claim_of_a_theorem_names_it(self):
        """A claim may test a statement that stands in the text: then claim_theorems.csv says so by an empty field."""
        rows = report.read_ledger(BOOK / "results")
        unnamed = {row["id"] for row in rows if row["kind"] == "theorem"} - set(claim_links.theorems())
        assert unnamed <= {row["claim"] for row in claim_links.read("claim_theorems.csv") if not row["theorem"]}

    def test_every_result_of_the_theory_has_a_claim_or_a_test(self):
        named = {*claim_links.theorems().values(), *claim_links.tests()}
        pages = [f"notebooks/{path.name}" for path in sorted((BOOK.parent / "notebooks").glob("[01]*.md"))[:14]]
        stated = [x for page in pages for x in claim_links.RESULT.findall((BOOK.parent / page).read_text("utf-8"))]
        assert len(stated) > 40 and [label for label in stated if label not in named] == []

    def test_links_lead_in_both_directions(self, site):
        page = html_checks.parse(site / "book" / "ledger.html")
        rows = page.select("tr.claim-row")
        assert len(rows) == len(report.read_ledger(BOOK / "results"))
        for claim, theorem in claim_links.theorems().items():
            chapter, _ = claim_links.chapters()[claim.partition("/")[0]]
            box = html_checks.parse(site / f"{chapter}.html").find(id="claim-" + claim.replace("/", "-"))
            link = next(link["href"] for link in box.select("a") if link["href"].endswith(f"#{theorem}"))
            stated = (site / f"{chapter}.html").parent / link.partition("#")[0] if link[0] != "#" else None
            home = html_checks.parse(stated.resolve() if stated else site / f"{chapter}.html")
            back = [a["href"] for a in home.find(id=theorem).select(".tested-by a")]
            assert any(href.endswith("#claim-" + claim.replace("/", "-")) for href in back), claim
            (own,) = [row for row in rows if row.select_one("a").get_text() == claim]
            assert any(a["href"].endswith(f"#{theorem}") for a in own.select("a"))

    def test_what_fell_is_on_a_list_of_its_own(self, site):
        titles = [title.get_text() for title in html_checks.parse(site / "book" / "ledger.html").select("p.rubric")]
        assert titles[:3] == ["What stands as it was", "What fell, in part or whole, or could not be reproduced",
                              "What was sharpened"]  # fmt: skip


def test_the_filters_keep_what_fits(browser: browsing.Browser, site: Path):
    rows = report.read_ledger(BOOK / "results")
    tab = browsing.tab_of(browser, **browsing.MODES["light"])
    tab.goto((site / "book" / "ledger.html").as_uri(), wait_until="load")
    shown = "document.querySelectorAll('tr.claim-row:not([hidden])').length"
    assert tab.evaluate(shown) == len(rows)
    for name, value, column in (("kind", "theorem", "kind"), ("verdict", "sharpened", "verdict")):
        tab.locator(f"#ledger-{name}").select_option(value)
        assert tab.evaluate(shown) == sum(row[column] == value for row in rows)
        assert tab.locator(".ledger-count").inner_text().startswith(f"{tab.evaluate(shown)} of {len(rows)}")
        tab.locator(f"#ledger-{name}").select_option("")
    tab.locator("#ledger-paper").select_option("convex")
    convex = sum(claim_links.paper(row["id"]) == "convex" for row in rows)
    assert 0 < tab.evaluate(shown) == convex
    tab.locator("#ledger-paper").select_option("")
    tab.locator("#ledger-words").focus()
    tab.keyboard.type("circle")
    assert 0 < tab.evaluate(shown) < len(rows)
    tab.context.close()
    tab = browsing.tab_of(browser, **browsing.MODES["light"], java_script_enabled=False)
    tab.goto((site / "book" / "ledger.html").as_uri(), wait_until="load")
    assert tab.locator("tr.claim-row:visible").count() == len(rows)
    tab.context.close()


def test_a_link_to_a_claim_that_is_not_in_the_ledger_fails_the_build(root, small_book):
    columns = (root / "book/results/ledger.csv").read_text(encoding="utf-8").splitlines()[0]
    small_book.write("book/results/ledger.csv", columns + "\n")
    small_book.write("book/other.md", "# Other page\n\n(a-label)=\n## A section\n\nSee {claim}`barrier/no-such`.\n")
    result = small_book.build(execute="off")
    assert result.returncode != 0
    assert "the ledger has no claim 'barrier/no-such'" in result.stdout


def test_pages_with_links_are_read_again_with_the_ledger_and_the_contents(root, small_book):
    """A claim that leaves the ledger fails the build; a chapter that comes in, or gets a new number, is linked."""
    columns, row = (root / "book/results/ledger.csv").read_text(encoding="utf-8").splitlines()[:2]
    row = row.replace(row.partition(",")[0], "small/a-claim", 1)
    small_book.write("book/results/ledger.csv", f"{columns}\n{row}\n")
    small_book.write("book/other.md", "# Other page\n\n(a-label)=\n## A section\n\nSee {claim}`small/a-claim`.\n")
    result = small_book.build(execute="off")
    assert result.returncode == 0 and "notebooks/03_small.html#claim-small-a-claim" in small_book.page("book/other")
    (small_book.folder / "notebooks/03_small.ipynb").rename(small_book.folder / "notebooks/04_small.ipynb")
    contents = (small_book.folder / "_toc.yml").read_text(encoding="utf-8")
    small_book.write("_toc.yml", contents.replace("03_small", "04_small"))
    result = small_book.build(execute="off")
    assert result.returncode == 0 and "notebooks/04_small.html#claim-small-a-claim" in small_book.page("book/other")
    small_book.write("book/results/ledger.csv", columns + "\n")
    result = small_book.build(execute="off")
    assert result.returncode != 0
    assert "the ledger has no claim 'small/a-claim'" in result.stdout


def test_the_verdicts_are_counted_and_listed_where_they_belong(root, small_book):
    columns, row = (root / "book/results/ledger.csv").read_text(encoding="utf-8").splitlines()[:2]
    empty = dict.fromkeys(columns.split(","), "") | {"kind": "measurement", "cases": "1", "relation": "<="}
    verdicts = ["reproduced", "reproduced", "reproduced in part", "not reproduced", "sharpened", ""]
    lines = [empty | {"id": f"small/c-{at}", "statement": f"stated {at}", "paper": f"paper {at}" * bool(verdict),
                      "verdict": verdict} for at, verdict in enumerate(verdicts)]  # fmt: skip
    small_book.write("book/results/ledger.csv", "\n".join([columns, *(",".join(line.values()) for line in lines), ""]))
    small_book.write("book/other.md", "# Other page\n\n(a-label)=\n## A section\n\n```{verdicts}\n```\n")
    result = small_book.build(execute="off")
    assert result.returncode == 0, result.stdout
    page = html_checks.parse(small_book.folder / "_build/html/book/other.html")
    assert [strong.get_text() for strong in page.select(".tally strong")] == ["2", "2", "1"]
    assert page.select_one(".counts").get_text() == (
        "6 claims, all of which hold; 5 of them bear on a statement of the papers, or on an objection: 2 reproduced, "
        "1 reproduced in part, 1 not reproduced, 0 not reproducible from public facts, 1 sharpened."
    )
    listed = [[item.get_text().strip() for item in items.select("li")] for items in page.select("ul.verdicts")]
    assert listed == [[f"Paper {at} ({verdicts[at]}). stated {at}" for at in group] for group in ((0, 1), (2, 3), (4,))]
    assert [link["href"] for link in page.select("ul.verdicts a")][-1].endswith("03_small.html#claim-small-c-4")
