"""Matrices that Newton steps share: Gram matrices of active groups, kernel matrices of tokens. Computed once, kept."""

from __future__ import annotations

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from attnrank.convex._arrays import columns, large, own_transpose_times, times_own_transpose

#: Kernel matrices are kept up to this many bytes in all.
KERNEL_BYTES = 2**31


class Gram:
    """a_g^T H a_h for pairs of groups that were ever active; the weights H as in Quadratic."""

    def __init__(self, a: Float64[Tensor, "samples tokens d"], weights: Tensor | None, outputs: int):
        self.a, self.weights, self.outputs = a, weights, outputs
        self.known = torch.empty(0, dtype=torch.int64, device=a.device)
        self.matrix = a.new_empty(0, 0)

    def of(self, groups: Int64[Tensor, "some"]) -> Float64[Tensor, "columns columns"]:
        """The matrix of some groups: a copy, which the caller may change."""
        d = self.a.shape[2]
        new = groups[~torch.isin(groups, self.known)]
        if len(new):
            self._add(new)
        if torch.equal(groups, self.known):
            return self.matrix.clone()
        place = torch.empty(self.a.shape[1] * self.outputs, dtype=torch.int64, device=groups.device)
        place[self.known] = torch.arange(len(self.known), device=groups.device)
        rows = (place[groups][:, None] * d + torch.arange(d, device=groups.device)).flatten()
        return self.matrix.index_select(0, rows).index_select(1, rows)

    def _add(self, new: Tensor) -> None:
        before, added = len(self.matrix), len(new) * self.a.shape[2]
        matrix = self.a.new_empty(before + added, before + added)
        matrix[:before, :before] = self.matrix
        if self.outputs == 1:
            a = columns(self.a, new)
            weighted = a if self.weights is None else a * self.weights.sqrt()[:, None]
            matrix[before:, before:] = own_transpose_times(weighted)
            if before:
                weighted = a if self.weights is None else a * self.weights[:, None]
                matrix[before:, :before] = weighted.mT @ columns(self.a, self.known)
        else:
            matrix[before:, before:] = self._block(new, new)
            matrix[before:, :before] = self._block(new, self.known)
        matrix[:before, before:] = matrix[before:, :before].mT
        self.matrix, self.known = matrix, torch.cat([self.known, new])

    def _block(self, rows: Tensor, others: Tensor) -> Tensor:
        d = self.a.shape[2]
        block = self.a.new_zeros(len(rows), d, len(others), d)
        for left in range(self.outputs):
            of_left = (rows % self.outputs == left).nonzero()[:, 0]
            if not len(of_left):
                continue
            a = columns(self.a, rows[of_left] // self.outputs)
            for right in range(self.outputs):
                of_right = (others % self.outputs == right).nonzero()[:, 0]
                if len(of_right):
                    assert self.weights is not None  # with several outputs they are the loss's curvature
                    weighted = a * self.weights[:, left, right, None]
                    part = weighted.mT @ columns(self.a, others[of_right] // self.outputs)
                    part = part.view(len(of_left), d, len(of_right), d)
                    block[of_left[:, None], :, of_right] = part.transpose(1, 2)
        return block.view(len(rows) * d, -1)


class Kernels:
    """a_t a_t^T (samples x samples) for tokens that were ever active, as many as fit into ``KERNEL_BYTES``."""

    def __init__(self, a: Float64[Tensor, "samples tokens d"]):
        self.a = a
        self.slots: dict[int, int] = {}
        self.store: Tensor | None = None

    def sum(
        self, tokens: Int64[Tensor, "some"], weights: Float64[Tensor, "some"]
    ) -> Float64[Tensor, "samples samples"]:
        """sum over tokens of weight times a_t a_t^T, a new matrix."""
        samples = self.a.shape[0]
        if self.store is None:
            room = min(self.a.shape[1], KERNEL_BYTES // (8 * samples**2))
            self.store = large(self.a, room, samples, samples)
        new = [token for token in tokens.tolist() if token not in self.slots]
        if len(self.slots) + len(new) > len(self.store):
            a = columns(self.a, tokens)
            return times_own_transpose(a * weights.sqrt().repeat_interleave(self.a.shape[2]))
        for token in new:
            slot = self.slots[token] = len(self.slots)
            times_own_transpose(self.a[:, token], out=self.store[slot])
        scale = self.a.new_zeros(len(self.slots))
        slots = torch.tensor([self.slots[token] for token in tokens.tolist()], device="cpu").to(self.a.device)
        scale[slots] = weights
        return (scale @ self.store[: len(scale)].flatten(1)).view(samples, samples)
