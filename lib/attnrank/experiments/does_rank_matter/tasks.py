"""Tasks that say which token each token wants, as sources of training batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from attnrank import _check
from attnrank.training.source import generator_of

if TYPE_CHECKING:
    from attnrank.experiments.does_rank_matter.layer import Head

TASKS = ("copy", "previous", "permutation", "lookup", "recall", "nearest")
READOUTS = ("pointer", "layer")
POINTS_DIM = 8  # of the sphere in the task "nearest"
STEPS, TEST_SEQUENCES = 100, 200


class Task:
    """Sequences of n tokens drawn anew, and for each token the one that it wants; a `training.Source`.

    - ``copy``, ``previous``, ``permutation`` (drawn once from ``seed``), ``lookup`` (token i wants token i mod wanted):
      a token is a one-hot position and a random one-hot symbol, which is noise.
    - ``recall``: the first ``wanted`` tokens have distinct symbols and want themselves; each of the others has the
      symbol of one of them, which it wants. A token is a one-hot symbol (of n) and a one-hot kind.
    - ``nearest``: a token is a query and a key, two independent points of a sphere in 8 dimensions; it wants the token
      whose key is nearest to its query (Amsel, Yehudai and Bruna 2024).

    With the readout ``layer`` a token of these two also has a value, another one-hot symbol, which is what must be
    said of it; a question of recall has 0 in its place. Tokens are scaled to entries of mean square 1, as LayerNorm
    does, but for that 0. The rank that a task needs is the number of tokens that are wanted: ``wanted`` of recall and
    lookup, n of the first three, about 0.63 n of nearest.
    """

    def __init__(self, name: str, n: int, wanted: int, seed: int, readout: str = "pointer") -> None:
        self.name, self.n = _check.choice("task", name, TASKS), _check.integer("n", n, minimum=2)
        self.wanted, self.seed = _check.integer("wanted", wanted, minimum=1), _check.integer("seed", seed, minimum=0)
        self.readout = _check.choice("readout", readout, READOUTS)
        if wanted > n or (name not in ("lookup", "recall") and wanted != n):
            raise ValueError(f"wanted must be at most n, and n for the task {name!r}, got {wanted}")
        index = torch.arange(n)
        fixed = {"copy": index, "previous": (index - 1) % n, "lookup": index % wanted}
        self.fixed = fixed.get(name, torch.randperm(n, generator=generator_of(self.seed, 1)))

    @property
    def width(self) -> int:
        """Width of a token."""
        plain = self.readout == "pointer" and self.name in ("recall", "nearest")
        return {"recall": self.n + 2, "nearest": 2 * POINTS_DIM}.get(self.name, self.n) + (0 if plain else self.n)

    def draw(
        self, count: int, generator: torch.Generator
    ) -> tuple[Float[Tensor, "count n width"], Int64[Tensor, "count n"]]:
        """Tokens in float64, and the index of the token that each one wants."""
        x, target = self._asked(count, generator)
        if x.shape[-1] == self.width:
            return x, target
        symbols = torch.rand(count, self.n, generator=generator).argsort(-1)  # distinct within a sequence
        symbol = nn.functional.one_hot(symbols, self.n).double() * self.n**0.5
        if self.name == "recall":
            symbol[:, self.wanted :] = 0
        return torch.cat([x, symbol], -1), target

    def _asked(
        self, count: int, generator: torch.Generator
    ) -> tuple[Float[Tensor, "count n asked"], Int64[Tensor, "count n"]]:
        """Tokens without their symbol or value: what decides which token each one wants."""
        n = self.n
        if self.name == "nearest":
            points = torch.randn(count, n, 2, POINTS_DIM, generator=generator, dtype=torch.float64)
            points = points / points.norm(dim=-1, keepdim=True)
            return points.flatten(2) * POINTS_DIM**0.5, (points[:, :, 0] @ points[:, :, 1].mT).argmax(-1)
        if self.name == "recall":
            asked = torch.randint(self.wanted, (count, n - self.wanted), generator=generator)
            target = torch.cat([torch.arange(self.wanted).expand(count, -1), asked], 1)
            keys = torch.rand(count, n, generator=generator).argsort(-1).gather(1, target)
            kinds = (torch.arange(n) >= self.wanted).long().expand(count, -1)
            hot = nn.functional.one_hot
            return torch.cat([hot(keys, n), hot(kinds, 2)], -1).double() * ((n + 2) / 2) ** 0.5, target
        positions = torch.eye(n, dtype=torch.float64) * n**0.5
        return positions.expand(count, n, n), self.fixed.expand(count, -1)

    def answers(self, x: Tensor, target: Int64[Tensor, "count n"]) -> Int64[Tensor, "count n"]:
        """What the model must say: the token that is wanted, or with the readout ``layer`` its symbol or value."""
        if self.readout == "pointer":
            return target
        return x[..., -self.n :].argmax(-1).gather(1, target)

    # As a Source of training batches
    def to(self, device: torch.device) -> Task:
        """Nothing is kept on a device: the runs are small."""
        return self

    def describe(self) -> dict[str, object]:
        """What decides the batches."""
        return {"task": self.name, "n": self.n, "wanted": self.wanted, "seed": self.seed, "readout": self.readout}

    def steps(self, batch: int) -> int:
        """An epoch is 100 batches, whatever their size."""
        return STEPS

    def batch(self, seed: int, epoch: int, step: int, batch: int) -> tuple[Tensor, Tensor]:
        """Tokens that no other step has, and the answers."""
        x, target = self.draw(batch, generator_of(seed, 2, epoch, step))
        return x.float(), self.answers(x, target)

    def test_batch(self) -> tuple[Tensor, Tensor]:
        """The sequences that models are tested on, the same for every model of one task and seed."""
        return self.draw(TEST_SEQUENCES, generator_of(self.seed, 3))

    @torch.no_grad()
    def test(self, model: Head) -> dict[str, float]:
        """Share of right answers on the test sequences, and their mean cross-entropy."""
        x, target = self.test_batch()
        logits, answers = model(x.to(model.dtype)).double(), self.answers(x, target)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), answers.flatten())
        return {"test_loss": loss.item(), "test_accuracy": (logits.argmax(-1) == answers).double().mean().item()}
