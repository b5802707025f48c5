"""Quadrature on panels that follow the integrand: where its mode is, and where it has fallen by given factors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def refined_grid(log_integrand: Callable[[np.ndarray], np.ndarray], low: float, high: float) -> np.ndarray:
    """Panel edges (k,) that cover where the integrand is within e^-40 of its maximum, halved where it is steep."""
    grid = np.linspace(low, high, 32)
    values = log_integrand(grid)
    for _ in range(7):
        relevant = np.maximum(values[1:], values[:-1]) > values.max() - 40.0
        steep = np.abs(np.diff(np.maximum(values, values.max() - 60.0))) > 2.0
        steep = np.convolve(steep, [1, 1, 1], mode="same") > 0  # and their neighbours, where a corner can hide
        cells = np.flatnonzero(relevant & steep)
        if cells.size == 0:
            break
        middle = (grid[cells] + grid[cells + 1]) / 2.0
        values = np.insert(values, cells + 1, log_integrand(middle))
        grid = np.insert(grid, cells + 1, middle)
    inside = np.flatnonzero(values > values.max() - 40.0)
    return grid[max(inside[0] - 1, 0) : inside[-1] + 2]


def panel_edges(log_integrand, rows: int, end: float) -> np.ndarray:
    """Edges (rows, 9) of panels on (0, end), at the mode of a unimodal integrand and where its log is 1, 6, 16 and 40
    below: each panel then holds a smooth piece, however sharp the integrand is."""
    low, high = np.zeros((rows, 1)), np.full((rows, 1), end)
    for _ in range(24):
        third = (high - low) / 3.0
        rising = log_integrand(low + third) < log_integrand(high - third)
        low, high = np.where(rising, low + third, low), np.where(rising, high, high - third)
    mode = (low + high) / 2.0
    target = log_integrand(mode) - np.array([1.0, 6.0, 16.0, 40.0])
    left = _crossing(log_integrand, target, mode, 0.0)
    right = _crossing(log_integrand, target, mode, end)
    return np.concatenate([left[:, ::-1], mode, right], axis=1)


def _crossing(log_integrand, target: np.ndarray, inside: np.ndarray, outside: float) -> np.ndarray:
    """Where log_integrand falls to ``target`` (rows, levels) between the mode and an end; the end if it never does."""
    near, far = np.broadcast_to(inside, target.shape), np.full(target.shape, outside)
    for _ in range(16):
        middle = (near + far) / 2.0
        above = log_integrand(middle) > target
        near, far = np.where(above, middle, near), np.where(above, far, middle)
    return far


def gauss_legendre(edges: np.ndarray, order: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights (rows, panels * order) of a Gauss-Legendre rule on every panel between ``edges`` (rows, k)."""
    x, w = np.polynomial.legendre.leggauss(order)
    half = np.diff(edges, axis=1)[:, :, None] / 2.0
    nodes = edges[:, :-1, None] + half * (x + 1.0)
    return nodes.reshape(len(edges), -1), (half * w).reshape(len(edges), -1)
