"""The book's own search finds what a reader would type, by section, in whole words and by synonym."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from docutils import nodes
from docutils.utils import new_document
from playwright.sync_api import Page

import browsing
import html_checks
import search_index

ASK = """query => search(query, records()).found.map(found => [
    found.section.address, snippet(found.section, things(query)).textContent])"""
QUERIES = {  # what is typed: where one of the first three results must lead
    "QK-norm": "notebooks/05_normalised_keys.html",
    "RoPE": "notebooks/10_heads_and_weights.html#positions-layernorm-scaling",
    "GQA": "book/notation.html#term-grouped-queries",
    "sliding window": "notebooks/09_masks.html#sliding-windows",
    "autoregressive": "notebooks/09_masks.html#causal-masks",
    "how large should my heads be": "notebooks/04_growth.html#how-large-should-a-head-be",
    "normalized keys": "notebooks/05_normalised_keys.html",
    "SVD": "notebooks/08_softmax.html#the-spectrum-at-a-fixed-temperature",
    "float16": "notebooks/01_attention_rank.html#what-precision-does",
    "nuclear norm": "notebooks/21_token_sparsity.html#vector-outputs-the-nuclear-norm-a-rank-for-each-token",
    "KV cache": "notebooks/10_heads_and_weights.html#multi-head-latent-attention",
    "vit": "notebooks/14_vit_initialisation.html",
    "SVM": "notebooks/23_rank_and_convexity.html#attention-as-a-support-vector-machine",
    "does pruning heads hurt": "notebooks/18_choosing_head_dimension.html",
    "how to measure my own model": "book/reading.html#a-whole-model",
    "whitening": "book/notation.html#term-whitened-tokens",
    "what did not reproduce": "book/ledger.html",
    "distillation": "notebooks/22_convex_experiments.html#a-student-of-a-text-model",
    "low rank bottleneck": "notebooks/01_attention_rank.html#ranks-of-other-matrices",
    "my own model": "notebooks/18_choosing_head_dimension.html#a-page-for-your-own-model",
    "GPT-2": "notebooks/04_growth.html#how-large-should-a-head-be",
    "how many heads": "notebooks/10_heads_and_weights.html#several-heads",
    "how many seeds": "notebooks/04_growth.html#table-2-and-how-many-repetitions-it-takes",
    "softmax temperature": "notebooks/08_softmax.html",
    "cross attention": "notebooks/02_barrier.html#the-barrier-is-about-queries",
    "weight tying": "notebooks/10_heads_and_weights.html#tied-weights",
    "embedding dimension": "notebooks/07_random_tokens.html#width-as-a-head-dimension",
    "flash attention": "notebooks/18_choosing_head_dimension.html#the-rule-judged",
    "duality gap": "notebooks/20_convex_attention.html#optimality-and-a-gap-that-anybody-can-check",
    "log n": "notebooks/04_growth.html",
    "how to cite": "book/reading.html#how-to-cite",
}


@pytest.fixture(scope="module")
def page(browser: browsing.Browser, site: Path) -> Iterator[Page]:
    opened = browsing.tab_of(browser)
    opened.goto((site / "search.html").as_uri() + "?q=sliding%20window")
    yield opened
    opened.context.close()


def index(site: Path) -> dict[str, list[dict[str, str]]]:
    return json.loads((site / "search_sections.js").read_text(encoding="utf-8")[len(search_index.START):])


def test_the_page_shows_sections_with_their_words_marked(page: Page) -> None:
    first = page.locator("#search-results li").first
    assert first.locator("a").get_attribute("href") == "notebooks/09_masks.html#sliding-windows"
    marked = {mark.lower() for mark in first.locator("mark").all_text_contents()}
    assert marked & {"sliding window", "window", "windows"}
    page.locator("article input[type=search]").fill("no such word here: xyzzy")
    assert "some of them" in page.locator("#search-summary").inner_text()
    page.locator("article input[type=search]").fill("xyzzy")
    assert "Nothing found" in page.locator("#search-summary").inner_text()
    assert page.locator("#search-results li").count() == 0


@pytest.mark.parametrize("query", QUERIES)
def test_what_readers_type_is_found(page: Page, query: str) -> None:
    assert QUERIES[query] in [address for address, _ in page.evaluate(ASK, query)[:3]]


def test_no_hit_lies_inside_a_word(page: Page, site: Path) -> None:
    """Each result for "rope" holds one of its names as words of their own; "Europe" is no hit."""
    texts = {record["address"]: f"{record['title']} {record['page']} {record['text']}"
             for records in index(site).values() for record in records}
    found = page.evaluate(ASK, "rope")
    assert found
    for address, _ in found:
        assert re.search(r"\b(rope|rotary)\b", texts[address], re.IGNORECASE), address
    assert not any("rotary" in snippet.lower() for _, snippet in page.evaluate(ASK, "rot"))


def test_snippets_hold_neither_tex_nor_file_names(site: Path) -> None:
    faults = [(record["address"], found[0]) for records in index(site).values() for record in records
              if (found := re.search(r"\\[A-Za-z]+|\$[^ ]|\b\d\w+\.ipynb|\.\./notebooks/", record["text"]))]
    assert faults == []


def test_every_result_leads_to_an_anchor(site: Path) -> None:
    records = [record for records in index(site).values() for record in records]
    assert len(records) > 100
    for record in records:
        name, _, anchor = record["address"].partition("#")
        assert not anchor or anchor in html_checks.anchors(site / name), record["address"]


@pytest.mark.parametrize(("tex", "text"), [
    (r"d_h \ge \log n", "d_h ≥ log n"), (r"\tfrac{n-1}{e}", "n-1/e"),
    (r"\norm{X}_F \approx 0.63\, n", "‖X‖_F ≈ 0.63 n"),
    (r"QK^\top / \sqrt{d_h}", "QKᵀ / √ d_h"), (r"\left(1 - \tfrac1n\right)^n", "(1 - 1/n )^n"), (r"\unknown{x}", "x"),
])  # fmt: skip
def test_formulas_in_plain_characters(tex: str, text: str) -> None:
    assert search_index.plain(tex) == text


def test_what_is_recorded_of_a_page() -> None:
    """Prose by section, with its numbers; what a list explains, by itself; no code, output or line of sources."""
    page = new_document("page")
    listed = nodes.definition_list("", nodes.definition_list_item(
        "", nodes.term("", "a word"), nodes.definition("", nodes.paragraph("", "is explained"))))  # fmt: skip
    claim = "<div class='claim'><p class='claim-statement'>It <b>holds</b>.</p><td>0.5</td></div>"
    figure = nodes.figure("", nodes.image(uri="a.png"), nodes.caption("", "A picture."),
                          nodes.legend("", nodes.paragraph("", "rows, code")))  # fmt: skip
    box = nodes.section("", nodes.title("", "Theorem"), nodes.paragraph("", "stated"))
    inner = nodes.section("", nodes.title("", "Inside"), nodes.paragraph("", "more"), ids=["inside"])
    inner += [nodes.container("", box), listed, nodes.raw("", claim, format="html"), figure]
    top = nodes.section("", nodes.title("", "The page"), ids=["the-page"])
    prose = nodes.Text("Let $d_h$ and "), nodes.math("", r"n \ge 1"), nodes.Text(", be  it so.")
    top += nodes.paragraph("", "", *prose)
    top += [nodes.literal_block("", "print(1)"), inner]
    page += top
    search_index.give_anchors(None, page)  # type: ignore[arg-type]
    app = SimpleNamespace(
        env=SimpleNamespace(titles={"a/b": nodes.title("", "The page")},
                            toc_secnumbers={"a/b": {"": (3,), "#inside": (3, 1)}}),
        builder=SimpleNamespace(get_target_uri=lambda page: f"{page}.html"),
    )  # fmt: skip
    assert search_index.records(app, page, "a/b") == [  # type: ignore[arg-type]
        {"address": "a/b.html", "page": "3 The page", "title": "3 The page", "text": "Let d_h and n ≥ 1, be it so."},
        {"address": "a/b.html#inside", "page": "3 The page", "title": "3.1 Inside",
         "text": "more Theorem stated It holds . A picture."},
        {"address": "a/b.html#term-a-word", "page": "3 The page", "title": "a word", "text": "is explained"},
    ]  # fmt: skip


def test_a_page_that_was_not_written_keeps_its_records(tmp_path: Path) -> None:
    app = SimpleNamespace(builder=SimpleNamespace(format="html"), outdir=tmp_path,
                          env=SimpleNamespace(found_docs={"a", "b"}), search_records={"a": [1], "b": [2]})  # fmt: skip
    for records, found, expected in (
        ({"a": ["é"], "b": [2]}, {"a", "b"}, {"a": ["é"], "b": [2]}),
        ({"b": [3]}, {"a", "b", "c"}, {"a": ["é"], "b": [3], "c": []}), ({}, {"b"}, {"b": [3]}),
    ):  # fmt: skip
        app.search_records, app.env.found_docs = records, found
        search_index.write(app, None)  # type: ignore[arg-type]
        assert index(tmp_path) == expected
    before = (tmp_path / "search_sections.js").read_bytes()
    app.search_records = {"b": [4]}
    search_index.write(app, ValueError("failed"))  # type: ignore[arg-type]
    assert (tmp_path / "search_sections.js").read_bytes() == before


def test_terms_get_an_anchor_unless_it_is_taken() -> None:
    """Functions have one; their arguments get none: they are found with their function."""
    page = new_document("page")
    for ids, classes in (([], []), ([], []), (["m.f"], ["api"]), ([], ["api-items"])):
        term = nodes.term("", f"A word {ids}", ids=ids)
        page += nodes.definition_list("", nodes.definition_list_item("", term, nodes.definition()), classes=classes)
    search_index.give_anchors(None, page)  # type: ignore[arg-type]
    assert [term["ids"] for term in page.findall(nodes.term)] == [["term-a-word"], [], ["m.f"], []]
