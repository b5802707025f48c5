"""models: normalised queries and keys, tied weights, temperatures, frozen weights, pooling; transformers."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from attnrank.models import Attention, Encoder, TransformerConfig, VisionTransformer
from attnrank.ranks import hardmax_rank

CONFIG = TransformerConfig(width=12, heads=3, head_dim=4, depth=2, mlp_width=20, init="lecun")
VARIANTS = [
    {},
    {"value_dim": 7},
    {"qk_norm": True},
    {"tied": True},
    {"temperature": 0.3},
    {"learn_temperature": True},
    {"head_dim": 1, "value_dim": 5, "qk_norm": True, "tied": True, "learn_temperature": True, "temperature": 0.7},
]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed=0):
    return torch.randn(shape, generator=seeded(seed), dtype=torch.float64)


def scramble(module, seed=1):
    """Order-one random values for every parameter, biases, gains and temperatures too, so that each one matters."""
    generator = seeded(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(drawn / math.sqrt(parameter.shape[-1]) if parameter.ndim > 1 else 1 + drawn / 2)
    return module


def vision(config=CONFIG, **options):
    image = {"image_size": 8, "patch_size": 2, "classes": 5, "channels": 2, "dtype": torch.float64}
    return VisionTransformer(config, **{**image, "generator": seeded(), **options})


def difference(a, b):
    assert a.shape == b.shape
    return (a - b).abs().max().item()


def attention_by_loops(module: Attention, x: torch.Tensor, config: TransformerConfig) -> np.ndarray:
    """Attention over one sequence in plain numpy, one head, row and column at a time."""
    weight = {name: value.detach().numpy() for name, value in module.named_parameters()}

    def linear(name, row):
        return weight[f"{name}.weight"] @ row + weight[f"{name}.bias"]

    def of_head(vector, head):
        size = len(vector) // config.heads
        return vector[head * size : (head + 1) * size]

    def length(vector):
        return vector / np.linalg.norm(vector) * math.sqrt(config.head_dim) if config.qk_norm else vector

    outputs, rows = [], x.numpy()
    for i in range(len(rows)):
        mixed = []
        for head in range(config.heads):
            temperature = config.temperature or math.sqrt(config.head_dim)
            if config.learn_temperature:
                temperature = math.exp(weight["log_temperature"][head])
            query = length(of_head(linear("query", rows[i]), head))
            keys = [length(of_head(linear("query" if config.tied else "key", row), head)) for row in rows]
            scores = np.exp(np.array([query @ key for key in keys]) / temperature)
            values = [of_head(linear("value", row), head) for row in rows]
            mixed.append(sum(s * v for s, v in zip(scores / scores.sum(), values)))
        outputs.append(linear("output", np.concatenate(mixed)))
    return np.array(outputs)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_attention_matches_loops_in_numpy(variant):
    config = replace(CONFIG, **variant)
    module, x = scramble(Attention(config, seeded())), normal(6, 12)
    expected = torch.from_numpy(attention_by_loops(module, x, config))
    assert difference(module(x).detach(), expected) < 1e-10
    for other in VARIANTS:
        if other != variant and {**other, "learn_temperature": 0} != {**variant, "learn_temperature": 0}:
            wrong = replace(CONFIG, **other)
            alike = all(getattr(wrong, name) == getattr(config, name) for name in ("head_dim", "value_dim", "tied"))
            if alike and wrong.learn_temperature <= config.learn_temperature:
                assert difference(expected, torch.from_numpy(attention_by_loops(module, x, wrong))) > 1e-6


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_softmax_of_the_scaled_queries_and_keys_is_the_attention(variant):
    module, x = scramble(Attention(replace(CONFIG, **variant), seeded())), normal(2, 6, 12)
    q, k = module.scaled_queries_keys(x)
    mixed = ((q @ k.mT).softmax(-1) @ module.values(x)).transpose(-3, -2).flatten(-2)
    assert difference(module(x), module.output(mixed)) < 1e-12
    encoder = Encoder(replace(CONFIG, **variant), seeded())
    for plain, scaled in zip(encoder.queries_keys(x), encoder.queries_keys(x, scaled=True)):
        assert torch.equal(plain[1], scaled[1])
        assert difference(plain[0], scaled[0] * encoder.blocks[0].attention.temperature) < 1e-12


def test_variants_start_from_the_same_weights():
    reference = dict(vision().named_parameters())
    for variant in (
        {"qk_norm": True},
        {"tied": True},
        {"learn_temperature": True},
        {"frozen": True},
        {"temperature": 3.0},
    ):
        for name, value in vision(replace(CONFIG, **variant)).named_parameters():
            if "log_temperature" not in name:
                assert torch.equal(value, reference[name]), name


def test_frozen_weights_are_those_of_queries_and_keys_only():
    names = {name for name, value in vision(replace(CONFIG, frozen=True)).named_parameters() if not value.requires_grad}
    assert names == {f"encoder.blocks.{b}.attention.{part}.{kind}" for b in range(2) for part in ("query", "key")
                     for kind in ("weight", "bias")}  # fmt: skip
    tied = vision(replace(CONFIG, frozen=True, tied=True))
    assert sum(not value.requires_grad for value in tied.parameters()) == 4
    assert all(value.requires_grad for value in vision().parameters())


def test_tied_normalised_queries_are_their_own_best_keys():
    """Cauchy-Schwarz: full rank for distinct directions, at every head dimension from 2; not so without normalising."""
    x = normal(4, 16, 12)
    for dim in (2, 4):
        config = replace(CONFIG, head_dim=dim, tied=True, qk_norm=True)
        assert (hardmax_rank(*Attention(config, seeded()).queries_keys(x)) == 16).all()
        assert (hardmax_rank(*Attention(replace(config, qk_norm=False), seeded()).queries_keys(x)) < 16).any()


@pytest.mark.parametrize("length, factor", [(0.0, 1e6), (5e-7, 1e6), (1e-3, 1e3), (2.0, 0.5)])
def test_a_normalised_row_of_zeros_has_a_bounded_gradient(length, factor):
    """Rows of 1e-6 and more get their length; a shorter one is multiplied by 1e6, as is its gradient, not by 1e12."""
    module = Attention(replace(CONFIG, qk_norm=True), seeded())
    direction = normal(4) / normal(4).norm()
    row = (length * direction).requires_grad_()
    unit = module._unit(row)
    torch.testing.assert_close(unit, 2 * factor * length * direction)
    across = normal(4, seed=1)
    across -= across @ direction * direction  # what does not change the length
    unit.backward(across)
    torch.testing.assert_close(row.grad, 2 * factor * across)
    x = normal(6, 12)
    x[2] = 0  # biases are 0: so are query and key
    x.requires_grad_()
    module(x).square().sum().backward()
    rest = x.grad[[0, 1, 3, 4, 5]].abs().max()
    assert x.grad.isfinite().all() and 0 < x.grad[2].abs().max() < 1e7 * rest


def test_temperatures_of_the_heads_are_learned():
    module = Attention(replace(CONFIG, learn_temperature=True), seeded())
    assert module.log_temperature.shape == (3,)
    module(normal(2, 6, 12)).square().sum().backward()
    assert (module.log_temperature.grad != 0).all()


@pytest.mark.parametrize("pool", ["class", "mean", "sequence"])
def test_pools(pool):
    model, images = scramble(vision(pool=pool)), normal(3, 2, 8, 8)
    y = model.encoder(model.embed(images))
    assert y.shape[1] == model.tokens == 16 + (pool == "class")
    if pool == "sequence":
        share = torch.exp(y @ model.pooling.weight[0])
        z = torch.einsum("bn,bnd->bd", share / share.sum(1, keepdim=True), y)
    else:
        z = y[:, 0] if pool == "class" else y.mean(1)
    assert difference(model(images), F.linear(z, model.classifier.weight, model.classifier.bias)) < 1e-12


# References of transformers with copied weights


def test_vision_transformer_matches_transformers():
    transformers = pytest.importorskip("transformers")
    model, images = scramble(vision(pool="class")), normal(4, 2, 8, 8)
    config = transformers.ViTConfig(
        hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=20, hidden_act="gelu",
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, layer_norm_eps=1e-5, image_size=8, patch_size=2,
        num_channels=2, qkv_bias=True, num_labels=5,
    )  # fmt: skip
    reference = transformers.ViTForImageClassification(config).double().eval()
    names = {
        "vit.embeddings.cls_token": "class_token", "vit.embeddings.position_embeddings": "position",
        "vit.embeddings.patch_embeddings.projection": "embedding", "vit.layernorm": "encoder.norm",
    }  # fmt: skip
    parts = {
        "layernorm_before": "norm1", "layernorm_after": "norm2", "q_proj": "attention.query",
        "query": "attention.query",
        "k_proj": "attention.key", "key": "attention.key", "v_proj": "attention.value", "value": "attention.value",
        "o_proj": "attention.output", "attention.output.dense": "attention.output", "mlp.fc1": "mlp.0",
        "intermediate.dense": "mlp.0", "mlp.fc2": "mlp.2", "output.dense": "mlp.2",
    }  # fmt: skip
    ours, copied = dict(model.named_parameters()), set()
    with torch.no_grad():
        for name, value in reference.named_parameters():
            stem, _, kind = name.rpartition(".")
            if name in names:
                mine = names[name]
            elif stem in names or stem == "classifier":
                mine = f"{names.get(stem, stem)}.{kind}"
            else:
                layer = next(int(part) for part in stem.split(".") if part.isdigit())
                tail = next(parts[end] for end in sorted(parts, key=len, reverse=True) if stem.endswith(end))
                mine = f"encoder.blocks.{layer}.{tail}.{kind}"
            value.copy_(ours[mine].reshape(value.shape))
            copied.add(mine)
    assert copied == ours.keys()
    assert difference(model(images), reference(images).logits) < 1e-10


def test_normalised_attention_matches_transformers():
    """Qwen3's attention has normalised queries and keys, and a head dimension that is free of width and heads."""
    transformers = pytest.importorskip("transformers")
    from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention

    config = transformers.Qwen3Config(
        hidden_size=12, num_attention_heads=3, num_key_value_heads=3, head_dim=6, attention_bias=True,
        num_hidden_layers=1, attn_implementation="sdpa",
    )  # fmt: skip
    reference = Qwen3Attention(config, layer_idx=0).double().eval()
    reference.is_causal = False
    reference.q_norm = reference.k_norm = nn.RMSNorm(6, eps=0.0, dtype=torch.float64)  # its own computes in float32
    module, x = scramble(Attention(replace(CONFIG, head_dim=6, qk_norm=True), seeded())), normal(2, 7, 12)
    with torch.no_grad():
        for mine, theirs in (("query", "q"), ("key", "k"), ("value", "v"), ("output", "o")):
            for kind in ("weight", "bias"):
                target = getattr(getattr(reference, f"{theirs}_proj"), kind)
                if target is not None:
                    target.copy_(getattr(getattr(module, mine), kind))
                elif kind == "bias":
                    getattr(module, mine).bias.zero_()
    still = torch.ones(2, 7, 6, dtype=torch.float64), torch.zeros(2, 7, 6, dtype=torch.float64)  # no rotation
    expected = reference(x, position_embeddings=still, attention_mask=None)[0]
    assert difference(module(x), expected) < 1e-10


@pytest.mark.parametrize("field", ["qk_norm", "tied", "learn_temperature", "frozen"])
@pytest.mark.parametrize("value", [1, None, "yes"])
def test_bad_flags_are_refused(field, value):
    with pytest.raises(ValueError, match=f"{field} must be True or False, got {value!r}"):
        replace(CONFIG, **{field: value})


def test_keys_that_are_no_truth_values_are_refused():
    """Numbers would be added to the scores, and mask nothing."""
    net = Encoder(TransformerConfig(width=8, heads=2, head_dim=3, depth=1), torch.Generator().manual_seed(0)).double()
    x, mask = torch.ones(1, 4, 8, dtype=torch.float64), torch.tensor([[True, True, False, False]])
    assert net(x, mask).shape == x.shape
    for call in (net, lambda x, keys: net.queries_keys(x, [0], keys=keys)):
        with pytest.raises(ValueError, match="keys must be of torch.bool, .* attended to, got torch.float64"):
            call(x, mask.double())
        for keys in (mask[:, :3], mask[:, :1], mask[0], torch.ones(4, 4, dtype=torch.bool)):
            with pytest.raises(ValueError, match=r"keys must have the shape \(1, 4\) of the tokens, got"):
                call(x, keys)
