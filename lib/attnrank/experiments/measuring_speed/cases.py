"""What is measured: the cases of the contests and of the roofline, by processor."""

from __future__ import annotations

from collections.abc import Iterable

from attnrank.sweep import Setting

#: The processors whose rows are published. To publish those of another one add its name, as printed by the command
#: ``python -m attnrank.benchmarks``, and run that with ``--folder book/results``: the other rows stay as they are.
PROCESSORS = (
    "AMD EPYC (family 25, model 17)",
    "Intel(R) Xeon(R) Processor @ 2.50GHz (family 6, model 85)",
    "AMD EPYC (family 25, model 1)",
)
#: Processors of machines with a GPU, whose rows of a GPU are published; the column ``machine`` names the GPU. The
#: command measures all rows there: one that it is run on is added to both.
WITH_GPU = ("Intel(R) Xeon(R) Processor (family 6, model 207)",)


def on(processors: Iterable[str], rows: list[Setting]) -> list[Setting]:
    """The rows for each of the processors."""
    return [row | {"processor": name} for name in processors for row in rows]


def _rows(
    contest: str,
    shapes: list[tuple[int, int, int]],
    bar: str,
    *,
    dtypes: tuple[str, ...] = ("float32",),
    threads: tuple[int, ...] = (1,),
    device: str = "cpu",
    rounds: int = 7,
) -> list[Setting]:
    return [
        {
            "contest": contest, "n": n, "d_h": d_h, "batch": batch, "dtype": dtype, "threads": count, "device": device,
            "bar": bar, "rounds": rounds,
        }
        for n, d_h, batch in shapes
        for dtype in dtypes
        for count in threads
    ]  # fmt: skip


LOWER, BOTH = ("float16", "bfloat16"), ("float32", "float64")
SMALL_SHAPES = [(64, 16, 64), (128, 64, 16), (256, 64, 16), (512, 8, 16), (512, 64, 16), (1024, 64, 1), (4096, 64, 1)]
LARGE_SHAPES = [(16384, 8, 1), (16384, 64, 1), (16384, 128, 1)]
CASES = [
    *_rows("argmax", SMALL_SHAPES, ">= 1", dtypes=BOTH),
    *_rows("argmax", LARGE_SHAPES, ">= 1", dtypes=BOTH, rounds=3),
    *_rows("argmax", [(512, 64, 16), (4096, 64, 1)], ">= 1", threads=(2,)),
    *_rows("argmax by rows", [(16384, 64, 1)], "", rounds=3),
    *_rows("product", [(512, 64, 16), (4096, 64, 1)], ">= 0.75"),
    *_rows("product", [(16384, 64, 1)], ">= 0.8", dtypes=BOTH, rounds=5),
    *_rows("product", [(16384, 64, 1)], ">= 0.8", threads=(2,), rounds=5),
    *_rows("product", [(131072, 8, 1)], ">= 10", rounds=3),
    *_rows("product", [(131072, 16, 1)], ">= 2", rounds=3),
    *_rows("product", [(4096, 64, 1)], "", dtypes=("float64", *LOWER), rounds=5),
    *_rows("one-hot", [(512, 8, 16)], ">= 200", dtypes=BOTH, threads=(1, 2), rounds=5),
    *_rows("one-hot", [(512, d_h, 16) for d_h in (16, 32, 64, 128)], "", rounds=5),
    *_rows("dense", [(16384, 64, 1), (16384, 128, 1)], ">= 0.952", rounds=3),
    *_rows("dense", [(16384, 8, 1), (16384, 16, 1), (16384, 32, 1)], "", rounds=3),
    *_rows("memory", [(262144, 8, 1), (1000000, 8, 1)], "<= 1", threads=(2,)),
    *_rows(
        "spectrum", [(n, d_h, 16) for n in (256, 512) for d_h in (8, 64)], ">= 4", dtypes=("float64",), threads=(1, 2)
    ),
    *_rows("spectrum", [(256, 8, 16)], "", dtypes=("float32", *LOWER)),
    *_rows("eigenvalues", [(n, d_h, 16) for n in (256, 512) for d_h in (8, 64)], "", dtypes=("float64",)),
    *_rows("spectrum, temperature 1", [(256, 8, 16), (512, 64, 16)], "", dtypes=("float64",), rounds=5),
    *_rows("spectrum, relative", [(256, 8, 16), (512, 64, 16)], "", dtypes=("float64",), rounds=5),
]
GPU_CASES = [
    *_rows("argmax", [(512, 64, 16)], ">= 1", device="cuda"),
    *_rows("product", [(131072, 64, 1)], ">= 0.8", device="cuda"),
    *_rows("memory", [(1000000, 64, 1)], "<= 1", device="cuda"),
    *_rows("spectrum", [(256, 8, 16), (512, 64, 16)], ">= 10", dtypes=("float64",), device="cuda"),
]
#: Without bars: nothing is claimed of shapes as small as these.
QUICK = [
    *_rows("argmax", [(64, 8, 4)], "", rounds=3),
    *_rows("product", [(2048, 8, 1)], "", rounds=3),
    *_rows("one-hot", [(64, 8, 4)], "", rounds=3),
    *_rows("dense", [(2048, 64, 1)], "", rounds=3),
    *_rows("memory", [(4096, 8, 1)], ""),
    *_rows("spectrum", [(64, 8, 4)], "", dtypes=("float64",), rounds=3),
    *_rows("spectrum", [(256, 8, 16)], "", dtypes=("float64",), device="cuda"),
]


def _roofline_rows(n: int, d_hs: list[int], threads: int, rounds: int) -> list[Setting]:
    return [
        {"path": path, "n": n, "d_h": d_h, "dtype": "float32", "threads": threads, "rounds": rounds}
        for d_h in d_hs
        for path in ("product", "dense", "automatic")
    ]


ROOFLINE = _roofline_rows(16384, [2, 4, 8, 16, 32, 64, 128], 1, 3)
ROOFLINE_QUICK = _roofline_rows(2048, [8, 64], 1, 3)
