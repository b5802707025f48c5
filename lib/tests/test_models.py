"""models against torch.nn, against loops in plain numpy, and against what the equations imply."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from attnrank import models
from attnrank.models import Attention, Encoder, TransformerConfig, draw_weight, patches, sinusoids
from model_cases import CONFIG, normal, seeded, vision


def scramble(module: nn.Module, seed: int = 1) -> nn.Module:
    """Give every parameter, biases and LayerNorm gains too, an order-one random value, so that each one matters."""
    generator = seeded(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(drawn / math.sqrt(parameter.shape[-1]) if parameter.ndim > 1 else 1 + drawn / 2)
    return module


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    assert a.shape == b.shape
    return (a - b).abs().max().item()


# ---- references with copied weights ----------------------------------------------------------------------------------


def torch_attention(attention: Attention) -> nn.MultiheadAttention:
    reference = nn.MultiheadAttention(attention.width, attention.heads, batch_first=True, dtype=torch.float64)
    copy_attention(attention, reference)
    return reference


def copy_attention(attention: Attention, reference: nn.MultiheadAttention) -> None:
    stacked = (attention.query, attention.key, attention.value)
    with torch.no_grad():
        reference.in_proj_weight.copy_(torch.cat([layer.weight for layer in stacked]))
        reference.in_proj_bias.copy_(torch.cat([layer.bias for layer in stacked]))
        reference.out_proj.load_state_dict(attention.output.state_dict())


def torch_encoder(encoder: Encoder) -> nn.TransformerEncoder:
    first = encoder.blocks[0]
    layer = nn.TransformerEncoderLayer(
        encoder.width, first.attention.heads, first.mlp[0].out_features, dropout=0.0, activation="gelu",
        batch_first=True, norm_first=True, dtype=torch.float64,
    )  # fmt: skip
    final = nn.LayerNorm(encoder.width, dtype=torch.float64)
    reference = nn.TransformerEncoder(layer, len(encoder.blocks), final, enable_nested_tensor=False)
    for block, other in zip(encoder.blocks, reference.layers):
        copy_attention(block.attention, other.self_attn)
        pairs = ((block.norm1, other.norm1), (block.norm2, other.norm2), (block.mlp[0], other.linear1),
                 (block.mlp[2], other.linear2))  # fmt: skip
        for ours, theirs in pairs:
            theirs.load_state_dict(ours.state_dict())
    reference.norm.load_state_dict(encoder.norm.state_dict())
    return reference


@pytest.mark.parametrize(("heads", "head_dim"), [(1, 1), (1, 8), (3, 4), (4, 3), (8, 1)])
def test_attention_matches_torch_multihead_attention(heads, head_dim):
    attention = scramble(Attention(TransformerConfig(heads * head_dim, heads, head_dim, 1), seeded()))
    x = normal(5, 7, heads * head_dim)
    expected, expected_weights = torch_attention(attention)(x, x, x, average_attn_weights=False)
    assert difference(attention(x), expected) < 1e-10
    q, k = attention.queries_keys(x)
    assert difference(torch.softmax(q @ k.mT / attention.temperature, dim=-1), expected_weights) < 1e-10


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("heads", "head_dim", "mlp_width"), [(3, 4, None), (1, 6, 5), (5, 2, 40)])
def test_encoder_matches_torch_transformer_encoder(heads, head_dim, mlp_width, training):
    config = TransformerConfig(heads * head_dim, heads, head_dim, depth=4, mlp_width=mlp_width)
    encoder = scramble(Encoder(config, seeded())).train(training)
    x = normal(3, 9, config.width)
    assert difference(encoder(x), torch_encoder(encoder).train(training)(x)) < 1e-10


def test_vision_transformer_matches_one_assembled_from_torch_modules():
    model = scramble(vision())
    images = normal(4, 2, 8, 8)
    convolution = nn.Conv2d(2, CONFIG.width, kernel_size=2, stride=2, dtype=torch.float64)
    with torch.no_grad():
        convolution.weight.copy_(model.embedding.weight.view_as(convolution.weight))
        convolution.bias.copy_(model.embedding.bias)
    tokens = convolution(images).flatten(2).transpose(1, 2)
    tokens = torch.cat([model.class_token.expand(4, 1, -1), tokens], 1) + model.position
    expected = model.classifier(torch_encoder(model.encoder)(tokens)[:, 0])
    assert difference(model(images), expected) < 1e-10


@pytest.mark.parametrize("fault", ["temperature", "swapped heads", "no query bias", "gelu", "order of norm"])
def test_reference_notices_a_fault(fault):
    """Negative controls: each fault moves the output by far more than the tolerance of the tests above."""
    encoder = scramble(Encoder(CONFIG, seeded()))
    reference = torch_encoder(encoder)
    x = normal(3, 9, CONFIG.width)
    assert difference(encoder(x), reference(x)) < 1e-10
    block = encoder.blocks[1]
    if fault == "temperature":
        block.attention.temperature *= 1 + 1e-6
    elif fault == "swapped heads":
        block.attention.query.weight.data = block.attention.query.weight.data.roll(CONFIG.head_dim, 0)
    elif fault == "no query bias":
        block.attention.query.bias.data.zero_()
    elif fault == "gelu":
        block.mlp[1] = nn.GELU(approximate="tanh")
    else:
        block.norm1, block.norm2 = block.norm2, block.norm1
    assert difference(encoder(x), reference(x)) > 1e-8


def test_key_bias_changes_no_attention():
    attention = scramble(Attention(CONFIG, seeded()))
    x = normal(2, 6, CONFIG.width)
    before = attention(x)
    attention.key.bias.data += normal(CONFIG.width, seed=3)
    assert difference(attention(x), before) < 1e-12


# ---- loops in plain numpy --------------------------------------------------------------------------------------------


def layer_norm(x, norm):
    """LayerNorm of a vector, eps 1e-5 as in torch."""
    centred = x - x.mean()
    return norm["weight"] * centred / np.sqrt((centred**2).mean() + 1e-5) + norm["bias"]


def numpy_encoder(x, w, depth, heads, temperature):
    """The encoder on one sequence, token by token and head by head; ``w`` maps state_dict names to arrays."""
    part = lambda name: {"weight": w[f"{name}.weight"], "bias": w[f"{name}.bias"]}  # noqa: E731
    apply = lambda name, v: w[f"{name}.weight"] @ v + w[f"{name}.bias"]  # noqa: E731
    n = len(x)
    for layer in range(depth):
        at = f"blocks.{layer}."
        y = [layer_norm(row, part(at + "norm1")) for row in x]
        q, k, v = ([apply(at + f"attention.{name}", row) for row in y] for name in ("query", "key", "value"))
        d_h, d_v = len(q[0]) // heads, len(v[0]) // heads
        attended = []
        for i in range(n):
            row = []
            for h in range(heads):
                own = slice(h * d_h, (h + 1) * d_h)
                scores = [float(np.dot(q[i][own], k[j][own])) / temperature for j in range(n)]
                weights = [math.exp(score - max(scores)) for score in scores]
                row += [
                    math.fsum(weights[j] * v[j][h * d_v + a] for j in range(n)) / math.fsum(weights)
                    for a in range(d_v)
                ]
            attended.append(x[i] + apply(at + "attention.output", np.array(row)))
        x = []
        for row in attended:
            hidden = apply(at + "mlp.0", layer_norm(row, part(at + "norm2")))
            hidden = np.array([u * 0.5 * math.erfc(-u / math.sqrt(2)) for u in hidden])
            x.append(row + apply(at + "mlp.2", hidden))
    return np.array([layer_norm(row, part("norm")) for row in x])


def numpy_vision(image, model):
    """Logits of one image, from the state_dict and the constructor's arguments only."""
    c, state = model.config, {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    p, rows = model.patch_size, []
    for top in range(0, image.shape[1], p):
        for left in range(0, image.shape[2], p):
            flat = [image[a, top + i, left + j] for a in range(image.shape[0]) for i in range(p) for j in range(p)]
            rows.append(state["embedding.weight"] @ np.array(flat) + state["embedding.bias"])
    if model.pool == "class":
        rows.insert(0, state["class_token"][0])
    for t in range(len(rows)):
        if "position" in state:
            rows[t] = rows[t] + state["position"][t]
        else:
            angles = [t / 10000 ** (2 * (a // 2) / c.width) for a in range(c.width)]
            rows[t] = rows[t] + [math.cos(u) if a % 2 else math.sin(u) for a, u in enumerate(angles)]
    encoder = {name.removeprefix("encoder."): w for name, w in state.items() if name.startswith("encoder.")}
    out = numpy_encoder(np.array(rows), encoder, c.depth, c.heads, c.temperature or math.sqrt(c.head_dim))
    pooled = out[0] if model.pool == "class" else out.mean(axis=0)
    if model.pool == "sequence":
        share = np.exp(out @ state["pooling.weight"][0])
        pooled = share @ out / share.sum()
    return state["classifier.weight"] @ pooled + state["classifier.bias"]


@settings(max_examples=25, deadline=None)
@given(
    width=st.integers(1, 9), heads=st.integers(1, 3), head_dim=st.integers(1, 5), depth=st.integers(1, 2),
    mlp_width=st.sampled_from([None, 1, 7]), value_dim=st.sampled_from([None, 1, 6]),
    temperature=st.sampled_from([None, 0.3, 5.0]), patch=st.sampled_from([1, 2, 4]),
    pool=st.sampled_from(models.POOLS), positions=st.sampled_from(["learned", "sinusoidal"]),
)  # fmt: skip
def test_vision_transformer_matches_numpy_loops(
    width, heads, head_dim, depth, mlp_width, value_dim, temperature, patch, pool, positions
):
    config = TransformerConfig(width, heads, head_dim, depth, mlp_width, value_dim, temperature)
    options = {"image_size": 4, "patch_size": patch, "pool": pool, "positions": positions}
    model = scramble(vision(config, **options))
    images = normal(2, 2, 4, 4)
    with torch.no_grad():
        expected = torch.tensor(np.stack([numpy_vision(image, model) for image in images.numpy()]))
        assert difference(model(images), expected) < 1e-10


def test_numpy_loops_notice_a_wrong_temperature():
    model = scramble(vision(TransformerConfig(width=6, heads=2, head_dim=4, depth=2, value_dim=3), image_size=4))
    images = normal(1, 2, 4, 4)
    expected = torch.tensor(numpy_vision(images[0].numpy(), model))[None]
    with torch.no_grad():
        assert difference(model(images), expected) < 1e-10
        model.encoder.blocks[0].attention.temperature *= 1 + 1e-6
        assert difference(model(images), expected) > 1e-9


def keys_of_another_dimension_than_values(dtype, *, keys=None, exact=False):
    """Output and gradients of a layer in a dtype; ``exact``: in float64, of weights and tokens rounded to the dtype."""
    config = TransformerConfig(16, 2, 4, 1, value_dim=8)
    layer = scramble(Attention(config, torch.Generator().manual_seed(0))).to(dtype)
    x = normal(2, 40, 16).to(dtype)
    layer, x = (layer.double(), x.double()) if exact else (layer, x)
    out = layer(x.requires_grad_(), keys)
    out.square().sum().backward()
    return [out.detach(), x.grad, *(value.grad for value in layer.parameters())]


EVERY = torch.ones(2, 40, dtype=torch.bool)


def test_naming_every_key_changes_nothing():
    found, named = (keys_of_another_dimension_than_values(torch.float64, keys=keys) for keys in (None, EVERY))
    for a, b in zip(found, named, strict=True):
        assert difference(a, b) <= 1e-12 * named[1].abs().max()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_as_exact_as_with_every_key_named(dtype):
    """Scores that are rounded to half before their softmax have 1.5 and 1.7 times the error."""
    exact = keys_of_another_dimension_than_values(dtype, exact=True)[0]
    found, named = (keys_of_another_dimension_than_values(dtype, keys=keys)[0] for keys in (None, EVERY))
    assert difference(found.double(), exact) <= 1.2 * difference(named.double(), exact)


# ---- patches and positions -------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
def test_patches_match_unfold(batch, channels, rows, columns, size):
    images = normal(batch, channels, rows * size, columns * size)
    assert torch.equal(patches(images, size), F.unfold(images, size, stride=size).transpose(1, 2))


def test_sinusoids_are_those_of_the_paper():
    table = sinusoids(50, 8)
    assert difference(table[:, 0], torch.arange(50.0, dtype=torch.float64).sin()) < 1e-14
    # Each pair of columns turns by a fixed angle from one position to the next, hence constant inner products.
    gram = table @ table.T
    assert difference(gram[1:, 1:], gram[:-1, :-1]) < 1e-13
    assert sinusoids(4, 5).shape == (4, 5)


# ---- what the equations imply ----------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 10), st.integers(1, 4), st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_encoder_without_positions_is_permutation_equivariant(n, heads, head_dim, seed):
    encoder = scramble(Encoder(TransformerConfig(6, heads, head_dim, depth=2), seeded(seed)), seed)
    x, order = normal(2, n, 6, seed=seed), torch.randperm(n, generator=seeded(seed))
    assert difference(encoder(x)[:, order], encoder(x[:, order])) < 1e-10
    q, k = encoder.queries_keys(x, [1])[0]
    q_permuted, k_permuted = encoder.queries_keys(x[:, order], [1])[0]
    assert difference(q[:, :, order], q_permuted) < 1e-10 and difference(k[:, :, order], k_permuted) < 1e-10


@pytest.mark.parametrize("pool", models.POOLS)
@pytest.mark.parametrize("positions", models.POSITIONS)
def test_only_positions_tell_the_order_of_patches(pool, positions):
    model = scramble(vision(pool=pool, positions=positions))
    images = normal(3, 2, 8, 8)
    swapped = torch.cat([images[..., 4:, :], images[..., :4, :]], dim=-2)  # moves whole patches
    moved = difference(model(images), model(swapped))
    assert moved < 1e-10 if positions == "none" else moved > 1e-3


@settings(max_examples=20, deadline=None)
@given(
    width=st.integers(1, 20), heads=st.integers(1, 5), head_dim=st.integers(1, 9), depth=st.integers(1, 3),
    mlp_width=st.integers(1, 30), value_dim=st.integers(1, 9), patch=st.sampled_from([1, 2, 4, 8]),
    pool=st.sampled_from(models.POOLS), positions=st.sampled_from(models.POSITIONS),
)  # fmt: skip
def test_parameter_count(width, heads, head_dim, depth, mlp_width, value_dim, patch, pool, positions):
    config = TransformerConfig(width, heads, head_dim, depth, mlp_width, value_dim)
    model = vision(config, patch_size=patch, pool=pool, positions=positions)
    d, m, qk, v = width, mlp_width, heads * head_dim, heads * value_dim
    n = (8 // patch) ** 2 + (pool == "class")
    block = 2 * (d * qk + qk) + (d * v + v) + (v * d + d) + (d * m + m) + (m * d + d) + 2 * 2 * d
    expected = (2 * patch**2 * d + d) + depth * block + 2 * d + (d * 5 + 5)
    expected += d * (pool != "mean") + n * d * (positions == "learned")
    assert sum(parameter.numel() for parameter in model.parameters()) == expected
    assert model.tokens == n


@pytest.mark.parametrize("init", models.INITIALISATIONS)
@pytest.mark.parametrize("pool", models.POOLS)
def test_gradient_reaches_every_parameter(init, pool):
    model = vision(replace(CONFIG, head_dim=5, init=init), pool=pool)
    F.cross_entropy(model(normal(6, 2, 8, 8)), torch.arange(6) % 5).backward()
    for name, parameter in model.named_parameters():
        size = parameter.grad.abs().max().item()
        if name.endswith("attention.key.bias"):  # zero in exact arithmetic: see Attention
            assert size < 1e-12, name
        else:
            assert size > 1e-12 and parameter.grad.isfinite().all(), name


def test_a_step_down_the_gradient_lowers_the_loss_as_predicted():
    model, images, labels = vision(), normal(6, 2, 8, 8), torch.arange(6) % 5
    before = F.cross_entropy(model(images), labels)
    before.backward()
    with torch.no_grad():
        slope = sum((parameter.grad**2).sum() for parameter in model.parameters())
        for parameter in model.parameters():
            parameter -= 1e-6 * parameter.grad
        assert (before - F.cross_entropy(model(images), labels)).item() == pytest.approx(1e-6 * slope.item(), rel=1e-3)


# ---- queries and keys ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", [None, [0], [2], [1, 0], [2, 2], range(2), torch.arange(3).tolist()])
def test_queries_keys_are_those_of_the_forward_pass(layers):
    model = scramble(vision(replace(CONFIG, head_dim=5)))
    images, seen = normal(3, 2, 8, 8), {}
    hooks = [
        getattr(block.attention, name).register_forward_hook(
            lambda module, args, output, key=(layer, name): seen.__setitem__(key, output)
        )
        for layer, block in enumerate(model.encoder.blocks)
        for name in ("query", "key")
    ]
    model(images)
    for hook in hooks:
        hook.remove()
    found = model.queries_keys(images, layers)
    wanted = range(3) if layers is None else layers
    assert len(found) == len(wanted)
    for layer, pair in zip(wanted, found):
        for name, heads in zip(("query", "key"), pair):
            assert heads.shape == (3, 3, 17, 5)
            for head in range(3):
                assert torch.equal(heads[:, head], seen[layer, name][..., 5 * head : 5 * head + 5])
    assert not torch.equal(found[0][0], found[0][1])


def test_queries_keys_attends_only_before_the_deepest_layer(monkeypatch):
    model, images, calls = vision(), normal(1, 2, 8, 8), []
    attend = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *a, **k: calls.append(1) or attend(*a, **k))
    for layers, expected in (([0], 0), ([1], 1), ([1, 0], 1), (None, 2)):
        calls.clear()
        model.queries_keys(images, layers)
        assert len(calls) == expected


def test_temperature_and_values_are_independent_of_queries_and_keys():
    images = normal(2, 2, 8, 8)
    base = vision()
    assert base.encoder.blocks[0].attention.temperature == 2.0
    hot = vision(replace(CONFIG, temperature=7.0))
    assert torch.equal(base.queries_keys(images, [0])[0][0], hot.queries_keys(images, [0])[0][0])
    assert difference(base(images), hot(images)) > 1e-12
    assert difference(base(images), vision(replace(CONFIG, temperature=2.0))(images)) == 0
    attention = Attention(replace(CONFIG, value_dim=7), seeded())
    assert attention.values(normal(2, 6, 12)).shape == (2, 3, 6, 7)


# ---- dtypes, devices, modes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-4), (torch.bfloat16, 0.1)])
def test_dtypes_and_devices_agree_with_float64_on_the_cpu(device, dtype, tolerance):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    config = replace(CONFIG, head_dim=5, init="lecun")
    images = normal(4, 2, 8, 8)
    model = vision(config, dtype=dtype).to(device)
    with torch.no_grad():
        logits, (q, _) = model(images.to(device)), model.queries_keys(images.to(device), [1])[0]
        expected = vision(config)(images)
    assert logits.dtype == q.dtype == dtype and logits.device.type == device
    assert difference(logits.cpu().double(), expected) < tolerance * expected.abs().max().item()


@pytest.mark.parametrize("positions", models.POSITIONS)
@pytest.mark.parametrize("variant", [{}, {"learn_temperature": True}])
def test_weights_are_drawn_on_the_cpu_whatever_the_default_device(positions, variant):
    config, options = replace(CONFIG, **variant), {"positions": positions}
    text = {"vocabulary": 7, "length": 4, "classes": 3}
    with torch.device("meta"):
        found = vision(config, **options), models.TextTransformer(config, generator=seeded(), **text, **options)
    expected = vision(config, **options), models.TextTransformer(config, generator=seeded(), **text, **options)
    for one, two in zip(found, expected, strict=True):
        for a, b in zip([*one.parameters(), *one.buffers()], [*two.parameters(), *two.buffers()], strict=True):
            assert a.device.type == "cpu" and torch.equal(a, b)


def test_what_is_not_said():
    """The defaults of the configuration and the models, as their docstrings give them."""
    config = TransformerConfig(12, 3, 5, 2)
    assert (config.init, config.qk_norm, config.tied, config.learn_temperature, config.frozen) == (
        "truncated_normal", False, False, False, False)  # fmt: skip
    block = Encoder(config, seeded()).blocks[0]
    assert block.mlp[0].weight.shape == (48, 12) and block.attention.value.weight.shape == (15, 12)
    model = models.VisionTransformer(config, image_size=4, patch_size=2, classes=2, generator=seeded())
    assert model.image_shape == (3, 4, 4) and model.pool == "class" and "position" in model.state_dict()
    text = models.TextTransformer(config, vocabulary=5, length=3, classes=2, generator=seeded())
    assert {value.dtype for value in (*model.parameters(), *text.parameters())} == {torch.float32}


def test_train_and_eval_and_reloading_agree():
    model, images = scramble(vision(positions="sinusoidal")), normal(3, 2, 8, 8)
    assert "position" not in model.state_dict()
    trained = model.train()(images)
    assert torch.equal(trained, model.eval()(images))
    assert torch.equal(trained, copy.deepcopy(model)(images))
    other = vision(seed=5, positions="sinusoidal")
    assert not torch.equal(trained, other(images))
    other.load_state_dict(model.state_dict())
    assert torch.equal(trained, other(images))
    single = torch.cat([model(image[None]) for image in images])
    assert difference(trained, single) < 1e-12


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [(name, value) for name in ("width", "heads", "head_dim", "depth") for value in (0, -3, 2.5, None, True, "4")]
    + [(name, value) for name in ("mlp_width", "value_dim") for value in (0, 1.5)]
    + [("temperature", value) for value in (0, -1.0, math.nan, math.inf, "1")]
    + [("init", value) for value in ("kaiming", None, 3)],
)
def test_bad_config_is_refused(field, value):
    with pytest.raises(ValueError, match=f"(?s){field}.*{value}"):
        replace(CONFIG, **{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [("image_size", 0), ("image_size", 9), ("patch_size", 3), ("patch_size", 0), ("patch_size", 16), ("classes", 0),
     ("channels", -1), ("pool", "max"), ("positions", "rotary"), ("generator", 0), ("generator", None),
     ("dtype", torch.int64), ("dtype", "float32")],
)  # fmt: skip
def test_bad_vision_transformer_is_refused(field, value):
    shown = type(value).__name__ if field == "generator" else value
    with pytest.raises(ValueError, match=f"(?s){field}.*{shown}"):
        vision(**{field: value})


def spoiled(value: float) -> torch.Tensor:
    images = normal(2, 2, 8, 8)
    images[1, 0, 3, 3] = value
    return images


@pytest.mark.parametrize(
    ("images", "shown"),
    [(spoiled(math.nan), "NaN"), (spoiled(math.inf), "infinite"),
     (normal(2, 3, 8, 8), r"\(batch, 2, 8, 8\), got \(2, 3, 8, 8\)"),
     (normal(2, 2, 8, 9), r"\(2, 2, 8, 9\)"), (normal(2, 8, 8), r"\(2, 8, 8\)"),
     (normal(0, 2, 8, 8), r"\(0, 2, 8, 8\)"),
     (torch.zeros(2, 2, 8, 8, dtype=torch.uint8), "uint8"), (np.zeros((2, 2, 8, 8)), "ndarray")],
)  # fmt: skip
def test_bad_images_are_refused(images, shown):
    model = vision()
    for call in (model, model.queries_keys):
        with pytest.raises(ValueError, match=f"(?s)images.*{shown}"):
            call(images)


def test_images_are_cast_before_they_are_tested():
    """Float8 has no test, and a number that the model's dtype cannot hold would be infinite in it."""
    model, images = vision(dtype=torch.float32), normal(2, 2, 8, 8).to(torch.float8_e4m3fn)
    assert torch.equal(model(images), model(images.float()))
    with pytest.raises(ValueError, match="images must be finite, got infinite"):
        model(spoiled(1e39))


@pytest.mark.parametrize("layers", [[], [3], [0, -1], [0.5], 2, "all", [1.0], [True], [[0]], torch.tensor(1)])
def test_bad_layers_are_refused(layers):
    with pytest.raises(ValueError, match="layers"):
        vision().queries_keys(normal(1, 2, 8, 8), layers)


def test_other_bad_input_is_refused():
    attention, encoder = Attention(CONFIG, seeded()), Encoder(CONFIG, seeded())
    for call in (attention, attention.queries_keys, attention.values, encoder, encoder.queries_keys):
        for x in (normal(2, 5, 11), normal(12), normal(2, 0, 12), None):
            with pytest.raises(ValueError, match="x must"):
                call(x)
    for call, name in (
        (lambda: patches(normal(1, 1, 6, 8), 4), "size must divide"),
        (lambda: patches(normal(1, 1, 6, 8), 0), "size .* got 0"),
        (lambda: patches(normal(6, 8), 2), "images"),
        (lambda: sinusoids(0, 4), "n must"),
        (lambda: sinusoids(4, 0), "width"),
        (lambda: draw_weight("he", 2, 2, seeded()), "init .*'he'"),
        (lambda: draw_weight("xavier", 0, 2, seeded()), "fan_out"),
        (lambda: draw_weight("xavier", 2, 0, seeded()), "fan_in"),
        (lambda: draw_weight("xavier", 2, 2, None), "generator"),
    ):
        with pytest.raises(ValueError, match=name):
            call()
