"""The ranks of one attention, head by head, and the deviation of softmax(q k^T) v from what the model computed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnrank import _check, ranks
from attnrank.probe._attention import Attention
from attnrank.probe._bounds import bounds
from attnrank.probe._masks import Structure, structure
from attnrank.ranks.masked import NO_SOFTMAX, blocks, distinct_argmax, masked_ranks

#: Queries of which the output is computed again where no spectrum needs all of them.
CHECKED = 64


@dataclass
class Group:
    """Heads (g) that share a mask, padding left out: what is measured together."""

    attention: Attention
    index: Tensor  # of these heads among all S x H
    structure: Structure
    q: Tensor | None
    k: Tensor | None
    v: Tensor
    output: Tensor
    scores: Tensor | None
    sink: Tensor | None
    bias: Tensor | None
    visible: Tensor | None  # (n, m)

    def logits(self, part: slice, rows: Tensor | slice) -> Tensor:
        """Scores (heads, rows, m) as the softmax sees them, in float64, hidden ones -infinity."""
        if self.scores is not None:
            logits = self.scores[part][:, rows].double()
        else:
            assert self.q is not None and self.k is not None  # where there are no scores
            logits = self.attention.scale * (self.q[part][:, rows].double() @ self.k[part].double().mT)
            if self.bias is not None:
                logits += self.bias[part][:, rows].double()
        visible = self._visible(rows, logits)
        return logits if visible is None else logits.masked_fill_(~visible, -torch.inf)

    def weights(self, part: slice, rows: Tensor | slice) -> Tensor:
        """The attention matrix (heads, rows, m) without the sink's column, in float64."""
        logits = self.logits(part, rows)
        if self.sink is None:
            return logits.softmax(-1)
        return torch.cat([logits, self.sink[part][:, rows, None].double()], -1).softmax(-1)[..., :-1]

    def _visible(self, rows: Tensor | slice, logits: Tensor) -> Tensor | None:
        if self.visible is not None:
            return self.visible[rows]
        if not self.attention.mask.causal:
            return None
        place = torch.arange(self.structure.n, device=logits.device)[rows]
        return torch.arange(self.structure.m, device=logits.device) <= place[:, None]


def measure(attention: Attention, wanted: frozenset[str], tol: float) -> list[dict]:
    """A row for each sample and head: see :func:`attnrank.probe` for the columns."""
    samples, heads = attention.output.shape[:2]
    if samples == 0:
        return []
    groups = list(_groups(attention))
    rows: list[dict] = [{} for _ in range(samples * heads)]
    limits = bounds([group.structure for group in groups], attention.head_dim)
    kv_heads = attention.kv_heads
    for group, limit in zip(groups, limits, strict=True):
        if group.structure.n == 0:
            continue
        columns = _columns(group, wanted, tol)
        for place, index in enumerate(group.index.tolist()):
            rows[index] = {
                "sample": index // heads, "head": index % heads, "n": group.structure.n, "m": group.structure.m,
                "head_dim": attention.head_dim, "kv_heads": kv_heads, "kind": group.structure.kind,
                "padded": group.structure.padded, "biased": not attention.exact, "bound": limit,
                "rotary_dim": attention.rotary_dim,
            } | {name: value[place] for name, value in columns.items()}  # fmt: skip
    return [row for row in rows if row]


def _groups(attention: Attention) -> Iterator[Group]:
    mask, (samples, heads), device = attention.mask, attention.output.shape[:2], attention.output.device
    every = torch.arange(samples * heads, device="cpu").view(samples, heads)
    one_sample, one_head = mask.shared
    if one_sample:
        indices = [every.flatten()] if one_head else list(every.T)
    else:
        indices = list(every) if one_head else list(every.flatten()[:, None])
    flat: dict[str, Any] = {
        name: _by_head(getattr(attention, name), samples, heads) for name in ("q", "k", "v", "output", "scores", "sink")
    } | {"bias": _by_head(mask.bias, samples, heads)}
    if attention.scores is not None:
        flat["bias"] = None
    for index in indices:
        sample, head = divmod(int(index[0]), heads)
        found = structure(mask, sample, head, crosses=attention.crosses, device=device)
        visible = None if mask.visible is None else mask.rows(sample, head, 0, mask.n, device)
        picked: dict[str, Any] = {
            name: None if x is None else x[index.to(device)] if len(index) < len(x) else x for name, x in flat.items()
        }
        if found.keys is not None:
            visible, picked = _without_padding(found, visible, picked)
        if found.trivial:
            visible = None
        yield Group(attention, index, found, visible=visible, **picked)


