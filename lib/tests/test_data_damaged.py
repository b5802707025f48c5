"""Damaged files of data sets: every message names the file."""
# ruff: noqa: F811

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from attnrank import data, parquet
from data_files import LABELS, encoded, folder, offline, one_file, pixels_of, rewrite, written  # noqa: F401 (fixtures)


def changed(values):
    return lambda path: rewrite(path, **values)


def cut(keep):
    return lambda path: path.write_bytes(path.read_bytes()[: int(keep * path.stat().st_size)])


def zeroed(path):
    content = bytearray(path.read_bytes())
    content[40 : len(content) // 2] = bytes(len(content) // 2 - 40)
    path.write_bytes(content)


IMAGES = pa.array([{"bytes": encoded(one), "path": None} for one in pixels_of("cifar10", 11)])
DAMAGE = {
    "empty file": (cut(0), "cannot be read as parquet"),
    "truncated": (cut(0.6), "cannot be read as parquet"),
    "footer lost": (cut(0.99), "cannot be read as parquet"),
    "zeroed in the middle": (zeroed, ""),
    "not parquet": (lambda path: path.write_text("hello", encoding="utf-8"), "cannot be read as parquet"),
    "no images": (changed({"img": None}), "has no column img"),
    "no labels": (changed({"label": None}), "has no column label"),
    "no rows": (lambda path: pq.write_table(pq.read_table(path).slice(0, 0), path), "has no rows"),
    "label too large": (changed({"label": pa.array([*range(10), 10])}), r"in 0\.\.9, got 10 in row 10"),
    "label negative": (changed({"label": pa.array([0, -1] + [2] * 9)}), r"in 0\.\.9, got -1 in row 1"),
    "label huge": (changed({"label": pa.array([2**64 - 1] * 11, pa.uint64())}), "not in range"),
    "label null": (changed({"label": pa.array([None, *range(10)])}), "1 of 11 rows are null"),
    "label text": (changed({"label": pa.array(["cat"] * 11)}), "should be int64 is string"),
    "label real": (changed({"label": pa.array([0.5] * 11)}), "should be int64 is double"),
    "images not bytes": (changed({"img": pa.array([1] * 11)}), "must hold images as bytes, got int64"),
    "image only named": (
        changed({"img": pa.array([{"bytes": None, "path": "/etc/passwd"}] * 11, parquet.image_type())}),
        "11 of 11 rows are null",
    ),
}


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.filterwarnings("ignore:.*is partial")
def test_damaged_file(folder, kind):
    path, _ = folder
    file = one_file(path)
    damage, message = DAMAGE[kind]
    damage(file)
    with pytest.raises(ValueError, match=re.escape(str(file)) + ".*" + message):
        data.images("cifar10", folder=path)


@pytest.mark.filterwarnings("ignore:.*is partial")
def test_random_damage_is_refused_by_name_or_harmless(folder):
    path, _ = folder
    file = one_file(path)
    whole, random, refused = file.read_bytes(), np.random.default_rng(0), 0
    for _ in range(60):
        content = bytearray(whole)
        for position in random.integers(0, len(whole), 4):
            content[position] ^= 1 << int(random.integers(8))
        file.write_bytes(content)
        try:
            data.images("cifar10", folder=path)
        except ValueError as error:
            assert str(path / "cifar10") in str(error)
            refused += 1
    assert refused


def test_the_undamaged_rewrite_is_accepted(folder):
    path, _ = folder
    rewrite(one_file(path), img=IMAGES, label=pa.array(LABELS["cifar10"], pa.int16()))
    values, labels = data.images("cifar10", folder=path)
    assert labels.tolist() == LABELS["cifar10"]
    assert np.array_equal(values.numpy() * 255, pixels_of("cifar10", 11).transpose(0, 3, 1, 2))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot identify"),
        (b"not an image", "cannot identify"),
        (encoded(pixels_of("cifar10", 1)[0])[:60], "does not decode"),
        (encoded(pixels_of("cifar10", 1)[0], "PNG")[:500], "does not decode"),
        (encoded(pixels_of("cifar10", 1)[0][:16]), "it has 32 x 16 pixels, not 32 x 32"),
        (encoded(pixels_of("cifar10", 1)[0], "TIFF"), "cannot identify"),
    ],
)
def test_bytes_that_are_no_image(folder, content, message):
    path, _ = folder
    column = [*IMAGES.to_pylist()[:10], {"bytes": content, "path": None}]
    rewrite(one_file(path), img=pa.array(column))
    with pytest.raises(ValueError, match=re.escape(str(one_file(path))) + ".*row 10.*" + message):
        data.images("cifar10", folder=path)


def test_damaged_text(folder):
    path, _ = folder
    rewrite(one_file(path, "imdb"), text=pa.array(["good", None, "bad", "", "x", "y"]))
    with pytest.raises(ValueError, match="imdb.*1 of 6 rows are null"):
        data.texts("imdb", folder=path)


def test_long_strings_and_binaries_are_accepted(folder):
    path, _ = folder
    rewrite(one_file(path, "imdb"), text=pa.array([*"abcdef"], pa.large_string()))
    assert data.texts("imdb", folder=path)[0] == [*"abcdef"]
    large = pa.struct({"path": pa.string(), "bytes": pa.large_binary()})
    rewrite(one_file(path), img=pa.array(IMAGES.to_pylist(), large))
    assert data.load("cifar10", folder=path)[0]["image"].size == (32, 32)


def test_grey_pictures_in_a_set_of_colours_have_three_equal_channels(folder):
    path, _ = folder
    grey = pixels_of("cifar10", 11)[..., 0]
    rewrite(one_file(path), img=pa.array([{"bytes": encoded(one, "PNG"), "path": None} for one in grey]))
    values, _ = data.pixels("cifar10", folder=path)
    assert np.array_equal(values.numpy(), np.repeat(grey[:, None], 3, axis=1))
