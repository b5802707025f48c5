"""The training loop."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

from attnrank import _check
from attnrank.training import checkpoint as files
from attnrank.training.measure import attention_ranks
from attnrank.training.recipe import Recipe, decay_groups, learning_rate
from attnrank.training.source import Source

REMEDY = "lower the recipe's rate, lengthen its warm-up, or clip"
#: What `_untrained` gave of a model when its run with a file began, so that an interrupted call can be made again.
_BEGUN: WeakKeyDictionary[nn.Module, dict[Path, str]] = WeakKeyDictionary()


class NonFiniteLoss(RuntimeError):
    """The loss became NaN or infinite, so that the run was stopped."""


@dataclass
class Run:
    """What came of a run: one entry in ``epochs`` for each epoch, 0 being the untrained model.

    An entry has ``epoch``, ``rate`` (of the last step), ``train_loss`` and ``train_accuracy`` (of the augmented batches
    as they were met; missing at epoch 0), what the source's test gives (``test_loss``, ``test_accuracy``), and
    ``ranks``, the rows of `attention_ranks` on the probe batch. ``seconds`` is the time spent training, all sessions
    together and probing and testing included.
    """

    epochs: list[dict] = field(default_factory=list)
    seconds: float = 0.0
    steps: int = 0
    device: str = "cpu"
    sessions: int = 1

    @property
    def final(self) -> dict:
        """The last epoch."""
        return self.epochs[-1]

    @property
    def best(self) -> dict:
        """The epoch of the highest test accuracy, the first of several: chosen on the test set, so it flatters."""
        return max(self.epochs, key=lambda epoch: epoch["test_accuracy"])


def train(
    model: nn.Module,
    source: Source,
    recipe: Recipe,
    *,
    seed: int,
    device: torch.device | str = "cpu",
    probe: Tensor | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_seconds: float = 60.0,
    label: str = "train",
    progress: Callable[[dict], None] | None = None,
    started: Callable[[Run], None] | None = None,
) -> Run:
    """Train a model in place and return its `Run`; on a terminal a bar shows loss, accuracy, speed and remaining time.

    Parameters
    ----------
    model : gives logits (..., classes) for inputs; moved to the device. Its dtype is kept; on a GPU the forward pass
        of float32 models runs in bfloat16 by autocast.
    source : see `Source`; moved to the device.
    seed : >= 0; with the number of the step it decides every batch. It does not touch the weights that are there.
    probe : inputs on which attention ranks are taken before training and after each epoch; None: never.
    checkpoint : a file that is written after each epoch and every ``checkpoint_seconds``, and from which the run goes
        on if it is there; ``model`` is then what it was before training, drawn again, or the model of a call that was
        interrupted in this process. A run that was killed at any moment ends with the bits of an uninterrupted one, in
        float64 on a CPU with the same number of threads; elsewhere to rounding, which training amplifies.
    progress : called with the entry of each epoch.
    started : called once with the `Run`, which fills as training goes on: what there is of a run that is stopped.

    Raises
    ------
    NonFiniteLoss : the loss of a step or its gradient's length is not finite, or the test loss after an epoch; with the
        epoch, the step size, and which step the checkpoint is of. It stays as it was written last, before that.
    ValueError : bad argument; a checkpoint that is damaged or of another run: other initial weights, recipe, seed,
        data or probe.
    """
    seed = _check.integer("seed", seed, minimum=0)
    device = torch.device(device)
    model.to(device)
    source = source.to(device)
    optimizer = torch.optim.AdamW(decay_groups(model, recipe.decay), lr=recipe.rate, betas=(recipe.beta1, recipe.beta2))
    identity = {"recipe": asdict(recipe), "seed": seed, "data": source.describe(), "model": _shape(model)}
    if hasattr(model, "config"):  # what no parameter shows: temperature, normalised queries and keys
        config: Any = model.config
        identity["config"] = asdict(config)
    path = None if checkpoint is None else Path(checkpoint)
    details = {} if path is None else _details(model, source, probe, path.resolve())
    state = _State(model, optimizer, identity, details, path, checkpoint_seconds)
    state.resume()
    if path is not None:
        _BEGUN.setdefault(model, {})[path.resolve()] = details["initial_weights"]
    run = state.run
    run.device = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    if started is not None:
        started(run)
    steps = source.steps(recipe.batch)
    stream = sys.stderr
    shown = stream is sys.__stderr__ and stream is not None and stream.isatty()

    def close_epoch(entry: dict) -> None:
        tested = source.test(model)
        _require_finite(tested, f"epoch {entry['epoch']}, at the step size {entry['rate']:.3g}", state.kept)
        ranks = {} if probe is None else {"ranks": attention_ranks(model, probe)}
        run.epochs.append(entry | tested | ranks)
        state.save()
        if progress is not None:
            progress(run.epochs[-1])

    if not run.epochs:
        close_epoch({"epoch": 0, "rate": 0.0, "train_loss": None, "train_accuracy": None})
    total = recipe.epochs * steps
    with tqdm(total=total, initial=run.steps, desc=label, unit="step", disable=not shown) as bar:
        while run.steps < total:
            epoch, step = divmod(run.steps, steps)
            inputs, targets = source.batch(seed, epoch, step, recipe.batch)
            rate = learning_rate(run.steps, total, recipe)
            where = f"epoch {epoch + 1}, step {step}"
            loss, right = _step(model, optimizer, recipe, rate, inputs, targets, where, state.kept)
            state.count(loss, right, targets.numel())
            run.steps += 1
            if shown:
                speed = len(inputs) * (bar.format_dict["rate"] or 0.0)
                bar.set_postfix_str(f"loss {state.loss:.3f}, accuracy {state.accuracy:.3f}, {speed:.0f} inputs/s",
                                    refresh=False)
            bar.update()
            if step == steps - 1:
                entry = {"epoch": epoch + 1, "rate": rate, "train_loss": state.loss, "train_accuracy": state.accuracy}
                state.reset()
                close_epoch(entry)
            else:
                state.save_if_due()
    return run


def _step(
    model: nn.Module, optimizer: torch.optim.Optimizer, recipe: Recipe, rate: float, inputs: Tensor, targets: Tensor,
    where: str, kept: str,
) -> tuple[float, int]:
    """One step; return the loss and the number of right answers before it. ``where``, ``kept``: for the message."""
    model.train()
    for group in optimizer.param_groups:
        group["lr"] = rate
    with torch.autocast(inputs.device.type, torch.bfloat16, enabled=_mixed(model, inputs)):
        logits = model(inputs)
    logits = logits.flatten(0, -2)
    logits = logits if logits.dtype == torch.float64 else logits.float()
    targets = targets.flatten()
    loss = F.cross_entropy(logits, targets, label_smoothing=recipe.smoothing)
    value = loss.item()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    limit = math.inf if recipe.clip is None else recipe.clip
    length = nn.utils.clip_grad_norm_([p for g in optimizer.param_groups for p in g["params"]], limit).item()
    if not math.isfinite(value) or not math.isfinite(length):
        raise NonFiniteLoss(
            f"the loss is {value} and its gradient has length {length} in {where}, at the step size {rate:.3g}: "
            f"{REMEDY}{kept}"
        )
    optimizer.step()
    return value, int((logits.argmax(-1) == targets).sum())


def _require_finite(tested: dict, where: str, kept: str) -> None:
    """Stop a run whose last step of an epoch spoiled the weights: the loss of that step was taken before it."""
    loss = tested.get("test_loss", 0.0)
    if not math.isfinite(loss):
        raise NonFiniteLoss(f"the test loss is {loss} after {where}: {REMEDY}{kept}")


def _mixed(model: nn.Module, inputs: Tensor) -> bool:
    return inputs.device.type == "cuda" and next(model.parameters()).dtype == torch.float32


def _shape(model: nn.Module) -> dict[str, str]:
    """Every parameter with its shape and dtype, and whether it is trained."""
    return {name: f"{tuple(value.shape)} {value.dtype}{'' if value.requires_grad else ' frozen'}"
            for name, value in model.named_parameters()}  # fmt: skip


def _details(model: nn.Module, source: Any, probe: Tensor | None, path: Path) -> dict[str, Any]:
    """What else tells a run from another, the model not being trained or resumed yet; a source may say it of its data.

    Older checkpoints do not have it.
    """
    fixed = {name: str(tuple(value.shape)) for name, value in model.named_buffers()}  # positions that are not learned
    begun = _BEGUN.get(model, {}).get(path) if path.exists() else None
    return {"buffers": fixed, "initial_weights": begun or _untrained(model), "probe": _size(probe)} | (
        source.details() if hasattr(source, "details") else {}
    )


def _untrained(model: nn.Module) -> str:
    """Eight entries of parameters that are not constant, from the first of the first one to the last of the last one.

    Three digits of them: another processor draws the same but for rounding.
    """
    drawn = [value.detach().flatten() for value in model.parameters() if value.numel() > 1]
    drawn = [value for value in drawn if value.min() < value.max()]  # not biases of 0 and gains of 1
    places = ((drawn[at * (len(drawn) - 1) // 7], at) for at in range(8 if drawn else 0))
    return " ".join(f"{value[at * (len(value) - 1) // 7].item():.3g}" for value, at in places)


def _size(probe: Tensor | None) -> str | None:
    """The shape of a probe and the mean size of its entries, to five digits: a sum that rounding changes by less."""
    if probe is None:
        return None
    values = torch.as_tensor(probe)
    return f"{tuple(values.shape)} of mean size {values.double().abs().mean().item():.5g}"


class _State:
    """All that a run consists of between two steps, and its file."""

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, identity: dict, details: dict, path: Path | None,
        seconds: float,
    ) -> None:
        if path is not None and not path.parent.is_dir():
            raise ValueError(f"checkpoint must be a file in an existing folder, got {str(path)!r}")
        self.model, self.optimizer, self.path = model, optimizer, path
        self.identity, self.details = identity, details
        self.seconds = _check.real("checkpoint_seconds", seconds, minimum=0)
        self.run = Run()
        self.kept = ""  # which step the file is of, to end a message with
        self._started = self._saved = time.monotonic()
        self.reset()

    # What the epoch has seen so far
    def reset(self) -> None:
        self.total, self.right, self.seen = 0.0, 0, 0

    def count(self, loss: float, right: int, seen: int) -> None:
        self.total, self.right, self.seen = self.total + loss * seen, self.right + right, self.seen + seen

    @property
    def loss(self) -> float:
        return self.total / max(1, self.seen)

    @property
    def accuracy(self) -> float:
        return self.right / max(1, self.seen)

    # The file
    def save_if_due(self) -> None:
        if time.monotonic() - self._saved >= self.seconds:
            self.save()

    def save(self) -> None:
        now = time.monotonic()
        self.run.seconds += now - self._started
        self._started = self._saved = now
        if self.path is None:
            return
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        names = {id(value): name for name, value in self.model.named_parameters()}
        for value, memory in self.optimizer.state.items():
            tensors |= {f"optimizer.{names[id(value)]}.{kind}": stored for kind, stored in memory.items()}
        epoch = {"total": self.total, "right": self.right, "seen": self.seen}
        record = {"run": self.identity, "details": self.details, "progress": asdict(self.run), "epoch": epoch}
        files.save(self.path, tensors, record)
        self._note_step()

    def _note_step(self) -> None:
        self.kept = f"; the checkpoint has the weights after {self.run.steps} steps"

    def resume(self) -> None:
        """Go on from the file, if there is one."""
        if self.path is None or not self.path.exists():
            return
        tensors, record = files.load(self.path, run=self.identity, details=self.details)
        weights = {name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")}
        self.model.load_state_dict(weights)
        parameters = dict(self.model.named_parameters())
        for key, value in tensors.items():
            if key.startswith("optimizer."):
                name, _, kind = key.removeprefix("optimizer.").rpartition(".")
                place = value.device if kind == "step" else parameters[name].device
                self.optimizer.state[parameters[name]][kind] = value.to(place)
        self.run = Run(**record["progress"])
        self.run.sessions += 1
        self._note_step()
        self.total, self.right, self.seen = (record["epoch"][name] for name in ("total", "right", "seen"))
