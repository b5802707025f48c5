"""_check: what the checks accept and return; what they refuse is in the tests of the modules that use them."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from attnrank import _check


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3), torch.tensor(3)])
def test_integers_of_every_kind_come_back_as_int(value):
    number = _check.integer("n", value, minimum=3)
    assert number == 3 and type(number) is int


@pytest.mark.parametrize("value", [2, 2.0, np.float32(2), np.float64(2), np.int64(2), Fraction(2)])
def test_real_numbers_of_every_kind_come_back_as_float(value):
    number = _check.real("tol", value, minimum=2, above=1, maximum=2)
    assert number == 2.0 and type(number) is float


def test_the_bounds_of_a_real_number_are_closed_and_open_as_named():
    below, above = math.nextafter(2.0, 0), math.nextafter(2.0, 3)
    for bounds, good, bad in [
        ({"minimum": 2.0}, 2.0, below),
        ({"maximum": 2.0}, 2.0, above),
        ({"above": 2.0}, above, 2.0),
    ]:
        assert _check.real("tol", good, **bounds) == good
        with pytest.raises(ValueError, match=f"^tol must be .*, got {bad!r}$"):
            _check.real("tol", bad, **bounds)


def test_good_tensors_and_generators_come_back_unchanged():
    a, generator = torch.ones(2, 3, 4, dtype=torch.bfloat16), torch.Generator()
    assert _check.finite("a", _check.matrices("a", a)) is a
    assert _check.generator("generator", generator) is generator
    assert _check.choice("kind", "b", ["b", "a"]) == "b"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_generator_on_a_gpu_is_refused():
    with pytest.raises(ValueError, match="^generator must be on the CPU"):
        _check.generator("generator", torch.Generator("cuda"))
