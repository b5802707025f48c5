"""python -m attnrank.probe NAME_OR_FOLDER --text FILE | --images FOLDER: ranks of a Hugging Face model, no code needed.

Writes a table (CSV) and a figure (layers x heads, PNG), MODEL-ranks or, of random weights, MODEL-randomSEED-ranks,
and prints a line for each layer. Weights are read from
safetensors only, and no code that comes with a model is run.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pandas as pd
import torch

from attnrank._optional import require
from attnrank.probe import RANKS, hub, probe


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        require("matplotlib", "models"), require("seaborn", "models")  # before anything is computed
        frame = measure(options)
        name = options.out or _default_name(options)
        name.parent.mkdir(parents=True, exist_ok=True)
        written(frame).to_csv(f"{name}.csv", index=False)
        draw(frame, f"{name}.png")
    except (ValueError, OSError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(summary(frame).to_string(index=False))
    print(f"\n{name}.csv has a row for each head, {name}.png a picture of the hardmax ranks.")
    print("Rings: above the bound by more than sqrt(n), as fewer than 1 random head in 200 is.")
    if frame["numerical_rank"].notna().any():
        print(f"Numerical ranks count singular values of at least {frame.attrs['tol']:g}.")
    return 0


def _default_name(options: argparse.Namespace) -> Path:
    """Path of table and figure without ending: the same model with random weights has files of its own."""
    random = "" if options.random is None else f"-random{options.random}"
    return Path(f"{Path(options.model).name}{random}-ranks")


def measure(options: argparse.Namespace) -> pd.DataFrame:
    """The probe's table for the model, text or images of the command line."""
    _check_device(options.device)
    local = Path(options.model).is_dir() or not hub.reachable()
    model = hub.load(options.model, revision=options.revision, seed=options.random, local=local)
    common = {"samples": options.samples, "revision": options.revision, "local": local}
    if options.text is not None:
        model = hub.part_for(model, "text")
        batches = hub.text_batches(options.model, model, options.text, length=options.length, **common)
    else:
        model = hub.part_for(model, "vision")
        batches = hub.image_batches(options.model, options.images, **common)
    model = model.to(options.device)
    moved = [{key: value.to(options.device) for key, value in batch.items()} for batch in batches]
    dtype = next(model.parameters()).dtype
    moved = [{k: v.to(dtype) if v.is_floating_point() else v for k, v in batch.items()} for batch in moved]
    return probe(model, moved, tol=options.tol, layers=options.layers, ranks=options.ranks)


def _check_device(device: torch.device) -> None:
    """Raise ValueError for a device that is not there, or has no numbers, or none of float64, which ranks need."""
    try:
        torch.ones(1, dtype=torch.float64, device=device).item()
    except (RuntimeError, AssertionError, TypeError) as error:  # each kind of device has an error of its own
        raise ValueError(f"--device {device}: torch sees no such device here, or none with float64") from error


def written(frame: pd.DataFrame) -> pd.DataFrame:
    """The table as its file has it: with the tolerance beside the numerical rank, which says nothing without it."""
    table = frame.copy()
    table.insert(table.columns.get_loc("numerical_rank") + 1, "tol", frame.attrs["tol"])
    return table


def summary(frame: pd.DataFrame) -> pd.DataFrame:
    """A line for each layer: the mean, least and largest hardmax rank of its heads beside the bound."""
    groups = frame.groupby("layer", sort=False)
    lines = groups.agg(
        heads=("head", "count"), n=("n", "first"), m=("m", "first"), head_dim=("head_dim", "first"), mask=("mask",
        "first"),
        rank=("hardmax_rank", "mean"), least=("hardmax_rank", "min"), largest=("hardmax_rank", "max"), bound=("bound",
        "first"),
        deviation=("deviation", "max"),
    )  # fmt: skip
    rounded = lines.round({"rank": 1, "least": 1, "largest": 1, "bound": 1}).reset_index()
    rounded["deviation"] = rounded["deviation"].map("{:.0e}".format)
    return rounded


def draw(frame: pd.DataFrame, path: str) -> None:
    """The picture of the hardmax ranks."""
    import matplotlib.pyplot as plt

    from attnrank import report

    fig, ax = plt.subplots(figsize=report.heads_figure_size(frame), layout="constrained")
    report.draw_heads(ax, frame, excess=1.0)
    fig.savefig(path, dpi=200, facecolor="white")
    plt.close(fig)


def _positive(text: str) -> int:
    if not (text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)


def _device(text: str) -> torch.device:
    try:
        return torch.device(text)
    except RuntimeError:
        raise argparse.ArgumentTypeError(f"{text!r} is no device of torch, such as cpu or cuda") from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m attnrank.probe", description=__doc__.split(":", 1)[1].strip())
    parser.add_argument(
        "model", help="name on the hub, such as gpt2, or a folder with config.json and model.safetensors"
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--text", type=Path, metavar="FILE", help="text to read, cut into stretches of --length tokens")
    source.add_argument("--images", type=Path, metavar="FOLDER", help="images to look at")
    parser.add_argument("--length", type=_positive, default=256, help="tokens of a stretch of text (256)")
    parser.add_argument("--samples", type=_positive, default=8, help="stretches of text or images to average over (8)")
    parser.add_argument("--tol", type=float, default=1e-2, help="tolerance of the numerical rank (0.01)")
    parser.add_argument("--ranks", nargs="+", choices=RANKS, help="which ranks to compute (all)")
    parser.add_argument("--layers", nargs="+", help="names or patterns of the layers to measure (all)")
    parser.add_argument("--random", type=int, metavar="SEED", help="random weights in place of the trained ones")
    parser.add_argument("--revision", help="branch, tag or commit on the hub")
    parser.add_argument("--device", type=_device, default=torch.device("cpu"), help="such as cuda (cpu)")
    parser.add_argument(
        "--out", type=Path, help="path of table and figure without ending (MODEL-ranks, or MODEL-randomSEED-ranks)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
