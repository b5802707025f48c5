"""Tables from trained Vision Transformers: accuracy, its curve, and the attention ranks of every epoch."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import torch

from attnrank import _check, data
from attnrank.data import SOURCES
from attnrank.models import TransformerConfig, VisionTransformer
from attnrank.sweep import Setting, device, grid
from attnrank.training import ENDING, Images, NonFiniteLoss, Recipe, Run, image_flops, train, training_flops

#: What is done to the scores, beside their dimension: the fields of `TransformerConfig` that differ.
INTERVENTIONS: dict[str, dict] = {
    "none": {},
    "qk_norm": {"qk_norm": True},
    "tied": {"tied": True},
    "tied_qk_norm": {"tied": True, "qk_norm": True},
    "frozen": {"frozen": True},
    "frozen_qk_norm": {"frozen": True, "qk_norm": True},
    "learned_temperature": {"learn_temperature": True},
    "sharp": {},  # a quarter of the usual temperature: see `configuration`
}
PROBE_IMAGES = 32


def accuracy(
    dataset: str, patch: int, width: int, depth: int, heads: int, qk_dim: int, value_dim: int, mlp_width: int,
    intervention: str, epochs: int, seed: int, *, folder: str | Path | None = None,
) -> Setting:
    """Train one Vision Transformer, or go on with it, and return its accuracies, ranks and cost.

    Ranks are hardmax ranks / n averaged over heads and a probe of 32 test images, before and after training, of the
    first block and averaged over blocks. ``best_accuracy`` is the best of the epochs, chosen on the test images. A run
    whose loss was not finite has ``stopped`` set to the reason, and no accuracies. ``folder`` keeps the run's
    checkpoint; None: nothing is kept.
    """
    setting = {name: value for name, value in locals().items() if name != "folder"}
    model, run, stopped = trained(setting, folder)
    before, after = run.epochs[0], run.final
    if stopped:
        after = dict.fromkeys(after) | {"ranks": None}
    images = len(_source(dataset).train_images) * run.final["epoch"]
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
        "rank_before": _mean_rank(before["ranks"], layer=1),
        "rank_before_all": _mean_rank(before["ranks"]),
        "rank_after": _mean_rank(after["ranks"], layer=1),
        "rank_after_all": _mean_rank(after["ranks"]),
        "seconds": round(run.seconds, 1),
        "threads": torch.get_num_threads(),
        "device": run.device,
        "stopped": stopped,
    }


def accuracy_curves(
    dataset: str, patch: int, width: int, depth: int, heads: int, qk_dim: int, value_dim: int, mlp_width: int,
    intervention: str, epochs: int, seed: int, epoch: int, *, folder: str | Path | None = None,
) -> Setting:
    """One epoch of a run of `accuracy`, 0 being the untrained model: losses, accuracies, step size."""
    setting = {name: value for name, value in locals().items() if name not in ("folder", "epoch")}
    entry = _epoch(setting, epoch, folder)
    return {name: entry.get(name) for name in ("rate", "train_loss", "train_accuracy", "test_loss", "test_accuracy")}


def accuracy_ranks(
    dataset: str, patch: int, width: int, depth: int, heads: int, qk_dim: int, value_dim: int, mlp_width: int,
    intervention: str, epochs: int, seed: int, epoch: int, layer: int, *, folder: str | Path | None = None,
) -> Setting:
    """Ranks / n of one layer (from 1) after one epoch of a run of `accuracy`: mean, least and largest over the heads.

    ``hardmax`` on 32 test images; of the softmax the numerical rank at 0.1 and 0.01, and the stable rank, on 8 of them.
    """
    setting = {name: value for name, value in locals().items() if name not in ("folder", "epoch", "layer")}
    ranks = _epoch(setting, epoch, folder).get("ranks") or []
    found = [row for row in ranks if row["layer"] == layer]
    result: Setting = {}
    for name in ("hardmax", "rank_at_tenth", "rank_at_hundredth", "stable"):
        values = [row[name] for row in found]
        result[name] = sum(values) / len(values) if values else None
        if name == "hardmax":
            result |= {"hardmax_least": min(values, default=None), "hardmax_most": max(values, default=None)}
    return result


def configuration(setting: Setting) -> TransformerConfig:
    """The shape of the model of a setting."""
    changes = INTERVENTIONS[_check.choice("intervention", setting["intervention"], INTERVENTIONS)]
    if setting["intervention"] == "sharp":
        changes = {"temperature": setting["qk_dim"] ** 0.5 / 4}
    return TransformerConfig(
        setting["width"], setting["heads"], setting["qk_dim"], setting["depth"], mlp_width=setting["mlp_width"],
        value_dim=setting["value_dim"], init="lecun", **changes,
    )  # fmt: skip


def untrained(setting: Setting) -> VisionTransformer:
    """The model of a setting as it is drawn from its seed; sequence pooling, learned positions, no class token."""
    channels, side, _ = SOURCES[setting["dataset"]].shape
    return VisionTransformer(
        configuration(setting), image_size=side, patch_size=setting["patch"], channels=channels,
        classes=SOURCES[setting["dataset"]].classes, pool="sequence",
        generator=torch.Generator().manual_seed(_check.integer("seed", setting["seed"], minimum=0)),
    )  # fmt: skip


def recipe(setting: Setting) -> Recipe:
    """How every model of the tables is trained; the same for all that are compared."""
    batch, rate = (32, 6e-3) if setting["dataset"] == "digits" else (128, 2e-3)
    return Recipe(setting["epochs"], batch=batch, rate=rate, warmup=0.1, decay=0.05, smoothing=0.1, clip=1.0)


def run_file(setting: Setting, folder: str | Path) -> Path:
    """Where the checkpoint of a run is kept."""
    return Path(folder) / ("-".join(str(value) for value in setting.values()) + ENDING)


def probe_images(dataset: str) -> torch.Tensor:
    """The test images on which ranks are taken: drawn once, with seed 0."""
    source = _source(dataset)
    rows = torch.randperm(len(source.test_images), generator=torch.Generator().manual_seed(0))[:PROBE_IMAGES]
    return source.standardised(source.test_images[rows.to(source.test_images.device)])


def trained(setting: Setting, folder: str | Path | None) -> tuple[VisionTransformer, Run, str]:
    """The model of a setting after training, its run, and why it was stopped ("" if it was not)."""
    model, stopped = untrained(setting), ""
    path = None if folder is None else run_file(setting, folder)
    runs: list[Run] = []
    try:
        run = train(
            model, _source(setting["dataset"]), recipe(setting), seed=setting["seed"], device=device(),
            probe=probe_images(setting["dataset"]), checkpoint=path, label=setting["intervention"], started=runs.append,
        )  # fmt: skip
    except NonFiniteLoss as error:
        run, stopped = runs[0], str(error)[:900]
    return model, run, stopped


@lru_cache(maxsize=2)
def _trained_run(key: tuple, folder: str | None) -> Run:
    return trained(dict(key), folder)[1]


def _epoch(setting: Setting, epoch: int, folder: str | Path | None) -> dict:
    """The entry of one epoch; empty after the end of a run that was stopped."""
    if not 0 <= _check.integer("epoch", epoch, minimum=0) <= setting["epochs"]:
        raise ValueError(f"epoch must be at most {setting['epochs']}, got {epoch}")
    run = _trained_run(tuple(setting.items()), None if folder is None else str(folder))
    return run.epochs[epoch] if epoch < len(run.epochs) else {}


@lru_cache(maxsize=2)
def _source(dataset: str) -> Images:
    """Crops of 4 pixels and mirror images for photographs; digits as they are, which have no mirror image."""
    facts = SOURCES[dataset]
    mean, std = ([value * facts.white for value in values] for values in (facts.mean, facts.std))
    digits = dataset == "digits"
    return Images(
        data.pixels(dataset), data.pixels(dataset, "test"), mean=mean, std=std, pad=0 if digits else 4,
        flip=not digits, name=dataset,
    )  # fmt: skip


def _mean_rank(ranks: list[dict] | None, layer: int | None = None) -> float | None:
    values = [row["hardmax"] for row in ranks or [] if layer in (None, row["layer"])]
    return sum(values) / len(values) if values else None


# The grid ---------------------------------------------------------------------------------------------------------------

#: The smallest models that are compared, one for photographs and one for digits: d = h d_h.
BASES = {
    "photographs": {"width": 64, "depth": 3, "heads": 4, "qk_dim": 16, "value_dim": 16, "mlp_width": 128},
    "digits": {"width": 32, "depth": 2, "heads": 4, "qk_dim": 8, "value_dim": 8, "mlp_width": 64},
}


def head_dims(base: Setting) -> list[int]:
    """1, 2, 4, ... up to the width."""
    return [2**power for power in range(base["width"].bit_length())]


def coupled(base: Setting) -> list[Setting]:
    """The usual parametrisation d = h d_h: a larger head means fewer of them, the parameters stay the same."""
    return [base | {"heads": base["width"] // d, "qk_dim": d, "value_dim": d} for d in head_dims(base)]


def fixed_heads(base: Setting) -> list[Setting]:
    """As many heads whatever their dimension: d != h d_h."""
    return [base | {"qk_dim": d, "value_dim": d} for d in head_dims(base)]


def only_scores(base: Setting) -> list[Setting]:
    """d_qk alone, the values as they are."""
    return [base | {"qk_dim": d} for d in head_dims(base)]


def only_values(base: Setting) -> list[Setting]:
    """d_v alone, queries and keys as they are."""
    return [base | {"value_dim": d} for d in head_dims(base)]


def same_parameters(base: Setting) -> list[Setting]:
    """d_qk alone with as many parameters as nearly as whole units allow: the MLP takes what queries and keys leave.

    A unit of d_qk costs 2 h (d + 1) parameters, one of the MLP's hidden width 2 d + 1.
    """
    arms = []
    for d in head_dims(base):
        freed = 2 * base["heads"] * (base["width"] + 1) * (base["qk_dim"] - d)
        hidden = base["mlp_width"] + round(freed / (2 * base["width"] + 1))
        if hidden > 0:
            arms.append(base | {"qk_dim": d, "mlp_width": hidden})
    return arms


def interventions(base: Setting) -> list[Setting]:
    """Rank changed with d_qk and d_v as they are."""
    full = base["qk_dim"]
    chosen = {"qk_norm": (1, 2, 4, full), "tied_qk_norm": (2, full), "tied": (2, full), "frozen": (2, full),
              "frozen_qk_norm": (2, full), "sharp": (2, full), "learned_temperature": (2, full)}
    return [base | {"qk_dim": d, "intervention": name} for name, dims in chosen.items() for d in dims]


def runs(
    arms: Iterable[Setting], *, dataset: str, patch: int, epochs: int, seeds: Iterable[int]
) -> list[Setting]:
    """Settings of `accuracy`: every arm once for each seed, seed by seed; an arm that is named twice is run once."""
    full = [{"intervention": "none"} | each for each in arms]
    names = ("width", "depth", "heads", "qk_dim", "value_dim", "mlp_width", "intervention")
    distinct = dict.fromkeys(tuple(each[name] for name in names) for each in full)
    return [{"dataset": dataset, "patch": patch} | dict(zip(names, each)) | {"epochs": epochs, "seed": seed}
            for seed in seeds for each in distinct]  # fmt: skip


def all_arms(base: Setting) -> list[Setting]:
    """Every arm once, those that decide first."""
    changed, scores, values = interventions(base), only_scores(base), only_values(base)
    deciding = [base, *scores[:3], *values[:2], *changed[:3], changed[4], coupled(base)[0], coupled(base)[-1]]
    return [*deciding, *scores, *values, *changed, *coupled(base), *same_parameters(base), *fixed_heads(base)]
