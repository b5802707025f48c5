"""vit_choices: the geometry of tokens against explicit sums, the rank against an explicit model, and bad names."""

import math

import numpy as np
import pytest
import torch

from attnrank import data, hardmax_rank
from attnrank.experiments.vit_initialisation import choices

SETTING = {"dataset": "digits", "patch": 2, "pixels": "unit", "embedding": "lecun", "class_token": False,
           "positions": 0.3, "samples": 4, "seed": 1, "d_h": 8}  # fmt: skip


def test_geometry_is_that_of_explicit_pairs():
    x = torch.randn(3, 7, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.5
    share, directions = choices.token_geometry(x)
    for sequence, rho, k in zip(x.numpy(), share, directions, strict=True):
        centred = sequence - sequence.mean(0)
        pairs = [(i, j) for i in range(7) for j in range(7) if i != j]
        assert rho.item() == pytest.approx(
            np.mean([sequence[i] @ sequence[j] for i, j in pairs]) / np.mean((sequence**2).sum(1))
        )
        squared = np.mean([(centred[i] @ centred[j]) ** 2 for i, j in pairs])
        assert k.item() == pytest.approx(np.mean((centred**2).sum(1)) ** 2 / squared)


def test_orthonormal_tokens_share_nothing_and_many_even_ones_have_their_dimension():
    share, directions = choices.token_geometry(torch.eye(9, dtype=torch.float64))
    assert share.item() == 0 and directions.item() == pytest.approx(64)
    even = torch.randn(4000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert choices.token_geometry(torch.nn.functional.normalize(even, dim=-1))[1].item() == pytest.approx(3, rel=0.05)


def test_the_rank_is_that_of_the_model_written_out():
    images = data.images("digits", count=4, generator=torch.Generator().manual_seed(10_001), standardise=False)[
        0
    ].double()
    generator = torch.Generator().manual_seed(1)
    embedding = torch.randn(192, 4, generator=generator, dtype=torch.float64) / 2
    tokens = []
    for image in images[:, 0]:
        tokens.append(
            torch.stack([image[r : r + 2, c : c + 2].reshape(4) for r in range(0, 8, 2) for c in range(0, 8, 2)])
        )
    x = torch.stack(tokens) @ embedding.T + 0.3 * torch.randn(16, 192, generator=generator, dtype=torch.float64)
    x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
    w_q, w_k = torch.randn(2, 3, 192, 8, generator=torch.Generator().manual_seed(1001), dtype=torch.float64)
    rank = torch.stack([hardmax_rank(x @ w_q[h], x @ w_k[h]).double() for h in range(3)]).mean().item()
    result = choices.vit_choices(**SETTING)
    assert result["rank_mean"] == pytest.approx(rank) and result["rank_fraction"] == pytest.approx(rank / 16)


def test_tokens_that_are_equal_but_for_rounding_are_one():
    """Two patches of one image differ by a constant, which LayerNorm removes; noise of rounding changes no rank."""
    setting = SETTING | {"embedding": "normalised", "positions": 0.0, "samples": 64, "d_h": 192}
    assert choices.vit_choices(**setting)["rank_mean"] == choices.vit_choices(**setting | {"pixels": "symmetric"})[
        "rank_mean"
    ]
    x = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[1, 3] = x[1, 1] + 1e-13
    x[0, 4] = x[0, 2] + 1e-6  # near, and another token all the same
    assert choices.first_equal(x).tolist() == [[0, 1, 2, 3, 4], [0, 1, 2, 1, 4]]


@pytest.mark.parametrize("embedding", choices.EMBEDDINGS)
@pytest.mark.parametrize("pixels", choices.PIXELS)
def test_every_choice_gives_a_rank_and_a_class_token_one_token_more(embedding, pixels):
    result = choices.vit_choices(**SETTING | {"embedding": embedding, "pixels": pixels, "class_token": True})
    assert result["n"] == 17 and 1 <= result["rank_mean"] <= 17 and all(math.isfinite(x) for x in result.values())


@pytest.mark.parametrize(
    ("change", "message"),
    [({"pixels": "raw"}, "pixels must be one of"), ({"embedding": "orthogonal"}, "embedding must be one of"),
     ({"positions": -1.0}, "positions must be at least 0"), ({"d_h": 0}, "d_h must be at least 1")],
)  # fmt: skip
def test_bad_choices_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        choices.vit_choices(**SETTING | change)
