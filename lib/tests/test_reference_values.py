"""The values that the book started from, against what is proved and published; those that were wrong are named here.

They are polytopes, the ranks of heads on orthonormal tokens, and causal and softmax heads: (n, d_h) and a number with
three digits, from simulations whose size was not recorded. Where one is outside an interval that is now proved, or off
a table that is now published by more than both can err, the list below says so and has the number in its place.
"""

import math
from pathlib import Path

import pandas as pd
import pytest

from attnrank import theory
from attnrank.experiments.masks import causal_heads

HEAD_DIMS = (1, 2, 4, 8, 16, 32, 64, 128, 192, 512)
ORTHONORMAL = {
    16: (0.125, 0.316, 0.474, 0.557, 0.600, 0.623, 0.632, 0.639, 0.642, 0.641),
    64: (0.031, 0.120, 0.285, 0.426, 0.519, 0.574, 0.606, 0.620, 0.626, 0.633),
    100: (0.020, 0.085, 0.231, 0.384, 0.489, 0.554, 0.591, 0.615, 0.621, 0.628),
    256: (0.008, 0.038, 0.141, 0.296, 0.420, 0.512, 0.567, 0.599, 0.609, 0.625),
    1024: (0.002, 0.011, 0.063, 0.184, 0.321, 0.437, 0.521, 0.571, 0.592, 0.616),
}
LIMITS = {16: 0.6439, 64: 0.6350, 100: 0.6340, 256: 0.6328, 1024: 0.6323}
#: Too large or too small by more than rounding: outside the proved interval, whose middle is given. By up to 0.002.
CORRECTED = {
    (16, 64): 0.634, (16, 192): 0.641, (16, 512): 0.643, (64, 64): 0.603, (64, 128): 0.619, (64, 192): 0.624,
    (64, 512): 0.631, (100, 128): 0.613, (100, 192): 0.620, (256, 128): 0.598, (256, 512): 0.624, (1024, 32): 0.439,
    (1024, 192): 0.590,
}  # fmt: skip
#: Inside it, but off the published measurement: these the bounds cannot tell.
MEASURED = {(256, 4): 0.143, (256, 8): 0.292, (1024, 8): 0.180}
ROUNDING = 5e-4

RESULTS = Path(__file__).resolve().parents[2] / "book" / "results"
CELLS = [(n, d_h, value) for n, row in ORTHONORMAL.items() for d_h, value in zip(HEAD_DIMS, row, strict=True)]


def proved(n, d_h):
    upper = min(theory.head_dim_bound(n, d_h), theory.polytope_vertices(n, d_h))
    return theory.head_dim_lower_bound(n, d_h) / n, upper / n


@pytest.mark.parametrize("n", ORTHONORMAL)
def test_limits_of_wide_heads(n):
    assert theory.occupancy_bound(n) / n == pytest.approx(LIMITS[n], abs=5.1e-5)


@pytest.mark.parametrize(("n", "d_h", "value"), CELLS)
def test_orthonormal_tokens_lie_in_the_proved_interval_or_are_corrected(n, d_h, value):
    lower, upper = proved(n, d_h)
    if (n, d_h) in CORRECTED:
        assert not lower - ROUNDING <= value <= upper + ROUNDING
        assert abs(value - (lower + upper) / 2) < 0.0035  # noise, and not another quantity
        assert lower - ROUNDING <= CORRECTED[n, d_h] <= upper + ROUNDING
    else:
        assert lower - ROUNDING <= value <= upper + ROUNDING


@pytest.mark.skipif(not RESULTS.exists(), reason="the published tables are not here: the package was installed alone")
def test_orthonormal_tokens_agree_with_the_published_table():
    """Within 0.0025 and five standard errors of the published mean: the reference values' own noise was up to 0.002."""
    published = pd.read_csv(RESULTS / "head_dimension.csv").drop_duplicates(["n", "d_h"]).set_index(["n", "d_h"])
    compared = 0
    for n, d_h, value in CELLS:
        if (n, d_h) not in published.index:
            continue
        row = published.loc[n, d_h]
        error = row.rank_standard_error / n
        value = MEASURED.get((n, d_h), CORRECTED.get((n, d_h), value))
        assert abs(row.rank_mean / n - value) <= 0.0015 + ROUNDING + 5 * error, (n, d_h)
        compared += 1
        if (n, d_h) in MEASURED:
            old = ORTHONORMAL[n][HEAD_DIMS.index(d_h)]
            assert abs(row.rank_mean / n - old) > ROUNDING + 4 * error
    assert compared >= 30


@pytest.mark.parametrize(("d", "angle", "value"), [(2, 1 / 2, 10.76), (3, 1 / 6, 33.4)])
def test_the_asymptotic_number_of_vertices_over_estimates_at_a_hundred(d, angle, value):
    """2^d / sqrt(d) d beta (pi log n)^{(d - 1)/2}, beta the angle at a vertex of a regular simplex with d vertices."""
    asymptotic = 2**d / math.sqrt(d) * d * angle * (math.pi * math.log(100)) ** ((d - 1) / 2)
    assert asymptotic == pytest.approx(value, abs=0.5 * (0.01 if d == 2 else 0.1) + 0.01)
    assert theory.polytope_vertices(100, d) < 0.9 * asymptotic


@pytest.mark.skipif(not RESULTS.exists(), reason="the published tables are not here: the package was installed alone")
def test_causal_and_stable_ranks_and_their_corrections():
    causal = pd.read_csv(RESULTS / "causal_heads.csv").query("n == 100").set_index("d_h")
    reference = {2: 0.174, 4: 0.290, 8: 0.380, 16: 0.434, 64: 0.486, 512: 0.504}
    for d_h, value in reference.items():
        error = causal.rank_standard_error[d_h] / 100
        corrected = 0.177 if d_h == 2 else value
        assert abs(causal.rank_mean[d_h] / 100 - corrected) <= 0.0015 + ROUNDING + 5 * error, d_h
    more = causal_heads(100, 2, 20_000, 1)
    assert abs(more["rank_mean"] / 100 - 0.177) <= ROUNDING + 5 * more["rank_standard_error"] / 100
    assert abs(more["rank_mean"] / 100 - 0.174) > ROUNDING + 5 * more["rank_standard_error"] / 100
    stable = pd.read_csv(RESULTS / "stable_heads.csv").query("n == 400 and d_h == 2048").set_index("temperature")
    for temperature, value in {2.0: 1.28, 1.0: 2.64}.items():  # 2.70 in the place of 2.64 was wrong
        error = stable.stable_standard_error[temperature]
        assert abs(stable.stable_mean[temperature] - value) <= 0.005 + 5 * error, temperature
    assert abs(stable.stable_mean[1.0] - 2.70) > 0.005 + 5 * stable.stable_standard_error[1.0]
