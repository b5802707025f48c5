"""All that a run consists of between two steps, and its file."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from attnrank import _check
from attnrank.training import checkpoint as files


@dataclass
class Run:
    """What came of a run: one entry in ``epochs`` for each epoch, 0 being the untrained model.

    An entry has ``epoch``, ``rate`` (of the last step), ``train_loss`` and ``train_accuracy`` (of the augmented batches
    as they were met; missing at epoch 0), what the source's test gives (``test_loss``, ``test_accuracy``), and
    ``ranks``, the rows of `attention_ranks` on the probe batch. ``seconds`` is the time spent training, all sessions
    together and probing and testing included. ``threads`` are those of the last step that was taken; ``device`` is what
    took the steps: "NVIDIA H200, then cpu" where the run went on elsewhere.
    """

    epochs: list[dict] = field(default_factory=list)
    seconds: float = 0.0
    steps: int = 0
    device: str = "cpu"
    sessions: int = 1
    threads: int = 0  # 0: not known, as of files that were written before this came in

    @property
    def final(self) -> dict:
        """The last epoch."""
        return self.epochs[-1]

    @property
    def best(self) -> dict:
        """The epoch of the highest test accuracy, the first of several: chosen on the test set, so it flatters."""
        return max(self.epochs, key=lambda epoch: epoch["test_accuracy"])


class State:
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

    @contextmanager
    def resumed(self, total: int) -> Iterator[Run]:
        """The run as it goes on from the file, if there is one; until it has made ``total`` steps its lock is held.

        One that is finished is only read, by as many processes as like. RuntimeError while another one trains it.
        """
        found = self._stored()
        if self.path is None or found is not None and found[1]["progress"]["steps"] >= total:
            self._take(found)
            yield self.run
            return
        with files.held(self.path):
            self._take(self._stored())  # as it is now that no other process goes on with it
            yield self.run

    def _stored(self) -> tuple[dict[str, Tensor], dict] | None:
        if self.path is None or not self.path.exists():
            return None
        return files.load(self.path, run=self.identity, details=self.details)

    def _take(self, found: tuple[dict[str, Tensor], dict] | None) -> None:
        if found is None:
            return
        tensors, record = found
        weights = {name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")}
        self.model.load_state_dict(weights)
        parameters = dict(self.model.named_parameters())
        for key, value in tensors.items():
            if key.startswith("optimizer."):
                name, _, kind = key.removeprefix("optimizer.").rpartition(".")
                apart = kind == "step" and not self.optimizer.defaults["capturable"]  # counted on the CPU
                place = value.device if apart else parameters[name].device
                self.optimizer.state[parameters[name]][kind] = value.to(place)
        self.run = Run(**record["progress"])
        self.run.sessions += 1
        self._note_step()
        self.total, self.right, self.seen = (record["epoch"][name] for name in ("total", "right", "seen"))
