"""Shapes of Transformers, and how their weights are drawn."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils import skip_init

from attnrank import _check

INITIALISATIONS = ("normal", "truncated_normal", "xavier", "lecun")


def draw_weight(init: str, fan_out: int, fan_in: int, generator: torch.Generator) -> Float[Tensor, "fan_out fan_in"]:
    """Draw the float64 weight W of a linear map y = W x, with independent entries.

    - ``normal``: N(0, 1), the query and key weights of the rank theorem.
    - ``truncated_normal``: N(0, 0.02^2) conditioned on [-0.04, 0.04], as in the first BERT; the truncation leaves a
      standard deviation of 0.0176. torch's ``trunc_normal_`` cuts at -2 and 2 unless told otherwise, which leaves
      N(0, 0.02^2) as it is.
    - ``xavier``: uniform on [-a, a] with a^2 = 6 / (fan_in + fan_out), variance 2 / (fan_in + fan_out) (Glorot and
      Bengio 2010). torch.nn.MultiheadAttention stacks W_q, W_k, W_v first, so that its own a^2 is 6 / (d + 3 d).
    - ``lecun``: N(0, 1 / fan_in), which keeps the variance of the input (LeCun et al. 1998).

    Raises ValueError for an unknown ``init``, a fan below 1 or a generator that is not on the CPU.
    """
    _check.choice("init", init, INITIALISATIONS)
    shape = (_check.integer("fan_out", fan_out, minimum=1), _check.integer("fan_in", fan_in, minimum=1))
    _check.generator("generator", generator)
    if init in ("normal", "lecun"):
        normal = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
        return normal if init == "normal" else normal / math.sqrt(fan_in)
    uniform = 2 * torch.rand(shape, generator=generator, dtype=torch.float64, device="cpu") - 1
    if init == "xavier":
        return uniform * math.sqrt(6 / (fan_in + fan_out))
    # P(-2 < Z < 2) = erf(sqrt 2), and Z = sqrt(2) erfinv(U) is standard normal for U uniform on [-1, 1].
    return 0.02 * math.sqrt(2) * torch.erfinv(uniform * math.erf(math.sqrt(2)))


@dataclass(frozen=True)
class TransformerConfig:
    """Shape and initialisation of a Transformer encoder; every field varies independently of the others.

    Parameters
    ----------
    width, heads, head_dim, depth : d, h, d_h and the number of blocks, each at least 1.
    mlp_width : hidden width of each MLP; None means 4 d.
    value_dim : d_v; None means d_h.
    temperature : T > 0, the divisor of the query-key products; None means sqrt(d_h).
    init : scheme of ``draw_weight`` for every linear map. With ``normal`` it applies to W_q and W_k only, and the other
        maps are drawn by ``lecun``. Under every scheme biases start at 0, LayerNorm gains at 1, and class token and
        learned positions are drawn by ``truncated_normal``.
    qk_norm : queries and keys of every head are scaled to the length sqrt(d_h) before they are multiplied.
    tied : W_k = W_q and b_k = b_q.
    learn_temperature : each head has a temperature of its own, trained as its logarithm, that starts at T.
    frozen : W_q, W_k and their biases stay as drawn (``requires_grad`` is False).

    The last four change no weight that is drawn: with one seed, models that differ in them only start from the same.

    Raises ValueError for a field out of range.
    """

    width: int
    heads: int
    head_dim: int
    depth: int
    mlp_width: int | None = None
    value_dim: int | None = None
    temperature: float | None = None
    init: str = "truncated_normal"
    qk_norm: bool = False
    tied: bool = False
    learn_temperature: bool = False
    frozen: bool = False

    def __post_init__(self) -> None:
        for name in ("width", "heads", "head_dim", "depth"):
            self._keep(name, _check.integer(name, getattr(self, name), minimum=1))
        for name in ("mlp_width", "value_dim"):
            if getattr(self, name) is not None:
                self._keep(name, _check.integer(name, getattr(self, name), minimum=1))
        if self.temperature is not None:
            self._keep("temperature", _check.real("temperature", self.temperature, above=0))
        _check.choice("init", self.init, INITIALISATIONS)
        for name in ("qk_norm", "tied", "learn_temperature", "frozen"):
            self._keep(name, _check.flag(name, getattr(self, name)))

    def _keep(self, name: str, value: int | float | bool) -> None:
        """NumPy's numbers as Python's: a checkpoint says the configuration in JSON."""
        object.__setattr__(self, name, value)

    def linear(self, fan_in: int, fan_out: int, generator: torch.Generator, *, query_key: bool = False) -> nn.Linear:
        """Return the map x -> W x + b with W drawn by the scheme and b = 0."""
        init = "lecun" if self.init == "normal" and not query_key else self.init
        layer = skip_init(nn.Linear, fan_in, fan_out, dtype=torch.float64)  # leaves torch's global generator alone
        with torch.no_grad():
            layer.weight.copy_(draw_weight(init, fan_out, fan_in, generator))
            layer.bias.zero_()
        return layer
