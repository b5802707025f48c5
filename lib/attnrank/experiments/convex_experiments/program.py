"""The literal convex programs on fixed one-hot tokens of modular division, and on a table that is no Latin square."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float64, Int64
from torch import Tensor
from torch.nn import functional as F

from attnrank import _check, convex
from attnrank.experiments.convex_experiments.equations import division
from attnrank.sweep import Setting
from attnrank.training.source import generator_of

#: Division of residues other than 0, a Latin square; and min(a + b, m - 1), addition that does not wrap around.
TABLES = ("division", "clipped")


def cells(
    table: str, p: int
) -> tuple[Int64[Tensor, " cells"], Int64[Tensor, " cells"], Int64[Tensor, " cells"]]:
    """Row, column and class of the m^2 cells of a table of order m = p - 1, all in 0..m-1; p a prime."""
    tokens, c = division(p)
    kept = c > 0
    a, b, c = tokens[kept, 0] - 1, tokens[kept, 2] - 1, c[kept] - 1
    return a, b, c if _check.choice("table", table, TABLES) == "division" else (a + b).clamp_max(p - 2)


def one_hot_tokens(a: Int64[Tensor, " cells"], b: Int64[Tensor, " cells"], m: int) -> Float64[Tensor, "cells 2 m"]:
    """Two tokens a cell, the unit vectors of its row and of its column."""
    return torch.stack([F.one_hot(a, m), F.one_hot(b, m)], 1).double()


def random_gates(x: Float64[Tensor, "cells 2 m"], count: int, generator: torch.Generator) -> Float64[Tensor, "cells g"]:
    """Gates 1{u_1^T X u_2 >= 0} of program (14) with standard normal u_1, u_2."""
    first, second = (torch.randn(count, size, generator=generator, dtype=torch.float64) for size in x.shape[1:])
    return (torch.einsum("gk,ikd,gd->ig", first, x, second) >= 0).double()


def modular_program(p: int, table: str, penalty: str, gates: int, share: float, fraction: float, seed: int) -> Setting:
    """Solve (12), or (14) with ``gates`` > 0, on a random share of the cells of a table, and look at all other cells.

    Cross-entropy over m = p - 1 classes, beta = share * beta_max. ``true_score`` is the largest score that a cell not
    trained on gives to its own class, ``best_score`` the least that one gives to any class, ``bound`` what the test
    loss of scores f_c(a) + g_c(b) with this training loss is at least on a Latin square of this order.
    """
    m = p - 1
    a, b, c = cells(table, p)
    order = torch.randperm(len(a), generator=generator_of(seed, p))
    train, rest = order.split([round(fraction * len(a)), len(a) - round(fraction * len(a))])
    x, y = one_hot_tokens(a, b, m), F.one_hot(c, m).double()
    gating = random_gates(x, gates, generator_of(seed, p, gates)) if gates else None
    options: dict[str, Any] = {"loss": "cross_entropy", "penalty": penalty}
    seen = None if gating is None else gating[train]
    beta = share * convex.beta_max(x[train], y[train], gates=seen, **options)
    found = convex.solve(x[train], y[train], beta, gates=seen, tol=1e-6, **options)
    scores = convex.predict(x, found.z, gates=gating)
    loss, right = F.cross_entropy(scores, c, reduction="none"), (scores.argmax(1) == c).double()
    fit_loss = loss[train].mean().item()
    return {
        "cells": len(train),
        "fit_loss": fit_loss,
        "fit_accuracy": right[train].mean().item(),
        "test_loss": loss[rest].mean().item(),
        "test_accuracy": right[rest].mean().item(),
        "bound": math.log(m) + len(train) / len(rest) * (math.log(m) - fit_loss),
        "true_score": scores[rest].gather(1, c[rest, None]).max().item(),
        "best_score": scores[rest].amax(1).min().item(),
    }
