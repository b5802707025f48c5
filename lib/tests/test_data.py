"""Data sets: small parquet folders with the real schema, the embedded sets, damaged files, and the hub replaced."""

from __future__ import annotations

import io
import os
import pickle
import re
import shutil
import socket
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from attnrank import data, docstrings, parquet

REAL = os.environ.get("ATTNRANK_DATA")
REAL = Path(REAL).resolve() if REAL else None
needs_real = pytest.mark.skipif(REAL is None, reason="ATTNRANK_DATA is not set: no copy of the real data sets")
HUB = {"cifar10", "cifar100", "svhn", "imdb"}
PICTURES = {"cifar10", "cifar100", "svhn"}


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """No test reaches the network or a folder of this machine; nothing is unpickled."""

    def refuse(*arguments, **options):
        raise AssertionError("a test used the network or a pickle")

    monkeypatch.delenv("ATTNRANK_DATA", raising=False)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def encoded(pixels, format="WEBP"):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format=format, lossless=True)
    return file.getvalue()


def pixels_of(name, rows, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (rows, 32, 32, 3), dtype=np.uint8)


def table_of(name, split, labels, format="WEBP"):
    """Rows with the features of the hub's files, and the pixels or texts that they hold."""
    column, label = data.SOURCES[name].columns
    features = {label: datasets.ClassLabel(num_classes=data.SOURCES[name].classes)}
    if name == "cifar100":
        features["coarse_label"] = datasets.ClassLabel(num_classes=20)
    if name in PICTURES:
        values = pixels_of(name, len(labels), seed=len(split))
        rows = [{"bytes": encoded(one, format), "path": None} for one in values]
        features = {column: datasets.Image(), **features}
    else:
        rows = values = [f"{split} review {row}, caf\u00e9" for row in range(len(labels))]
        features = {column: datasets.Value("string"), **features}
    columns = {column: rows, label: list(labels)}
    if name == "cifar100":
        columns["coarse_label"] = [0] * len(labels)
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features)), values


def set_counts(monkeypatch, name, labels, split="train"):
    counts = tuple(np.bincount(labels, minlength=data.SOURCES[name].classes).tolist())
    both = {"train": counts, "test": counts} | {split: counts}
    monkeypatch.setitem(data.SOURCES, name, replace(data.SOURCES[name], counts=both))


LABELS = {
    "cifar10": [3, 1, 4, 1, 5, 9, 2, 6, 0, 7, 8],
    "cifar100": [*range(100)],
    "svhn": [0, 9, 2, 3, 4, 5, 6, 7, 8, 1],
    "imdb": [0, 0, 0, 1, 1, 1],
}


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    """A complete copy of all four sets, as small as the classes allow: the folder, and what it holds by name."""
    root, held = tmp_path_factory.mktemp("written"), {}
    for name, labels in LABELS.items():
        (root / name).mkdir()
        for split in ("train", "test"):
            table, held[name, split] = table_of(name, split, labels)
            table.to_parquet(root / name / f"{split}-00000-of-00001.parquet")
    return root, held


@pytest.fixture
def folder(written, tmp_path, monkeypatch):
    """A copy of it that a test may damage, with the official counts lowered to its own."""
    for name, labels in LABELS.items():
        set_counts(monkeypatch, name, labels)
    shutil.copytree(written[0], tmp_path, dirs_exist_ok=True)
    return tmp_path, written[1]


def one_file(folder, name="cifar10", split="train"):
    return folder / name / f"{split}-00000-of-00001.parquet"


def rewrite(path, **columns):
    """Replace columns of a parquet file (None drops one)."""
    table = pq.read_table(path).replace_schema_metadata(None)
    for column, values in columns.items():
        table = table.drop_columns([column])
        if values is not None:
            table = table.append_column(column, values)
    pq.write_table(table, path)


# The facts


def test_official_sizes():
    sizes = {name: (source.rows("train"), source.rows("test"), source.classes) for name, source in data.SOURCES.items()}
    assert sizes == {
        "cifar10": (50_000, 10_000, 10),
        "cifar100": (50_000, 10_000, 100),
        "svhn": (73_257, 26_032, 10),
        "imdb": (25_000, 25_000, 2),
        "digits": (1442, 355, 10),
        "docstrings": (1920, 480, 8),
    }


