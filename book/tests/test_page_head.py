"""What pages say of themselves: title, description, social card; buttons only where there is a repository."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import accessible
import pytest
from docutils import nodes
from docutils.utils import new_document

import html_checks
import page_head


def test_every_page_has_a_title_a_description_and_a_card(site: Path) -> None:
    pages = [path for path in [*site.glob("book/*.html"), *site.glob("notebooks/*.html")]
             if not html_checks.parse(path).select("meta[http-equiv=refresh]")]
    titles, abouts = set(), set()
    for path in pages:
        parsed = html_checks.parse(path)
        titles.add(parsed.title.get_text())
        [about] = [tag["content"] for tag in parsed.select("meta[name=description]")]
        assert 20 <= len(about) <= page_head.LENGTH, f"{path.name}: {about}"
        abouts.add(about)
        card = {tag["property"]: tag["content"] for tag in parsed.select("meta[property]")}
        assert card["og:site_name"] == "The Rank of Attention"
        assert card["og:description"] == about and card["og:title"] and "og:url" not in card
        assert parsed.select("link[rel=icon]")
    assert len(titles) == len(abouts) == len(pages) > 20


def test_citations_show_their_entry(site: Path) -> None:
    links = [link for path in site.glob("notebooks/*.html") for link in html_checks.parse(path).select("article a")
             if "bibliography.html#" in link.get("href", "") and link.get("href", "").split("#")[1].startswith("id")]
    assert links and [link["href"] for link in links if len(link.get("title", "")) < 30] == []


def test_heads_of_tables_say_what_they_head(site: Path) -> None:
    heads = [(path.name, head) for path in [*site.glob("book/*.html"), *site.glob("notebooks/*.html")]
             for head in html_checks.parse(path).select("article :is(thead, tbody) th")]
    assert len(heads) > 500
    assert [(page, str(head)) for page, head in heads if head.get("scope") not in ("col", "row")] == []
    assert {head.find_parent(["thead", "tbody"]).name for _, head in heads if head["scope"] == "col"} == {"thead"}


def test_heads_without_a_scope_get_that_of_their_place() -> None:
    body = ('<div role="doc-biblioentry"><table><thead><tr><th>a</th><th class="x">b</th></tr></thead><tbody><tr>'
            '<th>c</th><th class="y" scope="col">d</th><td>e</td></tr></tbody></table></div><th>')  # fmt: skip
    context = {"body": body}
    accessible.mend(None, "", "", context, None)  # type: ignore[arg-type]
    assert context["body"] == (
        '<div role="listitem"><table><thead><tr><th scope="col">a</th><th scope="col" class="x">b</th></tr></thead>'
        '<tbody><tr><th scope="row">c</th><th class="y" scope="col">d</th><td>e</td></tr></tbody></table></div><th>'
    )


def test_there_is_a_page_for_what_is_not_there(site: Path) -> None:
    assert "no such page" in html_checks.parse(site / "404.html").get_text()


def test_buttons_wait_for_the_address_of_a_repository(site: Path) -> None:
    page = html_checks.parse(site / "notebooks/02_barrier.html")
    assert page.select(".dropdown-source-buttons, .dropdown-launch-buttons") == []
    for address in ("", "https://host.invalid/book"):
        config = SimpleNamespace(html_theme_options={"repository_url": address, "launch_buttons": {"colab_url": "x"}})
        page_head.show_buttons(None, config)
        assert all(config.html_theme_options[button] == bool(address) for button in page_head.BUTTONS)
        assert ("launch_buttons" in config.html_theme_options) == bool(address)


def test_a_description_ends_with_a_sentence() -> None:
    text = "Why does a head miss tokens? " + "Because its queries are independent of one another. " * 9
    assert page_head.description(text).endswith(".") and len(page_head.description(text)) <= page_head.LENGTH
    assert page_head.description("word " * 99).endswith("word…")
    assert page_head.description("Short.") == "Short."
    assert page_head.description("Why? " + "word " * 99).endswith("word…")  # a question alone says too little
    words = "word " * (page_head.LENGTH // 5 - 1) + "words"
    assert page_head.description(words) == words and len(words) == page_head.LENGTH  # just fits
    whole = "w" * (page_head.LENGTH - 1) + "."
    assert page_head.description(whole) == page_head.description(f"{whole} More.") == whole
    assert page_head.description(f"w{whole} More.") == "w" * (page_head.LENGTH - 1) + "…"


@pytest.mark.parametrize("base", ["", "https://host.invalid/"])
def test_a_card_has_the_address_where_it_is_known(base: str) -> None:
    """Titles come with tags and entities, which are undone and written anew."""
    app = SimpleNamespace(
        search_records={"a/b": [{"text": 'Of "n" < d.'}, {"text": "Other."}]},
        config=SimpleNamespace(html_title="Book", html_baseurl=base),
        builder=SimpleNamespace(get_target_uri=lambda page: f"{page}.html"),
    )
    context = {"title": "<em>Q</em> &amp; A"}
    page_head.add_head(app, "a/b", "", context, None)  # type: ignore[arg-type]
    tags = {"og:title": "Q &amp; A", "og:description": "Of &quot;n&quot; &lt; d.", "og:site_name": "Book",
            "og:type": "article"} | ({"og:url": f"{base}a/b.html"} if base else {})  # fmt: skip
    lines = ['<meta name="description" content="Of &quot;n&quot; &lt; d."/>']
    lines += [f'<meta property="{name}" content="{value}"/>' for name, value in tags.items()]
    assert [line.strip() for line in context["head_of_page"].splitlines()] == lines
    page_head.add_head(app, "search", "", context := {}, None)  # type: ignore[arg-type]
    assert "description" not in context["head_of_page"] and 'content="Book"' in context["head_of_page"]


def test_a_citation_has_the_text_of_its_entry_and_no_other_link_has() -> None:
    entry = nodes.citation("", nodes.label("", "A26"), nodes.paragraph("", "A.  Author,\n$n$ ranks."), ids=["id1", "a"])
    entries = new_document("bibliography")
    entries += entry
    app = SimpleNamespace(env=SimpleNamespace(get_doctree={"book/bibliography": entries}.get))
    page, shown = new_document("page"), []
    for address, internal in (("../book/bibliography.html#id1", True), ("bibliography.html#a", True),
                              ("bibliography.html#id2", True), ("other.html#id1", True),
                              ("https://host.invalid/bibliography.html#id1", False)):  # fmt: skip
        page += nodes.reference("", "", refuri=address, **({"internal": True} if internal else {}))
    page_head.tell_citations(app, page, "page")  # type: ignore[arg-type]
    shown = [link.get("reftitle") for link in page.findall(nodes.reference)]
    assert shown == ["A. Author, n ranks."] * 2 + [None] * 3
