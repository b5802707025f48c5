"""Tables as a chapter shows them: HTML that fits its column, and plain text beside it."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from attnrank import _check


@dataclass(frozen=True)
class Table:
    """A data frame as a notebook shows it; see :func:`table`."""

    frame: pd.DataFrame
    caption: str

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        body = self.frame.to_html(index=False, border=0, classes="numbers", justify="unset")
        caption = f"<p class='table-caption'>{self.caption}</p>" if self.caption else ""
        return {
            "text/html": f"<div class='table-box'>{caption}{body}</div>",
            "text/plain": self.frame.to_string(index=False),
        }


def table(frame: pd.DataFrame, *, digits: dict[str, int] | int = 3, caption: str = "") -> Table:
    """A data frame with its floats written to fixed decimals, so that it reads the same on every machine.

    Parameters
    ----------
    frame : one row a line, columns named as the reader should see them; numbers, text or booleans. A missing value is
        shown as an en dash.
    digits : decimals of the float columns, one number or one for each column (3 where a column is not named).
    caption : one sentence above the table, plain text or HTML.

    Raises
    ------
    ValueError : ``frame`` is empty, ``digits`` names a column that is not there, or is no whole number >= 0.
    """
    if not isinstance(frame, pd.DataFrame) or frame.empty:
        raise ValueError("frame must be a data frame with at least one row and one column")
    given = digits if isinstance(digits, dict) else dict.fromkeys(frame.columns, digits)
    decimals = {name: _check.integer("digits", number, minimum=0) for name, number in given.items()}
    if unknown := decimals.keys() - set(frame.columns):
        raise ValueError(f"digits names columns that frame does not have: {sorted(unknown)}")
    shown = pd.DataFrame({name: _written(frame[name], decimals.get(name, 3)) for name in frame.columns})
    return Table(shown, caption)


def _written(column: pd.Series, decimals: int) -> list[str]:
    real = pd.api.types.is_float_dtype(column)
    return ["–" if pd.isna(x) else _number(float(x), decimals) if real else _other(x) for x in column.tolist()]


def _number(x: float, decimals: int) -> str:
    return f"{round(x, decimals) + 0.0:.{decimals}f}"  # never "-0.000", which rounding would decide


def _other(x: object) -> str:
    return f"{x:,}" if isinstance(x, int) and not isinstance(x, bool) else str(x)
