"""The probe on families of transformers, tiny and random: every count equals that of the model's own attention
matrices.

The model's eager attention returns its matrices; ranks are counted from these with numpy. The probe reads the same
model, and the same weights under scaled_dot_product_attention where the family has it.
"""

from __future__ import annotations

import pandas as pd
import pytest
import torch
from probe_reference import TOL, assert_frame

from attnrank import probe

tf = pytest.importorskip("transformers")

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 37, "vocab_size": 99}
GROUPED = SIZES | {"num_key_value_heads": 2}
SEQ2SEQ = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4, "vocab_size": 99,
           "decoder_attention_heads": 4, "encoder_ffn_dim": 37, "decoder_ffn_dim": 37}  # fmt: skip
MIXED = ["sliding_attention", "full_attention"]
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8,
          "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 16,
          "first_k_dense_replace": 1}  # fmt: skip
PATCHES = {"image_size": 12, "patch_size": 4}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}

#: name: (model, configuration, padding of the batch, layers and the output that holds their attention)
SELF = {"": "attentions"}
BOTH = {"encoder.": "encoder_attentions", "decoder.": "decoder_attentions", "cross": "cross_attentions"}
FAMILIES = {
    "bidirectional": ("BertModel", "BertConfig", SIZES, "right", SELF),
    "shared layers": ("AlbertModel", "AlbertConfig", SIZES | {"embedding_size": 16}, "right", SELF),
    "disentangled": ("DebertaV2Model", "DebertaV2Config", SIZES | {"relative_attention": True, "position_buckets": 8,
                     "pos_att_type": ["c2p", "p2c"]}, "right", SELF),
    "causal": ("GPT2Model", "GPT2Config", {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 99}, "left", SELF),
    "linear biases": ("BloomModel", "BloomConfig", {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 99},
    "left", SELF),
    "multi-query": ("FalconModel", "FalconConfig", {k: v for k, v in SIZES.items() if k != "intermediate_size"},
    "none", SELF),
    "grouped": ("LlamaModel", "LlamaConfig", GROUPED, "left", SELF),
    "QK-norm": ("Qwen3Model", "Qwen3Config", GROUPED | {"head_dim": 8}, "right", SELF),
    "sliding window": ("Gemma3TextModel", "Gemma3TextConfig",
                       GROUPED | {"head_dim": 8, "sliding_window": 5, "layer_types": MIXED}, "none", SELF),
    "soft-capping": ("Gemma2Model", "Gemma2Config",
                     GROUPED | {"head_dim": 8, "sliding_window": 5, "attn_logit_softcapping": 0.02}, "none", SELF),
    "local and global": ("ModernBertModel", "ModernBertConfig", SIZES | SPECIAL | {"global_attn_every_n_layers": 2,
                         "local_attention": 4, "cls_token_id": 1, "sep_token_id": 2}, "right", SELF),
    "permuted": ("XLNetModel", "XLNetConfig", {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 37,
                 "vocab_size": 99}, "right", SELF),
    "latent": ("DeepseekV3Model", "DeepseekV3Config", SIZES | LATENT | {"num_key_value_heads": 4}, "none", SELF),
    "mixture of experts": ("MixtralModel", "MixtralConfig", GROUPED | {"num_local_experts": 4}, "none", SELF),
    "sink": ("GptOssModel", "GptOssConfig",
             GROUPED | EXPERTS | {"head_dim": 8, "sliding_window": 5, "layer_types": MIXED}, "none", SELF),
    "vision": ("ViTModel", "ViTConfig", {k: v for k, v in SIZES.items() if k != "vocab_size"} | PATCHES, "images",
    SELF),
    "encoder-decoder": ("BartModel", "BartConfig", SEQ2SEQ, "decoder", BOTH),
    "relative biases": ("T5Model", "T5Config", {"d_model": 32, "d_kv": 8, "d_ff": 37, "num_layers": 1, "num_heads": 4,
                        "vocab_size": 99, "decoder_start_token_id": 0}, "decoder", BOTH),
    "audio": ("WhisperModel", "WhisperConfig", SEQ2SEQ | SPECIAL | {"num_mel_bins": 8, "max_source_positions": 10,
              "decoder_start_token_id": 1}, "audio", BOTH),
}  # fmt: skip