def _by_head(x: Tensor | None, samples: int, heads: int) -> Tensor | None:
    """x (S or 1, H or fewer, ...) with a matrix for each sample and head, (S * H, ...)."""
    if x is None:
        return None
    if x.shape[1] not in (1, heads):
        x = x.repeat_interleave(heads // x.shape[1], 1)
    return x.expand(samples, heads, *x.shape[2:]).flatten(0, 1)


def _without_padding(found: Structure, visible: Tensor | None, picked: dict) -> tuple[Tensor | None, dict]:
    queries, keys = found.queries, found.keys
    for name in ("q", "output", "scores", "sink", "bias"):
        if picked[name] is not None and queries is not None:
            picked[name] = picked[name][:, queries]
    for name in ("k", "v"):
        if picked[name] is not None:
            picked[name] = picked[name][:, keys]
    for name in ("scores", "bias"):
        if picked[name] is not None:
            picked[name] = picked[name][..., keys]
    if visible is not None:
        visible = (visible if queries is None else visible[queries])[:, keys]
    return visible, picked


def _columns(group: Group, wanted: frozenset[str], tol: float) -> dict[str, list]:
    columns: dict[str, list] = {}
    if "hardmax" in wanted:
        columns["hardmax_rank"] = _hardmax(group).tolist()
    parts = []
    n, m, g = group.structure.n, group.structure.m, len(group.index)
    spectra = bool(wanted - {"hardmax"})
    rows = torch.arange(n, device=group.v.device)
    if not spectra and n > CHECKED:
        rows = torch.linspace(0, n - 1, CHECKED, device=group.v.device).round().long().unique()
    together = max(1, (1 << 21) // (len(rows) * m))
    chosen = slice(None) if len(rows) == n else rows
    for start in range(0, g, together):
        part = slice(start, start + together)
        a = group.weights(part, chosen)
        if not _check.all_finite(a):
            raise ValueError(NO_SOFTMAX)
        parts.append(_spectra(a, wanted, tol) | {"deviation": _deviation(group, part, chosen, a)})
        if group.sink is not None:
            parts[-1]["sink_mass"] = 1 - a.sum(-1).mean(-1)
    for name in parts[0]:
        columns[name] = torch.cat([part[name] for part in parts]).tolist()
    return columns


def _hardmax(group: Group) -> Tensor:
    attention, found = group.attention, group.structure
    n, m, g = found.n, found.m, len(group.index)
    if attention.exact:
        assert group.q is not None and group.k is not None
        if found.trivial or (found.kind == "causal" and n == m):
            return ranks.hardmax_rank(group.q, group.k, causal=not found.trivial)
        visible = group.visible
        if visible is None:  # causal, aligned with the first key
            visible = torch.ones(n, m, dtype=torch.bool, device=group.q.device).tril()
        return masked_ranks(group.q, group.k, visible)
    counts = [
        distinct_argmax((group.logits(slice(i, i + 1), slice(*rows)) for rows in blocks(n, m)), 1, m, group.v.device)
        for i in range(g)
    ]
    return torch.cat(counts)


def _spectra(a: Tensor, wanted: frozenset[str], tol: float) -> dict[str, Tensor]:
    """The numbers of :mod:`attnrank.ranks`, from one decomposition where several are wanted."""
    if wanted <= {"hardmax"}:
        return {}
    if wanted <= {"hardmax", "numerical"}:
        return {"numerical_rank": ranks.numerical_rank(a, tol)}
    sigma = ranks.singular_values(a.cpu())
    found = {}
    if "numerical" in wanted:
        found["numerical_rank"] = (sigma >= tol).sum(-1)
    if "stable" in wanted:
        found["stable_rank"] = (sigma / sigma[..., :1]).square().sum(-1)
    if "effective" in wanted:
        p = sigma / sigma.sum(-1, keepdim=True)
        found["effective_rank"] = torch.special.xlogy(p, p).sum(-1).neg().exp().clamp(max=p.shape[-1])
    return found


def _deviation(group: Group, part: slice, rows: Tensor | slice, a: Tensor) -> Tensor:
    """Largest difference from the model's output, in units of the largest entry of v."""
    v = group.v[part].double()
    difference = (a @ v - group.output[part][:, rows].double()).abs().amax((-2, -1))
    largest = v.abs().amax((-2, -1))
    return difference / largest.where(largest > 0, 1.0)
