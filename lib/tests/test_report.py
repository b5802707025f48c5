"""report: claims hold or fail as they should, and the ledger keeps them."""

import dataclasses
import itertools
import json
import math
import os
from concurrent.futures import ThreadPoolExecutor

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnrank import report
from attnrank.report import claims

BASE = {
    "id": "barrier/test",
    "statement": "A thing is small.",
    "measured": [0.1, 0.3],
    "relation": "<=",
    "bound": 0.4,
    "control": "a large thing",
    "control_measured": 0.5,
}


@pytest.fixture(autouse=True)
def results(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNRANK_RESULTS", str(tmp_path))
    return tmp_path


def test_a_claim_that_holds_shows_its_closest_case_and_enters_the_ledger(results):
    row = report.claim(**BASE)
    assert (row.measured, row.bound, row.cases) == ("0.3", "0.4", 2)
    assert report.read_ledger() == [{key: str(value) for key, value in vars(row).items()}]
    bundle = row._repr_mimebundle_()
    assert bundle[report.CLAIM_MIME] == vars(row)
    assert "0.3 ≤ 0.4 (closest of 2 cases)" in bundle["text/plain"]
    assert "a large thing: 0.5, not ≤ 0.4" in bundle["text/html"]


@pytest.mark.parametrize(
    ("relation", "measured", "control", "shown"),
    [("<=", 0.45, 1, "0.45 ≤ 0.4 + 0.1"), (">=", 0.35, 0, "0.35 ≥ 0.4 − 0.1"), ("==", 0.35, 0, "0.35 = 0.4 ± 0.1")],
)
def test_a_margin_is_shown_beside_the_bound(relation, measured, control, shown):
    row = report.claim(
        **BASE | {"relation": relation, "measured": measured, "control_measured": control, "margin": 0.1}
    )
    assert report.comparison(row) == shown


@pytest.mark.parametrize(
    "change",
    [
        {"measured": 0.41},
        {"measured": [0.1, 0.41]},
        {"relation": ">=", "control_measured": 0.1},
        {"relation": "==", "measured": 0.39},
        {"margin": 0.05, "measured": 0.46, "control_measured": 0.6},
    ],
)
def test_a_claim_that_does_not_hold_fails_and_stays_out_of_the_ledger(change):
    with pytest.raises(AssertionError, match="barrier/test fails"):
        report.claim(**BASE | change)
    assert report.read_ledger() == []


@pytest.mark.parametrize(
    "change", [{"control_measured": 0.4}, {"control_measured": [0.1, 0.2]}, {"margin": 0.1}, {"control_bound": 0.6}]
)
def test_a_control_that_passes_fails_the_claim(change):
    with pytest.raises(AssertionError, match="control .* is not caught"):
        report.claim(**BASE | change)
    assert report.read_ledger() == []


@pytest.mark.parametrize(
    ("relation", "measured", "control", "slack", "effect"),
    [
        ("<=", [0.1, 0.45], 1, "0.05", "0.55"),
        (">=", [0.35, 2], 0, "0.05", "0.35"),
        ("==", [0.4, 0.43], 0, "0.07", "0.37"),
    ],
)
def test_slack_and_effect_are_distances_of_the_closest_case(relation, measured, control, slack, effect):
    row = report.claim(
        **BASE | {"relation": relation, "measured": measured, "control_measured": control, "margin": 0.1}
    )
    assert (row.slack, row.effect) == (slack, effect)
    assert "a violation of " + slack in row._repr_mimebundle_()["text/plain"]


@given(measured=st.floats(0, 0.9), relation=st.sampled_from(["<=", ">=", "=="]))
def test_a_value_worse_by_less_than_the_slack_passes_and_by_more_fails(measured, relation):
    bound, margin = {"<=": (1, 0.1), ">=": (-1, 0.1), "==": (measured + 0.1, 0.2)}[relation]
    slack = -claims._worst_case("measured", measured, relation, bound, margin).excess
    worse = {"<=": 1, ">=": -1, "==": -1}[relation] * slack
    assert slack > 0 and claims._worst_case("measured", measured + 0.99 * worse, relation, bound, margin).holds
    assert not claims._worst_case("measured", measured + 1.01 * worse, relation, bound, margin).holds


@pytest.mark.parametrize(("measured", "powerless"), [(0.35, False), (0.1, True)])
def test_a_claim_far_from_its_bound_beside_its_control_has_no_power(measured, powerless):
    row = report.claim(**BASE | {"measured": measured, "control_measured": 1.4})
    assert report.powerless(row) == powerless


@given(value=st.floats(-10, 10), bound=st.floats(-10, 10), margin=st.floats(0, 1))
def test_relations_are_those_of_arithmetic(value, bound, margin):
    holds = {
        "<=": value - bound - margin <= 0,
        ">=": bound - value - margin <= 0,
        "==": abs(value - bound) - margin <= 0,
    }
    for relation, expected in holds.items():
        assert claims._worst_case("measured", value, relation, bound, margin).holds == expected


def test_the_ledger_is_sorted_replaces_a_claim_and_survives_many_writers(results):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: report.claim(**BASE | {"id": f"barrier/c{i % 7}"}), range(40)))
    assert [row["id"] for row in report.read_ledger()] == [f"barrier/c{i}" for i in range(7)]
    before = (results / "ledger.csv").stat().st_mtime_ns
    report.claim(**BASE | {"id": "barrier/c3"})
    assert (results / "ledger.csv").stat().st_mtime_ns == before, "an unchanged claim rewrites the file"
    report.claim(**BASE | {"id": "barrier/c3", "measured": 0.2})
    assert [row["measured"] for row in report.read_ledger() if row["id"] == "barrier/c3"] == ["0.2"]


