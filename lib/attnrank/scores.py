"""From tokens to attention matrices: queries and keys, softmax at a temperature, hardmax, causal mask."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from attnrank import _check
from attnrank._scaling import scaled


def gaussian_weights(
    d: int, d_h: int, *, heads: int | None = None, generator: torch.Generator
) -> tuple[Float[Tensor, "*heads {d} {d_h}"], Float[Tensor, "*heads {d} {d_h}"]]:
    """Query and key weights with i.i.d. N(0, 1) entries: the random weights of the first paper's Theorem 1.

    Parameters
    ----------
    d : width of a token, >= 1.
    d_h : head dimension, >= 1.
    heads : number of independent heads; None means one head and no leading dimension.
    generator : torch.Generator on the CPU.

    Returns
    -------
    w_q, w_k : float64 tensors (d, d_h), or (heads, d, d_h).

    Raises
    ------
    ValueError : d, d_h or heads < 1, or a generator that is not on the CPU.

    Examples
    --------
    >>> import attnrank, torch
    >>> w_q, w_k = attnrank.gaussian_weights(64, 16, heads=4, generator=torch.Generator().manual_seed(0))
    >>> w_q.shape
    torch.Size([4, 64, 16])
    """
    shape: tuple[int, ...] = (_check.integer("d", d, minimum=1), _check.integer("d_h", d_h, minimum=1))
    if heads is not None:
        shape = (_check.integer("heads", heads, minimum=1), *shape)
    _check.generator("generator", generator)
    w_q, w_k = torch.randn(2, *shape, generator=generator, dtype=torch.float64, device="cpu")
    return w_q, w_k


def queries_keys(
    x: Float[Tensor, "*batch n d"], w_q: Float[Tensor, "*heads d d_h"], w_k: Float[Tensor, "*heads d d_h"]
) -> tuple[Float[Tensor, "*queries n d_h"], Float[Tensor, "*queries n d_h"]]:
    """Queries ``q = x w_q`` and keys ``k = x w_k``; a head dimension of the weights broadcasts behind the batch.

    Parameters
    ----------
    x : floating-point tensor (..., n, d), rows are tokens.
    w_q, w_k : tensors (d, d_h) or (heads, d, d_h) of the dtype of ``x``.

    Returns
    -------
    q, k : tensors (..., n, d_h), or (..., heads, n, d_h), of the dtype of ``x``, under autocast too.

    Raises
    ------
    ValueError : empty or non-finite input, shapes that do not fit, or a format of 8 bits, which has no products.

    Examples
    --------
    >>> import attnrank, torch
    >>> generator = torch.Generator().manual_seed(0)
    >>> x = attnrank.inputs.tokens('sphere', 100, 64, generator=generator)
    >>> q, k = attnrank.queries_keys(x, *attnrank.gaussian_weights(64, 16, heads=4, generator=generator))
    >>> q.shape
    torch.Size([4, 100, 16])
    """
    for name, value in (("x", x), ("w_q", w_q), ("w_k", w_k)):
        _check.finite(name, _check.with_arithmetic(name, _check.matrices(name, value)))
    if w_q.shape != w_k.shape or w_q.ndim > 3:
        raise ValueError(
            "w_q and w_k must have one shape, (d, d_h) or (heads, d, d_h); "
            f"got w_q of shape {tuple(w_q.shape)} and w_k of shape {tuple(w_k.shape)}"
        )
    if x.shape[-1] != w_q.shape[-2]:
        raise ValueError(f"x has width {x.shape[-1]} but w_q expects {w_q.shape[-2]}")
    _check.same_dtype_and_device(x=x, w_q=w_q, w_k=w_k)
    if w_q.ndim == 3:
        x = x.unsqueeze(-3)
    with _own_dtype(x):
        return x @ w_q, x @ w_k


def attention(
    q: Float[Tensor, "*#batch n d_h"],
    k: Float[Tensor, "*#batch m d_h"],
    *,
    temperature: float = 1.0,
    causal: bool = False,
    hard: bool = False,
) -> Float[Tensor, "*batch n m"]:
    """Attention matrix: row-wise ``softmax(q k^T / temperature)``, or the one-hot ``hardmax(q k^T)``.

    A Transformer's usual scaling is ``temperature = sqrt(d_h)``. The hardmax is the limit of temperature to 0 where
    the largest score of a row is unique; on exact ties it takes the first key. Its scores are products in the dtype of
    ``q``, in float32 for formats of 16 bits, of rows and keys scaled by powers of two: none over- or underflows.

    Parameters
    ----------
    q : floating-point tensor (..., n, d_h), queries.
    k : tensor (..., m, d_h) of the same dtype, keys; leading dimensions broadcast.
    temperature : > 0, in the units of the scores.
    causal : row i sees keys 0..i only; needs m = n.
    hard : hardmax instead of softmax.

    Returns
    -------
    tensor (..., n, m) of the dtype of ``q``, under autocast too; every row sums to 1.

    Raises
    ------
    ValueError : empty or non-finite input, shapes that do not fit, a format of 8 bits, temperature <= 0, a mask in
        the place of ``causal``, scores of a softmax that overflow where they are seen.

    Examples
    --------
    >>> import attnrank, torch
    >>> q, k = torch.tensor([[1.0], [-1.0]]), torch.tensor([[0.0], [1.0], [2.0]])
    >>> attnrank.attention(q, k).sum(-1).tolist()
    [1.0, 1.0]
    >>> attnrank.attention(q, k, hard=True).tolist()
    [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    """
    temperature = _check.real("temperature", temperature, above=0.0)
    causal, hard = _check.flag("causal", causal), _check.flag("hard", hard)
    for name, value in (("q", q), ("k", k)):
        _check.finite(name, _check.with_arithmetic(name, _check.matrices(name, value)))
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(f"q has head dimension {q.shape[-1]} but k has {k.shape[-1]}")
    _check.same_dtype_and_device(q=q, k=k)
    try:
        torch.broadcast_shapes(q.shape[:-2], k.shape[:-2])
    except RuntimeError:
        raise ValueError(
            f"leading dimensions of q and k must broadcast, got q of shape {tuple(q.shape)} and k of shape "
            f"{tuple(k.shape)}{_check.advice_on_groups(q.shape, k.shape)}"
        ) from None
    with _own_dtype(q):
        scores = _comparable_scores(q, k) if hard else _scores(q, k, temperature)
    if not causal:
        _check.finite("q k^T / temperature", scores)
    else:
        if q.shape[-2] != k.shape[-2]:
            raise ValueError(f"causal needs as many keys as queries, got {q.shape[-2]} and {k.shape[-2]}")
        ahead = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        _check.finite("q k^T / temperature", scores.masked_fill(ahead, 0.0))
        scores = scores.masked_fill(ahead, -torch.inf)
    if not hard:
        return scores.softmax(-1)
    return torch.zeros_like(scores, dtype=q.dtype).scatter_(-1, scores.argmax(-1, keepdim=True), 1.0)


def _comparable_scores(q: Tensor, k: Tensor) -> Tensor:
    """Each row of ``q k^T`` times some power of two: all that a hardmax compares."""
    q, k = (x.detach() if x.dtype.itemsize > 2 else x.detach().float() for x in (q, k))
    return scaled(q, -1) @ scaled(k, (-2, -1)).mT


def _own_dtype(x: Tensor) -> torch.autocast:
    """Products in the dtype of their factors: autocast would round those of float32 to a half format."""
    return torch.autocast(x.device.type, enabled=False)


def _scores(q: Tensor, k: Tensor, temperature: float) -> Tensor:
    """``q k^T / temperature``, through float64 where the range of the dtype is too small for what is divided."""
    info, quotient = torch.finfo(q.dtype), q / temperature
    held = info.tiny <= temperature <= info.max and _check.all_finite(quotient)
    # with short keys what quotients below ``tiny`` lose changes no score by more than half an eps
    if held and (temperature <= 1 or k.abs().amax().item() <= 1 / (info.tiny * q.shape[-1])):
        return quotient @ k.mT
    q, k, dtype = q.double(), k.double(), q.dtype
    longer = bool(q.abs().amax() > k.abs().amax())
    if longer == (temperature > 1):  # the larger numbers become smaller, or the smaller ones larger
        return ((q / temperature) @ k.mT).to(dtype)
    return (q @ (k / temperature).mT).to(dtype)
