"""A join says which rows which table lacks."""

import pandas as pd
import pytest

from attnrank.report import join

NAMES = ("head_dimension", "head_dimension_bounds")
LEFT = pd.DataFrame({"n": [64, 16, 96], "d_h": [8, 8, 8], "rank": [3.0, 2.0, 4.0]})
RIGHT = pd.DataFrame({"n": [16, 64], "d_h": [8, 8], "bound": [5.0, 6.0]})


def test_rows_come_in_the_order_of_the_left_table():
    joined = join(LEFT[:2], RIGHT, ["n", "d_h"], names=NAMES)
    assert joined.to_dict("list") == {"n": [64, 16], "d_h": [8, 8], "rank": [3.0, 2.0], "bound": [6.0, 5.0]}


def test_a_missing_row_is_named_with_its_table():
    with pytest.raises(
        ValueError, match=r"head_dimension_bounds lacks 1 of the rows of head_dimension: n = 96, d_h = 8; add"
    ):
        join(LEFT, RIGHT, ["n", "d_h"], names=NAMES)
    assert join(LEFT, RIGHT, ["n", "d_h"], names=NAMES, missing="drop").n.tolist() == [64, 16]


def test_rows_that_are_dropped_leave_the_others_as_they_are():
    right = pd.DataFrame({"n": [16, 64], "d_h": [8, 8], "rank": [2**53 + 1, 3], "whole": [True, False]})
    joined = join(LEFT[["n", "d_h"]], right, ["n", "d_h"], names=NAMES, missing="drop")
    assert joined.to_dict("list") == {"n": [64, 16], "d_h": [8, 8], "rank": [3, 2**53 + 1], "whole": [False, True]}
    assert [str(kind) for kind in joined.dtypes] == ["int64", "int64", "int64", "bool"]


def test_bad_joins():
    for left, right, lacking in ((LEFT, RIGHT.drop(columns="d_h"), "bounds"), (LEFT.drop(columns="d_h"), RIGHT, "own")):
        with pytest.raises(ValueError, match=f"on must name columns of both tables, {lacking} lacks d_h"):
            join(left, right, ["n", "d_h"], names=("own", "bounds"))
    with pytest.raises(ValueError, match="bounds has several rows for the same n"):
        join(LEFT, pd.concat([RIGHT, RIGHT]), ["n"], names=("own", "bounds"))
    with pytest.raises(ValueError, match="missing must be 'refuse' or 'drop', got 'keep'"):
        join(LEFT, RIGHT, ["n"], names=NAMES, missing="keep")
    with pytest.raises(TypeError, match="names"):  # or the message could not say which table lacks a row
        join(LEFT, RIGHT, ["n", "d_h"])


@pytest.mark.parametrize("rows, shown", [(3, "n = 0; n = 1; n = 2; add"), (4, "n = 0; n = 1; n = 2, ...; add")])
def test_three_missing_rows_are_shown_each_once(rows, shown):
    left = pd.DataFrame({"n": [*range(rows), *range(rows)], "seed": 0})
    with pytest.raises(ValueError, match=f"b lacks {rows} of the rows of a: {shown}"):
        join(left, pd.DataFrame({"n": [9], "bound": [1.0]}), ["n"], names=("a", "b"))


def test_rows_with_the_same_keys_and_other_values_are_refused():
    twice = pd.DataFrame({"n": [16, 16], "bound": [5.0, 6.0]})
    with pytest.raises(ValueError, match="bounds has several rows for the same n"):
        join(LEFT, twice, ["n"], names=("own", "bounds"), missing="drop")
