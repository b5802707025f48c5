"""The rows of the probe as a table: means over samples, or a row for each sample."""

from __future__ import annotations

import numpy as np
import pandas as pd

from attnrank.probe._masks import KINDS

COLUMNS = (
    "layer", "head", "n", "m", "head_dim", "kv_heads", "mask", "hardmax_rank", "numerical_rank", "stable_rank",
    "effective_rank", "bound", "deviation",
)  # fmt: skip


def table_of(rows: list[dict], per_sample: bool) -> pd.DataFrame:
    """The public table of what :func:`attnrank.probe._measure.measure` found in all batches."""
    frame = pd.DataFrame(rows)
    for column in ("hardmax_rank", "numerical_rank", "stable_rank", "effective_rank"):
        if column not in frame:
            frame[column] = np.nan
    frame["order"] = frame["layer"].map({name: i for i, name in enumerate(dict.fromkeys(frame["layer"]))})
    extra = [name for name in ("sink_mass", "rotary_dim") if name in frame and frame[name].notna().any()]
    frame["kind"] = frame["kind"].map(KINDS.index)
    if not per_sample:
        how = dict.fromkeys((*COLUMNS[2:6], *COLUMNS[7:12], *extra), "mean")
        how |= {"layer": "first", "deviation": "max", "kind": "max", "padded": "max", "biased": "max"}
        frame = frame.groupby(["order", "head"], as_index=False).agg(how)
    else:
        frame = frame.groupby(["order", "head", "sample"], as_index=False).agg(
            {column: "first" for column in frame.columns if column not in ("order", "head", "sample")}
        )
    frame["mask"] = [_label(*row) for row in zip(frame["kind"], frame["padded"], frame["biased"], strict=True)]
    for column in ("n", "m", "head_dim", "kv_heads", "rotary_dim"):
        if column in frame and (frame[column].notna() & (frame[column] % 1 == 0)).all():
            frame[column] = frame[column].astype(np.int64)
    columns = [*COLUMNS[:2], *(["sample"] if per_sample else []), *COLUMNS[2:], *extra]
    return frame[columns].reset_index(drop=True)


def _label(kind: int, padded: bool, biased: bool) -> str:
    words = [KINDS[kind]] if kind or not (padded or biased) else []
    return " + ".join(words + ["padding"] * bool(padded) + ["bias"] * bool(biased))
