"""Where batches come from: images held as bytes on the model's device, cropped and flipped a batch at a time."""

from __future__ import annotations

from typing import Any, Protocol, Self, runtime_checkable

import torch
from jaxtyping import Int64, Shaped, UInt8
from torch import Tensor, nn
from torch.nn import functional as F

from attnrank import _check


@runtime_checkable
class Source(Protocol):
    """Batches of one task. ``steps`` is their number in an epoch of batches of this size.

    ``batch`` must depend on its arguments only: that is what lets a run go on where it was killed. ``test`` gives the
    loss and the accuracy of the model on what it is tested on. ``describe`` says in plain values what the data are, so
    that a checkpoint of other data is refused.
    """

    def steps(self, batch: int) -> int: ...

    def batch(self, seed: int, epoch: int, step: int, batch: int) -> tuple[Tensor, Tensor]: ...

    def test(self, model: Any) -> dict[str, float]: ...

    def describe(self) -> dict[str, object]: ...

    def to(self, device: torch.device) -> Self: ...


def generator_of(*numbers: int) -> torch.Generator:
    """A generator on the CPU whose seed is a mixture of these numbers, in this order."""
    mixed = 0
    for number in numbers:
        mixed = (mixed * 6364136223846793005 + number + 1442695040888963407) % 2**64
        mixed ^= mixed >> 29
    return torch.Generator().manual_seed(mixed)


def crop_and_flip(
    images: Shaped[Tensor, "batch c height width"], *, pad: int, flip: bool, generator: torch.Generator
) -> Shaped[Tensor, "batch c height width"]:
    """Shift each image by up to ``pad`` pixels each way (what enters is 0), and mirror each with probability 1/2.

    What is drawn is drawn on the CPU, the same for every device. ``pad`` 0 and ``flip`` False return the images.
    """
    batch, _, height, width = images.shape
    pad = _check.integer("pad", pad, minimum=0)
    shift = torch.randint(0, 2 * pad + 1, (2, batch), generator=_check.generator("generator", generator))
    mirrored = torch.rand(batch, generator=generator) < (0.5 if flip else 0.0)
    if not pad and not flip:
        return images
    rows = shift[0, :, None] + torch.arange(height)
    columns = shift[1, :, None] + torch.where(mirrored[:, None], torch.arange(width - 1, -1, -1), torch.arange(width))
    padded = F.pad(images, (pad, pad, pad, pad))
    rows, columns = rows.to(images.device), columns.to(images.device)
    each = torch.arange(batch, device=images.device)[:, None, None]
    return padded.permute(0, 2, 3, 1)[each, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


class Images:
    """Images and labels to train on and to test on, as uint8 on one device; see `Source`.

    Parameters
    ----------
    train, test : (images, labels) as :func:`attnrank.data.pixels` gives them.
    mean, std : of each channel, in units of the grey values; what the model sees is (image - mean) / std.
    pad, flip : see `crop_and_flip`; only what is trained on is augmented.
    name : what the data are called in a checkpoint.

    Batches of an epoch are a random permutation of the images; the last one may be smaller.
    """

    def __init__(
        self,
        train: tuple[UInt8[Tensor, "rows c height width"], Int64[Tensor, " rows"]],
        test: tuple[UInt8[Tensor, "rows c height width"], Int64[Tensor, " rows"]],
        *,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        pad: int = 0,
        flip: bool = False,
        name: str = "images",
        test_batch: int = 1000,
    ) -> None:
        for what, (images, labels) in (("train", train), ("test", test)):
            if images.dtype != torch.uint8 or images.ndim != 4 or not len(images) or len(images) != len(labels):
                raise ValueError(f"{what} must be uint8 images (rows, channels, height, width) and as many labels, got "
                                 f"{images.dtype} {tuple(images.shape)} and {tuple(labels.shape)}")
        self.train_images, self.train_labels = train
        self.test_images, self.test_labels = test
        self.mean, self.std = (torch.tensor(values, dtype=torch.float64)[:, None, None] for values in (mean, std))
        self.pad, self.flip, self.name, self.test_batch = pad, flip, name, test_batch
        self._order: tuple[tuple[int, int], Tensor] = ((-1, -1), torch.empty(0))

    def to(self, device: torch.device) -> Images:
        """Move the images to a device, and return this object."""
        for name in ("train_images", "train_labels", "test_images", "test_labels", "mean", "std"):
            setattr(self, name, getattr(self, name).to(device))
        return self

    def describe(self) -> dict[str, object]:
        """What the data are: their name, numbers of images, sums of labels and of pixels, and the augmentation."""
        parts = (self.train_images, self.train_labels, self.test_images)
        sums = [int(values.sum(dtype=torch.int64)) for values in parts]
        return {"name": self.name, "train": len(self.train_images), "test": len(self.test_images), "sums": sums,
                "pad": self.pad, "flip": self.flip}

    def steps(self, batch: int) -> int:
        """Batches an epoch."""
        return -(-len(self.train_images) // batch)

    def batch(self, seed: int, epoch: int, step: int, batch: int) -> tuple[Tensor, Tensor]:
        """Augmented, standardised images (float32) and labels of one step."""
        if self._order[0] != (seed, epoch):
            drawn = torch.randperm(len(self.train_images), generator=generator_of(seed, epoch))
            self._order = ((seed, epoch), drawn.to(self.train_images.device))
        rows = self._order[1][step * batch : (step + 1) * batch]
        drawn = crop_and_flip(
            self.train_images[rows], pad=self.pad, flip=self.flip, generator=generator_of(seed, epoch, step)
        )
        return self.standardised(drawn), self.train_labels[rows]

    def standardised(self, images: UInt8[Tensor, "batch c height width"]) -> Tensor:
        """(image - mean) / std in float32; pixels that the crop brought in count as 0 before that."""
        return ((images.double() - self.mean) / self.std).float()

    @torch.no_grad()
    def test(self, model: nn.Module) -> dict[str, float]:
        """Mean cross-entropy and accuracy on the test images."""
        model.eval()
        loss, right = 0.0, 0
        for start in range(0, len(self.test_images), self.test_batch):
            rows = slice(start, start + self.test_batch)
            logits = model(self.standardised(self.test_images[rows])).double()
            labels = self.test_labels[rows]
            loss += F.cross_entropy(logits, labels, reduction="sum").item()
            right += int((logits.argmax(-1) == labels).sum())
        return {"test_loss": loss / len(self.test_images), "test_accuracy": right / len(self.test_images)}
