"""Tables from trained Vision Transformers: accuracy, its curve, and the attention ranks of every epoch."""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from attnrank import _check, data
from attnrank.data import SOURCES
from attnrank.experiments.shared.runs import epoch_of, mean_rank, path_of, ranks_of_layer, setting_of, train_or_stop
from attnrank.models import TransformerConfig, VisionTransformer
from attnrank.sweep import Setting, device
from attnrank.training import Images, Recipe, Run, flops_by_shape, image_flops, training_flops

#: What is done to the scores, beside their dimension: the fields of `TransformerConfig` that differ.
INTERVENTIONS: dict[str, dict] = {
    "none": {},
    "qk_norm": {"qk_norm": True},
    "tied": {"tied": True},
    "tied_qk_norm": {"tied": True, "qk_norm": True},
    "frozen": {"frozen": True},
    "frozen_qk_norm": {"frozen": True, "qk_norm": True},
    "learned_temperature": {"learn_temperature": True},
    "sharp": {},  # a quarter of the usual temperature: see `TEMPERATURES`
    "uniform": {},  # so hot that each token takes the mean of all values: attention that chooses nothing
}
#: Times sqrt(d_qk).
TEMPERATURES = {"sharp": 0.25, "uniform": 1e9}
PROBE_IMAGES = 32
#: From this width on the batch is twice as large, and a GPU trains in mixed precision.
WIDE = 192
#: Of one core: seconds that a step takes however small it is, with its share of tests and ranks; operations a second.
STEP, SPEED = 0.02, 2.5e10
#: Runs that differ in these take the same time.
SAME_SHAPE = ("seed", "epoch", "layer")


def accuracy(
    dataset: str, patch: int, width: int, depth: int, heads: int, qk_dim: int, value_dim: int, mlp_width: int,
    intervention: str, epochs: int, seed: int, *, folder: str | Path | None = None,
) -> Setting:
    """Train one Vision Transformer, or go on with it, and return its accuracies, ranks and cost.

    Ranks are hardmax ranks / n averaged over heads and a probe of 32 test images, before and after training, of the
    first block and averaged over blocks. ``best_accuracy`` is the best of the epochs, chosen on the test images. A run
    whose loss was not finite has ``stopped`` set to the reason, and no accuracies. ``folder`` keeps the run's
    checkpoint while it trains; see `runs_folder`.
    """
    setting = setting_of(locals(), "folder")
    model, run, stopped = trained(setting, folder)
    before, after = run.epochs[0], run.final
    if stopped:
        after = dict.fromkeys(after) | {"ranks": None}
    images = len(source(dataset).train_images) * run.final["epoch"]
    return {
        "n": model.tokens,
        "parameters": sum(value.numel() for value in model.parameters()),
        "trained_parameters": sum(value.numel() for value in model.parameters() if value.requires_grad),
        "flops_per_image": image_flops(model),
        "training_flops": float(training_flops(model, images)),
        "accuracy": after["test_accuracy"],
        "best_accuracy": None if stopped else run.best["test_accuracy"],
        "test_loss": after["test_loss"],
        "train_accuracy": after["train_accuracy"],
        "rank_before": mean_rank(before["ranks"], layer=1),
        "rank_before_all": mean_rank(before["ranks"]),
        "rank_after": mean_rank(after["ranks"], layer=1),
        "rank_after_all": mean_rank(after["ranks"]),
        "seconds": round(run.seconds, 1),
        "threads": run.threads or torch.get_num_threads(),
        "device": run.device,
        "stopped": stopped,
    }


def accuracy_curves(
    dataset: str, patch: int, width: int, depth: int, heads: int, qk_dim: int, value_dim: int, mlp_width: int,
    intervention: str, epochs: int, seed: int, epoch: int,
) -> Setting:
    """One epoch of a run of `accuracy`, 0 being the untrained model: losses, accuracies, step size."""
    setting = setting_of(locals(), "epoch")
    entry = _epoch(setting, epoch)
    return {name: entry.get(name) for name in ("rate", "train_loss", "train_accuracy", "test_loss", "test_accuracy")}


def accuracy_ranks(
    dataset: str, patch: int, width: int, depth: int, heads: int, qk_dim: int, value_dim: int, mlp_width: int,
    intervention: str, epochs: int, seed: int, epoch: int, layer: int,
) -> Setting:
    """Ranks / n of one layer (from 1) after one epoch of a run of `accuracy`: mean, least and largest over the heads.

    ``hardmax`` on 32 test images; of the softmax the numerical rank at 0.1 and 0.01, and the stable rank, on 8 of them.
    All to six decimals: of so many rows the table has no use for more.
    """
    setting = setting_of(locals(), "epoch", "layer")
    ranks = ranks_of_layer(_epoch(setting, epoch).get("ranks"), layer)
    return {name: None if value is None else round(value, 6) for name, value in ranks.items()}


