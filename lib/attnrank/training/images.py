"""Images held as bytes on the model's device, cropped and flipped a batch at a time."""

from __future__ import annotations

import torch
from jaxtyping import Int64, Shaped, UInt8
from torch import Tensor
from torch.nn import functional as F

from attnrank import _check
from attnrank.training.labelled import Labelled


def crop_and_flip(
    images: Shaped[Tensor, "batch c height width"], *, pad: int, flip: bool, generator: torch.Generator
) -> Shaped[Tensor, "batch c height width"]:
    """Shift each image by up to ``pad`` pixels each way (what enters is 0), and mirror each with probability 1/2.

    What is drawn is drawn on the CPU, the same for every device. ``pad`` 0 and ``flip`` False return the images.
    """
    batch, _, height, width = images.shape
    pad = _check.integer("pad", pad, minimum=0)
    generator = _check.generator("generator", generator)
    shift = torch.randint(0, 2 * pad + 1, (2, batch), generator=generator, device="cpu")
    mirrored = torch.rand(batch, generator=generator, device="cpu") < (0.5 if flip else 0.0)
    if not pad and not flip:
        return images
    down, across = torch.arange(height, device="cpu"), torch.arange(width, device="cpu")
    rows = shift[0, :, None] + down
    columns = shift[1, :, None] + torch.where(mirrored[:, None], across.flip(0), across)
    padded = F.pad(images, (pad, pad, pad, pad))
    rows, columns = rows.to(images.device), columns.to(images.device)
    each = torch.arange(batch, device=images.device)[:, None, None]
    return padded.permute(0, 2, 3, 1)[each, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


class Images(Labelled):
    """Images and labels to train on and to test on, as uint8 on one device; see `Source`.

    Parameters
    ----------
    train, test : (images, labels) as :func:`attnrank.data.pixels` gives them.
    mean, std : of each channel, in units of the grey values; what the model sees is (image - mean) / std.
    pad, flip : see `crop_and_flip`; only what is trained on is augmented.
    name : what the data are called in a checkpoint.

    Raises ValueError for images, labels, mean or std that do not fit.

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
            if labels.dtype != torch.int64 or labels.ndim != 1:
                raise ValueError(f"{what} must have labels int64 (rows,), got {labels.dtype} {tuple(labels.shape)}")
        for what, values in (("mean", mean), ("std", std)):  # one number would be broadcast, and three as well
            if len(values) != train[0].shape[1]:
                raise ValueError(f"{what} must have a number for {train[0].shape[1]} channels, got {len(values)}")
            for value in torch.as_tensor(values, dtype=torch.float64, device="cpu").tolist():
                _check.real(what, value, **({"above": 0.0} if what == "std" else {}))
        super().__init__(train, test, name=name, test_batch=test_batch)
        place = train[0].device
        self.mean, self.std = (
            torch.tensor(values, dtype=torch.float64, device=place)[:, None, None] for values in (mean, std)
        )
        self.pad, self.flip = _check.integer("pad", pad, minimum=0), _check.flag("flip", flip)

    @property
    def train_images(self) -> UInt8[Tensor, "rows c height width"]:
        """The images to train on, as they are stored."""
        return self.train_inputs

    @property
    def test_images(self) -> UInt8[Tensor, "rows c height width"]:
        """The images to test on, as they are stored."""
        return self.test_inputs

    def describe(self) -> dict[str, object]:
        """What the data are, and the augmentation."""
        return super().describe() | {"pad": self.pad, "flip": self.flip}

    def details(self) -> dict[str, object]:
        """The checksum, and what the grey values are standardised with."""
        mean, std = ([round(x, 4) for x in values.flatten().tolist()] for values in (self.mean, self.std))
        return super().details() | {"mean": mean, "std": std}  # rounded: another processor sums in another order

    def drawn(self, inputs: UInt8[Tensor, "batch c height width"], generator: torch.Generator) -> Tensor:
        """Augmented, standardised images (float32)."""
        return self.standardised(crop_and_flip(inputs, pad=self.pad, flip=self.flip, generator=generator))

    def seen(self, inputs: UInt8[Tensor, "batch c height width"]) -> Tensor:
        """Standardised images (float32)."""
        return self.standardised(inputs)

    def standardised(self, images: UInt8[Tensor, "batch c height width"]) -> Tensor:
        """(image - mean) / std in float32; pixels that the crop brought in count as 0 before that."""
        return ((images.double() - self.mean) / self.std).float()