@pytest.mark.parametrize("name", sorted(HUB))
def test_the_default_revision_is_a_commit(name):
    assert re.fullmatch(r"[0-9a-f]{40}", data.SOURCES[name].revision)


# A local folder


@pytest.mark.parametrize("name", sorted(HUB))
@pytest.mark.parametrize("split", ["train", "test"])
def test_load_gives_every_row_with_standard_columns(folder, name, split):
    path, held = folder
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = data.load(name, split, folder=path)
    assert loaded.column_names == ["image" if name in PICTURES else "text", "label"]
    assert loaded["label"][:] == LABELS[name]
    for row, value in zip(loaded, held[name, split], strict=True):
        if name in PICTURES:
            assert np.array_equal(np.asarray(row["image"]), value)
        else:
            assert row["text"] == value


@pytest.mark.parametrize("name", sorted(PICTURES))
def test_images_are_the_pixels_divided_by_255(folder, name):
    path, held = folder
    values, labels = data.images(name, "test", folder=path)
    expected = held[name, "test"].transpose(0, 3, 1, 2).astype(np.float64) / 255
    assert values.dtype == torch.float64 and labels.dtype == torch.int64 and values.is_contiguous()
    assert np.array_equal(values.numpy(), expected)
    assert labels.tolist() == LABELS[name]
    source = data.SOURCES[name]
    standard, _ = data.images(name, "test", folder=path, standardise=True)
    for channel in range(3):
        by_hand = (expected[:, channel] - source.mean[channel]) / source.std[channel]
        np.testing.assert_allclose(standard[:, channel].numpy(), by_hand, rtol=1e-13, atol=1e-14)


def test_texts(folder):
    path, held = folder
    rows, labels = data.texts("imdb", folder=path)
    assert rows == held["imdb", "train"] and labels.tolist() == LABELS["imdb"]
    some, labels = data.texts("imdb", count=4, generator=generator(), folder=path)
    order = torch.randperm(6, generator=generator())[:4].tolist()
    assert some == [rows[row] for row in order] and labels.tolist() == [LABELS["imdb"][row] for row in order]


def test_a_random_subset_is_reproducible_and_keeps_labels_with_images(folder):
    path, held = folder
    everything = {one.tobytes(): label for one, label in zip(held["cifar10", "train"], LABELS["cifar10"], strict=True)}
    values, labels = data.images("cifar10", count=7, generator=generator(3), folder=path)
    raw = (values * 255).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous().numpy()
    assert [everything[one.tobytes()] for one in raw] == labels.tolist()
    assert len({one.tobytes() for one in raw}) == 7
    again, _ = data.images("cifar10", count=7, generator=generator(3), folder=path)
    other, _ = data.images("cifar10", count=7, generator=generator(4), folder=path)
    assert torch.equal(values, again) and not torch.equal(values, other)
    assert data.images("cifar10", count=3, folder=path)[1].tolist() == LABELS["cifar10"][:3]


@given(total=st.integers(1, 300), share=st.floats(0, 1), seed=st.integers(0, 2**32))
def test_rows_are_distinct_and_in_range(total, share, seed):
    count = max(1, int(share * total))
    rows = data._rows(total, count, generator(seed))
    assert len(set(rows.tolist())) == len(rows) == count
    assert rows.min() >= 0 and rows.max() < total


@pytest.mark.parametrize("place", ["name", "configuration", "itself", "itself/configuration"])
@pytest.mark.parametrize("file", ["train-00000-of-00001.parquet", "train.parquet"])
def test_places_of_the_files(tmp_path, monkeypatch, place, file):
    set_counts(monkeypatch, "svhn", LABELS["svhn"])
    parts = {"name": ["svhn"], "configuration": ["svhn", "cropped_digits"], "itself": []}
    target = tmp_path.joinpath(*parts.get(place, ["cropped_digits"]))
    target.mkdir(parents=True, exist_ok=True)
    table_of("svhn", "train", LABELS["svhn"], format="PNG")[0].to_parquet(target / file)
    assert len(data.load("svhn", folder=str(tmp_path))) == 10


