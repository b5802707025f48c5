"""Non-convex training of the heads of program (8): how often it ends at the certified optimum, and what certificates
say."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from attnrank import _check, convex
from attnrank.sweep import Setting

#: (samples, tokens, dimension, beta) of the two problems.
PROBLEMS = {"toy": (8, 6, 4, 0.5), "medium": (20, 12, 6, 1.0)}
METHODS = ("projected", "softmax")
#: A run counts as ended at the optimum if its relative gap is at most this.
GLOBAL = 1e-3
#: Steps of a whole run.
STEPS = 10_000
#: Gradients of a run longer than this are shortened to it: far from the optimum they would throw it further.
CLIP = 100.0
#: Steps at which runs are looked at.
LOOKS = (0, 10, 30, 100, 300, 1000, 3000, 10_000)


def nonconvex_runs(problem: str, method: str, heads: int, scale: float, seeds: int) -> Setting:
    """Share of runs within ``GLOBAL`` of the certified optimum after ``STEPS`` steps; means of gap and certificate.

    ``method``: "projected", gradient steps with attention projected to the simplex; "softmax", Adam on logits.
    ``scale`` is the standard deviation of the initial value and output weights. Standard errors are over seeds.
    """
    gap, certificate, ratio = _measured(problem, method, heads, scale, seeds, STEPS)
    share = gap <= GLOBAL
    return {
        "global_share": share.mean(),
        "global_share_se": float(np.sqrt(max(share.mean() * (1 - share.mean()), 1 / seeds) / seeds)),
        "gap": gap.mean(),
        "gap_se": gap.std(ddof=1) / seeds**0.5 + 1e-9,
        "certificate": certificate.mean(),
        "certificate_se": certificate.std(ddof=1) / seeds**0.5 + 1e-9,
        "ratio": ratio.mean(),
        "ratio_se": ratio.std(ddof=1) / seeds**0.5 + 1e-9,
        "least_excess": float((certificate - gap).min()),
    }


def nonconvex_trace(problem: str, method: str, heads: int, scale: float, seeds: int, step: int) -> Setting:
    """Quartiles over runs of the true relative gap and of the certificate after some steps."""
    gap, certificate, _ = _measured(problem, method, heads, scale, seeds, step)
    found = {}
    for name, values in (("gap", gap), ("certificate", certificate)):
        for quarter in (25, 50, 75):
            found[f"{name}_{quarter}"] = float(np.percentile(values, quarter))
    return found


def data(problem: str) -> tuple[Tensor, Tensor, float]:
    """x, y and beta; the toy is that of the golden value .526259984."""
    samples, n, d, beta = PROBLEMS[_check.choice("problem", problem, PROBLEMS)]
    r = np.random.default_rng(0)
    return torch.from_numpy(r.standard_normal((samples, n, d))), torch.from_numpy(r.standard_normal(samples)), beta


def _measured(problem: str, method: str, heads: int, scale: float, seeds: int, step: int) -> tuple[np.ndarray, ...]:
    x, y, beta = data(problem)
    optimum = convex.solve(x, y, beta, tol=1e-12).primal
    attention, value, output = _run(problem, method, heads, scale, seeds)[step]
    found = []
    for run in zip(attention, value, output, strict=True):
        certificate = convex.certify_heads(x, y, beta, convex.Heads(*run))
        found.append((certificate.objective / optimum - 1.0, certificate.relative_gap, certificate.ratio))
    return tuple(np.array(found).T)


@lru_cache(maxsize=4)
def _run(problem: str, method: str, heads: int, scale: float, seeds: int) -> dict[int, tuple[Tensor, Tensor, Tensor]]:
    """Heads of all seeds at the steps of ``LOOKS``."""
    _check.choice("method", method, METHODS)
    x, y, beta = data(problem)
    n, d = x.shape[1:]
    draws = [torch.Generator().manual_seed(seed) for seed in range(seeds)]
    logits, value, output = (
        torch.stack([torch.randn(heads, size, generator=g, dtype=torch.float64) for g in draws]) for size in (n, d, 1)
    )
    value, output = scale * value, scale * output[..., 0]
    steps = _softmax_steps if method == "softmax" else _projected_steps
    looks = {}
    for step, point in enumerate(steps(x.flatten(1), y, beta, logits, value, output)):
        if step in LOOKS:
            looks[step] = tuple(part.clone() for part in point)
        if step == STEPS:
            return looks
    raise AssertionError("steps do not end")


def gradients(
    design: Tensor, y: Tensor, beta: float, attention: Tensor, value: Tensor, output: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Of the objective, for all runs at once: with respect to attention, value and output."""
    z = torch.einsum("shn,shd,sh->snd", attention, value, output)
    residual = z.flatten(1) @ design.mT - y
    slope = (residual @ design).view_as(z)
    pooled = torch.einsum("shn,snd->shd", attention, slope)
    return (
        torch.einsum("snd,shd,sh->shn", slope, value, output),
        output[..., None] * pooled + beta * value,
        (pooled * value).sum(-1) + beta * output,
    )


def _projected_steps(design, y, beta, logits, value, output, rate=0.01):
    attention = torch.softmax(logits, -1)
    while True:
        yield attention, value, output
        of_attention, of_value, of_output = gradients(design, y, beta, attention, value, output)
        square = sum(part.flatten(1).square().sum(1) for part in (of_attention, of_value, of_output))
        step = rate * (CLIP / square.sqrt()).clamp_max(1.0)[:, None]
        value, output = value - step[..., None] * of_value, output - step * of_output
        attention = to_simplex(attention - step[..., None] * of_attention)


def _softmax_steps(design, y, beta, logits, value, output, rate=0.05):
    point = [logits, value, output]
    first, second = [torch.zeros_like(p) for p in point], [torch.zeros_like(p) for p in point]
    step = 0
    while True:
        attention = torch.softmax(point[0], -1)
        yield attention, point[1], point[2]
        step += 1
        of_attention, of_value, of_output = gradients(design, y, beta, attention, point[1], point[2])
        mean = (of_attention * attention).sum(-1, keepdim=True)
        for i, slope in enumerate((attention * (of_attention - mean), of_value, of_output)):  # Adam
            first[i] = 0.9 * first[i] + 0.1 * slope
            second[i] = 0.999 * second[i] + 0.001 * slope.square()
            scale = (second[i] / (1 - 0.999**step)).sqrt() + 1e-10
            point[i] = point[i] - rate * (1.0 - 0.99 * step / STEPS) * first[i] / (1 - 0.9**step) / scale


def to_simplex(v: Tensor) -> Tensor:
    """The nearest points of the simplex, along the last axis."""
    ordered = v.sort(-1, descending=True).values
    excess = (ordered.cumsum(-1) - 1.0) / torch.arange(1, v.shape[-1] + 1, dtype=v.dtype)
    count = (ordered > excess).sum(-1, keepdim=True)
    return (v - excess.gather(-1, count - 1)).clamp_min(0.0)
