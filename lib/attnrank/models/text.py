"""Text Transformers."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attnrank import _check
from attnrank.models.encoder import Encoder, QueriesKeys
from attnrank.models.vision import POSITIONS, sinusoids
from attnrank.models.weights import TransformerConfig

#: The number of the token that fills a text up to the length of its batch.
PADDING = 0


def _normal(shape: tuple[int, int], generator: torch.Generator) -> Float[Tensor, "rows d"]:
    return torch.randn(shape, generator=_check.generator("generator", generator), dtype=torch.float64, device="cpu")


class TextTransformer(nn.Module):
    """Transformer that classifies sequences of token numbers 0..vocabulary-1, of which 0 is padding::

        X_0 = E[tokens] + P
        logits = W z + b,  z = the mean of the rows of Encoder(X_0) that are no padding

    Padding is attended to by nobody and enters no mean, so that it changes nothing. E has entries N(0, token_std^2);
    P is ``learned``, with entries N(0, position_std^2), ``sinusoidal`` or ``none``. The standard deviations are those
    of BERT. Weights are drawn in the order of the equations. Raises ValueError for bad input.
    """

    def __init__(
        self,
        config: TransformerConfig,
        *,
        vocabulary: int,
        length: int,
        classes: int,
        generator: torch.Generator,
        positions: str = "learned",
        token_std: float = 0.02,
        position_std: float = 0.02,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        _check.integer("vocabulary", vocabulary, minimum=2)
        _check.integer("classes", classes, minimum=1)
        _check.choice("positions", positions, POSITIONS)
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise ValueError(f"dtype must be a floating-point torch.dtype, got {dtype!r}")
        self.config, self.vocabulary = config, vocabulary
        self.length = _check.integer("length", length, minimum=1)
        shapes = {"token_std": (vocabulary, config.width), "position_std": (length, config.width)}
        stds = {"token_std": token_std, "position_std": position_std}
        self.embedding, position = (
            nn.Parameter(_check.real(name, stds[name], above=0.0) * _normal(shape, generator))
            for name, shape in shapes.items()
        )
        if positions == "learned":
            self.position = position
        else:
            none = torch.zeros(length, 1, device="cpu")
            fixed = sinusoids(length, config.width) if positions == "sinusoidal" else none
            self.register_buffer("position", fixed, persistent=False)
        self.encoder = Encoder(config, generator)
        self.classifier = config.linear(config.width, classes, generator)
        self.to(dtype)

    def embed(self, tokens: Int[Tensor, "batch n"]) -> Float[Tensor, "batch n d"]:
        """Return X_0, padding included."""
        self._check_tokens(tokens)
        return self.embedding[tokens.long()] + self.position[: tokens.shape[1]]

    def forward(self, tokens: Int[Tensor, "batch n"]) -> Float[Tensor, "batch classes"]:
        keys = self.keys(tokens)
        y = self.encoder(self.embed(tokens), keys)
        if keys is None:
            return self.classifier(y.mean(1))
        return self.classifier((y * keys[..., None]).sum(1) / keys.sum(1, keepdim=True))

    def keys(self, tokens: Int[Tensor, "batch n"]) -> Bool[Tensor, "batch n"] | None:
        """Which tokens are no padding; None where none is. A text of padding alone raises ValueError."""
        self._check_tokens(tokens)
        keys = tokens != PADDING
        if not keys.any(1).all():
            raise ValueError("tokens must hold a token that is no padding in every row")
        return None if keys.all() else keys

    def queries_keys(
        self, tokens: Int[Tensor, "batch n"], layers: Iterable[int] | None = None, *, scaled: bool = False
    ) -> list[QueriesKeys]:
        """Return (queries, keys) of the layers asked for, padding included; see ``Encoder.queries_keys``."""
        return self.encoder.queries_keys(self.embed(tokens), layers, scaled=scaled, keys=self.keys(tokens))

    def _check_tokens(self, tokens: Tensor) -> None:
        if not isinstance(tokens, Tensor) or tokens.ndim != 2 or tokens.dtype not in (torch.int32, torch.int64):
            is_tensor = isinstance(tokens, Tensor)
            kind = f"{tokens.dtype} of shape {tuple(tokens.shape)}" if is_tensor else type(tokens).__name__
            raise ValueError(f"tokens must be an integer tensor (batch, n), int32 or int64, got {kind}")
        if not len(tokens):
            raise ValueError(f"tokens must not be empty, got shape {tuple(tokens.shape)}")
        if not 1 <= tokens.shape[1] <= self.length:
            raise ValueError(f"tokens must have 1 to {self.length} columns, got {tuple(tokens.shape)}")
        least, most = int(tokens.min()), int(tokens.max())
        if not 0 <= least <= most < self.vocabulary:
            raise ValueError(f"tokens must lie in 0..{self.vocabulary - 1}, got {least}..{most}")
