"""The text Transformer: against its equations in numpy, and padding that changes nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import special, stats

from attnrank import hardmax_rank, probe
from attnrank.models import PADDING, TextTransformer, TransformerConfig, sinusoids

CONFIG = TransformerConfig(width=6, heads=2, head_dim=3, depth=3, mlp_width=5, value_dim=4, init="lecun")
TEXTS = torch.tensor([[3, 1, 4, 1, 5, 9], [2, 6, 5, 0, 0, 0], [7, 0, 0, 0, 0, 0], [8, 8, 8, 8, 0, 0]])


def text_model(config=CONFIG, **options):
    options = {"vocabulary": 10, "length": 8, "classes": 3, "dtype": torch.float64} | options
    return TextTransformer(config, generator=torch.Generator().manual_seed(0), **options).requires_grad_(False)


def scrambled(**options):
    """Every parameter of order one, so that each one matters."""
    model, generator = text_model(**options), torch.Generator().manual_seed(1)
    for value in model.parameters():
        value.copy_(torch.randn(value.shape, generator=generator, dtype=torch.float64) / math.sqrt(value.shape[-1]))
    return model


def by_hand(model, text):
    """Logits of one text without padding, in numpy, from the equations in the docstrings."""
    p = {name: value.numpy() for name, value in model.state_dict().items()}
    place = p["position"] if "position" in p else model.position.numpy()
    x = p["embedding"][text] + place[: len(text)]

    def linear(name, y):
        return y @ p[f"{name}.weight"].T + p[f"{name}.bias"]

    def norm(name, y):
        centred = y - y.mean(1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
        return scaled * p[f"{name}.weight"] + p[f"{name}.bias"]

    for layer in range(model.config.depth):
        block = f"encoder.blocks.{layer}"
        y, mixed = norm(f"{block}.norm1", x), []
        q, k, v = (linear(f"{block}.attention.{name}", y) for name in ("query", "key", "value"))
        for head in range(model.config.heads):
            part = slice(3 * head, 3 * head + 3)
            a = special.softmax(q[:, part] @ k[:, part].T / math.sqrt(3), axis=1)
            mixed.append(a @ v[:, 4 * head : 4 * head + 4])
        x = x + linear(f"{block}.attention.output", np.concatenate(mixed, 1))
        hidden = linear(f"{block}.mlp.0", norm(f"{block}.norm2", x))
        x = x + linear(f"{block}.mlp.2", hidden * stats.norm.cdf(hidden))
    return linear("classifier", norm("encoder.norm", x).mean(0))


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "none"])
def test_logits_are_those_of_the_equations_on_the_text_alone(positions):
    model = scrambled(positions=positions)
    for batch in (TEXTS, TEXTS.int(), TEXTS[1:], TEXTS[:1]):
        logits = model(batch)
        expected = [by_hand(model, text[text != PADDING].numpy()) for text in batch]
        np.testing.assert_allclose(logits.numpy(), expected, rtol=1e-10, atol=1e-12)


def test_padding_has_no_gradient_and_no_effect():
    model = scrambled().requires_grad_(True)
    model(TEXTS).square().sum().backward()
    assert not model.embedding.grad[PADDING].any() and model.embedding.grad[1:].any(1).all()
    before = model(TEXTS)
    with torch.no_grad():
        model.embedding[PADDING] += 9 * torch.arange(6)
    torch.testing.assert_close(model(TEXTS), before, rtol=0, atol=0)
    with torch.no_grad():  # negative control: a token that is there
        model.embedding[8] += 9 * torch.arange(6)
    assert not torch.allclose(model(TEXTS), before)


def test_queries_and_keys_of_every_layer_are_those_of_the_text_alone():
    model = scrambled()
    together = model.queries_keys(TEXTS, scaled=True)
    for row, text in enumerate(TEXTS):
        n = int((text != PADDING).sum())
        for both, alone in zip(together, model.queries_keys(text[None, :n], scaled=True), strict=True):
            for x, y in zip(both, alone, strict=True):
                torch.testing.assert_close(x[row, :, :n], y[0], rtol=1e-9, atol=1e-11)


def test_the_probe_sees_the_padding():
    model = scrambled()
    found = probe(model, TEXTS, ranks="hardmax", per_sample=True)
    assert set(found["mask"]) == {"none", "padding"} and found.deviation.max() < 1e-10
    for row, text in enumerate(TEXTS):
        own = text[text != PADDING][None]
        ranks = torch.cat([hardmax_rank(q, k) for q, k in model.queries_keys(own)]).flatten()
        rows = found[found["sample"] == row]
        assert rows.hardmax_rank.tolist() == ranks.tolist() and set(rows.n) == {own.shape[1]}


def test_how_weights_are_drawn():
    model = text_model(vocabulary=4000, length=1000, token_std=0.5, position_std=2.0)
    for values, std in ((model.embedding, 0.5), (model.position, 2.0)):
        assert stats.kstest(values.flatten().numpy() / std, "norm").pvalue > 1e-6
    bert = text_model(vocabulary=4000, length=1000)  # the defaults: those of BERT
    torch.testing.assert_close((bert.embedding, bert.position), (model.embedding * 0.04, model.position * 0.01))
    assert torch.equal(text_model(positions="sinusoidal").position, sinusoids(8, 6))
    assert torch.equal(text_model().embedding, text_model(positions="none").embedding)
    deep, shallow = text_model(), text_model(TransformerConfig(**(vars(CONFIG) | {"depth": 1})))
    assert torch.equal(deep.encoder.blocks[0].attention.query.weight, shallow.encoder.blocks[0].attention.query.weight)


@pytest.mark.parametrize(("tokens", "message"), [
    (TEXTS.double(), "integer tensor"), (TEXTS[0], "integer tensor"), ([[1]], "integer tensor"),
    (torch.ones(1, 9, dtype=torch.int64), "1 to 8 columns"), (torch.ones(1, 0, dtype=torch.int64), "1 to 8 columns"),
    (torch.full((1, 2), 10), "0..9"), (torch.full((1, 2), -1), "0..9"),
    (torch.tensor([[1, 2], [0, 0]]), "no padding in every row"), (TEXTS[0], r"got torch.int64 of shape \(6,\)"),
    (TEXTS.byte(), "int32 or int64, got torch.uint8"), (TEXTS[:0], r"not be empty, got shape \(0, 6\)"),
    (torch.tensor([[1, 12]]), r"0..9, got 1..12"),
])  # fmt: skip
def test_bad_tokens_are_refused(tokens, message):
    with pytest.raises(ValueError, match=f"tokens must .*{message}"):
        text_model()(tokens)


@pytest.mark.parametrize("change", [
    {"vocabulary": 1}, {"length": 0}, {"classes": 0}, {"positions": "rotary"}, {"token_std": 0.0},
    {"position_std": -1.0}, {"dtype": torch.int64},
])  # fmt: skip
def test_bad_arguments_are_refused(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        text_model(**change)
