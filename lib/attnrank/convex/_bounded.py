"""Small quadratic programs with nonnegative variables: argmin over x >= 0 of x^T h x / 2 - f^T x, h positive
definite."""

from __future__ import annotations

import numpy as np
import scipy

#: What is this small beside the largest entry counts as zero, so that rounding cannot make a variable change sides.
ROUNDING = 1e-14


def by_pivoting(h: np.ndarray, f: np.ndarray, free: np.ndarray) -> np.ndarray:
    """The minimum by block principal pivoting, from a guess of which variables are positive (a mask).

    All variables of the wrong sign change sides at once; Portugal, Judice and Vicente (1994). A few rounds are nearly
    always enough; where they are not, :func:`by_descent` takes over.
    """
    free, least, chances = free.copy(), len(f) + 1, 5
    while chances:
        x = _minimum_of_free(h, f, free)
        slack = h @ x - f
        wrong = np.where(free, x < -ROUNDING * abs(x).max(), slack < -ROUNDING * abs(f).max())
        count = int(wrong.sum())
        if count == 0:
            return np.maximum(x, 0.0)
        least, chances = (count, 5) if count < least else (least, chances - 1)
        free ^= wrong
    return by_descent(h, f, np.zeros_like(f))


def by_descent(h: np.ndarray, f: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The minimum by the active-set method, from a feasible point x: every step lowers the value. Lawson and Hanson
    (1974)."""
    x, free = x.copy(), x > 0
    for _ in range(10 * len(f) + 10):
        target = _minimum_of_free(h, f, free)
        while (target < 0).any():
            falling = target < 0
            shares = np.where(falling, x / np.where(falling, x - target, 1.0), np.inf)
            x = np.maximum(x + shares.min() * (target - x), 0.0)
            free &= ~(falling & (shares <= shares.min()))
            x[~free] = 0.0
            target = _minimum_of_free(h, f, free)
        x = target
        slack = np.where(free, np.inf, h @ x - f)
        if slack.min(initial=np.inf) >= -ROUNDING * abs(f).max():
            break
        free[slack.argmin()] = True
    return x


def _minimum_of_free(h: np.ndarray, f: np.ndarray, free: np.ndarray) -> np.ndarray:
    x = np.zeros_like(f)
    where = free.nonzero()[0]
    if len(where) > 100:
        factor = scipy.linalg.cho_factor(h[np.ix_(where, where)], check_finite=False)
        x[where] = scipy.linalg.cho_solve(factor, f[where], check_finite=False)
    elif len(where):  # the call costs more than the elimination
        x[where] = np.linalg.solve(h[np.ix_(where, where)], f[where])
    return x
