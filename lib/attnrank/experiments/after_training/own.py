"""Single heads of models that this book trains, before and after: Vision Transformers and models of film reviews."""

from __future__ import annotations

from functools import lru_cache

from torch import Tensor, nn

from attnrank import _check
from attnrank.experiments.accuracy import arms, runs
from attnrank.experiments.after_training.others import WEIGHTS, measured_heads
from attnrank.experiments.experiment import Experiment, Statistical
from attnrank.experiments.text import runs as text_runs
from attnrank.experiments.text import tables as texts
from attnrank.probe import attentions
from attnrank.sweep import Setting, grid

#: The base arm of a series by data and number of tokens: layers and heads, and the run of a seed.
SHAPES = {("digits", 16): (2, 4), ("cifar10", 16): (3, 4), ("imdb", 64): (1, 4), ("imdb", 400): (1, 2)}
SEEDS = (0, 1, 2)


def own_heads(dataset: str, n: int, weights: str, seed: int, layer: int, head: int) -> Setting:
    """Ranks of one head of a model of the chapters accuracy and text, and where its queries look; means, in float64.

    The models are the base arms: on digits (16 tokens, 12 epochs), CIFAR-10 (16 tokens, 5 epochs) and reviews of 64
    words (2 epochs) and 400 words (3 epochs, 2 heads of dimension 16). ``weights``: "random", as they are drawn from
    the seed, or "trained", the same after training. Inputs: the 32 test images or reviews of those chapters, from all
    of which spectra are taken too. Columns as in `trained_heads`.
    """
    _check.choice("weights", weights, WEIGHTS)
    if (dataset, n) not in SHAPES:
        raise ValueError(f"dataset and n must be one of {', '.join(map(str, SHAPES))}, got {(dataset, n)}")
    found = measured_heads(_attentions(dataset, n, weights, seed)[layer - 1], spectra=runs.PROBE_IMAGES)
    return {name: values[head].item() for name, values in found.items()}


def setting_of(dataset: str, n: int, seed: int) -> Setting:
    """The run, as a setting of the table accuracy or text_accuracy."""
    if dataset == "imdb":
        arm, epochs = (texts.LONG, 3) if n == 400 else (texts.BASE, 2)
        return texts.runs([arm], length=n, epochs=epochs, seeds=[seed])[0]
    base, patch, epochs = {"digits": ("digits", 2, 12), "cifar10": ("photographs", 8, 5)}[dataset]
    return arms.runs([arms.BASES[base]], dataset=dataset, patch=patch, epochs=epochs, seeds=[seed])[0]


@lru_cache(maxsize=2)
def _attentions(dataset: str, n: int, weights: str, seed: int) -> list:
    setting = setting_of(dataset, n, seed)
    of = text_runs if dataset == "imdb" else runs
    model: nn.Module = of.untrained(setting) if weights == "random" else of.trained(setting, None)[0]
    return attentions(model.double(), _inputs(setting))


def _inputs(setting: Setting) -> Tensor:
    if setting["dataset"] != "imdb":
        return runs.probe_images(setting["dataset"]).cpu().double()
    names = ("dataset", "tokens", "vocabulary", "length")
    return text_runs.probe_texts(text_runs.source(*(setting[name] for name in names))).cpu()


def seconds_again(row: Setting) -> float:
    """What it takes to compute a row again: for trained weights, to train them."""
    if row["weights"] == "random":
        return 5.0
    of = text_runs if row["dataset"] == "imdb" else runs
    return of.seconds_to_train(setting_of(row["dataset"], row["n"], row["seed"]))


def _grid(weights: list[str], seeds: tuple[int, ...]) -> list[Setting]:
    return [
        setting
        for (dataset, n), (layers, heads) in SHAPES.items()
        for setting in grid(dataset=[dataset], n=[n], weights=weights, seed=list(seeds),
                            layer=list(range(1, layers + 1)), head=list(range(heads)))
    ]  # fmt: skip


#: Standard errors of a model that another processor trains. Digits: MKL_CBWR=COMPATIBLE (seed 0) and
#: ATEN_CPU_CAPABILITY=default (seeds 1 and 2) changed single queries of 512. Reviews: a like model, trained with the
#: former, had ranks that differ by 0.005 (root mean square of 8 heads); where its heads look was not measured, and the
#: errors are the largest standard deviations over seeds there, and in all columns of CIFAR-10. A wrong seed shows in
#: every trained head of digits and in a third of those of 64 words; elsewhere in the heads as they are drawn.
_MEASURED = ("rank", "rank_std", "numerical", "own", "previous", "first", "largest")
_ERRORS = {
    "digits": (0.002, 0.002, 0.002, 0.002, 0.002, 0.002, 0.002),
    "cifar10": (0.05, 0.03, 0.05, 0.05, 0.05, 0.05, 0.1),
    "imdb": (0.01, 0.007, 0.01, 0.013, 0.005, 0.015, 0.05),
}

EXPERIMENTS = {
    "own_heads": Experiment(
        "What are the ranks of the heads of this book's own models, before and after training?",
        own_heads,
        quick=grid(dataset=["digits"], n=[16], weights=["random"], seed=[0], layer=[1, 2], head=[0, 1]),
        paper=_grid(list(WEIGHTS), SEEDS),
        chapter="after_training",
        repeats=Statistical(
            {name: {data: errors[i] for data, errors in _ERRORS.items()} for i, name in enumerate(_MEASURED)},
            by="dataset", before={"weights": "random"},
        ),
        data="dataset",
        seconds_again=seconds_again,
    ),
}  # fmt: skip
