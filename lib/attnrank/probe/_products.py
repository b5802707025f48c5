"""Queries and keys read off the products that models write: matmul, bmm, baddbmm, einsum."""

from __future__ import annotations

import torch
from torch import Tensor, nn

#: Positions and names of the two factors in the operations that are watched.
FACTORS = {
    "matmul": (0, ("input", "other")),
    "__matmul__": (0, ("input", "other")),
    "bmm": (0, ("input", "mat2")),
    "mm": (0, ("input", "mat2")),
    "baddbmm": (1, ("batch1", "batch2")),
}


def factors(name: str, args: tuple, kwargs: dict) -> tuple[object, object]:
    """The left and the right factor of a product, None where an argument is missing."""
    if name == "einsum":
        operands = args[1] if len(args) == 2 and isinstance(args[1], (list, tuple)) else args[1:]
        return (operands[0], operands[1]) if len(operands) == 2 else (None, None)
    first, names = FACTORS[name]
    left, right = (args[first + i] if len(args) > first + i else kwargs.get(names[i]) for i in range(2))
    return left, right


def as_queries_keys(name: str, args: tuple, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor] | None:
    """q (..., n, d_h) and k (..., m, d_h) of a product that may be ``q k^T``; None where it cannot be.

    Products with weights, and those whose right factor is one matrix for a batch, are left out.
    """
    if is_weight(left) or is_weight(right):
        return None
    if name == "einsum":
        return _einsum(args[0], left, right)
    if right.ndim < 2 or left.ndim < 2 or right.ndim < left.ndim:
        return None
    return left, right.mT


def values_of(name: str, args: tuple, left: Tensor, right: Tensor, result: Tensor, weights_left: bool):
    """v (..., m, d_v) and the output (..., n, d_v) of the product of attention weights and values; None if unclear."""
    if name != "einsum":
        return (right, result) if weights_left else None
    sides = _letters(args[0])
    if sides is None:
        return None
    (one, two), output = sides
    weights, values, v = (one, two, right) if weights_left else (two, one, left)
    row, column = weights[-2], weights[-1]
    width = [letter for letter in values if letter not in weights]
    if column not in values or column in output or row in values or row not in output or len(width) != 1:
        return None
    batch = "".join(letter for letter in weights[:-2])
    if not set(batch) <= set(values) or sorted(output) != sorted(batch + row + width[0]):
        return None
    return (
        torch.einsum(f"{values}->{batch}{column}{width[0]}", v),
        torch.einsum(f"{output}->{batch}{row}{width[0]}", result),
    )


def _einsum(equation: str, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor] | None:
    sides = _letters(equation)
    if sides is None:
        return None
    (one, two), output = sides
    summed = [letter for letter in one if letter in two and letter not in output]
    row, column = (output[-2], output[-1]) if len(output) >= 2 else ("", "")
    if row in two or column in one:  # the queries are the second operand
        one, two, left, right = two, one, right, left
    if len(summed) != 1 or row not in one or row in two or column not in two or column in one:
        return None
    batch = output[:-2]
    if not set(batch) <= set(one) or not set(batch) <= set(two):
        return None
    return (
        torch.einsum(f"{one}->{batch}{row}{summed[0]}", left),
        torch.einsum(f"{two}->{batch}{column}{summed[0]}", right),
    )


def _letters(equation: object) -> tuple[tuple[str, str], str] | None:
    if not isinstance(equation, str) or "->" not in equation or "." in equation:
        return None
    inputs, output = equation.replace(" ", "").split("->")
    one, comma, two = inputs.partition(",")
    return ((one, two), output) if comma and one and two and len(output) >= 2 and len(one) >= 2 else None


def is_weight(x: Tensor) -> bool:
    """Is this a parameter, or a view of one?"""
    return isinstance(x, nn.Parameter) or isinstance(x._base, nn.Parameter)
