"""Teachers: text models, trained here or elsewhere, of which all but the last attention layer is kept frozen."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Float32, Float64, Int64
from torch import Tensor

from attnrank import _check
from attnrank.experiments.convex_experiments.encoder_teacher import (
    NotAtHandError,
    See,
    Texts,
    pretrained_encoder,
)
from attnrank.experiments.text import runs as text
from attnrank.models import PADDING
from attnrank.sweep import Setting
from attnrank.training.source import generator_of

#: Runs of `attnrank.experiments.text.runs.text_accuracy`, by the data that the teacher was trained on; or, with a
#: ``model``, settings of `encoder_teacher.pretrained_encoder`.
TEACHERS: dict[str, Setting] = {
    "imdb": {
        "dataset": "imdb", "tokens": "words", "vocabulary": 10_000, "length": 64, "width": 64, "depth": 2, "heads": 4,
        "qk_dim": 16, "value_dim": 16, "mlp_width": 128, "intervention": "none", "epochs": 2, "seed": 0,
    },
    "docstrings": {
        "dataset": "docstrings", "tokens": "words", "vocabulary": 500, "length": 32, "width": 8, "depth": 2, "heads": 2,
        "qk_dim": 4, "value_dim": 4, "mlp_width": 8, "intervention": "none", "epochs": 1, "seed": 0,
    },
    "bert-base-uncased": {"model": "bert-base-uncased", "dataset": "imdb", "length": 64, "texts": 4000},
}  # fmt: skip

#: The ``status`` of a row whose teacher could not be had.
MISSING = "not at hand"


@dataclass(frozen=True)
class Teacher:
    """A frozen model and its texts, train and test, which all fill its length.

    ``see`` maps tokens (texts, n) to those before the last attention layer (texts, n, d), as this layer reads them, and
    to the difference of the two logits (texts,), in float64. ``accuracy`` is that on the whole test split, where known.
    """

    see: See
    train: Texts
    test: Texts
    accuracy: float | None = None


@dataclass(frozen=True)
class Lesson:
    """What a student sees of some texts: tokens before the teacher's last attention layer, and what the teacher says.

    x : after the LayerNorm before that layer. target : difference of the teacher's two logits, moved and scaled so that
    the texts trained on have mean 0 and variance 1. label : the true class. threshold : the teacher decides for class 1
    where the target is above it.
    """

    x: Float32[Tensor, "texts n d"]
    target: Float64[Tensor, " texts"]
    label: Int64[Tensor, " texts"]
    threshold: float = 0.0

    def rows(self, chosen: slice) -> Lesson:
        return Lesson(self.x[chosen], self.target[chosen], self.label[chosen], self.threshold)


@lru_cache(maxsize=2)
def lessons(teacher: str, count: int, tested: int, seed: int) -> tuple[Lesson, Lesson, Lesson]:
    """Texts to train on, to choose by (``count`` each, disjoint, from the train split) and to test on (the test split).

    Drawn from the texts that fill the teacher's length, so that there is no padding.
    """
    found = taught_by(_check.choice("teacher", teacher, TEACHERS))
    generator = generator_of(seed, count)
    parts = [_lesson(found.see, *found.train, 2 * count, generator), _lesson(found.see, *found.test, tested, generator)]
    shift, scale = parts[0].target[:count].mean(), parts[0].target[:count].std()
    threshold = -(shift / scale).item()
    both, last = (Lesson(part.x, (part.target - shift) / scale, part.label, threshold) for part in parts)
    return both.rows(slice(count)), both.rows(slice(count, None)), last


def teacher_accuracy(teacher: str) -> Setting:
    """Accuracy of a teacher on the whole test split, and on its test texts that fill the length.

    ``status`` is "measured", or says that the model was not at hand; all else is missing then.
    """
    try:
        found = taught_by(_check.choice("teacher", teacher, TEACHERS))
    except NotAtHandError:
        return {"status": MISSING} | dict.fromkeys(("accuracy", "full_accuracy", "full_texts"))
    tokens, labels = found.test
    right = torch.cat([found.see(part)[1] > 0 for part in tokens.split(500)]).long() == labels
    return {"status": "measured", "accuracy": found.accuracy, "full_accuracy": right.double().mean().item(),
            "full_texts": float(len(tokens))}  # fmt: skip


@lru_cache(maxsize=2)
def taught_by(teacher: str) -> Teacher:
    """A teacher of `TEACHERS`, trained or found again. Raises `encoder_teacher.NotAtHandError` where it is neither."""
    setting = TEACHERS[teacher]
    if "model" in setting:
        return Teacher(*pretrained_encoder(setting))
    with torch.enable_grad():  # whoever asks may have switched it off
        trained, _, stopped = text.trained(setting, None)
    if stopped:
        raise ValueError(f"the teacher {teacher!r} could not be trained: {stopped}")
    source = text.source(*(setting[name] for name in ("dataset", "tokens", "vocabulary", "length")))
    accuracy = source.test(trained)["test_accuracy"]
    model: Any = trained.cpu().eval().requires_grad_(False)

    @torch.no_grad()
    def see(tokens: Tensor) -> tuple[Tensor, Tensor]:
        hidden = model.embed(tokens)
        for block in model.encoder.blocks[:-1]:
            hidden = block(hidden)
        said = model(tokens).double()
        return model.encoder.blocks[-1].norm1(hidden), said[:, 1] - said[:, 0]

    whole = []
    for tokens, labels in ((source.train_inputs, source.train_labels), (source.test_inputs, source.test_labels)):
        full = tokens[:, -1] != PADDING
        whole.append((tokens[full].cpu(), labels[full].cpu()))
    return Teacher(see, whole[0], whole[1], accuracy)


def _lesson(see: See, tokens: Tensor, labels: Tensor, count: int, generator: torch.Generator) -> Lesson:
    if count > len(tokens):
        raise ValueError(f"count must leave enough of the {len(tokens)} texts that fill the length, got {count}")
    rows = torch.randperm(len(tokens), generator=generator)[:count]
    parts = [see(part) for part in tokens[rows].split(500)]
    return Lesson(torch.cat([x for x, _ in parts]), torch.cat([said for _, said in parts]), labels[rows])
