"""_check: what the checks accept and return; what they refuse is in the tests of the modules that use them."""

import math
import warnings
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnrank import _check


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3), torch.tensor(3)])
def test_integers_of_every_kind_come_back_as_int(value):
    number = _check.integer("n", value, minimum=3)
    assert number == 3 and type(number) is int


@pytest.mark.parametrize("value", [2, 2.0, np.float32(2), np.float64(2), np.int64(2), Fraction(2)])
def test_real_numbers_of_every_kind_come_back_as_float(value):
    number = _check.real("tol", value, minimum=2, above=1, maximum=2)
    assert number == 2.0 and type(number) is float


def test_bounds_beyond_the_range_of_a_narrow_number_are_kept_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _check.real("tol", np.float32(7), maximum=1e150) == 7.0


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


FORMATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
SHAPES = [(), (0, 3), (1, 1), (7,), (3, 65, 65), (2, 3, 64), (100_003,)]


@given(st.sampled_from(FORMATS), st.sampled_from(SHAPES), st.booleans(), st.sampled_from(["nan", "inf", "-inf"]),
       st.integers(0, 2**31))  # fmt: skip
def test_one_entry_that_is_not_finite_is_seen_wherever_it_stands(dtype, shape, across, odd, at):
    """Beside the largest numbers of the format, whose sums overflow."""
    a = torch.full(shape, torch.finfo(dtype).max, dtype=dtype)
    a.flatten()[::2] *= -1
    a = a.mT if across and a.ndim > 1 else a
    assert _check.all_finite(a)
    if a.numel():
        index = [int(i) for i in np.unravel_index(at % a.numel(), a.shape)]
        a[tuple(index)] = float(odd)
        assert not _check.all_finite(a) and not torch.isfinite(a).all()
        with pytest.raises(ValueError, match="^a must be finite, got " + ("NaN" if odd == "nan" else "infinite")):
            _check.finite("a", a)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_generator_on_a_gpu_is_refused():
    with pytest.raises(ValueError, match="^generator must be on the CPU"):
        _check.generator("generator", torch.Generator("cuda"))


def test_whole_numbers_of_every_kind_come_back_as_int_up_to_the_largest():
    for value in (4, 4.0, np.float32(4), np.float64(4), np.int64(4)):
        number = _check.whole("n", value, minimum=4, maximum=4)
        assert number == 4 and type(number) is int
    for value, message in [
        (5, "n must be at most 4, got 5"),
        (3.0, "n must be at least 4, got 3"),
        (4.5, r"n must be an integer, got 4\.5"),
        (True, "n must be an integer, got True"),
        (10**400, "n must be at most 4, got about 1e400"),
        (-(10**5000), "n must be at least 4, got about -1e5000"),  # more digits than Python prints
    ]:
        with pytest.raises(ValueError, match=f"^{message}$"):
            _check.whole("n", value, minimum=4, maximum=4)


def test_integers_beyond_floats_are_no_real_numbers():
    for number in (10**400, 10**5000):
        with pytest.raises(ValueError, match="^tol must be a finite number, got about 1e[45]0+$"):
            _check.real("tol", number)


def test_truth_values_of_numpy_are_truth_values():
    assert _check.flag("causal", np.bool_(True)) is True
    with pytest.raises(ValueError, match="^causal must be True or False, got 1$"):
        _check.flag("causal", 1)


def test_an_array_is_shown_by_its_shape_and_the_way_to_a_number_if_it_has_one():
    for value, shown in [
        (np.ones((1, 1)), r"ndarray of shape \(1, 1\); its \.item\(\) is a number"),
        (torch.ones(2), r"Tensor of shape \(2,\)"),
        (np.ones((0, 3)), r"ndarray of shape \(0, 3\)"),
    ]:
        with pytest.raises(ValueError, match=f"^tol must be a finite number, got {shown}$"):
            _check.real("tol", value)


def test_one_nan_among_numbers_and_infinities_is_said():
    a = torch.tensor([1.0, math.inf, math.nan])
    for value, found in ((a, "NaN"), (a[:2], "infinite values")):
        with pytest.raises(ValueError, match=rf"^a must be finite, got {found} in a tensor of shape "):
            _check.finite("a", value)


def test_tensors_of_two_devices_are_told_apart():
    _check.same_dtype_and_device(q=torch.ones(1), k=torch.ones(2))
    with pytest.raises(ValueError, match="^q and k must share dtype and device, got torch.float32 on cpu, .* on meta"):
        _check.same_dtype_and_device(q=torch.ones(1), k=torch.ones(1, device="meta"))
