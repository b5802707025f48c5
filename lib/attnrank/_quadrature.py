"""Quadrature on panels that follow the integrand: where its mode is, and where it has fallen by given factors."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np

Function = Callable[[np.ndarray], np.ndarray]

#: How far below the mode the log of the integrand is at the edges of the panels, on each side.
LEVELS = (0.03, 1.5, 40.0)
GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0


def panel_edges(log_integrand: Function, rows: int, end: float) -> np.ndarray:
    """Edges (rows, 11) of panels on (0, end), at the mode of a unimodal integrand and where its log has fallen by
    ``LEVELS``, with one more in each wide panel: each then holds a smooth piece, however sharp the integrand is."""
    mode = _mode(log_integrand, rows, end)
    target = log_integrand(mode) - np.array(LEVELS * 2)
    near = np.broadcast_to(mode, target.shape)
    far = np.broadcast_to(np.repeat([0.0, end], len(LEVELS)), target.shape)
    for _ in range(14):
        middle = (near + far) / 2.0
        above = log_integrand(middle) > target
        near, far = np.where(above, middle, near), np.where(above, far, middle)
    corner, side, tail = far.reshape(rows, 2, len(LEVELS)).transpose(2, 0, 1)
    between = [corner + 0.4 * (side - corner), side + 0.35 * (tail - side)]
    return np.sort(np.concatenate([mode, corner, side, tail, *between], axis=1), axis=1)


def _mode(log_integrand: Function, rows: int, end: float) -> np.ndarray:
    """Position (rows, 1) of the maximum of a unimodal integrand on (0, end), by golden sections."""
    low, high = np.zeros((rows, 1)), np.full((rows, 1), end)
    left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    at_left, at_right = log_integrand(left), log_integrand(right)
    for _ in range(24):
        rising = at_left < at_right
        low, high = np.where(rising, left, low), np.where(rising, high, right)
        new = np.where(rising, low + GOLDEN * (high - low), high - GOLDEN * (high - low))
        at_new = log_integrand(new)
        left, right = np.where(rising, right, new), np.where(rising, new, left)
        at_left, at_right = np.where(rising, at_right, at_new), np.where(rising, at_new, at_left)
    return (low + high) / 2.0


def relevant_range(log_integrand: Function, low: float, high: float) -> tuple[float, float]:
    """The part of (low, high) on which the log of a unimodal integrand is within about 32 of its maximum."""
    grid = np.linspace(low, high, 16)
    values = log_integrand(grid)
    level = values.max() - 32.0
    inside = np.flatnonzero(values > level)
    high = grid[min(inside[-1] + 1, len(grid) - 1)]
    if inside[0] == 0:
        return low, high
    low, first = grid[inside[0] - 1], grid[inside[0]]
    for _ in range(8):  # the rise may be far steeper than the grid
        grid = np.linspace(low, first, 6)
        values = log_integrand(grid)
        i = int(np.argmax(values > level))
        low, first = grid[i - 1], grid[i]
        if values[i - 1] > level - 10.0:
            break
    return low, high


@cache  # a bound calls for the same few rules thousands of times
def _rule(order: int) -> tuple[np.ndarray, np.ndarray]:
    return np.polynomial.legendre.leggauss(order)


def gauss_legendre(edges: np.ndarray, order: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights (rows, panels * order) of a Gauss-Legendre rule on every panel between ``edges`` (rows, k)."""
    x, w = _rule(order)
    half = np.diff(edges, axis=1)[:, :, None] / 2.0
    nodes = edges[:, :-1, None] + half * (x + 1.0)
    return nodes.reshape(len(edges), -1), (half * w).reshape(len(edges), -1)


def reach(n: int) -> float:
    """Where an integral over normal numbers of which the largest of n counts may end: at least 9."""
    return max(9.0, math.sqrt(2.0 * math.log(n)) + 2.5)


def panels(low: float, high: float, points: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of a Gauss-Legendre rule of 20 points on each of points / 20 equal panels of [low, high]."""
    nodes, weights = gauss_legendre(np.linspace(low, high, points // 20 + 1)[None], 20)
    return nodes[0], weights[0]