def test_other_configurations_and_splits_are_left_alone(folder):
    path, _ = folder
    (path / "svhn" / "full_numbers").mkdir()
    (path / "svhn" / "full_numbers" / "train-00000-of-00001.parquet").write_bytes(b"not parquet")
    (path / "svhn" / "extra-00000-of-00001.parquet").write_bytes(b"not parquet")
    assert len(data.load("svhn", folder=path)) == 10


def test_the_environment_variable(folder, monkeypatch):
    path, _ = folder
    monkeypatch.setenv("ATTNRANK_DATA", str(path))
    assert len(data.load("imdb")) == 6
    monkeypatch.chdir(path / "svhn")
    monkeypatch.setenv("ATTNRANK_DATA", "..")
    assert len(data.load("imdb")) == 6
    monkeypatch.setenv("ATTNRANK_DATA", str(path / "nowhere"))
    with pytest.raises(FileNotFoundError, match="nowhere"):
        data.load("imdb")
    assert len(data.load("imdb", folder=path)) == 6, "the argument goes before the variable"


def test_nothing_is_written_beside_the_data(folder):
    path, _ = folder
    before = sorted(path.rglob("*"))
    data.load("cifar10", folder=path)
    data.images("cifar10", folder=path)
    assert sorted(path.rglob("*")) == before


def test_shards_keep_their_order_and_errors_name_the_right_one(tmp_path, monkeypatch):
    labels = LABELS["cifar10"]
    set_counts(monkeypatch, "cifar10", labels)
    table, _ = table_of("cifar10", "train", labels)
    paths = [tmp_path / f"train-0000{shard}-of-00002.parquet" for shard in range(2)]
    for path, rows in zip(paths, (range(6), range(6, 11)), strict=True):
        table.select(rows).to_parquet(path)
    assert data.images("cifar10", folder=tmp_path)[1].tolist() == labels
    column = pq.read_table(paths[1])["img"].to_pylist()
    column[2]["bytes"] = column[2]["bytes"][:20]
    rewrite(paths[1], img=pa.array(column))
    assert len(data.images("cifar10", count=8, folder=tmp_path)[1]) == 8, "rows that are not asked for are not decoded"
    with pytest.raises(ValueError, match=re.escape(str(paths[1])) + ": the image in row 2 does not decode"):
        data.images("cifar10", folder=tmp_path)


# Partial and surplus sets


def test_a_partial_set_loads_with_a_warning(folder, monkeypatch):
    path, _ = folder
    counts = {"train": (1, 2, 1, 1, 1, 1, 1, 1, 4, 2), "test": (1,) * 10}
    monkeypatch.setitem(data.SOURCES, "cifar10", replace(data.SOURCES["cifar10"], counts=counts))
    one_file(path, split="test").unlink()
    for function in (data.load, data.images):
        with pytest.warns(UserWarning, match="cifar10 train in .* is partial: 11 of 15 rows") as caught:
            function("cifar10", folder=path)
        assert "4 rows are missing: 1 to 3 of each of 2 classes; no test split." in str(caught[0].message)
        assert caught[0].filename == __file__
    with pytest.raises(FileNotFoundError, match="has no test split of cifar10 .*hf download uoft-cs/cifar10"):
        data.load("cifar10", "test", folder=path)


def test_a_missing_class_is_named(folder, monkeypatch):
    path, _ = folder
    rewrite(one_file(path), label=pa.array([3, 1, 4, 1, 5, 9, 2, 6, 0, 7, 7]))
    counts = {"train": (2,) * 10, "test": (1,) * 10}
    monkeypatch.setitem(data.SOURCES, "cifar10", replace(data.SOURCES["cifar10"], counts=counts))
    with pytest.warns(UserWarning, match="no row of class 8"):
        data.load("cifar10", folder=path)


