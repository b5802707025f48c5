"""Texts as rows of token numbers, padded at the end, some of them hidden while training."""

from __future__ import annotations

import torch
from jaxtyping import Int32, Int64
from torch import Tensor

from attnrank import _check
from attnrank.models import PADDING
from attnrank.training.labelled import Labelled

#: Batches whose texts are sorted by length together: few, so that a batch is still nearly a random one.
TOGETHER = 20


class Sequences(Labelled):
    """Texts and labels to train on and to test on, as int32 token numbers on one device; see `Source`.

    Parameters
    ----------
    train, test : (tokens (rows, length), labels), 0 being padding, behind each text.
    hide : share of the tokens of a training text that are replaced by ``unknown``, drawn anew each time that it is met;
        the words of a text that decide it are few, and a model learns them by heart otherwise.
    unknown : the number of the token that stands for what is not in the vocabulary.
    name : what the data are called in a checkpoint.

    Batches hold texts of similar length, cut to the longest: an epoch is a random permutation of which 20 batches at a
    time are sorted, and then a random permutation of the batches.
    """

    def __init__(
        self,
        train: tuple[Int32[Tensor, "rows length"], Int64[Tensor, " rows"]],
        test: tuple[Int32[Tensor, "rows length"], Int64[Tensor, " rows"]],
        *,
        hide: float = 0.0,
        unknown: int = 1,
        name: str = "texts",
        test_batch: int = 500,
    ) -> None:
        for what, (tokens, labels) in (("train", train), ("test", test)):
            if tokens.dtype != torch.int32 or tokens.ndim != 2 or not len(tokens) or len(tokens) != len(labels):
                raise ValueError(f"{what} must be int32 tokens (rows, length) and as many labels, got {tokens.dtype} "
                                 f"{tuple(tokens.shape)} and {tuple(labels.shape)}")
            if not (tokens[:, 0] != PADDING).all() or ((tokens[:, :-1] == PADDING) & (tokens[:, 1:] != PADDING)).any():
                raise ValueError(f"{what} must have its padding behind a text in every row")
        self.hide = _check.real("hide", hide, minimum=0.0, maximum=1.0)
        self.unknown = _check.integer("unknown", unknown, minimum=1)
        by_length = _lengths(test[0]).argsort(stable=True)  # a test is quicker so, and no sum depends on the device
        super().__init__(train, (test[0][by_length], test[1][by_length]), name=name, test_batch=test_batch)
        self._train_lengths = _lengths(train[0])

    def describe(self) -> dict[str, object]:
        """What the data are, and how much is hidden."""
        return super().describe() | {"length": self.train_inputs.shape[1], "hide": self.hide}

    def details(self) -> dict[str, object]:
        """The checksum, and what hidden tokens are replaced by."""
        return super().details() | {"unknown": self.unknown}

    def order(self, generator: torch.Generator, batch: int) -> Int64[Tensor, " rows"]:
        """Batches of similar lengths in a random order; the smaller last batch stays the last."""
        drawn = super().order(generator, batch)
        lengths = self._train_lengths.cpu()
        parts = [part[lengths[part].argsort(stable=True)] for part in drawn.split(TOGETHER * batch)]
        batches = torch.cat(parts).split(batch)
        whole = [part for part in batches if len(part) == batch]
        shuffled = [whole[i] for i in torch.randperm(len(whole), generator=generator, device="cpu").tolist()]
        return torch.cat([*shuffled, *batches[len(whole) :]])

    def drawn(self, inputs: Int32[Tensor, "batch length"], generator: torch.Generator) -> Int32[Tensor, "batch n"]:
        """Texts with some tokens hidden; what is drawn is drawn on the CPU."""
        tokens = self.seen(inputs)
        if not self.hide:
            return tokens
        hidden = (torch.rand(tokens.shape, generator=generator, device="cpu") < self.hide).to(tokens.device)
        return tokens.masked_fill(hidden & (tokens != PADDING), self.unknown)

    def seen(self, inputs: Int32[Tensor, "batch length"]) -> Int32[Tensor, "batch n"]:
        """Texts cut to the longest of them."""
        return inputs[:, : int(_lengths(inputs).max())]


def _lengths(tokens: Tensor) -> Tensor:
    return (tokens != PADDING).sum(1)
