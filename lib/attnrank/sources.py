"""Where the data sets are and what they must look like: tables from parquet files or the Hugging Face hub, checked.

With a local folder the network is never used. Nothing here loads a pickle or runs code that comes with the data.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from attnrank import docstrings
from attnrank._optional import optional

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


@dataclass(frozen=True)
class Source:
    """What a data set must look like, and where it is: the facts against which files are checked.

    ``counts`` holds the official rows of each class, by split. ``hub`` is None for the sets that need no download.
    ``shape`` (channels, height, width), ``white`` (largest grey value), and ``mean`` and ``std`` (of the train
    split with values in [0, 1], by channel) describe images; a set of texts has no ``shape``.
    """

    counts: dict[str, tuple[int, ...]]
    hub: str | None = None
    config: str | None = None
    revision: str | None = None
    columns: tuple[str, str] = ("", "label")
    shape: tuple[int, int, int] | None = None
    white: int = 255
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    @property
    def classes(self) -> int:
        return len(self.counts["train"])

    @property
    def column(self) -> str:
        return "text" if self.shape is None else "image"

    def rows(self, split: str) -> int:
        return sum(self.counts[split])


SOURCES = {
    "cifar10": Source(
        counts={"train": (5000,) * 10, "test": (1000,) * 10},
        hub="uoft-cs/cifar10",
        config="plain_text",
        revision="0b2714987fa478483af9968de7c934580d0bb9a2",
        columns=("img", "label"),
        shape=(3, 32, 32),
        mean=(0.49140, 0.48216, 0.44653),
        std=(0.24703, 0.24349, 0.26159),
    ),
    "cifar100": Source(
        counts={"train": (500,) * 100, "test": (100,) * 100},
        hub="uoft-cs/cifar100",
        config="cifar100",
        revision="aadb3af77e9048adbea6b47c21a81e47dd092ae5",
        columns=("img", "fine_label"),
        shape=(3, 32, 32),
        mean=(0.50708, 0.48655, 0.44092),
        std=(0.26733, 0.25644, 0.27615),
    ),
    "svhn": Source(
        counts={
            "train": (4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659),
            "test": (1744, 5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595),
        },
        hub="ufldl-stanford/svhn",
        config="cropped_digits",
        revision="f9e1717d73324ebbc1ece84267ccd80d0aca0690",
        columns=("image", "label"),
        shape=(3, 32, 32),
        mean=(0.4377, 0.4438, 0.4728),
        std=(0.1980, 0.2010, 0.1970),
    ),
    "imdb": Source(
        counts={"train": (12500,) * 2, "test": (12500,) * 2},
        hub="stanfordnlp/imdb",
        config="plain_text",
        revision="e6281661ce1c48d982bc483cf8a173c1bbeb5d31",
        columns=("text", "label"),
    ),
    "digits": Source(
        counts={
            "train": (143, 146, 142, 147, 145, 146, 145, 144, 140, 144),
            "test": (35, 36, 35, 36, 36, 36, 36, 35, 34, 36),
        },
        columns=("image", "label"),
        shape=(1, 8, 8),
        white=16,
        mean=(0.30532,),
        std=(0.37546,),
    ),
    "docstrings": Source(
        counts={split: (rows,) * len(docstrings.PACKAGES) for split, rows in docstrings.ROWS_PER_CLASS.items()},
        columns=("text", "label"),
    ),
}


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
