"""Values that no row of a table can have, by what its columns are called."""

from __future__ import annotations

import re

import pandas as pd

#: What a column's name says of its values: least and largest; "n" is the column of that name, where there is one.
RULES = (
    (r"_(standard_error|std|se|variance|error)$|_over_\w+_std$|^(seconds|std|spread)$", 0, None),
    (r"(fraction|accuracy|agreement)(?!.*(_std|_error|_se)$)|(^|_)(?<!common_)share(_mean)?$", 0, 1),
    (r"^(kept|same|overlap|(aim|ceiling)(_before)?)$", 0, 1 + 1e-6),  # common_share is an unbiased estimate
    (r"^rank_mean$|^(barrier|upper|lower|vertices|bound)$|^hardmax(_mean)?$", 0, "n"),
    (r"(^|_)cosine(_\d+)?$|^smallest_eigenvalue$", -1 - 1e-9, 1 + 1e-9),
    (r"^(parameters|trained_parameters|flops_\w+|training_flops|operations)$", 0, None),
)


def impossible(table: pd.DataFrame, results: list[str]) -> list[str]:
    """The columns of results with a value that their name rules out, each with its least and largest value."""
    found = []
    for name in results:
        values = table[name].dropna()
        if not len(values) or not pd.api.types.is_numeric_dtype(values) or values.dtype == bool:
            continue
        for pattern, least, most in RULES:
            if not re.search(pattern, name):
                continue
            if most == "n":
                most = table.loc[values.index, "n"].clip(lower=1) if "n" in table else None
            if (values < least).any() or (most is not None and (values > most).any()):
                found.append(f"{name}: {values.min()} to {values.max()}")
    return found
