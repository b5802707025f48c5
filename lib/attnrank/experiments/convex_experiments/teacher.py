"""Teachers: trained text models, of which all but the last attention layer is kept frozen."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Float32, Float64, Int64
from torch import Tensor

from attnrank import _check
from attnrank.experiments.text import runs as text
from attnrank.models import PADDING
from attnrank.sweep import Setting
from attnrank.training.source import generator_of

#: Runs of `attnrank.experiments.text.runs.text_accuracy`, by the data that the teacher was trained on.
TEACHERS: dict[str, Setting] = {
    "imdb": {
        "dataset": "imdb", "tokens": "words", "vocabulary": 10_000, "length": 64, "width": 64, "depth": 2, "heads": 4,
        "qk_dim": 16, "value_dim": 16, "mlp_width": 128, "intervention": "none", "epochs": 2, "seed": 0,
    },
    "docstrings": {
        "dataset": "docstrings", "tokens": "words", "vocabulary": 500, "length": 32, "width": 8, "depth": 2, "heads": 2,
        "qk_dim": 4, "value_dim": 4, "mlp_width": 8, "intervention": "none", "epochs": 1, "seed": 0,
    },
}  # fmt: skip


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
    model, train, test = _taught(_check.choice("teacher", teacher, TEACHERS))
    generator = generator_of(seed, count)
    parts = [_lesson(model, *train, 2 * count, generator), _lesson(model, *test, tested, generator)]
    shift, scale = parts[0].target[:count].mean(), parts[0].target[:count].std()
    threshold = -(shift / scale).item()
    both, last = (Lesson(part.x, (part.target - shift) / scale, part.label, threshold) for part in parts)
    return both.rows(slice(count)), both.rows(slice(count, None)), last


def teacher_accuracy(teacher: str) -> dict[str, float]:
    """Accuracy of a teacher on the whole test split, and on its texts that fill the length."""
    model, _, (tokens, labels) = _taught(teacher)
    source = _source(TEACHERS[teacher])
    right = torch.cat([model(part).argmax(-1) for part in tokens.split(500)]) == labels
    return {"accuracy": source.test(model)["test_accuracy"], "full_accuracy": right.double().mean().item(),
            "full_texts": float(len(tokens))}  # fmt: skip


@lru_cache(maxsize=2)
def _taught(teacher: str) -> tuple[Any, tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    with torch.enable_grad():  # whoever asks may have switched it off
        model, _, stopped = text.trained(TEACHERS[teacher], None)
    if stopped:
        raise ValueError(f"the teacher {teacher!r} could not be trained: {stopped}")
    source = _source(TEACHERS[teacher])
    whole = []
    for tokens, labels in ((source.train_inputs, source.train_labels), (source.test_inputs, source.test_labels)):
        full = tokens[:, -1] != PADDING
        whole.append((tokens[full].cpu(), labels[full].cpu()))
    return model.cpu().eval().requires_grad_(False), whole[0], whole[1]


def _source(setting: Setting) -> Any:
    return text.source(*(setting[name] for name in ("dataset", "tokens", "vocabulary", "length")))


@torch.no_grad()
def _lesson(model: Any, tokens: Tensor, labels: Tensor, count: int, generator: torch.Generator) -> Lesson:
    if count > len(tokens):
        raise ValueError(f"count must leave enough of the {len(tokens)} texts that fill the length, got {count}")
    rows = torch.randperm(len(tokens), generator=generator)[:count]
    x, logits = [], []
    for part in tokens[rows].split(500):
        hidden = model.embed(part)
        for block in model.encoder.blocks[:-1]:
            hidden = block(hidden)
        x.append(model.encoder.blocks[-1].norm1(hidden))
        logits.append(model(part))
    said = torch.cat(logits).double()
    return Lesson(torch.cat(x), said[:, 1] - said[:, 0], labels[rows])
