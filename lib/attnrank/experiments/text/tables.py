"""The published tables of text: which runs are finished, which are wanted."""

from __future__ import annotations

from collections.abc import Iterable

from attnrank.experiments.experiment import Exact, Experiment, Rounding, Statistical
from attnrank.experiments.shared.runs import RANKS
from attnrank.experiments.text.baseline import text_baseline
from attnrank.experiments.text.ranks import text_ranks, text_shares
from attnrank.experiments.text.runs import seconds_to_train, text_accuracy, text_epochs
from attnrank.sweep import Setting, grid

#: The model that is compared with its changes: one block, d = h d_h.
BASE = {"width": 32, "depth": 1, "heads": 4, "qk_dim": 8, "value_dim": 8, "mlp_width": 64, "intervention": "none"}
#: Arms in the order in which they decide: what attention is worth, d_qk, d_v, then rank by other means.
ARMS = [
    BASE, BASE | {"intervention": "uniform"}, BASE | {"qk_dim": 1}, BASE | {"value_dim": 1}, BASE | {"qk_dim": 16},
    BASE | {"value_dim": 16}, BASE | {"qk_dim": 2}, BASE | {"qk_dim": 4}, BASE | {"intervention": "frozen"},
    BASE | {"qk_dim": 1, "intervention": "frozen"}, BASE | {"qk_dim": 1, "intervention": "qk_norm"},
    BASE | {"intervention": "qk_norm"}, BASE | {"value_dim": 2},
]  # fmt: skip


def runs(
    arms: Iterable[Setting], *, length: int, epochs: int, dataset: str = "imdb", tokens: str = "words",
    vocabulary: int = 10_000, seeds: Iterable[int] = range(3),
) -> list[Setting]:
    """Settings of `text_accuracy`: every arm once for each seed, arm by arm: what is finished can be compared."""
    seeds = list(seeds)
    data = {"dataset": dataset, "tokens": tokens, "vocabulary": vocabulary, "length": length}
    return [data | arm | {"epochs": epochs, "seed": seed} for arm in arms for seed in seeds]


#: The arms on which the verdict rests, with more seeds than the others.
DECIDING = [BASE, *(BASE | change for change in ({"qk_dim": 1}, {"qk_dim": 16}, {"value_dim": 1},
                                                {"intervention": "uniform"}))]  # fmt: skip
#: For the accuracy that such a model can reach: fewer and larger heads, longer texts.
LONG = BASE | {"heads": 2, "qk_dim": 16, "value_dim": 16}
#: What of it is needed, in the order in which it decides.
LONG_ARMS = [LONG | {"qk_dim": 1}, LONG | {"intervention": "uniform"}, LONG | {"value_dim": 1}, LONG | {"qk_dim": 4}]

#: The runs that are wanted, in this order.
SERIES: dict[str, list[Setting]] = {
    "64 words": runs(ARMS[:8], length=64, epochs=2),
    "32 words": runs(ARMS[:8], length=32, epochs=2),
    "400 words": runs([LONG, *LONG_ARMS], length=400, epochs=3),
    "64 words, other means": runs(ARMS[8:], length=64, epochs=2),
    "64 words, more seeds": runs(DECIDING, length=64, epochs=2, seeds=(3, 4)),
    "32 words, more seeds": runs(DECIDING, length=32, epochs=2, seeds=(3, 4)),
    "256 words": runs(ARMS, length=256, epochs=2),
}
#: How many of them, from the first, are finished and published. To go on, see `book/reading.md`.
FINISHED = {"64 words": 24, "32 words": 24, "400 words": 3, "64 words, other means": 15, "64 words, more seeds": 0,
            "32 words, more seeds": 0, "256 words": 0}  # fmt: skip


def finished() -> list[Setting]:
    """The runs that the tables hold."""
    return [setting for name, count in FINISHED.items() for setting in SERIES[name][:count]]


def progress() -> dict[str, tuple[int, int]]:
    """For each series, how many of its runs are published, and how many are wanted."""
    return {name: (FINISHED[name], len(series)) for name, series in SERIES.items()}


def _epochs(settings: list[Setting]) -> list[Setting]:
    return [setting | {"epoch": epoch, "layer": layer} for setting in settings
            for epoch in range(setting["epochs"] + 1) for layer in range(1, setting["depth"] + 1)]  # fmt: skip


