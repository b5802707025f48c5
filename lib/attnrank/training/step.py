"""One step of training: loss, gradient, clipping, and AdamW."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnrank.training.recipe import Recipe, decay_groups

#: Steps before the one that is recorded: torch's libraries take their memory in the first ones.
WARM = 3


class Found(NamedTuple):
    """What a step found before it moved the weights: loss, length of the gradient, number of right answers."""

    loss: float
    length: float
    right: int

    @property
    def finite(self) -> bool:
        """Are the loss and the length of the gradient numbers?"""
        return math.isfinite(self.loss) and math.isfinite(self.length)


class Step:
    """Steps of one model: `gradient`, then `move`.

    ``mixed``: on a GPU the forward pass of float32 models runs in bfloat16 by autocast.
    ``graph`` (on a GPU): after `WARM` steps the kernels of a step are recorded in two CUDA graphs, and from then on
    started by a call each; those of a small model take several times as long to start from Python as to run. The last
    batch of an epoch, if it is smaller, goes without.
    """

    def __init__(self, model: nn.Module, recipe: Recipe, *, mixed: bool = True, graph: bool = False) -> None:
        self.model, self.recipe, self.mixed = model, recipe, mixed
        place = next(model.parameters()).device
        self.graph = graph and place.type == "cuda"
        on_gpu = {"fused": True, "capturable": True} if place.type == "cuda" else {}
        rate = torch.tensor(recipe.rate, device=place) if on_gpu else recipe.rate  # a graph reads it anew each time
        betas = (recipe.beta1, recipe.beta2)
        self.optimizer = torch.optim.AdamW(decay_groups(model, recipe.decay), lr=rate, betas=betas, **on_gpu)
        self.parameters = [value for group in self.optimizer.param_groups for value in group["params"]]
        self.made = 0
        self._recorded: _Recorded | None = None
        self._replayed: _Recorded | None = None  # in the step at hand

    def gradient(self, inputs: Tensor, targets: Tensor) -> Found:
        """Take the gradient of the loss of a batch, clipped."""
        self.model.train()
        if self.graph and self._recorded is None and self.made >= WARM and len(inputs) == self.recipe.batch:
            self._recorded = _Recorded(self, inputs, targets)
        fits = self._recorded is not None and self._recorded.fits(inputs, targets)
        self._replayed = self._recorded if fits else None
        found = (self._replayed.gradient if self._replayed else self.compute)(inputs, targets)
        loss, length, right = found.tolist()  # the only wait for the GPU
        return Found(loss, length, int(right))

    def move(self, rate: float) -> None:
        """Move the weights by this step size."""
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        if self._replayed:
            self._replayed.moving.replay()
        else:
            self.optimizer.step()
        self.made += 1

    def compute(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Loss, length of the gradient and number of right answers, in float64; the gradient is clipped after it."""
        with torch.autocast(inputs.device.type, torch.bfloat16, enabled=self.mixed and can_mix(self.model, inputs)):
            logits = self.model(inputs)
        logits = logits.flatten(0, -2)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        targets = targets.flatten()
        loss = F.cross_entropy(logits, targets, label_smoothing=self.recipe.smoothing)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        limit = math.inf if self.recipe.clip is None else self.recipe.clip
        length = nn.utils.clip_grad_norm_(self.parameters, limit)
        return torch.stack([value.double() for value in (loss.detach(), length, (logits.argmax(-1) == targets).sum())])


class _Recorded:
    """The kernels of a step on batches of one shape; what they read and write stays where it is."""

    def __init__(self, step: Step, inputs: Tensor, targets: Tensor) -> None:
        self.inputs, self.targets = inputs.clone(), targets.clone()
        self.forward, self.moving = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(self.forward):
            self.found = step.compute(self.inputs, self.targets)
        self.gradients = [value.grad for value in step.parameters]  # the second graph reads them there
        with torch.cuda.graph(self.moving):
            step.optimizer.step()

    def fits(self, inputs: Tensor, targets: Tensor) -> bool:
        return inputs.shape == self.inputs.shape and targets.shape == self.targets.shape

    def gradient(self, inputs: Tensor, targets: Tensor) -> Tensor:
        self.inputs.copy_(inputs)
        self.targets.copy_(targets)
        self.forward.replay()
        return self.found


def can_mix(model: nn.Module, inputs: Tensor) -> bool:
    """Is there a float32 model on a GPU?"""
    return inputs.device.type == "cuda" and next(model.parameters()).dtype == torch.float32
