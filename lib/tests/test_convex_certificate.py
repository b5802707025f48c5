"""Certificates of convex programs: a dual point bounds the optimum or is refused, and bad arguments are named."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from convex_cases import tensor

from attnrank import convex
from attnrank.convex.certificate import Certified, _largest


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


def test_a_dual_point_that_is_changed_is_judged_as_it_was_changed():
    """Rows of y - v that sum to 1 + 5e-10 are divided by that; beside a token of length 1e10 it is no small change."""
    x, y = torch.full((1, 1, 1), 1e10).double(), tensor([[0.5, 0.5]])
    z, v = torch.zeros(1, 1, 2).double(), torch.full((1, 2), -2.5e-10).double()
    _, dual, feasible = convex.check(x, y, 1.0, z, v, loss="cross_entropy")
    assert feasible < 1e-5 and dual == pytest.approx(np.log(2), rel=1e-14)


def test_gated_tokens_come_gate_after_gate():
    x, gates = draw(2, 3, 4), draw(2, 5, seed=1)
    tokens = convex.gated(x, gates)
    for gate in range(5):
        for token in range(3):
            torch.testing.assert_close(tokens[:, 3 * gate + token], gates[:, gate, None] * x[:, token])


def test_relative_gaps_are_relative_to_the_objective():
    def gap(primal, dual):
        point = torch.zeros(1)
        given = {"iterations": 1, "dual_point": point, "beta": 1.0}
        return Certified(primal=primal, dual=dual, gap=primal - dual, **given).relative_gap

    assert gap(4.0, 1.0) == 0.75 and gap(0.0, 0.0) == 0.0 == gap(1.0, 1.0 + 1e-16)


def test_correlations_that_are_no_numbers_leave_no_dual_point():
    assert _largest(np.nan, 1.0) == 0.0 == _largest(np.inf, 1.0) and _largest(0.0, 1.0) == np.inf
    assert 1.0 - 1e-13 < _largest(2.0, 2.0) < 1.0
