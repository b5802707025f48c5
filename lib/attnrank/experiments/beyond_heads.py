"""Tables of chapter 05 about the wiring of heads: masks, several heads, tied weights, weights found by ascent."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from attnrank import _check
from attnrank.experiments.counting import hardmax_rank_on_device
from attnrank.experiments.experiment import Experiment
from attnrank.ranks import singular_values
from attnrank.sweep import Setting, grid
from attnrank.theory import causal_head_dim_bound

#: Every matrix below has integer entries; its non-zero singular values are far above this.
ZERO = 1e-8


def causal_heads(n: int, d_h: int, samples: int, seed: int) -> Setting:
    """Hardmax rank of causal heads with i.i.d. N(0,1) queries and keys: orthonormal tokens, Gaussian weights."""
    ranks = [hardmax_rank_on_device(q, k, causal=True) for q, k in queries_keys(n, d_h, samples, seed)]
    return summary("rank", torch.cat(ranks))


def causal_bounds(n: int, d_h: int) -> Setting:
    """The bound on the expected rank of causal random heads resolved by head dimension (about two seconds a value)."""
    return {"bound": causal_head_dim_bound(n, d_h)}


def window_heads(n: int, d_h: int, window: int, causal: bool, samples: int, seed: int) -> Setting:
    """Hardmax rank if row i sees the last ``window`` keys (causal), or the keys at distance < ``window``."""
    position = torch.arange(n)
    distance = position[:, None] - position
    hidden = (distance < 0) | (distance >= window) if causal else distance.abs() >= window
    ranks = [distinct((q @ k.mT).masked_fill(hidden, -torch.inf)) for q, k in queries_keys(n, d_h, samples, seed)]
    return summary("rank", torch.cat(ranks))


def tied_heads(n: int, d_h: int, samples: int, seed: int) -> Setting:
    """Hardmax rank of K K^T for i.i.d. N(0,1) keys, and the number of tokens that choose themselves."""
    ranks, selves = [], []
    for k, _ in queries_keys(n, d_h, samples, seed):
        scores = k @ k.mT
        ranks.append(distinct(scores))
        selves.append((scores.argmax(-1) == torch.arange(n)).sum(-1))
    return summary("rank", torch.cat(ranks)) | summary("selves", torch.cat(selves))


def many_heads(n: int, d_h: int, heads: int, samples: int, seed: int) -> Setting:
    """Ranks of H independent heads together: A_1 over ... over A_H, side by side, and summed.

    Above one another the rank is the number of distinct tokens that any head attends to. Side by side (n x Hn) and
    summed (n x n) it is counted from float64 singular values.
    """
    generator = torch.Generator().manual_seed(_check.integer("seed", seed, minimum=0))
    vertical, horizontal, added = [], [], []
    for _ in range(samples):
        q, k = torch.randn(2, heads, n, d_h, generator=generator, dtype=torch.float64)
        choice = (q @ k.mT).argmax(-1)
        a = torch.nn.functional.one_hot(choice, n).double()
        vertical.append(choice.unique().numel())
        horizontal.append(int((singular_values(a.transpose(0, 1).reshape(n, heads * n)) > ZERO).sum()))
        added.append(int((singular_values(a.sum(0)) > ZERO).sum()))
    return {
        key: value
        for name, ranks in (("vertical", vertical), ("horizontal", horizontal), ("sum", added))
        for key, value in summary(name, torch.tensor(ranks)).items()
    }


CHECKPOINTS = (0, 30, 100, 300, 1000, 3000)


def rank_ascent(n: int, d_h: int, surrogate: str, seed: int) -> Setting:
    """Hardmax rank while the queries and keys of one head climb a smooth surrogate of it; A is their softmax.

    "coverage": sum_j 1 - prod_i (1 - A_ij), the expected number of distinct tokens if each row samples one token.
    "matching": sum_i log A_ii, the log-likelihood of every token attending to itself. Linearly independent tokens let
    the weights reach any queries and keys, so the ascent is in these. Adam with rate 0.1, from N(0,1) entries; the rank
    after each number of steps of ``CHECKPOINTS``.
    """
    _check.choice("surrogate", surrogate, ("coverage", "matching"))
    generator = torch.Generator().manual_seed(_check.integer("seed", seed, minimum=0))
    q, k = (torch.randn(n, d_h, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(2))
    optimiser = torch.optim.Adam([q, k], lr=0.1)
    ranks = {}
    for step in range(max(CHECKPOINTS) + 1):
        if step in CHECKPOINTS:
            ranks[f"rank_after_{step}"] = float(hardmax_rank_on_device(q, k))
        optimiser.zero_grad()
        log_a = (q @ k.T).log_softmax(-1)
        if surrogate == "matching":
            loss = -log_a.diagonal().sum()
        else:
            loss = torch.log1p(-log_a.exp().clamp(max=1 - 1e-12)).sum(0).exp().sum()
        loss.backward()
        optimiser.step()
    return ranks


def queries_keys(n: int, d_h: int, samples: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of i.i.d. N(0,1) queries and keys (batch, n, d_h), ``samples`` in all."""
    n, d_h = _check.integer("n", n, minimum=1), _check.integer("d_h", d_h, minimum=1)
    samples = _check.integer("samples", samples, minimum=2)
    generator = torch.Generator().manual_seed(_check.integer("seed", seed, minimum=0))
    together = max(1, 2**21 // (n * max(n, d_h)))
    for start in range(0, samples, together):
        shape = (min(together, samples - start), n, d_h)
        q = torch.randn(shape, generator=generator, dtype=torch.float64)
        yield q, torch.randn(shape, generator=generator, dtype=torch.float64)


def distinct(scores: Tensor) -> Tensor:
    """Number of distinct columns that the rows of ``scores`` (..., n, m) choose: the hardmax rank."""
    chosen = torch.zeros(scores.shape[:-2] + scores.shape[-1:], dtype=torch.bool)
    return chosen.scatter_(-1, scores.argmax(-1), True).sum(-1)


def summary(name: str, values: Tensor) -> Setting:
    """Mean and standard error of ``values`` (samples,), as columns."""
    values = values.double()
    error = values.std().item() / len(values) ** 0.5
    return {f"{name}_mean": values.mean().item(), f"{name}_standard_error": error}


def _causal_grid(samples: dict[int, int], head_dims: list[int]) -> list[Setting]:
    return [s for n, count in samples.items() for s in grid(n=[n], d_h=head_dims, samples=[count], seed=[0])]


EXPERIMENTS = {
    "causal_heads": Experiment(
        "What is the rank of a random head under a causal mask?",
        causal_heads,
        quick=_causal_grid({16: 400, 64: 400}, [1, 2, 8, 64]),
        paper=_causal_grid(
            {4: 20000, 16: 10000, 64: 4000, 100: 2000, 256: 1000, 1024: 100}, [1, 2, 4, 8, 16, 64, 512]
        ),
    ),
    "causal_bounds": Experiment(
        "What bounds the rank of a random head under a causal mask, at each head dimension?",
        causal_bounds,
        quick=grid(n=[16], d_h=[1, 2, 8]),
        paper=grid(n=[4, 16, 64, 100, 256, 1024], d_h=[1, 2, 4, 8, 16, 64, 512]),
    ),
    "window_heads": Experiment(
        "What is the rank of a random head that sees a sliding window?",
        window_heads,
        quick=grid(n=[128], d_h=[8, 64], window=[1, 4, 16, 64], causal=[True, False], samples=[20], seed=[0]),
        paper=grid(
            n=[512], d_h=[2, 8, 64, 512], window=[1, 2, 4, 8, 16, 32, 64, 128, 256, 512], causal=[True, False],
            samples=[40], seed=[0],
        ),
    ),
    "tied_heads": Experiment(
        "What is the rank of a random head whose queries are its keys?",
        tied_heads,
        quick=grid(n=[64], d_h=[2, 8, 16], samples=[100], seed=[0]),
        paper=grid(n=[64, 256, 1024], d_h=[1, 2, 4, 8, 12, 16, 20, 24, 32, 64], samples=[100], seed=[0]),
    ),
    "many_heads": Experiment(
        "What is the rank of several random heads together?",
        many_heads,
        quick=grid(n=[32], d_h=[64], heads=[1, 2, 3], samples=[10], seed=[0]),
        paper=grid(n=[64, 256], d_h=[8, 64, 512], heads=[1, 2, 3, 4, 6], samples=[40], seed=[0]),
    ),
    "rank_ascent": Experiment(
        "Which rank do the weights of a head reach by gradient ascent?",
        rank_ascent,
        quick=grid(n=[16], d_h=[2], surrogate=["matching"], seed=[0]),
        paper=grid(n=[64], d_h=[1, 2, 3, 8], surrogate=["coverage", "matching"], seed=[0, 1, 2]),
    ),
}  # fmt: skip
