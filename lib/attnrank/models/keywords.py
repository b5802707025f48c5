"""Attention that listens: the Keyword Transformer of Arm (Berg, O'Connor and Tairum Cruz 2021), KWT-1, sound to
word."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnrank import _check

WIDTH, DEPTH, TOKENS, COEFFICIENTS = 64, 12, 99, 40
FRAME, STEP = 480, 160
LABELS = ("_silence_", "_unknown_", "yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go")


class FrontEnd(nn.Module):
    """Mel-frequency cepstral coefficients of one second at 16 kHz: sound (batch, 16000) -> (batch, 98, 40)."""

    def __init__(self) -> None:
        super().__init__()
        shapes = {"window": (FRAME,), "dft_real": (244, FRAME), "dft_imag": (244, FRAME), "mel": (80, 244),
        "log_floor": (),
                  "dct": (COEFFICIENTS, 80), "mean": (), "scale": (COEFFICIENTS,)}  # fmt: skip
        for name, shape in shapes.items():
            self.register_buffer(name, torch.ones(shape))

    window: Tensor
    dft_real: Tensor
    dft_imag: Tensor
    mel: Tensor
    log_floor: Tensor
    dct: Tensor
    mean: Tensor
    scale: Tensor

    def forward(self, sound: Tensor) -> Tensor:
        frames = sound.unfold(-1, FRAME, STEP) * self.window
        magnitude = ((frames @ self.dft_real.T).square() + (frames @ self.dft_imag.T).square()).sqrt()
        return ((magnitude @ self.mel.T).clamp(min=self.log_floor).log() @ self.dct.T - self.mean) * self.scale


class KeywordLayer(nn.Module):
    """Post-norm: X <- LN_1(X + MHA(X)), then X <- LN_2(X + W_2 gelu(W_1 X + b_1) + b_2); one head of dimension 64."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.o = nn.Linear(WIDTH, WIDTH)
        self.fc1, self.fc2 = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH, eps=1e-6), nn.LayerNorm(WIDTH, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y[:, None] for y in (self.q(x), self.k(x), self.v(x)))
        x = self.ln1(x + self.o(F.scaled_dot_product_attention(q, k, v)[:, 0]))
        return self.ln2(x + self.fc2(F.gelu(self.fc1(x), approximate="tanh")))


class KeywordTransformer(nn.Module):
    """Sound (batch, 16000), or its features (batch, 98, 40), to logits (batch, 12) of ``LABELS``; 99 tokens, 12 layers.

    Random weights are normal of standard deviation 0.02 cut at 0.04, which leaves 0.0176, and biases 0, as the authors'
    are; a front end must be loaded.
    """

    def __init__(self) -> None:
        super().__init__()
        self.frontend = FrontEnd()
        self.patch = nn.Linear(COEFFICIENTS, WIDTH)
        self.class_emb, self.pos_emb = (nn.Parameter(torch.empty(1, n, WIDTH)) for n in (1, TOKENS))
        self.layers = nn.ModuleList(KeywordLayer() for _ in range(DEPTH))
        self.head = nn.Linear(WIDTH, len(LABELS))
        linear = [module for module in self.modules() if isinstance(module, nn.Linear)]
        for weight in (self.class_emb, self.pos_emb, *(module.weight for module in linear)):
            nn.init.trunc_normal_(weight, std=0.02, a=-0.04, b=0.04)
        for module in linear:
            if module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        if _check.matrices("x", x).shape[1:] not in ((16000,), (98, COEFFICIENTS)):
            raise ValueError(f"x must have shape (batch, 16000) or (batch, 98, {COEFFICIENTS}), got {tuple(x.shape)}")
        x = self.patch(self.frontend(x) if x.ndim == 2 else x)
        x = torch.cat([self.class_emb.expand(len(x), -1, -1), x], 1) + self.pos_emb
        for layer in self.layers:
            x = layer(x)
        return self.head(x[:, 0])
