"""Tables joined row by row, with a word about rows that one of them lacks."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd


def join(left: pd.DataFrame, right: pd.DataFrame, on: Sequence[str], *, names: tuple[str, str] = ("left", "right"),
         missing: str = "refuse") -> pd.DataFrame:
    """Join two tables on the columns ``on``, in the order of the left one.

    Parameters
    ----------
    names : what the tables are called in the message.
    missing : "refuse" rows of ``left`` that ``right`` lacks, or "drop" them, where that is meant.

    Raises
    ------
    ValueError : a row of ``left`` has no partner, several rows of ``right`` have the same keys, or an unknown
        ``missing``.
    """
    if missing not in ("refuse", "drop"):
        raise ValueError(f"missing must be 'refuse' or 'drop', got {missing!r}")
    on = list(on)
    if right.duplicated(on).any():
        raise ValueError(f"{names[1]} has several rows for the same {', '.join(on)}")
    joined = left.merge(right, on=on, how="left", validate="many_to_one", indicator="_side")
    lone = joined["_side"] == "left_only"
    if lone.any() and missing == "refuse":
        lacking = joined.loc[lone, on].drop_duplicates()
        shown = "; ".join(", ".join(f"{k} = {v}" for k, v in row.items()) for row in lacking.head(3).to_dict("records"))
        raise ValueError(
            f"{names[1]} lacks {len(lacking)} of the rows of {names[0]}: {shown}{', ...' if len(lacking) > 3 else ''}; "
            "add them to its grid (see 'Add a row, or a table of your own'), or join with missing='drop'"
        )
    return joined[~lone].drop(columns="_side").reset_index(drop=True)
