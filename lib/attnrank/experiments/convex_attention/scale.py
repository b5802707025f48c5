"""Memory and time of the solver against the numbers of samples, tokens and dimensions."""

from __future__ import annotations

import tempfile
from pathlib import Path

from attnrank.benchmarks import extra_memory, machine
from attnrank.experiments.measuring_speed.speed import at_hand
from attnrank.sweep import Setting

#: Digits-like tokens: the pixels of scikit-learn's digits, repeated as needed, each times a direction of its own, and
#: noise.
PROGRAM = """
import time
import numpy as np, torch
from sklearn.datasets import load_digits
from attnrank import convex
torch.set_num_threads(1)
digits = load_digits()
convex.solve(torch.ones(2, 2, 2, dtype=torch.float64), torch.ones(2, dtype=torch.float64), 0.1)  # libraries are loaded
def work():
    r = np.random.default_rng(0)
    rows = r.integers(len(digits.target), size={samples})
    pixels = digits.data[rows][:, np.arange({n}) % 64] / 16.0
    x = r.standard_normal(({samples}, {n}, {d}))
    x *= 0.3
    x += pixels[:, :, None] * r.standard_normal(({n}, {d}))
    x = torch.from_numpy(x)
    y = torch.from_numpy(np.where(digits.target[rows] % 2, 1.0, {low}))
    beta = {share} * convex.beta_max(x, y, loss={loss!r})
    start = time.perf_counter()
    solution = convex.solve(x, y, beta, loss={loss!r})
    print(time.perf_counter() - start, len(solution.active), solution.relative_gap, solution.iterations)
"""


def convex_scale(samples: int, n: int, d: int, share: float, processor: str) -> Setting:
    """GiB of the tokens, peak GiB of making them and solving, seconds of solving alone, active tokens and gap.

    In a process of its own, one thread, cold, half-squared loss, to a relative gap of 1e-9 at beta = share beta_max.
    """
    at_hand(processor)
    memory, seconds, rest = _measured("squared", samples, n, d, share)
    return memory | {"seconds": seconds} | rest | {"machine": machine()}


def convex_memory(loss: str, samples: int, n: int, d: int, share: float) -> Setting:
    """The same without the time, for either loss."""
    memory, _, rest = _measured(loss, samples, n, d, share)
    return memory | rest


def _measured(loss: str, samples: int, n: int, d: int, share: float) -> tuple[Setting, float, Setting]:
    low = 0.0 if loss == "cross_entropy" else -1.0  # probabilities, or centred classes
    code = PROGRAM.format(samples=samples, n=n, d=d, share=share, loss=loss, low=low)
    extra, printed = extra_memory_and_output(code)
    seconds, active, gap, steps = printed.split()
    memory = {"tokens_gib": 8 * samples * n * d / 2**30, "peak_gib": extra / 2**30}
    return memory, float(seconds), {"active": int(active), "gap": float(gap), "steps": int(steps)}


def extra_memory_and_output(code: str) -> tuple[float, str]:
    """What `extra_memory` returns, and the line that ``work`` printed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "line"
        extra = extra_memory(
            code.replace("solution.iterations)", f"solution.iterations, file=open({str(path)!r}, 'w'))")
        )
        return extra, path.read_text(encoding="utf-8")
