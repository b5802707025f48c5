"""Equations a / b = c modulo a prime as sequences of four tokens: those trained on, drawn at random, and the rest."""

from __future__ import annotations

import torch
from jaxtyping import Int64
from torch import Tensor, nn
from torch.nn import functional as F

from attnrank import _check
from attnrank.training.source import generator_of

#: Tokens of a sequence: a, the sign of division, b, the sign of equality.
LENGTH = 4
#: Equations at which attention is looked at.
PROBED = 64


def division(p: int) -> tuple[Int64[Tensor, "equations 4"], Int64[Tensor, " equations"]]:
    """All p (p - 1) equations a / b = c modulo a prime p, b != 0: tokens (a, p, b, p + 1) and answers c.

    Raises ValueError for p that is not a prime.
    """
    p = _check.integer("p", p, minimum=2)
    if any(p % k == 0 for k in range(2, int(p**0.5) + 1)):
        raise ValueError(f"p must be a prime, got {p}")
    c, b = torch.meshgrid(torch.arange(p), torch.arange(1, p), indexing="ij")
    c, b = c.flatten(), b.flatten()
    a = b * c % p
    return torch.stack([a, torch.full_like(a, p), b, torch.full_like(a, p + 1)], 1), c


class Equations:
    """Equations modulo p of which a random share is trained on and all others are the test; a `training.Source`.

    An epoch of the loop is ``look`` steps, each on a batch drawn without replacement. The split comes from ``seed``.
    ``test`` gives losses and accuracies on both parts and what the model's ``looked`` says of its attention.
    """

    def __init__(self, p: int, fraction: float, seed: int, look: int) -> None:
        self.p, self.look = p, _check.integer("look", look, minimum=1)
        self.fraction = _check.real("fraction", fraction, minimum=0, maximum=1)
        self.tokens, self.answers = division(p)
        order = torch.randperm(len(self.tokens), generator=generator_of(seed, p))
        count = round(self.fraction * len(order))
        if not 2 <= count < len(order):
            raise ValueError(f"fraction must leave two equations to train on and one to test, got {fraction}")
        self.train, self.rest = order[:count], order[count:]
        self.seed = seed

    def to(self, device: torch.device) -> Equations:
        """Move the equations to a device, and return this object."""
        for name in ("tokens", "answers", "train", "rest"):
            setattr(self, name, getattr(self, name).to(device))
        return self

    def describe(self) -> dict[str, object]:
        return {"p": self.p, "fraction": self.fraction, "seed": self.seed, "look": self.look}

    def steps(self, batch: int) -> int:
        return self.look

    def batch(self, seed: int, epoch: int, step: int, batch: int) -> tuple[Tensor, Tensor]:
        rows = torch.randperm(len(self.train), generator=generator_of(seed, epoch, step))[:batch]
        rows = self.train[rows.to(self.train.device)]
        return self.tokens[rows], self.answers[rows]

    @torch.no_grad()
    def test(self, model: nn.Module) -> dict[str, float]:
        """Loss and accuracy on the equations trained on (``fit_``) and on the others (``test_``), and the attention."""
        model.eval()
        logits = torch.cat([model(tokens) for tokens in self.tokens.split(1024)]).double()
        found: dict[str, float] = {}
        for name, rows in (("fit", self.train), ("test", self.rest)):
            found[f"{name}_loss"] = F.cross_entropy(logits[rows], self.answers[rows]).item()
            right = logits[rows].argmax(-1) == self.answers[rows]
            found[f"{name}_accuracy"] = right.double().mean().item()
        looked = getattr(model, "looked", None)
        return found | ({} if looked is None else looked(self.tokens[self.rest[:PROBED]]))
