"""Synthetic token sequences: what the theorems assume, and the ways in which real tokens differ from it."""

from __future__ import annotations

import math
from collections.abc import Callable
from inspect import Parameter, signature

import torch
from jaxtyping import Float
from torch import Tensor

from attnrank import _check


def tokens(kind: str, n: int, d: int, *, generator: torch.Generator, **options: float) -> Float[Tensor, "{n} {d}"]:
    """A sequence of n tokens of width d, drawn on the CPU in float64 so that every device sees the same one.

    Kinds
    -----
    orthonormal : X X^T = I: a uniformly random orthonormal frame; needs d >= n.
    almost_orthonormal : X X^T = I + E, zero diagonal, max |E_ij| = ``epsilon`` (0.01); needs d >= n.
    gaussian : i.i.d. N(0, 1/d) entries, so that a token has norm about 1.
    sphere : i.i.d. uniform on the unit sphere.
    uniform : i.i.d. uniform entries on [``low`` (0.0), ``high`` (1.0)].
    autoregressive : x_t = r x_{t-1} + sqrt(1 - r^2) g_t, g_t i.i.d. N(0, I/d), r the ``correlation`` (0.9).
    anisotropic : sqrt(c) u + sqrt(1 - c) s_t, s_t i.i.d. on the unit sphere, one common unit vector u; c the
        ``cosine`` (0.5), the mean inner product of two tokens and, for wide tokens, their cosine.
    repeated_vocabulary : each token is one of ``vocabulary`` (50) Gaussian ones, drawn uniformly.
    mixture : sqrt(c) m_z + sqrt(1 - c) g_t, g_t and the ``components`` (10) centres m_z i.i.d. N(0, I/d), z uniform;
        c the ``cosine`` (0.5), the mean inner product of two tokens with one centre (0 of others).
    heavy_tailed : i.i.d. Student t entries with ``freedom`` (3.0) degrees of freedom, divided by sqrt(d).

    Parameters
    ----------
    kind : one of the names above.
    n, d : number of tokens and their width, >= 1.
    generator : torch.Generator on the CPU.
    options : the options of the kind, whose defaults stand in parentheses.

    Returns
    -------
    float64 tensor (n, d) on the CPU.

    Raises
    ------
    ValueError : unknown kind or option, n or d < 1, d < n for the two orthonormal kinds, an option out of its range.

    Examples
    --------
    >>> import torch
    >>> from attnrank import inputs
    >>> x = inputs.tokens('orthonormal', 4, 8, generator=torch.Generator().manual_seed(0))
    >>> torch.allclose(x @ x.mT, torch.eye(4, dtype=torch.float64))
    True
    """
    draw = KINDS[_check.choice("kind", kind, KINDS)]
    n, d = _check.integer("n", n, minimum=1), _check.integer("d", d, minimum=1)
    _check.generator("generator", generator)
    allowed = {name for name, option in signature(draw).parameters.items() if option.kind is Parameter.KEYWORD_ONLY}
    if unknown := sorted(set(options) - allowed):
        raise ValueError(f"options of kind {kind!r} are {sorted(allowed) or 'none'}, got {unknown}")
    return draw(n, d, generator, **options)


def _normal(n: int, d: int, generator: torch.Generator) -> Tensor:
    return torch.randn(n, d, generator=generator, dtype=torch.float64, device="cpu")


def _orthonormal(n: int, d: int, generator: torch.Generator) -> Tensor:
    if d < n:
        raise ValueError(f"d must be at least n for orthonormal tokens, got d = {d} and n = {n}")
    frame, triangle = torch.linalg.qr(_normal(d, n, generator))
    # The signs make the frame uniformly distributed: QR alone fixes them by the algorithm's convention.
    return (frame * triangle.diagonal().sign()).T.contiguous()


