"""Labelled images and texts: CIFAR-10, CIFAR-100, SVHN and IMDB, and two sets that need no download.

The first four come from a local folder of parquet files, named by ``folder`` or by the environment variable
``ATTNRANK_DATA``, or else from the Hugging Face hub at a pinned revision. With a local folder the network is never
used. Nothing here loads a pickle or runs code that comes with the data.
"""

from __future__ import annotations

import io
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float64, Int64, UInt8
from torch import Tensor

from attnrank import _check, docstrings, parquet
from attnrank._optional import optional, require
from attnrank.parquet import datasets, pa, pc
from attnrank.sources import SOURCES, Source

if TYPE_CHECKING:
    from PIL import Image
else:
    Image = optional("PIL.Image", "data")


def load(
    name: str, split: str = "train", *, folder: str | Path | None = None, revision: str | None = None
) -> datasets.Dataset:
    """Load one split of a data set with the columns ``image`` or ``text``, and ``label`` (0 <= label < classes).

    The row order is that of the files: IMDB comes class by class. Digits of one street picture are adjacent rows
    of ``svhn``: divide its train split by picture, never by row. ``cifar100`` keeps the 100 fine labels. ``digits``
    puts the last fifth of each class into the test split, because neighbouring rows are alike and an interleaved
    split would flatter; its grey values go to 16. ``docstrings`` is made by :func:`attnrank.docstrings.load`. A set
    that lacks rows of the official one loads with a UserWarning that says what is missing.

    Parameters
    ----------
    name
        ``cifar10``, ``cifar100``, ``svhn`` (cropped digits), ``imdb``, ``digits`` or ``docstrings``.
    split
        ``train`` or ``test``.
    folder
        A folder whose sub-folder ``name`` has the parquet files (``train-*.parquet``, ``test-*.parquet``), or has
        them one level down under the hub's configuration, as the hub's own download does; or the folder of the
        files itself. Default: the environment variable ATTNRANK_DATA, if set (best an absolute path: a relative
        one starts from the working directory). Then the network is not used.
    revision
        A commit, tag or branch of the hub's repository. If given, the set comes from the hub even when
        ATTNRANK_DATA is set. Default: the commit named in ``SOURCES``.

    Raises
    ------
    ValueError
        For an unknown name or split, and for a file that is damaged or is not this data set.
    OSError
        If the data are in no local folder, or the hub cannot be reached.
    """
    source = _source(name, split)
    table = pa.concat_tables([table for _, table in _tables(name, split, folder, revision)])
    values = datasets.Image() if source.shape else datasets.Value("string")
    features = datasets.Features({source.column: values, "label": datasets.ClassLabel(num_classes=source.classes)})
    return datasets.Dataset(table, info=datasets.DatasetInfo(features=features))


def images(
    name: str,
    split: str = "train",
    *,
    count: int | None = None,
    generator: torch.Generator | None = None,
    standardise: bool = False,
    folder: str | Path | None = None,
    revision: str | None = None,
) -> tuple[Float64[Tensor, "rows channels height width"], Int64[Tensor, "rows"]]:
    """Images as float64 in [0, 1], and their labels as int64; only the rows that are returned are decoded.

    Parameters
    ----------
    name, split, folder, revision
        As for :func:`load`.
    count
        The number of rows; default: all.
    generator
        Draws the rows without replacement, in random order. Without it they are the first rows, in file order.
    standardise
        Subtract the mean and divide by the standard deviation of each channel (``SOURCES[name].mean``, ``.std``:
        those of the official train split).

    Raises
    ------
    ValueError
        As :func:`load`; if ``count`` is not in 1..rows, if ``name`` is a set of texts, if an image does not decode.
    OSError
        As :func:`load`.
    """
    source = _image_source(name, split)
    coded, labels = _drawn(_tables(name, split, folder, revision), source, count, generator)
    values = coded.to(torch.float64).div_(source.white)
    if standardise:
        mean, std = torch.tensor([source.mean, source.std], dtype=torch.float64, device="cpu")[:, :, None, None]
        values.sub_(mean).div_(std)
    return values, labels


def pixels(
    name: str,
    split: str = "train",
    *,
    count: int | None = None,
    generator: torch.Generator | None = None,
    folder: str | Path | None = None,
    revision: str | None = None,
) -> tuple[UInt8[Tensor, "rows channels height width"], Int64[Tensor, "rows"]]:
    """Images as they are stored, uint8 in 0..white (``SOURCES[name].white``), and their labels as int64.

    Parameters and errors as for :func:`images`.
    """
    source = _image_source(name, split)
    return _drawn(_tables(name, split, folder, revision), source, count, generator)


