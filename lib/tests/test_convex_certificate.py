"""Certificates of convex programs: a dual point bounds the optimum or is refused, and bad arguments are named."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from convex_cases import tensor

from attnrank import convex


def draw(*shape, seed=0):
    return tensor(np.random.default_rng(seed).standard_normal(shape))


def test_check_refuses_a_dual_point_whose_conjugate_is_infinite():
    x, y, z = torch.zeros(1, 1, 1).double(), tensor([[1.0, 0.0]]), torch.zeros(1, 1, 2).double()
    for q in ([0.4, 0.4], [0.6, 0.6], [1.1, -0.1]):  # the entropy of the first is 0.73, above the optimum, log 2
        assert convex.check(x, y, 1.0, z, y - tensor([q]), loss="cross_entropy")[1] == -np.inf
    primal, dual, _ = convex.check(x, y, 1.0, z, y - 0.5, loss="cross_entropy")
    assert primal == pytest.approx(np.log(2), rel=1e-14) and dual == pytest.approx(primal, rel=1e-14)
    for q in (1.1, -0.1):  # of one score
        assert convex.check(x, tensor([1.0]), 1.0, z[..., 0], tensor([1.0 - q]), loss="cross_entropy")[1] == -np.inf


@pytest.mark.parametrize("change, message", [
    ({"z": draw(3, 6)}, r"z must have shape \(6, 3\) for this x and y, got \(3, 6\)"),
    ({"z": draw(6, 3, 1)}, r"z must have shape \(6, 3\)"), ({"v": draw(20, 1)}, r"v must have shape \(20,\)"),
    ({"v": draw(19)}, r"v must have shape \(20,\) for this x and y, got \(19,\)"),
    ({"y": draw(19)}, "y must have one row"), ({"v": draw(20) / 0}, "v must be finite"),
    ({"beta": 0.0}, "beta must be"), ({"loss": "hinge"}, "loss must be one of"),
    ({"penalty": "ridge"}, "penalty must be one of"), ({"loss": "cross_entropy"}, "y must be probabilities"),
])  # fmt: skip
def test_check_names_what_is_wrong(change, message):
    with pytest.raises(ValueError, match=message):
        convex.check(**{"x": draw(20, 6, 3), "y": draw(20), "beta": 1.0, "z": draw(6, 3), "v": draw(20)} | change)
