"""The runs on modular division that are wanted, in the order in which they decide something."""

from __future__ import annotations

from collections.abc import Iterable

from attnrank.sweep import Setting


def runs(
    p: int, *, fractions: Iterable[float] = (0.8,), attentions: Iterable[str] = ("softmax", "convex"),
    decays: Iterable[float] = (1.0,), width: int = 64, steps: int, seeds: Iterable[int] = (0, 1, 2),
) -> list[Setting]:
    """Settings of `grokking.modular_runs`, seed by seed: the arms of one seed stand together."""
    return [
        {"p": p, "fraction": fraction, "attention": attention, "width": width, "depth": 2, "decay": float(decay),
         "steps": steps, "seed": seed}
        for fraction in fractions for decay in decays for seed in seeds for attention in attentions
    ]  # fmt: skip


#: By name; within a series all arms of a seed stand together.
SERIES: dict[str, list[Setting]] = {
    "p = 17": runs(17, attentions=("softmax", "convex", "uniform"), steps=5000),
    "p = 31": runs(31, steps=5000),
    "p = 97": runs(97, width=128, steps=3000),
    "p = 11": runs(11, steps=5000),
    "p = 17, decay": runs(17, decays=[3.0, 0.3, 0.0], steps=5000),
    "p = 53": runs(53, steps=3000),
    "p = 31, fractions": runs(31, fractions=[0.5, 0.2], steps=5000),
    "p = 97, fractions": runs(97, fractions=[0.5, 0.2], width=128, steps=3000),
    "p = 97, decay": runs(97, decays=[3.0, 0.3, 0.0], width=128, steps=3000),
}