def _almost_orthonormal(n: int, d: int, generator: torch.Generator, *, epsilon: float = 0.01) -> Tensor:
    epsilon = _check.real("epsilon", epsilon, minimum=0.0)
    frame = _orthonormal(n, d, generator)
    symmetric = 2.0 * torch.rand(n, n, generator=generator, dtype=torch.float64, device="cpu").triu(1) - 1.0
    error = symmetric.triu(1) + symmetric.triu(1).T
    if n > 1:
        error *= epsilon / error.abs().max()
    values, vectors = torch.linalg.eigh(torch.eye(n, dtype=torch.float64, device="cpu") + error)
    if values[0] <= 0:
        raise ValueError(f"epsilon = {epsilon} is too large for n = {n}: I + E is not positive definite")
    return (vectors * values.sqrt()) @ vectors.T @ frame


def _gaussian(n: int, d: int, generator: torch.Generator) -> Tensor:
    return _normal(n, d, generator) / math.sqrt(d)


def _sphere(n: int, d: int, generator: torch.Generator) -> Tensor:
    return torch.nn.functional.normalize(_normal(n, d, generator), dim=-1)


def _uniform(n: int, d: int, generator: torch.Generator, *, low: float = 0.0, high: float = 1.0) -> Tensor:
    low = _check.real("low", low)
    high = _check.real("high", high, above=low)
    width = _check.real("high - low", high - low)
    return low + width * torch.rand(n, d, generator=generator, dtype=torch.float64, device="cpu")


def _autoregressive(n: int, d: int, generator: torch.Generator, *, correlation: float = 0.9) -> Tensor:
    correlation = _check.real("correlation", correlation, minimum=-1.0, maximum=1.0)
    steps = _gaussian(n, d, generator)
    innovation = math.sqrt(1.0 - correlation**2)
    for t in range(1, n):
        steps[t] = correlation * steps[t - 1] + innovation * steps[t]
    return steps


def _anisotropic(n: int, d: int, generator: torch.Generator, *, cosine: float = 0.5) -> Tensor:
    cosine = _check.real("cosine", cosine, minimum=0.0, maximum=1.0)
    common, own = _sphere(1, d, generator), _sphere(n, d, generator)
    return math.sqrt(cosine) * common + math.sqrt(1.0 - cosine) * own


def _repeated_vocabulary(n: int, d: int, generator: torch.Generator, *, vocabulary: int = 50) -> Tensor:
    words = _gaussian(_check.integer("vocabulary", vocabulary, minimum=1), d, generator)
    return words[torch.randint(len(words), (n,), generator=generator, device="cpu")]


def _mixture(n: int, d: int, generator: torch.Generator, *, components: int = 10, cosine: float = 0.5) -> Tensor:
    cosine = _check.real("cosine", cosine, minimum=0.0, maximum=1.0)
    centres = _gaussian(_check.integer("components", components, minimum=1), d, generator)
    own = _gaussian(n, d, generator)
    return (
        math.sqrt(cosine) * centres[torch.randint(len(centres), (n,), generator=generator, device="cpu")]
        + math.sqrt(1.0 - cosine) * own
    )


def _heavy_tailed(n: int, d: int, generator: torch.Generator, *, freedom: float = 3.0) -> Tensor:
    freedom = _check.real("freedom", freedom, minimum=0.1)
    u, turns = torch.rand(2, n, d, generator=generator, dtype=torch.float64, device="cpu")
    # Bailey's polar method, exact for every freedom > 0; 1 - u lies in (0, 1], so that no entry is infinite.
    radius = (freedom * torch.expm1(-2.0 / freedom * torch.log1p(-u))).sqrt()
    return radius * (2.0 * math.pi * turns).cos() / math.sqrt(d)


KINDS: dict[str, Callable[..., Tensor]] = {
    "orthonormal": _orthonormal,
    "almost_orthonormal": _almost_orthonormal,
    "gaussian": _gaussian,
    "sphere": _sphere,
    "uniform": _uniform,
    "autoregressive": _autoregressive,
    "anisotropic": _anisotropic,
    "repeated_vocabulary": _repeated_vocabulary,
    "mixture": _mixture,
    "heavy_tailed": _heavy_tailed,
}
