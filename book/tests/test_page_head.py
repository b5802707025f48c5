"""What pages say of themselves: title, description, social card; buttons only where there is a repository."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

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
