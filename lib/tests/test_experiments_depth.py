"""experiments.depth: what rounding decides in deep layers, and random encoders against the forward pass."""

import numpy as np
import pytest
import torch

from attnrank.experiments import depth
from attnrank.inputs import tokens
from attnrank.models import Encoder, TransformerConfig
from replayed_heads import distinct, gen


def test_depth_ranks_marks_what_rounding_decides():
    row = depth.depth_ranks(16, 16, 8, False, 1.0, 8, 4, 0)
    assert row["hardmax_1"] is not None and row["hardmax_8"] is None
    assert row["residual_8"] < 1e-6 < row["residual_1"]


def test_random_encoders_measure_every_layer_of_the_forward_pass():
    n, d, heads, d_h, samples = 10, 16, 2, 4, 2
    result = depth.random_encoders("gaussian", n, d, heads, d_h, "lecun", samples, 3)
    generator, ranks, cosines = gen(3), [], []
    for _ in range(samples):
        x = tokens("gaussian", n, d, generator=generator)
        encoder = Encoder(TransformerConfig(d, heads, d_h, 8, init="lecun"), generator)
        x = x / x.square().mean().sqrt()
        with torch.no_grad():
            pairs = encoder.queries_keys(x)
            ranks.append([np.mean([distinct(q.numpy(), k.numpy()) for q, k in zip(*pair)]) / n for pair in pairs])
            y = encoder.blocks[0].norm1(x).numpy()
        unit = y / np.linalg.norm(y, axis=1, keepdims=True)
        cosines.append((unit @ unit.T)[np.triu_indices(n, 1)].mean())
    ranks = np.array(ranks)
    for layer in range(8):
        assert result[f"rank_{layer + 1}"] == pytest.approx(ranks[:, layer].mean(), rel=1e-12)
        assert result[f"rank_std_{layer + 1}"] == pytest.approx(ranks[:, layer].std(ddof=1), rel=1e-9)
    assert result["cosine_1"] == pytest.approx(np.mean(cosines), rel=1e-9)


def test_random_encoders_refuse_tokens_with_copies():
    with pytest.raises(ValueError, match="distribution must not repeat tokens"):
        depth.random_encoders("repeated_vocabulary", 10, 16, 2, 4, "lecun", 2, 3)
