"""upkeep.copies: data that are at hand are those that the published tables were computed on, rows and order."""

from __future__ import annotations

import shutil

import pytest

from attnrank.experiments.choosing_head_dimension.truncation import DRAWN
from attnrank.experiments.upkeep import copies
from attnrank.models import pretrained
from data_files import LABELS, folder, offline, one_file, written  # noqa: F401 (fixtures)


@pytest.fixture(autouse=True)
def forgotten():
    copies._published_copy.cache_clear()
    yield
    copies._published_copy.cache_clear()


def test_what_needs_no_file_is_at_hand_everywhere():
    assert {"digits", "docstrings", "permutation", DRAWN} <= copies.EMBEDDED
    assert all(copies.at_hand(name) for name in copies.EMBEDDED)
    assert not any(copies.at_hand(name) for name in copies.PUBLISHED)  # there is no folder
    assert not copies.at_hand("bert-base-uncased")  # nor is the hub asked


@pytest.mark.parametrize(("rows", "first", "here"), [
    (11, LABELS["cifar10"][:6], True), (11, [], True),
    (10, LABELS["cifar10"][:6], False), (12, LABELS["cifar10"][:6], False),  # part of it, or more
    (11, [3, 1, 4, 1, 5, 0], False),  # the same rows in another order
])  # fmt: skip
def test_a_copy_counts_with_the_rows_and_the_order_of_the_tables(folder, monkeypatch, rows, first, here):  # noqa: F811
    monkeypatch.setenv("ATTNRANK_DATA", str(folder[0]))
    monkeypatch.setitem(copies.PUBLISHED, "cifar10", (rows, first))
    one_file(folder[0], split="test").unlink()  # it is the training split that is looked at
    assert copies.at_hand("cifar10") is here


def test_a_folder_without_the_data_set_has_no_copy_of_it(folder, monkeypatch):  # noqa: F811
    monkeypatch.setitem(copies.PUBLISHED, "imdb", (6, [0, 0, 0, 1]))
    monkeypatch.setenv("ATTNRANK_DATA", str(folder[0]))
    assert copies.at_hand("imdb")
    shutil.rmtree(folder[0] / "imdb")
    copies._published_copy.cache_clear()
    assert not copies.at_hand("imdb")


def test_trained_models_count_by_their_files(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNRANK_MODELS", str(tmp_path))
    assert not any(copies.at_hand(name) for name in pretrained.FILES)
    (tmp_path / "route_tsp20").mkdir()
    (tmp_path / "route_tsp20" / "model.safetensors").touch()
    assert copies.at_hand("route_tsp20") and not copies.at_hand("route_tsp50")