def test_a_damaged_ledger_is_refused(results):
    report.claim(**BASE)
    text = (results / "ledger.csv").read_text(encoding="utf-8")
    (results / "ledger.csv").write_text(text.replace("statement", "stated"), encoding="utf-8")
    with pytest.raises(ValueError, match=r"ledger.csv is not a ledger .* rerun the notebooks"):
        report.read_ledger()
    (results / "ledger.csv").write_text(text.rstrip("\n").rpartition(",")[0], encoding="utf-8")
    with pytest.raises(ValueError, match="wrong number of fields"):
        report.read_ledger()


def test_rounding_is_not_shown_because_machines_differ_in_it():
    row = report.claim(**BASE | {"measured": 1 + 3e-16, "relation": "==", "bound": 1, "margin": 1e-12,
                                 "margin_meaning": report.ROUNDING})
    assert row.measured == "1"


@pytest.mark.parametrize("relation", ["==", "<=", ">="])
def test_of_cases_within_rounding_the_first_is_shown_because_machines_differ_in_which_is_the_closest(relation):
    """Also where a case beyond the rounding is none: 2 <= 5 is farther from failing than any of the three."""
    far = {"==": [], "<=": [2.0], ">=": [9.0]}[relation]
    texts = set()
    for noise in itertools.permutations([1e-16, -2e-16, 0.0]):
        bound = np.array([3.0, 1.0, 2.0])
        measured = [*far, *(bound * (1 + np.array(noise)))]
        row = report.claim(**BASE | {"measured": measured, "relation": relation, "bound": [*[5.0] * len(far), *bound],
                                     "margin": 1e-12, "margin_meaning": report.ROUNDING,
                                     "control_measured": 4.0 if relation != ">=" else 0.0, "control_bound": 3.0})
        texts.add(repr(row))
    assert len(texts) == 1 and row.measured == "3" and row.slack == "1e-12"


def test_outside_the_book_a_claim_is_only_asserted(tmp_path, monkeypatch):
    monkeypatch.delenv("ATTNRANK_RESULTS")
    monkeypatch.chdir(tmp_path)
    assert report.claim(**BASE).measured == "0.3"
    assert list(tmp_path.iterdir()) == []


def test_html_is_escaped():
    row = report.claim(**BASE | {"statement": "a < b & c"})
    assert "a &lt; b &amp; c" in row._repr_mimebundle_()["text/html"]
    assert json.dumps(row._repr_mimebundle_()[report.CLAIM_MIME])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": "barrier"}, "id must look like"),
        ({"id": "02-barrier/test"}, "id must look like"),
        ({"id": "barrier/Test_1"}, "id must look like"),
        ({"relation": "<"}, "relation must be one of"),
        ({"kind": "guess"}, "kind must be one of"),
        ({"verdict": "reproduced"}, "verdict must be one of"),
        ({"paper": "Theorem 1", "verdict": "proved"}, "verdict must be one of"),
        ({"measured": []}, "measured must be non-empty and finite"),
        ({"measured": math.nan}, "measured must be non-empty and finite"),
        ({"bound": math.inf}, "measured must be non-empty and finite"),
        ({"margin": -0.1}, "measured must be non-empty and finite"),
        ({"control_measured": math.nan}, "control_measured must be non-empty and finite"),
        ({"digits": 0}, "digits must be at least 1"),
    ],
)
def test_bad_claims_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        report.claim(**BASE | change)


def test_figures_are_drawn_in_the_books_style():
    with mpl.rc_context():
        report.setup()
        fig, ax = plt.subplots()
        report.draw_ceiling(ax, 0.6, "ceiling")
        report.draw_band(ax, [1, 2], [0.1, 0.2], [0.05, 0.05], report.COLOURS[0])
        report.label_line(ax, 2, 0.2, "line", report.COLOURS[0])
        assert fig.get_facecolor()[3] == 0 and ax.get_facecolor()[3] == 0
        low, high = ax.collections[0].get_datalim(ax.transData).intervaly
        assert (low, high) == pytest.approx((0.05, 0.25))
        assert [text.get_text() for text in ax.texts] == ["ceiling", "line"]
        plt.close(fig)


def test_sequence_colours_go_from_light_to_dark():
    lightness = [0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in report.sequence_colours(5)]
    assert lightness == sorted(lightness, reverse=True) and lightness[0] - lightness[-1] > 0.2
    with pytest.raises(ValueError, match="count must be at least 1"):
        report.sequence_colours(0)


