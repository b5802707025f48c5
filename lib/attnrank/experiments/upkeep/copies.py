"""Whether the data of a row are at hand, in the rows and the order that the published tables were computed on."""

from __future__ import annotations

import os
import warnings
from functools import lru_cache
from pathlib import Path

from attnrank import data
from attnrank.data import SOURCES
from attnrank.experiments.choosing_head_dimension.truncation import DRAWN
from attnrank.experiments.does_rank_matter.tasks import TASKS
from attnrank.models import pretrained

#: Data sets that need no download, and tasks and models that are drawn.
EMBEDDED = frozenset(name for name, source in SOURCES.items() if source.hub is None) | frozenset(TASKS) | {DRAWN}

#: Rows of the training split, and its first labels: CIFAR-10 in the order of the official files (the hub has another),
#: the first 200 images of each fine class of CIFAR-100, the first 1083 of SVHN.
PUBLISHED = {
    "cifar10": (50_000, [6, 9, 9, 4, 1, 1]),
    "cifar100": (20_000, []),
    "svhn": (1083, []),
    "imdb": (25_000, [0, 0, 0, 0, 0, 0]),
}


def at_hand(name: str) -> bool:
    """Is the data set embedded, or is there a local copy like the one that the published tables come from?

    Seeds draw images and texts by their row, so that another copy gives other rows, within the spread over seeds. The
    local copies are in the folder that the environment variable ATTNRANK_DATA names; the hub is not asked. Models that
    others trained count as data: see `attnrank.models.pretrained`.
    """
    if name in pretrained.FILES:
        return pretrained.at_hand(name)
    return name in EMBEDDED or _published_copy(name, os.environ.get("ATTNRANK_DATA"))


@lru_cache
def _published_copy(name: str, folder: str | None) -> bool:
    if not folder or not (Path(folder) / name).is_dir():
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a copy is partial is the point here
        labels = data.load(name)["label"]
    rows, first = PUBLISHED.get(name, (len(labels), []))
    return len(labels) == rows and list(labels[: len(first)]) == first