def _ranks(**changes: list) -> list[Setting]:
    """The base of the table of ranks before training, with the changes asked for."""
    axes: dict[str, list] = {
        "dataset": ["imdb"], "tokens": ["words"], "vocabulary": [10_000], "length": [256], "padding": ["dropped"],
        "positions": ["none"], "token_std": [0.02], "width": [128], "heads": [2], "head_dim": [64], "layer": [1],
        "texts": [16], "seed": [0, 1, 2],
    }  # fmt: skip
    return grid(**(axes | changes))


def _distinct(settings: list[Setting]) -> list[Setting]:
    return [dict(pairs) for pairs in dict.fromkeys(tuple(setting.items()) for setting in settings)]


LENGTHS = [32, 64, 128, 256, 512, 1024]
_BOTH: dict[str, list] = {"positions": ["none", "learned"]}
_TINY_DATA: dict[str, list] = {"dataset": ["docstrings"], "vocabulary": [500], "length": [32]}
_TINY = runs(
    [BASE | {"width": 8, "heads": 2, "qk_dim": 2, "value_dim": 4, "mlp_width": 8}], length=32, epochs=1, seeds=[0],
    dataset="docstrings", vocabulary=500,
)  # fmt: skip
#: The largest standard deviations over seeds, rounded up; wall time, device and threads are facts of one run.
_ERRORS = {"accuracy": 0.005, "best_accuracy": 0.005, "test_loss": 0.03, "train_accuracy": 0.005, "rank_after": 0.03,
           "rank_after_all": 0.03}  # fmt: skip
_SHARES = (*RANKS, "hardmax_least", "hardmax_most")
_EPOCHS = {"train_accuracy": 0.02, "test_accuracy": 0.02} | dict.fromkeys(_SHARES, 0.05) | {"stable": 0.01}
#: Before training: ranks from weights as drawn, in float64; rounding moves reviews whose classes are nearly equal.
_UNTRAINED = {"test_accuracy": 0.001} | dict.fromkeys(_SHARES, 1e-9)

EXPERIMENTS = {
    "text_ranks": Experiment(
        "What is the hardmax rank of a random text Transformer on film reviews, by length, head dimension, layer, "
        "width and tokenizer?",
        text_ranks,
        quick=_ranks(**_TINY_DATA, **_BOTH, width=[16], head_dim=[2, 8], texts=[4], seed=[0]),
        paper=_distinct([
            *_ranks(**_BOTH, length=LENGTHS, tokens=["words", "subwords"], padding=["dropped", "attended"]),
            *_ranks(**_BOTH, head_dim=[1, 2, 4, 8, 16, 32, 64, 128]),
            *_ranks(**_BOTH, head_dim=[8, 64], layer=[1, 2, 4, 8], token_std=[0.02, 1.0]),
            *_ranks(**_BOTH, width=[32, 64, 128, 256, 512]),
        ]),
        data="dataset",
        chapter="text",
        repeats=Rounding(1e-9),
        version=2,
    ),
    "text_shares": Experiment(
        "How long are film reviews, and which share of their tokens is distinct?",
        text_shares,
        quick=grid(tokens=["words"], **_TINY_DATA),
        paper=grid(dataset=["imdb"], tokens=["words", "subwords"], vocabulary=[10_000], length=LENGTHS),
        data="dataset",
        chapter="text",
        repeats=Exact(),
    ),
    "text_baseline": Experiment(
        "What accuracy does TF-IDF with logistic regression reach on the same reviews?",
        text_baseline,
        quick=grid(dataset=["docstrings"], length=[32], ngrams=[1]),
        paper=[*grid(dataset=["imdb"], length=[32, 64, 256, 400, 0], ngrams=[1]),
               *grid(dataset=["imdb"], length=[0], ngrams=[2])],
        data="dataset",
        chapter="text",
        repeats=Statistical({"accuracy": 0.001}),
    ),
    "text_accuracy": Experiment(
        "What accuracy does a text Transformer reach, by the dimensions of its heads and what is done to its scores?",
        text_accuracy,
        quick=_TINY,
        paper=finished(),
        chapter="text",
        repeats=Statistical(_ERRORS, ignored=("seconds", "threads", "device")),
        data="dataset",
        seconds_again=seconds_to_train,
        checkpoint=True,
    ),
    "text_epochs": Experiment(
        "Where do accuracy and ranks of these runs go while they train, epoch by epoch and layer by layer?",
        text_epochs,
        quick=_epochs(_TINY),
        paper=_epochs(finished()),
        chapter="text",
        repeats=Statistical(_EPOCHS, early={"epoch": 0}, early_errors=_UNTRAINED),
        data="dataset",
        seconds_again=seconds_to_train,
    ),
}  # fmt: skip
