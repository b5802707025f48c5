"""Tables of data sets, from parquet files or the Hugging Face hub, checked against what is known of them.

With a local folder the network is never used. Nothing here loads a pickle or runs code that comes with the data.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from attnrank._optional import optional
from attnrank.sources import SOURCES, Source

if TYPE_CHECKING:
    import datasets
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
else:
    pa, pc = optional("pyarrow", "data"), optional("pyarrow.compute", "data")
    pq, datasets = optional("pyarrow.parquet", "data"), optional("datasets", "data")

ENVIRONMENT_VARIABLE = "ATTNRANK_DATA"


def image_type() -> pa.DataType:
    """How `datasets` stores an image."""
    return pa.struct({"bytes": pa.binary(), "path": pa.string()})


def read(
    name: str, split: str, *, folder: str | Path | None = None, revision: str | None = None
) -> list[tuple[str, pa.Table]]:
    """The tables of a split of a set that is not embedded, each with the place that it was read from.

    Columns: ``image`` (struct of bytes and path) or ``text``, and ``label`` (int64). Arguments, warnings and errors
    as for :func:`attnrank.data.load`.
    """
    source = SOURCES[name]
    if folder is not None and revision is not None:
        raise ValueError(f"revision must be None when folder is given, got {revision!r} and {folder!r}")
    if folder is None and revision is None:
        folder = os.environ.get(ENVIRONMENT_VARIABLE) or None
    for argument, value, kinds in (("folder", folder, (str, Path)), ("revision", revision, (str,))):
        if value is not None and (not isinstance(value, kinds) or not str(value)):
            raise ValueError(f"{argument} must be None or name a {argument}, got {value!r}")
    absent: list[str] = []
    if folder is None:
        place = f"{source.hub} on the Hugging Face hub"
        parts = [(place, _from_hub(name, split, revision or source.revision or "main"))]
    else:
        found = _find(name, split, Path(folder).expanduser().resolve())
        absent = [other for other, files in found.items() if not files]
        place = str(found[split][0].parent)
        parts = [(str(path), _from_file(path, source)) for path in found[split]]
    tables = [(origin, check(table, source, origin)) for origin, table in parts]
    _compare(name, split, np.concatenate([table["label"].to_numpy() for _, table in tables]), place, absent)
    return tables


def _how_to_get(name: str) -> str:
    source = SOURCES[name]
    return (
        f"To get {name}, run once with a network connection and with no folder named; or, where there is one, run "
        f"`hf download {source.hub} --repo-type dataset --revision {source.revision} "
        f'--include "{source.config}/*" --local-dir FOLDER/{name}` '
        f"and name FOLDER by the argument folder or the environment variable {ENVIRONMENT_VARIABLE}. "
        "The sets digits and docstrings need neither."
    )


def _from_hub(name: str, split: str, revision: str) -> pa.Table:
    source = SOURCES[name]
    try:
        loaded = datasets.load_dataset(source.hub, source.config, split=split, revision=revision)
    except Exception as error:  # the network fails in many types
        raise OSError(
            f"cannot load {name} from the Hugging Face hub ({source.hub} at {revision}): {error}. {_how_to_get(name)}"
        ) from error
    return loaded.with_format("arrow")[:]


def _find(name: str, split: str, folder: Path) -> dict[str, list[Path]]:
    """The parquet files of every split, from the first likely place that has any."""
    config = SOURCES[name].config or ""
    for place in (folder / name, folder / name / config, folder, folder / config):
        found = {
            each: sorted([*place.glob(f"{each}.parquet"), *place.glob(f"{each}-*.parquet")])
            for each in SOURCES[name].counts
        }
        if found[split]:
            return found
        if any(found.values()):
            raise FileNotFoundError(f"{place} has no {split} split of {name} ({split}-*.parquet). {_how_to_get(name)}")
    raise FileNotFoundError(f"there are no parquet files of {name} in {folder / name}. {_how_to_get(name)}")


def _from_file(path: Path, source: Source) -> pa.Table:
    try:
        with pq.ParquetFile(path) as file:
            return file.read(columns=[name for name in file.schema_arrow.names if name in source.columns])
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} cannot be read as parquet; it may be damaged: {error}") from error


def check(table: pa.Table, source: Source, origin: str) -> pa.Table:
    """Give the columns of a table their standard names and types, or raise ValueError that names ``origin``."""
    for column in source.columns:
        if column not in table.column_names:
            raise ValueError(f"{origin} has no column {column}: is it another data set?")
    if not len(table):
        raise ValueError(f"{origin} has no rows")
    values, labels = (table[column] for column in source.columns)
    if source.shape is None:
        values = _typed(values, pa.string(), (pa.types.is_string, pa.types.is_large_string), origin)
    else:
        if not pa.types.is_struct(values.type) or values.type.get_field_index("bytes") < 0:
            raise ValueError(f"{origin} must hold images as bytes, got {values.type}")
        contents = pc.struct_field(values, "bytes")
        contents = _typed(contents, pa.binary(), (pa.types.is_binary, pa.types.is_large_binary), origin)
        # The path is dropped: an image is what its bytes say, and nothing else is ever opened.
        parts = [[chunk, pa.nulls(len(chunk), pa.string())] for chunk in contents.chunks]
        values = pa.chunked_array(
            [pa.StructArray.from_arrays(part, fields=list(image_type())) for part in parts], image_type()
        )
    labels = _typed(labels, pa.int64(), (pa.types.is_integer,), origin)
    numbers = labels.to_numpy()
    wrong = np.flatnonzero((numbers < 0) | (numbers >= source.classes))
    if wrong.size:
        raise ValueError(
            f"{origin}: labels must be in 0..{source.classes - 1}, got {numbers[wrong[0]]} in row {wrong[0]}"
        )
    return pa.table({source.column: values, "label": labels})


def _typed(values: pa.ChunkedArray, wanted: pa.DataType, allowed: tuple, origin: str) -> pa.ChunkedArray:
    if not any(test(values.type) for test in allowed):
        raise ValueError(f"{origin}: a column that should be {wanted} is {values.type}")
    if values.null_count:
        raise ValueError(f"{origin}: {values.null_count} of {len(values)} rows are null in a column of {wanted}")
    try:
        return values.cast(wanted)
    except pa.ArrowException as error:
        raise ValueError(f"{origin}: {error}") from error


def _compare(name: str, split: str, labels: np.ndarray, place: str, absent: list[str]) -> None:
    """Compare rows by class with the official counts: more is an error, fewer a warning."""
    official = np.array(SOURCES[name].counts[split])
    found = np.bincount(labels, minlength=len(official))
    if (found > official).any():
        worst = int(np.argmax(found - official))
        raise ValueError(
            f"{place} has {found[worst]:,} rows of class {worst} in {name} {split}; the official set has "
            f"{official[worst]:,}: is a file there twice, or is it another data set?"
        )
    lacking = np.flatnonzero(found < official)
    if lacking.size:
        rows = (official - found)[lacking]
        each = f"{rows.min():,}" + (f" to {rows.max():,}" if rows.max() > rows.min() else "")
        missing = f"{rows.sum():,} rows are missing: {each} of each of {lacking.size} classes"
        empty = np.flatnonzero(found == 0).tolist()
        missing += f"; no row of class {', '.join(map(str, empty))}" if empty else ""
        missing += f"; no {' and no '.join(absent)} split" if absent else ""
        warnings.warn(
            f"{name} {split} in {place} is partial: {labels.size:,} of {official.sum():,} rows. {missing}.",
            UserWarning,
            stacklevel=5,
        )