def build(name, attention):
    model, config, settings, padding, outputs = FAMILIES[name]
    torch.manual_seed(0)
    options = {"attn_implementation": attention, "experts_implementation": "eager"}
    model = getattr(tf, model)._from_config(getattr(tf, config)(**settings), **options).double().eval()
    for parameter in model.parameters():  # at the usual scale of 0.02 every softmax is flat and all ranks agree
        if parameter.ndim == 2:
            parameter.data.mul_(6)
    return model, batch_of(padding), outputs


def batch_of(padding):
    generator = torch.Generator().manual_seed(1)
    draw = lambda *shape: torch.randn(shape, generator=generator, dtype=torch.float64)  # noqa: E731
    ids = lambda n: torch.randint(3, 99, (2, n), generator=generator)  # noqa: E731
    if padding == "images":
        return {"pixel_values": draw(2, 3, 12, 12)}
    if padding == "audio":
        return {"input_features": draw(2, 8, 20), "decoder_input_ids": ids(6)}
    mask = torch.ones(2, 12, dtype=torch.int64)
    mask[1, 9:] = 0
    if padding == "none":
        return {"input_ids": ids(12)}
    batch = {"input_ids": ids(12), "attention_mask": mask.flip(1) if padding == "left" else mask}
    return batch | ({"decoder_input_ids": ids(12)} if padding == "decoder" else {})  # as many queries as keys


@pytest.fixture(autouse=True)
def float64_throughout(monkeypatch):
    """The families take their softmax in float32, where the least number of float64, their mask, is -infinity."""
    monkeypatch.setattr(torch.nn.functional, "softmax", lambda x, dim=-1, dtype=None, **_: x.softmax(dim))


def explicit(model, batch, outputs):
    """Attention matrices of the model itself."""
    with torch.no_grad():
        result = model(**batch, output_attentions=True)
    return {where: result[key] for where, key in outputs.items()}


def layers_of(frame, where):
    names = list(dict.fromkeys(frame["layer"]))
    cross = [n for n in names if n.endswith(("encoder_attn", "EncDecAttention"))]
    if where == "cross":
        return cross
    return [n for n in names if n.startswith(where) and n not in cross]


@pytest.mark.parametrize("name", FAMILIES)
def test_counts_equal_those_of_the_models_own_matrices(name):
    model, batch, outputs = build(name, "eager")
    attentions = explicit(model, batch, outputs)
    frames = [probe(model, batch, tol=TOL, per_sample=True)]
    if model._supports_sdpa:
        frames.append(probe(build(name, "sdpa")[0], batch, tol=TOL, per_sample=True))
    for frame in frames:
        assert set(frame["layer"]) == {layer for where in outputs for layer in layers_of(frame, where)}
        for where, matrices in attentions.items():
            layers = layers_of(frame, where)
            assert len(layers) == len(matrices)
            queries = batch.get("attention_mask") if where in ("", "encoder.") else None
            for layer, matrix in zip(layers, matrices, strict=True):
                assert_frame(frame, layer, matrix, queries)


COMPARED = ["layer", "head", "n", "m", "mask", "hardmax_rank", "bound"]


@pytest.mark.parametrize("name", [name for name in FAMILIES if FAMILIES[name][3] not in ("images", "audio")])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_sample_padded_on_the_right_is_the_sample_alone(name, attention):
    try:
        model = build(name, attention)[0]
    except ValueError as error:
        assert attention == "sdpa" and "scaled_dot_product_attention" in str(error)
        return
    batch = batch_of("right")
    other = {"decoder_input_ids": batch["input_ids"][:, :7]} if FAMILIES[name][3] == "decoder" else {}
    alone = {"input_ids": batch["input_ids"][1:, :9]} | {key: value[1:] for key, value in other.items()}
    padded = probe(model, batch | other, ranks="hardmax", per_sample=True)
    padded = padded[padded["sample"] == 1].reset_index(drop=True)
    words = padded["mask"].str.replace("padding + ", "").str.replace(" + padding", "").str.replace("padding", "none")
    expected = probe(model, alone, ranks="hardmax", per_sample=True)
    pd.testing.assert_frame_equal(padded.assign(mask=words)[COMPARED], expected[COMPARED], check_dtype=False)


