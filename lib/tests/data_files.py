"""Small parquet folders with the real schema, and no network: what the tests of data sets work on."""

from __future__ import annotations

import io
import pickle
import shutil
import socket
from dataclasses import replace

import datasets
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from attnrank import data

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
