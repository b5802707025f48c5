"""Data sets: small parquet folders with the real schema, the hub replaced, and the real data where there is a copy."""
# ruff: noqa: F811

from __future__ import annotations

import os
import re
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

from attnrank import data, docstrings
from data_files import (  # noqa: F401 (fixtures)
    HUB,
    LABELS,
    PICTURES,
    folder,
    generator,
    offline,
    one_file,
    rewrite,
    set_counts,
    table_of,
    written,
)

REAL = os.environ.get("ATTNRANK_DATA")
REAL = Path(REAL).resolve() if REAL else None
needs_real = pytest.mark.skipif(REAL is None, reason="ATTNRANK_DATA is not set: no copy of the real data sets")
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


def test_rows_are_drawn_in_random_order():
    rows = data._rows(1000, 100, generator()).tolist()
    assert rows != sorted(rows) and rows != data._rows(1000, 100, generator(1)).tolist()


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
    for other in ("extra-00000-of-00001", "train_extra", "trainer"):
        (path / "svhn" / f"{other}.parquet").write_bytes(b"not parquet")
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


def test_the_folder_of_the_set_goes_before_the_folder_itself_and_a_tilde_is_home(folder, monkeypatch):
    path, _ = folder
    (path / "train-00000-of-00001.parquet").write_bytes(b"not parquet")
    for variable in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(variable, str(path.parent))
    assert len(data.load("imdb", folder=f"~/{path.name}")) == 6


def test_shards_are_in_the_order_of_their_names_and_their_first_rows_are_theirs(tmp_path, monkeypatch):
    labels, glob = LABELS["cifar10"], Path.glob
    set_counts(monkeypatch, "cifar10", labels)
    table, _ = table_of("cifar10", "train", labels)
    paths = [tmp_path / f"train-0000{shard}-of-00002.parquet" for shard in range(2)]
    for path, rows in zip(paths, (range(6), range(6, 11)), strict=True):
        table.select(rows).to_parquet(path)
    for order in (1, -1):  # of the disk
        monkeypatch.setattr(Path, "glob", lambda self, pattern, order=order: sorted(glob(self, pattern))[::order])
        assert data.images("cifar10", folder=tmp_path)[1].tolist() == labels
    column = pq.read_table(paths[1])["img"].to_pylist()
    column[0]["bytes"] = b""
    rewrite(paths[1], img=pa.array(column))
    with pytest.raises(ValueError, match=re.escape(str(paths[1])) + ": the image in row 0 does not decode"):
        data.images("cifar10", folder=tmp_path)


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


def test_one_row_more_or_less_is_said_of_the_right_class(folder, monkeypatch):
    path, _ = folder  # three rows of each class
    monkeypatch.setitem(data.SOURCES, "imdb", replace(data.SOURCES["imdb"], counts={"train": (3, 2), "test": (3, 3)}))
    with pytest.raises(ValueError, match="imdb has 3 rows of class 1 in imdb train; the official set has 2"):
        data.load("imdb", folder=path)
    monkeypatch.setitem(data.SOURCES, "imdb", replace(data.SOURCES["imdb"], counts={"train": (4, 5), "test": (3, 3)}))
    with pytest.warns(UserWarning, match="3 rows are missing: 1 to 2 of each of 2 classes\\."):
        data.load("imdb", folder=path)


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
        (lambda path: data.load("digits", revision="main"), "folder and revision must be None for digits"),
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