def test_more_rows_than_the_official_set_is_an_error(folder):
    path, _ = folder
    (path / "imdb" / "train-copy.parquet").write_bytes(one_file(path, "imdb").read_bytes())
    with pytest.raises(ValueError, match="imdb has 6 rows of class 0 in imdb train; the official set has 3"):
        data.load("imdb", folder=path)


# Damaged files: every message names the file


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


# Bad arguments


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda path: data.load("mnist"), "name must be one of cifar10.*got 'mnist'"),
        (lambda path: data.load(None), "name must be one of"),
        (lambda path: data.load("imdb", "unsupervised", folder=path), "split must be one of test, train; got 'unsup"),
        (lambda path: data.images("imdb", folder=path), "name must be a set of images, got 'imdb'"),
        (lambda path: data.texts("cifar10", folder=path), "name must be a set of texts, got 'cifar10'"),
        (lambda path: data.images("cifar10", count=0, folder=path), "count must be at least 1, got 0"),
        (lambda path: data.images("cifar10", count=12, folder=path), "count must be at most the 11 rows .* got 12"),
        (lambda path: data.images("cifar10", count=2.5, folder=path), "count must be an integer, got 2.5"),
        (lambda path: data.images("cifar10", generator=7, folder=path), "generator must be a torch.Generator"),
        (lambda path: data.load("cifar10", folder=path, revision="main"), "revision must be None when folder is given"),
        (lambda path: data.load("cifar10", folder=3), "folder must be None or name a folder, got 3"),
        (lambda path: data.load("cifar10", folder=""), "folder must be None or name a folder, got ''"),
        (lambda path: data.load("cifar10", revision=3), "revision must be None or name a revision, got 3"),
        (lambda path: data.load("digits", folder=path), "folder and revision must be None for digits"),
        (lambda path: docstrings.load("validation"), "split must be one of test, train; got 'validation'"),
    ],
)
def test_bad_arguments(folder, call, message):
    with pytest.raises(ValueError, match=message):
        call(folder[0])


def test_no_such_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match="no parquet files of imdb in .*absent.*ATTNRANK_DATA"):
        data.load("imdb", folder=tmp_path / "absent")


# The hub, replaced


@pytest.fixture
def hub(monkeypatch):
    calls = []

    def load_dataset(path, config=None, **options):
        calls.append((path, config, options))
        name = path.split("/")[1]
        return table_of(name, options["split"], LABELS[name])[0]

    for name, labels in LABELS.items():
        set_counts(monkeypatch, name, labels)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return calls


@pytest.mark.parametrize("name", sorted(HUB))
def test_the_hub_at_the_pinned_revision(hub, name):
    loaded = data.load(name, "test")
    source = data.SOURCES[name]
    assert hub == [(source.hub, source.config, {"split": "test", "revision": source.revision})]
    assert loaded["label"][:] == LABELS[name]
    assert loaded.column_names[1] == "label"


def test_a_revision_goes_to_the_hub_whatever_the_environment(hub, folder, monkeypatch):
    monkeypatch.setenv("ATTNRANK_DATA", str(folder[0]))
    data.load("imdb")
    assert hub == []
    data.load("imdb", revision="refs/convert/parquet")
    assert hub[0][2]["revision"] == "refs/convert/parquet"
    monkeypatch.setenv("ATTNRANK_DATA", "")
    data.load("imdb")
    assert len(hub) == 2


@pytest.mark.parametrize("error", [ConnectionError("no route"), ValueError("BuilderConfig"), RuntimeError("scripts")])
def test_no_network_and_no_copy(monkeypatch, error):
    def fail(*arguments, **options):
        raise error

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(OSError, match="cannot load svhn from the Hugging Face hub") as caught:
        data.images("svhn")
    message = str(caught.value)
    for part in (str(error), "hf download ufldl-stanford/svhn", '"cropped_digits/*"', "FOLDER/svhn", "ATTNRANK_DATA"):
        assert part in message


