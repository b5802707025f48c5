"""The training loop."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn
from tqdm import tqdm

from attnrank import _check
from attnrank.training import identity
from attnrank.training.measure import attention_ranks
from attnrank.training.recipe import Recipe, learning_rate
from attnrank.training.source import Source, generator_of
from attnrank.training.state import Run, State
from attnrank.training.step import Found, Step

REMEDY = "lower the recipe's rate, lengthen its warm-up, or clip"


class NonFiniteLoss(RuntimeError):
    """The loss became NaN or infinite, so that the run was stopped."""


def train(
    model: nn.Module,
    source: Source,
    recipe: Recipe,
    *,
    seed: int,
    device: torch.device | str = "cpu",
    mixed: bool = True,
    graph: bool = False,
    probe: Tensor | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_seconds: float = 60.0,
    label: str = "train",
    progress: Callable[[dict], None] | None = None,
    started: Callable[[Run], None] | None = None,
) -> Run:
    """Train a model in place and return its `Run`; on a terminal a bar shows loss, accuracy, speed and remaining time.

    The model is left in evaluation mode, also where a checkpoint says that it was trained already, or training stops.

    Parameters
    ----------
    model : gives logits (..., classes) for inputs; moved to the device. Its dtype is kept.
    source : see `Source`; moved to the device.
    seed : >= 0; with the number of the step it decides every batch. It does not touch the weights that are there.
    mixed : on a GPU, run the forward pass of float32 models in bfloat16 by autocast. Elsewhere it changes nothing.
    graph : on a GPU, record a step as CUDA graphs and replay them, which trains small models several times as fast;
        what the model does must not depend on the numbers it computes (a check for NaN, say). Elsewhere it changes
        nothing.
    probe : inputs on which attention ranks are taken before training and after each epoch; None: never.
    checkpoint : a file that is written after each epoch and every ``checkpoint_seconds``, and from which the run goes
        on if it is there; ``model`` is then what it was before training, drawn again, or the model of a call that was
        interrupted in this process. A run that was killed at any moment ends with the bits of an uninterrupted one, in
        float64 on a CPU with the same number of threads; elsewhere to rounding, which training amplifies: to 1e-6 in
        the weights of a small float32 model over 12 steps, in a test; over a whole run, or on a GPU, to no bound that
        was measured. A file beside it, with .lock behind its name, is locked meanwhile: a run that is not finished is
        trained by one process.
    progress : called with the entry of each epoch.
    started : called once with the `Run`, which fills as training goes on: what there is of a run that is stopped.

    Raises
    ------
    NonFiniteLoss : the loss of a step or its gradient's length is not finite, or the test loss after an epoch; with the
        epoch, the step size, and which step the checkpoint is of. It stays as it was written last, before that.
    ValueError : bad argument; a checkpoint that is damaged or of another run: other initial weights, recipe, seed,
        data or probe.
    RuntimeError : another process, or another thread, trains to this checkpoint, or gradients are switched off around
        this call. The weights are left as they were.
    """
    if not torch.is_grad_enabled():
        raise RuntimeError("train needs gradients: call it outside torch.no_grad() and torch.inference_mode()")
    seed = _check.integer("seed", seed, minimum=0)
    device = _device(device)
    _check.flag("mixed", mixed)
    _check.flag("graph", graph)
    model.to(device)
    source = source.to(device)
    step = Step(model, recipe, mixed=mixed, graph=graph)
    path = None if checkpoint is None else Path(checkpoint).resolve()
    details = {} if path is None else identity.details(model, source, probe, path)
    which = identity.of_run(model, source, recipe, seed)
    state = State(model, step.optimizer, which, details, path, checkpoint_seconds)
    total, steps = recipe.epochs * source.steps(recipe.batch), source.steps(recipe.batch)
    stream = sys.stderr
    shown = stream is sys.__stderr__ and stream is not None and stream.isatty()

    def close_epoch(entry: dict) -> None:
        tested = source.test(model)
        _require_finite_test(tested, f"epoch {entry['epoch']}, at the step size {entry['rate']:.3g}", state.kept)
        ranks = {} if probe is None else {"ranks": attention_ranks(model, probe)}
        state.run.epochs.append(entry | tested | ranks)
        state.save()
        if progress is not None:
            progress(state.run.epochs[-1])

    with state.resumed(total) as run, _left_in_evaluation(model):
        if path is not None:
            identity.remember(model, path, details)
        if run.steps < total or not run.epochs:  # else there is nothing left to do: the run was made elsewhere
            run.device = _devices(run, torch.cuda.get_device_name(device) if device.type == "cuda" else device.type)
            run.threads = torch.get_num_threads()
        if started is not None:
            started(run)
        if not run.epochs:
            close_epoch({"epoch": 0, "rate": 0.0, "train_loss": None, "train_accuracy": None})
        with tqdm(total=total, initial=run.steps, desc=label, unit="step", disable=not shown) as bar:
            while run.steps < total:
                epoch, place = divmod(run.steps, steps)
                inputs, targets = source.batch(seed, epoch, place, recipe.batch)
                rate = learning_rate(run.steps, total, recipe)
                with _randomness(device, seed, epoch, place):
                    found = step.gradient(inputs, targets)
                _require_finite(found, f"in epoch {epoch + 1}, step {place}, at the step size {rate:.3g}", state.kept)
                step.move(rate)
                state.count(found.loss, found.right, targets.numel())
                run.steps += 1
                if shown:
                    speed = len(inputs) * (bar.format_dict["rate"] or 0.0)
                    bar.set_postfix_str(f"loss {state.loss:.3f}, accuracy {state.accuracy:.3f}, {speed:.0f} inputs/s",
                                        refresh=False)
                bar.update()
                if place == steps - 1:
                    means = {"train_loss": state.loss, "train_accuracy": state.accuracy}
                    state.reset()
                    close_epoch({"epoch": epoch + 1, "rate": rate} | means)
                else:
                    state.save_if_due()
    return run


def _device(device: torch.device | str) -> torch.device:
    """The device, or ValueError for what is none, or holds no numbers: the weights would be lost there."""
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device must be one of torch's, such as 'cpu' or 'cuda', got {device!r}") from error
    if found.type == "meta":
        raise ValueError("device must hold numbers, got meta")
    return found


def _devices(run: Run, here: str) -> str:
    """Which devices take the steps of a run, in this order: most often one."""
    before = run.device.split(", then ") if run.steps else []
    return ", then ".join(before if before[-1:] == [here] else [*before, here])


@contextmanager
def _left_in_evaluation(model: nn.Module) -> Iterator[None]:
    try:
        yield
    finally:
        model.eval()


@contextmanager
def _randomness(device: torch.device, *numbers: int) -> Iterator[None]:
    """What a step draws from torch's own generators, as dropout does, depends on these numbers; they are left alone."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        seeded = torch.default_generator if device.type == "cpu" else torch  # torch seeds every device
        seeded.manual_seed(generator_of(*numbers).initial_seed())
        yield


def _require_finite(found: Found, where: str, kept: str) -> None:
    if not found.finite:
        raise NonFiniteLoss(f"the loss is {found.loss} and its gradient has length {found.length} {where}: "
                            f"{REMEDY}{kept}")


def _require_finite_test(tested: dict, where: str, kept: str) -> None:
    """Stop a run whose last step of an epoch spoiled the weights: the loss of that step was taken before it."""
    loss = tested.get("test_loss", 0.0)
    if not math.isfinite(loss):
        raise NonFiniteLoss(f"the test loss is {loss} after {where}: {REMEDY}{kept}")
