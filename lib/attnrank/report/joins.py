"""Tables joined row by row, with a word about rows that one of them lacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pandas as pd


def join(left: pd.DataFrame, right: pd.DataFrame, on: Sequence[str], *, names: tuple[str, str],
         missing: str = "refuse") -> pd.DataFrame:
    """Join two tables on the columns ``on``, in the order of the left one.

    Parameters
    ----------
    names : what the two tables are called in the message.
    missing : "refuse" rows of ``left`` that ``right`` lacks, or "drop" them, where that is meant.

    Raises
    ------
    ValueError : a table lacks a column of ``on``, a row of ``left`` has no partner, several rows of ``right`` have the
        same keys, or an unknown ``missing``.
    """
    if missing not in ("refuse", "drop"):
        raise ValueError(f"missing must be 'refuse' or 'drop', got {missing!r}")
    on = list(on)
    for name, columns in zip(names, (left.columns, right.columns)):
        if absent := [column for column in on if column not in columns]:
            raise ValueError(f"on must name columns of both tables, {name} lacks {', '.join(absent)}")
    if right.duplicated(on).any():
        raise ValueError(f"{names[1]} has several rows for the same {', '.join(on)}")
    if missing == "refuse":
        _refuse_lone(left[on], right[on], names)
    how: Literal["left", "inner"] = "left" if missing == "refuse" else "inner"  # gaps would change the columns' types
    return left.merge(right, on=on, how=how, validate="many_to_one")


def _refuse_lone(left: pd.DataFrame, right: pd.DataFrame, names: tuple[str, str]) -> None:
    """Refuse keys of the left table that the right one lacks."""
    joined = left.merge(right, how="left", indicator="_side")
    lacking = joined.loc[joined["_side"] == "left_only", left.columns].drop_duplicates()
    if len(lacking):
        shown = "; ".join(", ".join(f"{k} = {v}" for k, v in row.items()) for row in lacking.head(3).to_dict("records"))
        raise ValueError(
            f"{names[1]} lacks {len(lacking)} of the rows of {names[0]}: {shown}{', ...' if len(lacking) > 3 else ''}; "
            "add them to its grid (see 'Add a row, or a table of your own'), or join with missing='drop'"
        )
