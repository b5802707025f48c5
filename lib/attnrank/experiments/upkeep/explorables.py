"""The numbers of the book's explorables: one JSON, ``book/_static/explorables/data.json``, that their scripts read.

    python -m attnrank.experiments.upkeep.explorables

writes it (a few minutes: the causal bounds). What the scripts compute themselves is compared with the package by
``book/tests/test_explorables.py``; :func:`normals` draws the numbers that they draw.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy
from jaxtyping import Float
from numpy.polynomial import chebyshev

from attnrank import _check, convex, data, theory
from attnrank.experiments import token_sparsity
from attnrank.sweep import results_folder

LENGTHS, HEAD_DIMS = (8, 16, 32, 48, 64, 96), (1, 2, 4, 8, 16, 32, 64, 128, 256)
TEMPERATURES, TOLERANCES = (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0), (1e-6, 1e-4, 1e-3, 0.01, 0.1, 0.5)
#: The calculator's range, and the gaps of the table in chapter growth.
LENGTH_RANGE, HEAD_DIM_RANGE, GAPS = (16, 2**20), (1, 8192), (0.1, 0.05, 0.01)
#: Head dimensions at which the causal bound is computed for the calculator, a second or so each; 1 has a closed form.
CAUSAL_HEAD_DIMS = (2, 3, 4, 6, 9, 15, 28, 55, 120, 280, 700, 1900, 4500, 8192)
#: Published lengths and head dimensions, with the models of chapter growth; causal: the model masks the future.
MODELS = (
    ("ViT-B/16, 224 pixels", 197, 64, False), ("BERT", 512, 64, False), ("GPT-2", 1024, 64, True),
    ("Llama-class, 8k", 8192, 128, True), ("Llama-class, 128k", 131072, 128, True),
    ("DeepSeek-V3, 128k", 131072, 192, True),
)  # fmt: skip
#: Penalties of the digits' path, as shares of the one from which on nothing is active.
SHARES = tuple(float(f"{share:.3g}") for share in np.geomspace(1.0, 0.01, 33))
SAMPLES = 1400


def uniforms(seed: int, count: int) -> Float[np.ndarray, "{count}"]:
    """``count`` uniform numbers in [0, 1), multiples of 2^-32, from a seed in 0..2^32 - 1 (mulberry32)."""
    word = 2**32 - 1
    state, found = _check.integer("seed", seed, minimum=0) & word, np.empty(_check.integer("count", count, minimum=0))
    for at in range(len(found)):
        state = (state + 0x6D2B79F5) & word
        t = ((state ^ (state >> 15)) * (state | 1)) & word
        t ^= (t + (((t ^ (t >> 7)) * (t | 61)) & word)) & word
        found[at] = (t ^ (t >> 14)) / 2**32
    return found


def normals(seed: int, count: int) -> Float[np.ndarray, "{count}"]:
    """``count`` standard normal numbers, two for each two uniform ones (Box and Muller)."""
    u = uniforms(seed, count + count % 2).reshape(-1, 2)
    radius, angle = np.sqrt(-2.0 * np.log(1.0 - u[:, 0])), 2.0 * math.pi * u[:, 1]
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).reshape(-1)[:count]


def attention_numbers() -> dict:
    """Bounds on the mean rank of random heads, by mask, length and head dimension."""
    bounds = {
        "none": [[theory.head_dim_bound(n, d_h) for d_h in HEAD_DIMS] for n in LENGTHS],
        "causal": [[theory.causal_head_dim_bound(n, d_h) for d_h in HEAD_DIMS] for n in LENGTHS],
    }
    return {"lengths": LENGTHS, "head_dims": HEAD_DIMS, "temperatures": TEMPERATURES, "tolerances": TOLERANCES,
            "bounds": _rounded(bounds, 9)}  # fmt: skip


def head_dimension_numbers(lengths: int = 18, head_dims: int = 40) -> dict:
    """The calculator: polynomials in Chebyshev form of log n and log d_h, of these numbers of coefficients.

    ``bound``: ``head_dim_bound / n``; ``quantile``: the normal quantile of 1 - 1/n; ``saturation``: log of
    ``saturation_head_dim`` for each gap.
    """
    n = [_whole(x) for x in _nodes(LENGTH_RANGE, lengths)]
    d_h = _nodes(HEAD_DIM_RANGE, head_dims)
    at = chebyshev.chebvander(_places(n, LENGTH_RANGE), lengths - 1)
    values = np.array([[theory.head_dim_bound(length, d) / length for d in d_h] for length in n])
    by_head_dim = chebyshev.chebfit(_places(d_h, HEAD_DIM_RANGE), values.T, head_dims - 1)  # head_dims, lengths

    def fit(of: Callable[[int], float]) -> np.ndarray:
        return np.linalg.solve(at, [of(length) for length in n])

    return {
        "lengths": LENGTH_RANGE, "head_dims": HEAD_DIM_RANGE,
        "bound": _rounded(np.linalg.solve(at, by_head_dim.T), 9),
        "quantile": _rounded(fit(lambda n: float(scipy.stats.norm.isf(1.0 / n))), 9),
        "saturation": {
            f"{gap:g}": _rounded(fit(lambda n: math.log(theory.saturation_head_dim(n, gap))), 9)
            for gap in GAPS
        },
        "causal": causal_numbers(),
        "models": [dict(zip(("name", "n", "d_h", "causal"), model, strict=True)) for model in MODELS],
    }  # fmt: skip


def causal_numbers(lengths: int = 10, head_dims: int = 12) -> dict:
    """The calculator under a causal mask, from head dimension 2 on, in the same form.

    ``loss``: the logarithm of what ``causal_head_dim_bound / n`` lacks of its limit for large heads.
    """
    n, ends = [_whole(x) for x in _nodes(LENGTH_RANGE, lengths)], (CAUSAL_HEAD_DIMS[0], CAUSAL_HEAD_DIMS[-1])
    values = np.log([
        [(theory.causal_limit(length) - theory.causal_head_dim_bound(length, d)) / length for d in CAUSAL_HEAD_DIMS]
        for length in n
    ])  # fmt: skip
    by_head_dim = chebyshev.chebfit(_places(list(CAUSAL_HEAD_DIMS), ends), values.T, head_dims - 1)
    at = chebyshev.chebvander(_places(n, LENGTH_RANGE), lengths - 1)
    return {"head_dims": ends, "loss": _rounded(np.linalg.solve(at, by_head_dim.T), 9)}


def token_sparsity_numbers(shares: tuple[float, ...] = SHARES) -> dict:
    """The digits of chapter token_sparsity: the sums that make its program, and solutions along the path.

    The sums suffice for objective, dual objective and gap at any point; ``gram`` is X'X, the rows of its lower half.
    """
    x, labels, _, _ = token_sparsity.split("digits", SAMPLES)
    y = token_sparsity.targets("digits", labels, "two")
    y = y - y.mean(0)
    flat, side, largest = x.flatten(1), token_sparsity.PATCH["digits"], convex.beta_max(x, y)
    gram = (flat.T @ flat).numpy()
    path = []
    for share in shares:
        solution, _, accuracy = token_sparsity.fitted("digits", SAMPLES, "two", share)
        path.append({"share": share, "z": _rounded(solution.z.flatten(), 12), "accuracy": round(accuracy, 6)})
    images, shown = data.images("digits", "test", count=None, generator=None)
    first = {str(digit): images[shown == digit][0, 0].flatten() for digit in range(10)}
    return {
        "side": side, "beta_max": _rounded(largest, 15), "square": _rounded(y @ y, 15),
        "moments": _rounded(flat.T @ y, 15), "gram": _rounded(gram[np.tril_indices(len(gram))], 12),
        "path": path,
        "digits": {digit: _rounded(image, 4) for digit, image in first.items()},
    }  # fmt: skip


def numbers() -> dict:
    """Everything that the explorables read, by explorable."""
    return {
        "attention": attention_numbers(),
        "head_dimension": head_dimension_numbers(),
        "token_sparsity": token_sparsity_numbers(),
    }


def _nodes(ends: tuple[float, float], count: int) -> list[float]:
    """Chebyshev nodes of the logarithm between two ends."""
    places = -np.cos(math.pi * (np.arange(count) + 0.5) / count)
    return [ends[0] * (ends[1] / ends[0]) ** ((place + 1) / 2) for place in places]


def _places(values: list[float] | list[int], ends: tuple[float, float]) -> np.ndarray:
    """Where the logarithms of the values stand between those of the ends, from -1 to 1."""
    return 2.0 * np.log(np.asarray(values) / ends[0]) / math.log(ends[1] / ends[0]) - 1.0


def _whole(x: float) -> int:
    return min(max(round(x), LENGTH_RANGE[0]), LENGTH_RANGE[1])


def _rounded(values: object, digits: int) -> object:
    """Nested lists of floats with so many significant digits; dicts keep their keys."""
    if isinstance(values, dict):
        return {key: _rounded(value, digits) for key, value in values.items()}
    if hasattr(values, "tolist"):
        values = values.tolist()
    if isinstance(values, list):
        return [_rounded(value, digits) for value in values]
    return float(f"{values:.{digits}g}")


def main(arguments: list[str] | None = None) -> None:
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args(arguments)
    target = results_folder().parent / "_static" / "explorables" / "data.json"
    temporary = target.with_suffix(".tmp")
    temporary.write_text(json.dumps(numbers(), separators=(",", ":")) + "\n", encoding="utf-8", newline="\n")
    os.replace(temporary, target)
    print(Path(target).stat().st_size, "bytes")


if __name__ == "__main__":
    main()