def test_a_results_folder_that_does_not_exist_is_no_reason_to_write_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNRANK_RESULTS", str(tmp_path / "typo"))
    with pytest.raises(ValueError, match="ATTNRANK_RESULTS must be an existing folder"):
        report.claim(**BASE)


def test_the_ledger_waits_while_a_reader_has_it_open(results, monkeypatch):
    """As Windows makes writers wait."""
    refusals, honest = [PermissionError] * 3, os.replace

    def refused(*paths):
        if refusals:
            raise refusals.pop()
        return honest(*paths)

    monkeypatch.setattr(os, "replace", refused)
    report.claim(**BASE)
    assert not refusals and len(report.read_ledger()) == 1 and not list(results.glob("*.tmp"))


def test_power_is_a_tenth_of_the_effect():
    row = report.claim(**BASE)
    for slack, powerless in (("0.1", False), ("0.11", True)):
        assert report.powerless(dataclasses.replace(row, slack=slack, effect="1")) == powerless


def test_numbers_are_shown_to_four_digits_and_distances_to_two():
    row = report.claim(**BASE | {"measured": 0.123456, "bound": 0.234567, "margin": 0.014, "control_measured": 1.23456})
    assert (row.measured, row.bound, row.margin, row.control_measured) == ("0.1235", "0.2346", "0.014", "1.235")
    assert (row.slack, row.effect) == ("0.13", "1.1")
    assert report.claim(**BASE | {"measured": 0.123456, "digits": 2}).measured == "0.12"


def test_a_case_at_its_bound_has_a_slack_of_zero_without_a_sign():
    row = report.claim(**BASE | {"measured": 0.4})
    assert row.slack == "0"
    assert report.slack_comparison(row).startswith("any violation would be caught; ")


def test_a_claim_names_its_margin_and_its_paper_with_the_verdict():
    change = {"margin": 0.01, "margin_meaning": "false-alarm rate 1e-6", "kind": "theorem", "control": "a < b"}
    row = report.claim(**BASE | change | {"paper": "Theorem 1", "verdict": "sharpened"})
    bundle = row._repr_mimebundle_()
    assert "margin: false-alarm rate 1e-6" in bundle["text/plain"]
    assert "paper: Theorem 1: sharpened" in bundle["text/plain"]
    assert "a &lt; b: 0.5" in bundle["text/html"] and "theorem, holds" in bundle["text/html"]
    assert report.anchor(row) == "claim-barrier-test" and "id='claim-barrier-test'" in bundle["text/html"]
    with pytest.raises(ValueError, match="verdict must be one of"):
        report.claim(**BASE | {"paper": "Theorem 1"})


def test_a_ledger_with_a_field_too_many_is_refused(results):
    report.claim(**BASE)
    text = (results / "ledger.csv").read_text(encoding="utf-8")
    (results / "ledger.csv").write_text(text.rstrip("\n") + ",more\n", encoding="utf-8")
    with pytest.raises(ValueError, match="wrong number of fields"):
        report.read_ledger()


def contrast_on_white(colour):
    """Of WCAG 2: luminances of linear light, each raised by 0.05."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in mpl.colors.to_rgb(colour)]
    return 1.05 / (np.dot([0.2126, 0.7152, 0.0722], linear) + 0.05)


def test_colours_of_lines_and_of_their_labels_have_their_contrasts():
    assert min(map(contrast_on_white, [*report.sequence_colours(7), *report.COLOURS])) >= 3
    fig, ax = plt.subplots()
    for colour in ("yellow", "#bbbbbb", report.COLOURS[1], report.sequence_colours(2)[0]):
        assert contrast_on_white(colour) < 4.5
        report.label_line(ax, 2, 0.2, "line", colour)
    report.label_line(ax, 2, 0.2, "line", "#404040")  # dark enough as it is
    inks = [text.get_color() for text in ax.texts]
    plt.close(fig)
    assert all(contrast_on_white(ink) >= 4.5 for ink in inks)
    assert mpl.colors.to_hex(inks[-1]) == "#404040"


def test_lines_bands_and_ceilings_are_where_they_are_said_to_be():
    fig, ax = plt.subplots()
    report.draw_ceiling(ax, 0.6, "ceiling")
    report.draw_band(ax, [1, 2], [0.1, 0.2], [0.05, 0.05], report.COLOURS[0])
    report.label_line(ax, 2, 0.2, "line", report.COLOURS[0])
    ceiling, mean = (line.get_ydata() for line in ax.lines)
    plt.close(fig)
    assert list(ceiling) == [0.6, 0.6] and list(mean) == [0.1, 0.2]
    assert [text.xy for text in ax.texts] == [(0.01, 0.6), (2, 0.2)]


def test_a_chapter_begins_with_one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with mpl.rc_context():
            report.setup()
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(threads)


def test_the_ledger_is_sorted_whatever_the_order_of_the_claims():
    for name in ("c", "a", "b"):
        report.claim(**BASE | {"id": f"barrier/{name}"})
    assert [row["id"] for row in report.read_ledger()] == ["barrier/a", "barrier/b", "barrier/c"]
