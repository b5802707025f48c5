"""Table of what the rows of other tables cost: processor time and matrix products, by length, dimension and samples."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch.utils.flop_counter import FlopCounterMode

from attnrank import _check
from attnrank.benchmarks import processor
from attnrank.experiments.depth import random_encoders
from attnrank.experiments.experiment import Experiment, Measured
from attnrank.experiments.measuring_speed.cases import PROCESSORS, on
from attnrank.experiments.measuring_speed.speed import at_hand
from attnrank.experiments.shared.heads import random_heads
from attnrank.experiments.softmax import softmax_phase
from attnrank.sweep import Setting, grid

REPEATS = 3

#: Those on which rows were timed.
TIMED = (PROCESSORS[0], PROCESSORS[2])


def row_costs(kind: str, n: int, d_h: int, samples: int, seed: int, processor: str) -> Setting:
    """Processor seconds of a row of this kind, the least of three, and the operations of its matrix products.

    The kinds: "hardmax", a row of random_heads; "softmax", one of softmax_phase (spectra); "encoder", one of the table
    random_encoders (4 heads, width 128, 8 layers); "product", only ``samples`` float64 products of (n, d_h) with
    (d_h, n). Processor time is that of this process on its one thread: what others do on the machine hardly enters.
    A multiplication and an addition are two operations, as PyTorch counts them; decompositions are not counted.
    """
    at_hand(processor)
    work = _KINDS[_check.choice("kind", kind, _KINDS)]
    with FlopCounterMode(display=False) as counter:
        work(n, d_h, samples, seed)
    seconds = []
    for _ in range(REPEATS):
        started = time.process_time()
        work(n, d_h, samples, seed)
        seconds.append(time.process_time() - started)
    return {"seconds": min(seconds), "operations": int(counter.get_total_flops())}


def _products(n: int, d_h: int, samples: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    q, k = torch.randn(2, n, d_h, generator=generator, dtype=torch.float64)
    out = torch.empty(n, n, dtype=torch.float64)
    for _ in range(samples):
        torch.mm(q, k.T, out=out)


def _encoder(n: int, d_h: int, samples: int, seed: int) -> None:
    random_encoders("gaussian", n, 128, 4, d_h, "lecun", samples, seed)


_KINDS: dict[str, Callable] = {
    "hardmax": random_heads,
    "softmax": lambda n, d_h, samples, seed: softmax_phase(n, d_h, 1.0, samples, seed),
    "encoder": _encoder,
    "product": _products,
}

EXPERIMENTS = {
    "row_costs": Experiment(
        "How does the time of a row grow with sequence length, head dimension and the number of samples?",
        row_costs,
        quick=on([processor()], grid(kind=list(_KINDS), n=[64, 128], d_h=[8], samples=[2], seed=[0])),
        paper=on(TIMED, [
            *grid(kind=["hardmax"], n=[128, 256, 512, 1024, 2048], d_h=[8, 32, 128, 512], samples=[4, 16], seed=[0]),
            *grid(kind=["softmax"], n=[64, 128, 256, 512], d_h=[8, 64], samples=[4, 16], seed=[0]),
            *grid(kind=["encoder"], n=[64, 128, 256, 512], d_h=[8, 32, 128], samples=[2, 8], seed=[0]),
            *grid(kind=["product"], n=[2048], d_h=[2048], samples=[1, 4], seed=[0]),
        ]),
        chapter="measuring_speed",
        repeats=Measured(),
    ),
}
