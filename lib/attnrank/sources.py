"""The data sets: what each must look like, and where it is."""

from __future__ import annotations

from dataclasses import dataclass

from attnrank import docstrings


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
