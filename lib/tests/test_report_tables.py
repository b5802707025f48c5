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
