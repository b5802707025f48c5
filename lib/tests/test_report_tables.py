"""report.table: what a reader sees, and what is refused."""

import math

import pandas as pd
import pytest

from attnrank import report

FRAME = pd.DataFrame({"n": [64, 4096], "rank / n": [0.12345, math.nan], "where": ["a < b", "c"]})


def test_numbers_are_written_to_fixed_decimals_and_missing_ones_as_a_dash():
    bundle = report.table(FRAME, digits={"rank / n": 2}, caption="Two rows.")._repr_mimebundle_()
    assert bundle["text/plain"].split() == [
        "n",
        "rank",
        "/",
        "n",
        "where",
        "64",
        "0.12",
        "a",
        "<",
        "b",
        "4,096",
        "–",
        "c",
    ]
    assert "a &lt; b" in bundle["text/html"] and "Two rows." in bundle["text/html"]


def test_the_frame_is_left_as_it_was():
    before = FRAME.copy()
    report.table(FRAME)
    pd.testing.assert_frame_equal(FRAME, before)


@pytest.mark.parametrize(
    ("frame", "digits", "message"),
    [
        (pd.DataFrame(), 3, "frame must be"),
        ([1], 3, "frame must be"),
        (FRAME, {"rank": 2}, r"digits names .*\['rank'\]"),
    ],
)
def test_bad_tables_are_named(frame, digits, message):
    with pytest.raises(ValueError, match=message):
        report.table(frame, digits=digits)


def test_truth_values_are_words_and_no_zero_has_a_sign():
    frame = pd.DataFrame({"met": [True, False, None], "n": [1000, 0, 2], "excess": [-1e-17, 1e-17, -0.0004]})
    shown = report.table(frame.astype({"met": "boolean"})).frame
    assert shown["met"].tolist() == ["True", "False", "–"] and shown["n"].tolist() == ["1,000", "0", "2"]
    assert shown["excess"].tolist() == ["0.000", "0.000", "0.000"]
    assert report.table(frame[["n"]].astype(bool)).frame["n"].tolist() == ["True", "False", "True"]
    assert report.table(frame[["excess"]], digits=4).frame["excess"].tolist() == ["0.0000", "0.0000", "-0.0004"]


@pytest.mark.parametrize("digits, message", [
    (-1, "digits must be at least 0, got -1"), ("3", "digits must be an integer, got '3'"),
    ({"x": 1.5}, "digits must be an integer, got 1.5"),
])  # fmt: skip
def test_decimals_are_whole_numbers(digits, message):
    with pytest.raises(ValueError, match=message):
        report.table(pd.DataFrame({"x": [1.0]}), digits=digits)


def test_three_decimals_where_nothing_else_is_said():
    frame = pd.DataFrame({"a": [0.12345], "b": [0.12345], "n": [1234]})
    assert report.table(frame).frame.to_dict("list") == {"a": ["0.123"], "b": ["0.123"], "n": ["1,234"]}
    assert report.table(frame, digits={"b": 1}).frame.to_dict("list") == {"a": ["0.123"], "b": ["0.1"], "n": ["1,234"]}


def test_a_table_without_a_caption_has_none():
    assert "table-caption" not in report.table(FRAME)._repr_mimebundle_()["text/html"]