def texts(
    name: str,
    split: str = "train",
    *,
    count: int | None = None,
    generator: torch.Generator | None = None,
    folder: str | Path | None = None,
    revision: str | None = None,
) -> tuple[list[str], Int64[Tensor, "rows"]]:
    """Texts, and their labels as int64; parameters and errors as for :func:`images`."""
    if _source(name, split).shape is not None:
        raise ValueError(f"name must be a set of texts, got {name!r}: use images")
    table = pa.concat_tables([table for _, table in _tables(name, split, folder, revision)])
    rows = _rows(len(table), count, generator)
    return table["text"].take(rows).to_pylist(), torch.from_numpy(table["label"].to_numpy()[rows])


def _source(name: str, split: str) -> Source:
    source = SOURCES[_check.choice("name", name, SOURCES)]
    _check.choice("split", split, source.counts)
    return source


def _rows(total: int, count: int | None, generator: torch.Generator | None) -> np.ndarray:
    count = total if count is None else _check.integer("count", count, minimum=1)
    if count > total:
        raise ValueError(f"count must be at most the {total} rows there are, got {count}")
    if generator is None:
        return np.arange(count)
    return torch.randperm(total, generator=_check.generator("generator", generator), device="cpu")[:count].numpy()


def _image_source(name: str, split: str) -> Source:
    source = _source(name, split)
    if source.shape is None:
        raise ValueError(f"name must be a set of images, got {name!r}: use texts")
    return source


def _drawn(
    tables: list[tuple[str, pa.Table]], source: Source, count: int | None, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Stored images and labels of the rows that are drawn."""
    labels = np.concatenate([table["label"].to_numpy() for _, table in tables])
    rows = _rows(len(labels), count, generator)
    stored = torch.from_numpy(_pixels(tables, rows, source)).permute(0, 3, 1, 2).contiguous()
    return stored, torch.from_numpy(labels[rows])


def _tables(name: str, split: str, folder: str | Path | None, revision: str | None) -> list[tuple[str, pa.Table]]:
    """The checked tables of a split, each with the place that it was read from."""
    if SOURCES[name].hub is not None:
        return parquet.read(name, split, folder=folder, revision=revision)
    if folder is not None or revision is not None:
        raise ValueError(f"folder and revision must be None for {name}, got {folder!r} and {revision!r}")
    return [(name, _digits(split) if name == "digits" else _docstrings(split))]


def _docstrings(split: str) -> pa.Table:
    rows, labels = docstrings.load(split)
    return pa.table({"text": rows, "label": pa.array(labels, pa.int64())})


@lru_cache(maxsize=2)
def _digits(split: str) -> pa.Table:
    """The digits as PNG, so that what needs no download goes the way of every other set: stored, decoded, checked."""
    digits = require("sklearn.datasets", "data").load_digits()  # reads a csv file of its own package
    last = np.zeros(len(digits.target), dtype=bool)
    for label in range(10):
        rows = np.flatnonzero(digits.target == label)
        last[rows[-(len(rows) // 5) :]] = True
    chosen = last if split == "test" else ~last
    contents = []
    for pixels in digits.images[chosen]:
        file = io.BytesIO()
        Image.fromarray(pixels.astype(np.uint8)).save(file, format="PNG")
        contents.append({"bytes": file.getvalue(), "path": None})
    return pa.table(
        {"image": pa.array(contents, parquet.image_type()), "label": pa.array(digits.target[chosen], pa.int64())}
    )


def _decode(content: bytes, source: Source) -> np.ndarray:
    """Pixels (height, width, channels) as uint8 of an encoded image."""
    assert source.shape is not None, "a set of images"
    channels, height, width = source.shape
    with Image.open(io.BytesIO(content), formats=("PNG", "WEBP", "JPEG")) as picture:
        if picture.size != (width, height):
            raise ValueError(f"it has {picture.size[0]} x {picture.size[1]} pixels, not {width} x {height}")
        pixels = np.array(picture.convert("RGB" if channels == 3 else "L"))
    return pixels.reshape(height, width, channels)


def _pixels(tables: list[tuple[str, pa.Table]], rows: np.ndarray, source: Source) -> np.ndarray:
    """Pixels (rows, height, width, channels) as uint8; an error names the file and the row in it."""
    contents = pc.struct_field(pa.concat_tables([table for _, table in tables])["image"], "bytes")
    assert source.shape is not None, "a set of images"
    pixels = np.empty((len(rows), *source.shape[1:], source.shape[0]), dtype=np.uint8)
    for index, row in enumerate(rows.tolist()):
        try:
            pixels[index] = _decode(contents[row].as_py(), source)
        except Exception as error:  # Pillow fails in many types on damaged bytes
            for origin, table in tables:
                if row < len(table):
                    break
                row -= len(table)
            raise ValueError(f"{origin}: the image in row {row} does not decode: {error}") from error
    return pixels
