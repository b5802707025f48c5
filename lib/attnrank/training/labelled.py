"""What sources of labelled examples have in common: the order of an epoch, its batches, the test."""

from __future__ import annotations

import hashlib
from typing import Any, TypeVar

import torch
from jaxtyping import Int64
from torch import Tensor
from torch.nn import functional as F

from attnrank import _check
from attnrank.training.source import generator_of

Kind = TypeVar("Kind")


class Labelled:
    """Examples and labels to train on and to test on, on one device; see `Source`.

    A kind of examples says in ``drawn`` what a step sees of the training examples, in ``seen`` what the test sees, and
    may say in ``order`` how an epoch goes through them; batches are consecutive parts of it, the last one may be
    smaller.
    """

    def __init__(
        self, train: tuple[Tensor, Int64[Tensor, " rows"]], test: tuple[Tensor, Int64[Tensor, " rows"]], *, name: str,
        test_batch: int,
    ) -> None:
        self.train_inputs, self.train_labels = train
        self.test_inputs, self.test_labels = test
        self.name, self.test_batch = name, _check.integer("test_batch", test_batch, minimum=1)
        self._order: tuple[tuple[int, int, int], Tensor] = ((-1, -1, -1), torch.empty(0, device="cpu"))

    def drawn(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        """What the model sees of training examples, changed at random if at all."""
        return self.seen(inputs)

    def seen(self, inputs: Tensor) -> Tensor:
        """What the model sees of examples as they are."""
        return inputs

    def order(self, generator: torch.Generator, batch: int) -> Int64[Tensor, " rows"]:
        """The order in which an epoch meets the training examples: a random permutation, drawn on the CPU."""
        return torch.randperm(len(self.train_labels), generator=generator, device="cpu")

    def to(self: Kind, device: torch.device) -> Kind:
        """Move the examples to a device, and return this object."""
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(self, name, value.to(device))
        return self

    def describe(self) -> dict[str, object]:
        """What the data are: their name, numbers of examples, sums of training examples, labels and test examples."""
        parts = (self.train_inputs, self.train_labels, self.test_inputs)
        sums = [int(values.sum(dtype=torch.int64)) for values in parts]
        return {"name": self.name, "train": len(self.train_inputs), "test": len(self.test_inputs), "sums": sums}

    def details(self) -> dict[str, object]:
        """What tells the data from others that `describe` does not: the checksum of all examples and labels."""
        digest = hashlib.sha256()
        for values in (self.train_inputs, self.train_labels, self.test_inputs, self.test_labels):
            digest.update(values.cpu().contiguous().numpy().tobytes())
        return {"sha256": digest.hexdigest()}

    def steps(self, batch: int) -> int:
        """Batches an epoch."""
        return -(-len(self.train_inputs) // batch)

    def batch(self, seed: int, epoch: int, step: int, batch: int) -> tuple[Tensor, Tensor]:
        """Examples as the model sees them, and labels, of one step."""
        if self._order[0] != (seed, epoch, batch):
            drawn = self.order(generator_of(seed, epoch), batch)
            self._order = ((seed, epoch, batch), drawn.to(self.train_inputs.device))
        rows = self._order[1][step * batch : (step + 1) * batch]
        return self.drawn(self.train_inputs[rows], generator_of(seed, epoch, step)), self.train_labels[rows]

    @torch.no_grad()
    def test(self, model: Any) -> dict[str, float]:
        """Mean cross-entropy and accuracy on the test examples.

        Raises ValueError for labels, of the test or of training, that are no class of the model.
        """
        model.eval()
        loss, right = 0.0, 0
        for start in range(0, len(self.test_inputs), self.test_batch):
            rows = slice(start, start + self.test_batch)
            logits = model(self.seen(self.test_inputs[rows])).double()
            if not start:
                self._require_classes(logits.shape[-1])
            labels = self.test_labels[rows]
            loss += F.cross_entropy(logits, labels, reduction="sum").item()
            right += int((logits.argmax(-1) == labels).sum())
        return {"test_loss": loss / len(self.test_inputs), "test_accuracy": right / len(self.test_inputs)}

    def _require_classes(self, classes: int) -> None:
        """Refuse labels that are no class: cross-entropy leaves those of -100 out without a word."""
        for part, labels in (("train", self.train_labels), ("test", self.test_labels)):
            wrong = labels[(labels < 0) | (labels >= classes)]
            if len(wrong):
                raise ValueError(f"the labels of {part} must be in 0..{classes - 1}, the classes of the model, got "
                                 f"{int(wrong[0])}")
