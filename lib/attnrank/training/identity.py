"""What tells one run from another, so that a checkpoint is not continued by a stranger."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from attnrank.training.recipe import Recipe
from attnrank.training.source import Source

#: What was said of the initial weights when the run of a model with a file began: it can be called again, interrupted.
_BEGUN: WeakKeyDictionary[nn.Module, dict[Path, dict[str, Any]]] = WeakKeyDictionary()


def of_run(model: nn.Module, source: Source, recipe: Recipe, seed: int) -> dict[str, Any]:
    """What a checkpoint must say in full: recipe, seed, data, parameters, and the model's configuration."""
    identity = {"recipe": asdict(recipe), "seed": seed, "data": source.describe(), "model": _shape(model)}
    config: Any = getattr(model, "config", None)
    if is_dataclass(config):  # what no parameter shows: temperature, normalised queries and keys
        identity["config"] = asdict(config)  # type: ignore[arg-type]
    return identity


def details(model: nn.Module, source: Any, probe: Tensor | None, path: Path) -> dict[str, Any]:
    """What else tells a run from another, the model not being trained or resumed yet; a source may say it of its data.

    Older checkpoints do not have it.
    """
    fixed = {name: str(tuple(value.shape)) for name, value in model.named_buffers()}  # positions that are not learned
    begun = _BEGUN.get(model, {}).get(path) if path.exists() else None
    weights = begun or {"initial_weights": _initial_weights(model), "initial_norms": _initial_norms(model)}
    return {"buffers": fixed, **weights, "probe": _size(probe)} | (
        source.details() if hasattr(source, "details") else {}
    )


def remember(model: nn.Module, path: Path, details: dict[str, Any]) -> None:
    """The run of a model with a file began: from now on its weights are not those that `details` asks for."""
    _BEGUN.setdefault(model, {})[path] = {name: details[name] for name in ("initial_weights", "initial_norms")}


def _shape(model: nn.Module) -> dict[str, str]:
    """Every parameter with its shape and dtype, and whether it is trained."""
    return {name: f"{tuple(value.shape)} {value.dtype}{'' if value.requires_grad else ' frozen'}"
            for name, value in model.named_parameters()}  # fmt: skip


def _initial_weights(model: nn.Module) -> str:
    """Eight entries of parameters that are not constant, from the first of the first one to the last of the last one.

    Three digits of them: another processor draws the same but for rounding.
    """
    drawn = [value.detach().flatten() for value in model.parameters() if value.numel() > 1]
    drawn = [value for value in drawn if value.min() < value.max()]  # not biases of 0 and gains of 1
    places = ((drawn[at * (len(drawn) - 1) // 7], at) for at in range(8 if drawn else 0))
    return " ".join(f"{value[at * (len(value) - 1) // 7].item():.3g}" for value, at in places)


def _initial_norms(model: nn.Module) -> str:
    """A checksum of the norms of all parameters, each to four digits: other draws change it but by chance."""
    norms = (f"{value.detach().double().norm().item():.4g}" for value in model.parameters())
    return hashlib.sha256(" ".join(norms).encode()).hexdigest()[:16]


def _size(probe: Tensor | None) -> str | None:
    """The shape of a probe and the mean size of its entries, to five digits: a sum that rounding changes by less."""
    if probe is None:
        return None
    values = torch.as_tensor(probe)
    return f"{tuple(values.shape)} of mean size {values.double().abs().mean().item():.5g}"