def test_offline_for_real(tmp_path):
    """The library itself, not a stand-in, told that there is no network and given an empty cache."""
    code = "from attnrank import data\ntry: data.load('cifar10')\nexcept OSError as error: print(error)"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "PYTHONWARNINGS": "ignore"}
    environment.pop("ATTNRANK_DATA", None)
    for name in ("HF_DATASETS_CACHE", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        environment.pop(name, None)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "cannot load cifar10" in done.stdout and "hf download uoft-cs/cifar10" in done.stdout


# Digits


def test_digits_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    digits = load_digits()
    parts = {split: data.images("digits", split) for split in ("train", "test")}
    known = {image.tobytes(): [] for image in digits.images}
    for image, label in zip(digits.images, digits.target, strict=True):
        known[image.tobytes()].append(label)
    for values, labels in parts.values():
        assert values.shape[1:] == (1, 8, 8)
        for image, label in zip((values * 16).numpy(), labels.tolist(), strict=True):
            known[image.tobytes()].remove(label)
    assert not any(known.values()), "each image is in one split, once"
    source = data.SOURCES["digits"]
    for split, (_, labels) in parts.items():
        assert tuple(np.bincount(labels).tolist()) == source.counts[split]
    for label in range(10):
        assert source.counts["test"][label] == sum(digits.target == label) // 5
    values = parts["train"][0].numpy()
    assert abs(values.mean() - source.mean[0]) < 5e-6 and abs(values.std() - source.std[0]) < 5e-6
    loaded = data.load("digits", "test")
    assert np.array_equal(np.asarray(loaded[0]["image"]), parts["test"][0][0, 0].numpy() * 16)


# Docstrings


def test_docstrings_are_balanced_disjoint_and_nameless():
    names = "matplotlib|networkx|numpy|pandas|scipy|scikit-learn|sklearn|sympy|torch"
    names = re.compile(names + r"|\b(np|pd|plt|nx|sp)\b", re.IGNORECASE)
    parts = {split: data.texts("docstrings", split) for split in ("train", "test")}
    for split, (rows, labels) in parts.items():
        assert tuple(np.bincount(labels).tolist()) == data.SOURCES["docstrings"].counts[split]
        assert labels[:16].tolist() == [*range(8), *range(8)]
        assert min(map(len, rows)) >= docstrings.SHORTEST
        assert not [row for row in rows if names.search(row) or "\n" in row]
    assert len(set(parts["train"][0] + parts["test"][0])) == 1920 + 480
    assert data.load("docstrings", "test")[0]["text"] == parts["test"][0][0]


def test_docstrings_can_be_told_apart_but_not_trivially():
    """Counts of words reach well above the 1 in 8 of guessing; labels that are shifted by one do not."""
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.naive_bayes import MultinomialNB

    (train, train_labels), (test, test_labels) = (data.texts("docstrings", split) for split in ("train", "test"))
    counts = CountVectorizer(min_df=2)
    model = MultinomialNB().fit(counts.fit_transform(train), train_labels)
    found = model.predict(counts.transform(test))
    assert 0.5 < np.mean(found == test_labels.numpy()) < 0.98
    assert np.mean(found == (test_labels.numpy() + 1) % 8) < 0.2


def test_no_test_text_is_a_near_copy_of_a_train_text():
    """Independent measure: cosine of term frequencies; a planted copy with a word changed is found by it."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    (train, _), (test, _) = (data.texts("docstrings", split) for split in ("train", "test"))
    planted = train[5].replace("the", "this", 1)
    terms = TfidfVectorizer(dtype=np.float32)
    nearest = (terms.fit_transform(train) @ terms.transform([*test, planted]).T).max(axis=0).toarray().ravel()
    assert nearest[:-1].max() < 0.95 < nearest[-1]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package that cannot be imported, with files of every kind."""
    root = tmp_path / "unimportable"
    (root / "tests").mkdir(parents=True)
    (root / "__init__.py").write_text("raise RuntimeError('imported')", encoding="utf-8")
    random = np.random.default_rng(0)

    def text(mark):
        return " ".join([mark, "numpy Torch np", *map(str, random.integers(0, 10**6, 60))])

    def function(name, doc):
        return f'def {name}():\n    """{doc}"""\n'

    files = {
        f"part{part}.py": "".join(function(f"f{n}", text(f"p{part}f{n}")) for n in range(4)) for part in range(9)
    }
    shared = text("copied")
    files["copy_one.py"] = function("one", shared)
    files["copy_two.py"] = function("two", shared + " and a word more")
    files["hidden.py"] = function("_private", text("private")) + function("short", "short")
    files["tests/test_it.py"] = function("seen", text("intests"))
    files["broken.py"] = function("fine", text("broken")) + "def ("
    files["methods.py"] = (
        f'class Public:\n    """{text("klass")}"""\n    def go(self):\n        """{text("method")}"""\n'
    )
    for name, content in files.items():
        (root / name).write_text(content, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(docstrings, "ROWS_PER_CLASS", {"train": 31, "test": 8})
    return "unimportable"


def test_docstrings_are_parsed_not_imported(package):
    splits = docstrings._of_package(package, set())
    assert "unimportable" not in sys.modules
    marks = {split: {text.split()[0] for text in texts} for split, texts in splits.items()}
    everything = marks["train"] | marks["test"]
    assert len(everything) == 39 == 9 * 4 + 3
    assert {"klass", "method", "copied"} < everything and not {"private", "intests", "broken"} & everything
    files = [{re.sub(r"f\d+", "", mark) for mark in marks[split] if mark.startswith("p")} for split in marks]
    assert not files[0] & files[1], "a file gives to one split only"
    assert not [text for texts in splits.values() for text in texts if re.search("numpy|torch|np", text, re.I)]


def test_docstrings_do_not_depend_on_the_order_of_the_disk(package, monkeypatch):
    once = docstrings._of_package(package, set())
    walk = Path.rglob
    monkeypatch.setattr(Path, "rglob", lambda self, pattern: reversed(list(walk(self, pattern))))
    assert docstrings._of_package(package, set()) == once


def test_docstrings_say_what_is_missing(package, monkeypatch):
    monkeypatch.setattr(docstrings, "ROWS_PER_CLASS", {"train": 32, "test": 8})
    with pytest.raises(RuntimeError, match="unimportable as installed has 31 docstrings for train; 32 needed"):
        docstrings._of_package(package, set())
    with pytest.raises(ImportError, match="needs the package not_installed_at_all"):
        docstrings._of_package("not_installed_at_all", set())


# The real data, where there is a copy


@needs_real
@pytest.mark.filterwarnings("ignore:.*is partial")
@pytest.mark.parametrize("name", sorted(HUB))
@pytest.mark.parametrize("split", ["train", "test"])
def test_real_rows(name, split):
    source = data.SOURCES[name]
    try:
        loaded = data.load(name, split, folder=REAL)
    except FileNotFoundError as error:
        pytest.skip(str(error).split(". To get")[0])
    assert loaded.column_names == [source.column, "label"]
    assert 0 < len(loaded) <= source.rows(split)
    assert loaded.features["label"].num_classes == source.classes
    if source.shape is None:
        rows, labels = data.texts(name, split, count=100, generator=generator(), folder=REAL)
        assert all(rows) and 20 < labels.sum() < 80  # 6 standard deviations: false alarm below 1e-8
    else:
        values, _ = data.images(name, split, count=256, generator=generator(), standardise=True, folder=REAL)
        assert values.shape == (256, 3, 32, 32)
        # The mean of a picture varies by about 0.7 from picture to picture: 0.3 is nearly 7 standard errors.
        assert values.mean((0, 2, 3)).abs().max() < 0.3 and (values.std((0, 2, 3)) - 1).abs().max() < 0.2


@needs_real
@pytest.mark.parametrize("name", ["cifar10", "imdb"])
def test_real_complete_sets_load_without_a_warning(name):
    if not (REAL / name).is_dir():
        pytest.skip(f"{name} is not in ATTNRANK_DATA")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [len(data.load(name, split, folder=REAL)) for split in ("train", "test")] == [
            data.SOURCES[name].rows(split) for split in ("train", "test")
        ]