def configuration(setting: Setting) -> TransformerConfig:
    """The shape of the model of a setting."""
    changes = INTERVENTIONS[_check.choice("intervention", setting["intervention"], INTERVENTIONS)]
    if setting["intervention"] in TEMPERATURES:
        changes = {"temperature": TEMPERATURES[setting["intervention"]] * setting["qk_dim"] ** 0.5}
    return TransformerConfig(
        setting["width"], setting["heads"], setting["qk_dim"], setting["depth"], mlp_width=setting["mlp_width"],
        value_dim=setting["value_dim"], init="lecun", **changes,
    )  # fmt: skip


def untrained(setting: Setting) -> VisionTransformer:
    """The model of a setting as it is drawn from its seed; sequence pooling, learned positions, no class token."""
    channels, side, _ = _image_shape(setting)
    return VisionTransformer(
        configuration(setting), image_size=side, patch_size=setting["patch"], channels=channels,
        classes=SOURCES[setting["dataset"]].classes, pool="sequence",
        generator=torch.Generator().manual_seed(_check.integer("seed", setting["seed"], minimum=0)),
    )  # fmt: skip


def _image_shape(setting: Setting) -> tuple[int, int, int]:
    shape = SOURCES[setting["dataset"]].shape
    if shape is None:
        raise ValueError(f"dataset must be one of images, got {setting['dataset']!r}")
    return shape


def is_wide(setting: Setting) -> bool:
    """Is this a model for a GPU? Smaller ones are trained in float32 there, too: their rows compare with a CPU's."""
    return setting["width"] >= WIDE


def recipe(setting: Setting) -> Recipe:
    """How every model of the tables is trained; the same for all that are compared."""
    batch, rate = (32, 6e-3) if setting["dataset"] == "digits" else (256 if is_wide(setting) else 128, 2e-3)
    return Recipe(setting["epochs"], batch=batch, rate=rate, warmup=0.1, decay=0.05, smoothing=0.1, clip=1.0)


def seconds_to_train(setting: Setting) -> float:
    """About what it takes to train a run on one core, with all its images: `STEP` for each step, and its operations.

    The tests hold it against the seconds that the published runs took.
    """
    return _seconds_of_shape(tuple((name, value) for name, value in setting.items() if name not in SAME_SHAPE))


@lru_cache(maxsize=256)
def _seconds_of_shape(shape: tuple[tuple[str, Any], ...]) -> float:
    setting = dict(shape)
    images, epochs = SOURCES[setting["dataset"]].rows("train"), setting["epochs"]
    steps = epochs * math.ceil(images / recipe(setting).batch)
    flops = flops_by_shape(
        configuration(setting), _image_shape(setting), setting["patch"], classes=SOURCES[setting["dataset"]].classes,
        pool="sequence",
    )  # fmt: skip
    return STEP * steps + 3 * images * epochs * flops / SPEED  # three passes, as `training_flops` of the model


def probe_images(dataset: str) -> torch.Tensor:
    """The test images on which ranks are taken: drawn once, with seed 0."""
    images = source(dataset)
    rows = torch.randperm(len(images.test_images), generator=torch.Generator().manual_seed(0))[:PROBE_IMAGES]
    return images.standardised(images.test_images[rows.to(images.test_images.device)])


def trained(setting: Setting, folder: str | Path | None) -> tuple[VisionTransformer, Run, str]:
    """The model of a setting after training, its run, and why it was stopped ("" if it was not).

    Its checkpoint is kept in `runs_folder` if there is one, else in ``folder``; None: nothing is kept.
    """
    model = untrained(setting)
    return model, *train_or_stop(
        model, source(setting["dataset"]), recipe(setting), seed=setting["seed"], device=device(),
        mixed=is_wide(setting), graph=True, probe=probe_images(setting["dataset"]),
        checkpoint=path_of(setting, folder), label=setting["intervention"],
    )  # fmt: skip


@lru_cache(maxsize=2)
def _trained_run(key: tuple) -> Run:
    return trained(dict(key), None)[1]


def _epoch(setting: Setting, epoch: int) -> dict:
    return epoch_of(_trained_run(tuple(setting.items())), epoch, setting["epochs"])


@lru_cache(maxsize=2)
def source(dataset: str) -> Images:
    """Crops of 4 pixels and mirror images for photographs; digits as they are, which have no mirror image."""
    facts = SOURCES[dataset]
    mean, std = (tuple(value * facts.white for value in values) for values in (facts.mean, facts.std))
    digits = dataset == "digits"
    return Images(
        data.pixels(dataset), data.pixels(dataset, "test"), mean=mean, std=std, pad=0 if digits else 4,
        flip=not digits, name=dataset,
    )  # fmt: skip
