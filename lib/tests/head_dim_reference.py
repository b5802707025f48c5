"""High-precision values of the bound resolved by head dimension, straight from its definition, with mpmath.

Nothing of attnrank is used. `python lib/tests/head_dim_reference.py` writes data/head_dim_bound.csv (about ten
minutes on one core); test_theory.py compares attnrank with it and recomputes the cheap rows.
"""

import csv
import itertools
from pathlib import Path

import mpmath as mp
import numpy as np
from scipy import stats

TABLE = Path(__file__).parent / "data" / "head_dim_bound.csv"
GRID = [
    *itertools.product((2, 3, 16, 1000, 10**6, 10**9, 10**12), (1,)),
    *itertools.product((2, 16, 1000, 10**6, 10**12), (2, 3, 8)),
    *itertools.product((100, 10**6, 10**12), (32, 1000, 10**5)),
    *itertools.product((50, 10**7), (1.5, 2.5)),
]


def log_ndtr(x):
    return mp.log1p(-mp.erfc(x / mp.sqrt(2)) / 2) if x > 0 else mp.log(mp.erfc(-x / mp.sqrt(2)) / 2)


def win_probability(r, n, d_h):
    """pi(r): the integral over the angle t between query and key; r cos t is their score."""
    if d_h == 1:
        return (mp.exp((n - 1) * log_ndtr(r)) + mp.exp((n - 1) * log_ndtr(-r))) / 2
    a_n = float(stats.norm.isf(1 / n))
    # Below low the power of the distribution function is under e^-80 (or e^-34, n = 2), above 14 the density under
    # e^-98.
    low = max(-r, mp.mpf(-8), mp.mpf(float(stats.norm.isf(min(80 / n, 1)))))
    high = min(r, mp.mpf(14))
    if low >= high:
        return mp.mpf(0)
    inside = (-4, -2, 0, a_n - 0.3, a_n + 0.4, a_n + 1.5, a_n + 4)
    breaks = [mp.acos(b / r) for b in sorted({low, high, *[mp.mpf(b) for b in inside if low < b < high]}, reverse=True)]
    integral = mp.quad(
        lambda t: abs(mp.sin(t)) ** (d_h - 2) * mp.exp((n - 1) * log_ndtr(r * mp.cos(t))), breaks, maxdegree=5
    )
    return integral / mp.beta(mp.mpf(d_h - 1) / 2, mp.mpf(1) / 2)


def bound(n, d_h):
    """n E[1 - (1 - pi(R))^n], panels broken where n pi(r) = 1: the corner of the integrand."""
    mp.mp.dps = 25
    low, high = stats.chi.ppf(1e-9 / n, d_h), stats.chi.isf(1e-9 / n, d_h)
    left, right = mp.mpf(low), mp.mpf(high)
    for _ in range(14):
        middle = (left + right) / 2
        left, right = (left, middle) if n * win_probability(middle, n, d_h) > 1 else (middle, right)
    steps = (0.02, 0.06, 0.12, 0.2, 0.3, 0.5, 0.8, 1.2, 1.8, 2.6, 3.6, 5, 7, 10)
    corner = float(left)
    edges = sorted({low, high, *[e for s in (0, *steps) for e in (corner - s, corner + s) if low < e < high]})
    nodes, weights = np.polynomial.legendre.leggauss(14)
    log_constant = (mp.mpf(d_h) / 2 - 1) * mp.log(2) + mp.loggamma(mp.mpf(d_h) / 2)
    total = mp.mpf(0)
    for a, b in itertools.pairwise(edges):
        for x, w in zip(nodes, weights, strict=True):
            r = mp.mpf(a + (b - a) / 2 * (x + 1))
            density = mp.exp((d_h - 1) * mp.log(r) - r * r / 2 - log_constant)
            if n * density > 1e-14:
                total += w * (b - a) / 2 * density * -mp.expm1(n * mp.log1p(-win_probability(r, n, d_h)))
    return n * total


def main():
    """Append the rows that are missing."""
    done = len(TABLE.read_text(encoding="utf-8").splitlines()) - 1 if TABLE.exists() else -1
    with TABLE.open("a", encoding="utf-8", newline="\n") as file:
        writer = csv.writer(file, lineterminator="\n")
        if done < 0:
            writer.writerow(["n", "d_h", "bound"])
        for n, d_h in GRID[max(done, 0) :]:
            writer.writerow([n, d_h, mp.nstr(bound(n, d_h), 15)])
            file.flush()


if __name__ == "__main__":
    main()
