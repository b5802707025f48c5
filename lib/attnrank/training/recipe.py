"""How a model is trained: the numbers of the optimiser, the schedule of its step size, what decays and what not."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from attnrank import _check

NOT_DECAYED = ("class_token", "position", "log_temperature")


@dataclass(frozen=True)
class Recipe:
    """AdamW (Loshchilov and Hutter 2019) with a linear warm-up and a cosine (Loshchilov and Hutter 2017).

    Parameters
    ----------
    epochs, batch : passes over the data, and examples a step, at least 1.
    rate : the highest step size, > 0.
    warmup : share of all steps, rounded up to whole ones, in which the step size rises to ``rate``, in [0, 1].
    final : step size of the last step as a share of ``rate``, in [0, 1]; without a step behind the warm-up, and in a
        run of one step, the last step has ``rate``.
    decay : decoupled weight decay of matrices; biases, gains, positions, class token and temperatures do not decay.
    smoothing : label smoothing, in [0, 1] (Szegedy et al. 2016).
    clip : largest length of the gradient of all parameters together, > 0; None does not clip.
    beta1, beta2 : memories of AdamW, in [0, 1).

    Raises ValueError for a field out of range.
    """

    epochs: int
    batch: int = 128
    rate: float = 1e-3
    warmup: float = 0.1
    final: float = 0.0
    decay: float = 0.05
    smoothing: float = 0.1
    clip: float | None = 1.0
    beta1: float = 0.9
    beta2: float = 0.999

    def __post_init__(self) -> None:
        for name in ("epochs", "batch"):
            self._keep(name, _check.integer, minimum=1)
        self._keep("rate", _check.real, above=0)
        self._keep("decay", _check.real, minimum=0)
        for name in ("warmup", "final", "smoothing"):
            self._keep(name, _check.real, minimum=0, maximum=1)
        for name in ("beta1", "beta2"):
            self._keep(name, _check.real, minimum=0, maximum=1 - 1e-9)
        if self.clip is not None:
            self._keep("clip", _check.real, above=0)

    def _keep(self, name: str, check: Callable[..., float], **bounds: float) -> None:
        """Check a field and make it a plain number, which a checkpoint can hold: NumPy's are none."""
        object.__setattr__(self, name, check(name, getattr(self, name), **bounds))


def learning_rate(step: int, steps: int, recipe: Recipe) -> float:
    """Step size of step 0..steps-1: rises linearly over the warm-up, then falls along half a cosine to its last value.

    The first step is not 0 but one share of the warm-up. Raises ValueError for a step outside the run.
    """
    steps = _check.integer("steps", steps, minimum=1)
    step = _check.integer("step", step, minimum=0)
    if step >= steps:
        raise ValueError(f"step must be below the {steps} steps of the run, got {step}")
    rising = math.ceil(recipe.warmup * steps - 1e-9)  # 0.07 * 100 is a little more than 7
    if step < rising:
        return recipe.rate * (step + 1) / rising
    if step == steps - 1 > 0:
        return recipe.rate * recipe.final
    progress = (step - rising) / max(1, steps - 1 - rising)
    return recipe.rate * (recipe.final + (1 - recipe.final) * (1 + math.cos(math.pi * progress)) / 2)


def decay_groups(model: nn.Module, decay: float) -> list[dict]:
    """Parameter groups for an optimiser: matrices decay; biases, gains, positions, tokens and temperatures do not."""
    trained = [(name, value) for name, value in model.named_parameters() if value.requires_grad]
    if not trained:
        raise ValueError("model must have a parameter that requires a gradient, got none")

    def decays(name: str, value: nn.Parameter) -> bool:
        return value.ndim >= 2 and name.rpartition(".")[2] not in NOT_DECAYED

    groups = [([v for n, v in trained if decays(n, v)], decay), ([v for n, v in trained if not decays(n, v)], 0.0)]
    return [{"params": values, "weight_decay": amount} for values, amount in groups if values]
