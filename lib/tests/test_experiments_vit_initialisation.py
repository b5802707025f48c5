"""experiments.vit_initialisation: the functions of its tables against a Transformer in plain numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.special import erf

from attnrank import data
from attnrank.experiments.shared.gram import mean_cosine as mean_cosines
from attnrank.experiments.vit_initialisation import blocks as vision
from attnrank.models import TransformerConfig, VisionTransformer

pytestmark = pytest.mark.usefixtures("one_thread")  # as in a sweep, where the published rows were computed


class NumpyTransformer:
    """The random Vision Transformer of an experiment on digits, in numpy, one image and one head at a time."""

    def __init__(self, width, heads, head_dim, *, init="lecun", depth=1, seed):
        config = TransformerConfig(width, heads, head_dim, depth, init=init)
        generator = torch.Generator().manual_seed(seed)
        model = VisionTransformer(config, image_size=8, patch_size=2, classes=10, channels=1, pool="mean",
                                  generator=generator, dtype=torch.float64)
        self.weight = {name: value.numpy() for name, value in model.state_dict().items()}
        self.width, self.heads, self.head_dim = width, heads, head_dim

    def linear(self, name, x):
        return x @ self.weight[name + ".weight"].T + self.weight[name + ".bias"]

    def embed(self, image):
        corners = [(row, column) for row in range(0, 8, 2) for column in range(0, 8, 2)]
        x = np.array([image[0, row : row + 2, column : column + 2].ravel() for row, column in corners])
        return self.linear("embedding", x) + self.weight["position"]

    @staticmethod
    def norm(x):  # gain 1 and bias 0 at initialisation
        return (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)

    def queries_keys(self, layer, x):
        """For each head its queries and its keys."""
        for head in range(self.heads):
            own = slice(head * self.head_dim, (head + 1) * self.head_dim)
            yield tuple(self.linear(f"encoder.blocks.{layer}.attention.{name}", x)[:, own] for name in ("query", "key"))

    def softmax(self, q, k):
        scores = np.exp(q @ k.T / math.sqrt(self.head_dim))
        return scores / scores.sum(1, keepdims=True)

    def block(self, layer, x):
        name, y = f"encoder.blocks.{layer}.", self.norm(x)
        values = np.split(self.linear(name + "attention.value", y), self.heads, axis=1)
        mixed = [self.softmax(q, k) @ v for (q, k), v in zip(self.queries_keys(layer, y), values)]
        x = x + self.linear(name + "attention.output", np.hstack(mixed))
        hidden = self.linear(name + "mlp.0", self.norm(x))
        return x + self.linear(name + "mlp.2", hidden * (1 + erf(hidden / math.sqrt(2))) / 2)


def digits(count, seed):
    """The images of an experiment with this seed."""
    generator = torch.Generator().manual_seed(10_000 + seed)
    return data.images("digits", count=count, generator=generator, standardise=True)[0].numpy()


def treated(x, treatment):
    if treatment == "whitened":
        values, vectors = np.linalg.eigh(x @ x.T)
        return vectors @ np.diag(values**-0.5) @ vectors.T @ x
    return x - x.mean(0) if treatment == "centred" else x


def hardmax_ranks(pairs):
    return [len(np.unique([np.argmax([query @ key for key in k]) for query in q])) for q, k in pairs]


def mean_cosine(x):
    n = len(x)
    return np.mean([x[i] @ x[j] / np.linalg.norm(x[i]) / np.linalg.norm(x[j])
                    for i in range(n) for j in range(n) if i != j])


@pytest.mark.parametrize("treatment", vision.TREATMENTS)
def test_vit_hardmax_against_numpy(treatment):
    model = NumpyTransformer(24, 5, 3, seed=2)
    fractions = [np.array(hardmax_ranks(model.queries_keys(0, treated(model.norm(model.embed(image)), treatment)))) / 16
                 for image in digits(2, 2)]
    result = vision.vit_hardmax("digits", 2, 24, 5, 3, treatment, images=2, seed=2)
    expected = {"n": 16, "rank_fraction": np.mean(fractions),
                "rank_fraction_over_images_std": np.std([fraction.mean() for fraction in fractions], ddof=1)}
    assert result == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("init", ["normal", "lecun", "truncated_normal"])
def test_vit_softmax_against_numpy(init):
    heads = vision.SPECTRA_PER_IMAGE + 2  # of which the last two are left out
    model = NumpyTransformer(24, heads, 3, init=init, seed=4)
    spectra, variances = [], []
    for image in digits(2, 4):
        pairs = list(model.queries_keys(0, model.norm(model.embed(image))))[: vision.SPECTRA_PER_IMAGE]
        spectra += [np.linalg.svd(model.softmax(q, k), compute_uv=False) for q, k in pairs]
        variances += [np.var(row) / 3 for q, k in pairs for row in q @ k.T]
    result = vision.vit_softmax("digits", 2, 24, heads, 3, init, images=2, seed=4)
    assert result.pop("n") == 16 and result.pop("score_std") == pytest.approx(math.sqrt(np.mean(variances)), rel=1e-12)
    shares = [np.mean(np.array(spectra) >= tolerance) for tolerance in (1e-1, 1e-2, 1e-3)]
    assert list(result.values()) == pytest.approx(shares, rel=1e-12) and 0 < shares[0] < shares[2]


@pytest.mark.parametrize("layer", [1, 3])
def test_vit_layers_against_numpy(layer):
    model = NumpyTransformer(24, 2, 4, depth=3, seed=1)
    fractions, cosines = [], []
    for image in digits(2, 1):
        x = model.embed(image)
        for before in range(layer - 1):
            x = model.block(before, x)
        x = model.norm(x)
        fractions += [rank / 16 for rank in hardmax_ranks(model.queries_keys(layer - 1, x))]
        cosines.append(mean_cosine(x))
    result = vision.vit_layers("digits", 2, 24, 2, 4, "lecun", depth=3, layer=layer, images=2, seed=1)
    expected = {"n": 16, "rank_fraction": np.mean(fractions), "mean_cosine": np.mean(cosines)}
    assert result == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("treatment", vision.TREATMENTS)
def test_vit_tokens_against_numpy(treatment):
    model = NumpyTransformer(24, 3, 64, seed=3)
    cosines, directions = [], []
    for image in digits(2, 3):
        x = treated(model.norm(model.embed(image)), treatment)
        s = np.linalg.eigvalsh(np.cov(x.T, bias=True))
        cosines.append(mean_cosine(x))
        directions.append(s.sum() ** 2 / (s**2).sum())
    result = vision.vit_tokens("digits", 2, 24, treatment, images=2, seed=3)
    expected = {"n": 16, "mean_cosine": np.mean(cosines), "directions": np.mean(directions)}
    assert result == pytest.approx(expected, rel=1e-10, abs=1e-12)  # orthonormal tokens have mean cosine 0


def gaussian(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_treatments():
    x = gaussian(3, 7, 12) + 2
    assert vision._treat(x, "none") is x
    centred, whitened = vision._treat(x, "centred"), vision._treat(x, "whitened")
    torch.testing.assert_close(centred.sum(-2), torch.zeros(3, 12, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(centred - x, (centred - x)[:, :1].expand_as(x), rtol=0, atol=1e-12)  # one shift each
    torch.testing.assert_close(whitened @ whitened.mT, torch.eye(7, dtype=torch.float64).expand(3, 7, 7),
                               rtol=0, atol=1e-10)
    mix = whitened @ x.mT  # (X X^T)^{1/2}: of all orthonormal frames in the span of the tokens, the nearest to them
    torch.testing.assert_close(mix, mix.mT, rtol=0, atol=1e-10)
    assert torch.linalg.eigvalsh(mix).min() > 0


def test_mean_cosine():
    x = gaussian(3, 7, 5)
    assert mean_cosines(x).mean().item() == pytest.approx(
        np.mean([mean_cosine(tokens) for tokens in x.numpy()]), rel=1e-12
    )
    assert mean_cosines(torch.ones(1, 4, 5, dtype=torch.float64)).item() == pytest.approx(1, rel=1e-12)


# Bad input ------------------------------------------------------------------------------------------------------------

HARDMAX = {"dataset": "digits", "patch": 2, "width": 24, "heads": 2, "head_dim": 4, "treatment": "none", "images": 2,
           "seed": 0}
SOFTMAX = {name: value for name, value in HARDMAX.items() if name != "treatment"} | {"init": "lecun"}


@pytest.mark.parametrize("function, good, change, message", [
    (vision.vit_hardmax, HARDMAX, {"dataset": "mnist"}, "name must be one of .*digits.*; got 'mnist'"),
    (vision.vit_hardmax, HARDMAX, {"dataset": "docstrings"}, "name must be a set of images, got 'docstrings'"),
    (vision.vit_hardmax, HARDMAX, {"patch": 3}, "patch_size must divide image_size 8, got 3"),
    (vision.vit_hardmax, HARDMAX, {"heads": 0}, "heads must be at least 1, got 0"),
    (vision.vit_hardmax, HARDMAX, {"head_dim": 0}, "head_dim must be at least 1, got 0"),
    (vision.vit_hardmax, HARDMAX, {"treatment": "scaled"}, "treatment must be one of .*whitened; got 'scaled'"),
    (vision.vit_hardmax, HARDMAX, {"images": 1}, "images must be at least 2, got 1"),
    (vision.vit_hardmax, HARDMAX, {"seed": -1}, "seed must be at least 0, got -1"),
    (vision.vit_hardmax, HARDMAX, {"treatment": "whitened", "width": 8}, "'whitened' needs linearly independent"),
    (vision.vit_softmax, SOFTMAX, {"init": "he"}, "init must be one of .*lecun.*; got 'he'"),
    (vision.vit_layers, SOFTMAX | {"depth": 2}, {"layer": 0}, "layer must be at least 1, got 0"),
    (vision.vit_layers, SOFTMAX | {"depth": 2}, {"layer": 3}, "layer must be at most the depth 2, got 3"),
])
def test_bad_input(function, good, change, message):
    with pytest.raises(ValueError, match=message):
        function(**good | change)