def test_the_reference_would_see_a_wrong_head():
    model, batch, outputs = build("causal", "eager")
    frame = probe(model, batch, tol=TOL, per_sample=True)
    matrix = explicit(model, batch, outputs)[""][0]
    with pytest.raises(AssertionError):
        assert_frame(frame, frame["layer"][0], matrix.flip(1), batch["attention_mask"])
    with pytest.raises(AssertionError):
        assert_frame(frame, frame["layer"][0], matrix)  # padding counted


EXPECTED = {  # kv_heads, head_dim, masks of the layers
    "bidirectional": (4, 8, ["padding", "padding"]),
    "causal": (4, 8, ["causal + padding"] * 2),
    "linear biases": (4, 8, ["causal + padding + bias"] * 2),
    "multi-query": (1, 8, ["causal"] * 2),
    "grouped": (2, 8, ["causal + padding"] * 2),
    "sliding window": (2, 8, ["window", "causal"]),
    "soft-capping": (2, 8, ["window + bias", "causal + bias"]),
    "local and global": (4, 8, ["padding", "window + padding"]),
    "latent": (4, 12, ["causal"] * 2),
    "sink": (2, 8, ["window", "causal"]),
    "vision": (4, 8, ["none"] * 2),
    "encoder-decoder": (4, 8, ["padding", "causal", "padding"]),
    "audio": (4, 8, ["none", "causal", "none"]),
}


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_head_dimension_key_heads_and_masks(name, attention):
    try:
        model, batch, _ = build(name, attention)
    except ValueError as error:
        assert attention == "sdpa" and "scaled_dot_product_attention" in str(error)
        return
    frame = probe(model, batch, ranks="hardmax")
    kv_heads, head_dim, masks = EXPECTED[name]
    assert set(frame["kv_heads"]) == {kv_heads} and set(frame["head_dim"]) == {head_dim}
    assert frame.groupby("layer", sort=False)["mask"].first().tolist() == masks
    assert ("sink_mass" in frame) == (name == "sink") and ("rotary_dim" in frame) == (name == "latent")


def test_a_sink_takes_its_share_of_attention():
    model, batch, outputs = build("sink", "eager")
    matrices = explicit(model, batch, outputs)[""]
    frame = probe(model, batch, ranks="hardmax")
    shares = torch.stack([1 - a.sum(-1).mean((0, 2)) for a in matrices]).flatten()
    assert torch.allclose(torch.tensor(frame["sink_mass"].to_numpy()), shares.double())
    assert shares.min() > 0.01


def test_cached_decoding_leaves_the_cache_as_it_was():
    model, batch, outputs = build("grouped", "sdpa")
    ids = batch["input_ids"]
    cache = model(input_ids=ids, use_cache=True).past_key_values  # with gradients, as it comes
    one = {"input_ids": ids[:, :1], "past_key_values": cache}
    frame = probe(model, one, tol=TOL, per_sample=True)
    assert cache.get_seq_length() == 12
    assert set(frame["n"]) == {1} and set(frame["m"]) == {13} and set(frame["mask"]) == {"none"}
    assert set(frame["hardmax_rank"]) == {1} and set(frame["bound"]) == {1.0}
    several = {"input_ids": ids[:, :3], "past_key_values": cache}
    frame = probe(model, several, tol=TOL, per_sample=True)
    eager = build("grouped", "eager")[0]
    again = eager(input_ids=ids, use_cache=True).past_key_values
    matrices = explicit(eager, {"input_ids": ids[:, :3], "past_key_values": again}, outputs)[""]
    for layer, matrix in zip(layers_of(frame, ""), matrices, strict=True):
        assert_frame(frame, layer, matrix)
    assert set(frame["mask"]) == {"causal"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    model, batch, _ = build("vision", "sdpa")
    frame = probe(model.to(dtype), {"pixel_values": batch["pixel_values"].to(dtype)}, ranks="hardmax", per_sample=True)
    assert frame["deviation"].between(1e-6, 0.05).all()
    assert frame["hardmax_rank"].between(1, 10).all()
