"""The recommended head dimension on heads whose rank is known in theory."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import attnrank
from attnrank import theory
from attnrank.probe import _recommend, hub

N = 64
CANDIDATES = (2, 4, 8, 16, 32, 64)


class Heads(nn.Module):
    """Four heads with standard Gaussian query and key weights on orthonormal tokens."""

    def __init__(self, head_dim, generator):
        super().__init__()
        self.w_q, self.w_k = torch.randn(2, 4, N, head_dim, generator=generator, dtype=torch.float64)

    def forward(self, x):
        q, k = (x[:, None] @ w for w in (self.w_q, self.w_k))
        return F.scaled_dot_product_attention(q, k, k)


def tokens():
    return torch.eye(N, dtype=torch.float64)[None]


@pytest.mark.parametrize("gap", [0.05, 0.2])
def test_the_recommendation_is_that_of_the_theory(gap):
    found = attnrank.recommend_head_dim(Heads, tokens(), CANDIDATES, gap=gap, seeds=12)
    bound = [theory.head_dim_bound(N, d) / N for d in CANDIDATES]
    expected = next(d for d, b in zip(CANDIDATES, bound, strict=True) if bound[-1] - b <= gap)
    assert found.head_dim == expected and found.low <= found.head_dim <= found.high
    assert found.shares["head_dim"].tolist() == list(CANDIDATES)
    for row, b in zip(found.shares.itertuples(), bound, strict=True):
        assert row.share <= b + 6 * row.standard_error  # a bound on the mean; loose only at small head dimension
        assert row.head_dim < 8 or row.share > b - 0.02 - 6 * row.standard_error


def test_few_seeds_are_less_sure():
    few = attnrank.recommend_head_dim(Heads, tokens(), CANDIDATES, gap=0.03, seeds=2)
    many = attnrank.recommend_head_dim(Heads, tokens(), CANDIDATES, gap=0.03, seeds=24)
    assert CANDIDATES.index(many.high) - CANDIDATES.index(many.low) <= 1
    assert few.shares["standard_error"].mean() > many.shares["standard_error"].mean()


def recommended(monkeypatch, shares, gap):
    """What is recommended of candidates 2, 4, 6 with these shares (seeds, candidates); and the seeds of the models."""
    asked, every = [], {(seed, d): share for seed, row in enumerate(shares) for d, share in zip((2, 4, 6), row)}

    def build(head_dim, generator):
        asked.append(generator.initial_seed())
        model = nn.Identity()
        model.key = (asked[-1], head_dim)
        return model

    monkeypatch.setattr(_recommend, "probe", lambda model, batch, **options: model.key)
    monkeypatch.setattr(_recommend, "_share", every.__getitem__)
    return attnrank.recommend_head_dim(build, tokens(), (6, 2, 4), gap=gap, seeds=len(shares)), asked


@pytest.mark.parametrize(("shares", "gap", "expected"), [
    ([0.5, 0.75, 1.0], 0.5, 2), ([0.5, 0.75, 1.0], 0.25, 4), ([0.5, 0.75, 1.0], 0.2, 6),  # just met is met
    ([0.9, 0.2, 1.0], 0.25, 6), ([1.0, 0.9, 0.5], 0.1, 2),  # from which on every share is near, or above
])  # fmt: skip
def test_saturation_is_judged_against_the_largest(shares, gap, expected, monkeypatch):
    found, asked = recommended(monkeypatch, [shares, shares], gap)
    assert (found.head_dim, found.low, found.high) == (expected,) * 3 and asked == [0, 0, 0, 1, 1, 1]
    assert found.shares.to_dict("list") == {"head_dim": [2, 4, 6], "share": shares, "standard_error": [0.0] * 3}


def test_the_interval_leaves_out_a_fortieth_on_each_side(monkeypatch):
    """Three seeds: a resample holds one of them alone once in 27. Only the first alone recommends the smallest
    candidate, only the last alone the largest."""
    found, _ = recommended(monkeypatch, [[1.0, 1.0, 1.0], [0.0, 1.0, 1.0], [0.0, 0.6, 1.0]], 0.3)
    assert (found.low, found.head_dim, found.high) == (2, 4, 6)
    assert found.shares["standard_error"].tolist() == pytest.approx([1 / 3, 0.4 / 3, 0.0])


def test_defaults_are_those_of_the_text(monkeypatch):
    built = []
    monkeypatch.setattr(_recommend, "probe", lambda model, batch, **options: None)
    monkeypatch.setattr(_recommend, "_share", lambda frame: 1.0)
    found = attnrank.recommend_head_dim(lambda d, generator: built.append(d) or nn.Identity(), tokens(), (2, 4))
    assert found.gap == 0.05 and len(built) == 2 * 8


def test_it_repeats():
    one, two = (attnrank.recommend_head_dim(Heads, tokens(), (4, 16), seeds=2) for _ in range(2))
    assert one.shares.equals(two.shares) and (one.low, one.high) == (two.low, two.high)


def test_a_share_is_the_mean_over_samples_of_rank_over_length():
    """Lengths 4 and 40: the mean of two shares, and not a mean rank over a mean length."""
    x = torch.randn(2, 40, 16, generator=torch.Generator().manual_seed(0))
    padded = torch.arange(40) >= torch.tensor([4, 40])[:, None]
    batch = {"query": x, "key": x, "value": x, "key_padding_mask": padded}

    def build(head_dim, generator):
        torch.manual_seed(generator.initial_seed())
        return nn.MultiheadAttention(16, 16 // head_dim, batch_first=True)

    found = attnrank.recommend_head_dim(build, batch, (1, 8), seeds=2)
    for row in found.shares.itertuples():
        models = [build(row.head_dim, torch.Generator().manual_seed(seed)) for seed in range(2)]
        frames = [attnrank.probe(model, batch, per_sample=True) for model in models]
        assert row.share == pytest.approx(sum((f["hardmax_rank"] / f["n"]).mean() for f in frames) / 2)
    assert found.shares["share"][0] > 0.2


@pytest.mark.parametrize(("change", "message"), [
    ({"head_dims": [8]}, "at least two candidates"),
    ({"head_dims": [0, 8]}, "head_dims must be at least 1"),
    ({"gap": 0.0}, "gap must be greater than 0"),
    ({"seeds": 1}, "seeds must be at least 2"),
])  # fmt: skip
def test_bad_arguments(change, message):
    arguments = {"head_dims": CANDIDATES, "gap": 0.05, "seeds": 2} | change
    with pytest.raises(ValueError, match=message):
        attnrank.recommend_head_dim(Heads, tokens(), arguments.pop("head_dims"), **arguments)


CONFIGURATIONS = {  # with a head dimension of its own, and without
    "LlamaConfig": {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
                    "intermediate_size": 8, "vocab_size": 50},
    "GPT2Config": {"n_embd": 32, "n_layer": 1, "n_head": 4, "vocab_size": 50},
    "T5Config": {"d_model": 32, "d_ff": 8, "num_layers": 1, "num_heads": 4, "vocab_size": 50},
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_configuration_of_transformers_and_n(name):
    tf = pytest.importorskip("transformers")
    config = getattr(tf, name)(**CONFIGURATIONS[name])
    before = config.to_dict()
    ids = torch.randint(50, (2, 40), generator=torch.Generator().manual_seed(0))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if name == "T5Config":
        batch |= {"decoder_input_ids": ids}

    def build(head_dim, generator):
        free = {"LlamaConfig": "head_dim", "T5Config": "d_kv"}.get(name)
        changed = {free: head_dim} if free else {"n_head": 32 // head_dim}
        torch.manual_seed(generator.initial_seed())
        return tf.AutoModel.from_config(getattr(tf, name)(**(CONFIGURATIONS[name] | changed)))

    state = torch.get_rng_state()
    found = attnrank.recommend_head_dim(config, batch, (4, 8, 16), n=24, seeds=2)
    assert torch.equal(torch.get_rng_state(), state) and config.to_dict() == before
    expected = attnrank.recommend_head_dim(build, {k: v[:, :24] for k, v in batch.items()}, (4, 8, 16), seeds=2)
    assert found.shares.equals(expected.shares) and found.head_dim == expected.head_dim


SEQ2SEQ = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4, "vocab_size": 50,
           "decoder_attention_heads": 4, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8, "pad_token_id": 0,
           "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}  # fmt: skip
FALCON = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 50}
OF_ALL_LAYERS = {
    "BartConfig": SEQ2SEQ,
    "WhisperConfig": SEQ2SEQ | {"num_mel_bins": 8, "max_source_positions": 10},
    "FalconConfig": FALCON,
    "FalconConfig, a key head each": FALCON | {"multi_query": False},
    "PhiConfig": FALCON | {"intermediate_size": 8},
}


@pytest.mark.parametrize("name", OF_ALL_LAYERS)
def test_the_head_dimension_changes_in_all_layers(name):
    tf = pytest.importorskip("transformers")
    config = getattr(tf, name.partition(",")[0])(**OF_ALL_LAYERS[name])
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 50, (2, 12), generator=generator)
    batch = {"input_ids": ids}
    if name == "WhisperConfig":
        batch = {"input_features": torch.randn(2, 8, 20, generator=generator)}
    if OF_ALL_LAYERS[name] | SEQ2SEQ == OF_ALL_LAYERS[name]:
        batch |= {"decoder_input_ids": ids}
    for head_dim in (4, 16):
        frame = attnrank.probe(hub.builder(config)(head_dim, generator), batch, ranks="hardmax")
        assert set(frame["head_dim"]) == {head_dim} and set(frame["head"]) == set(range(32 // head_dim))
    assert attnrank.recommend_head_dim(config, batch, (4, 16), seeds=2).head_dim in (4, 16)


def test_a_head_dimension_that_does_not_change_is_refused():
    tf = pytest.importorskip("transformers")
    config = tf.DeepseekV3Config(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=4, intermediate_size=8,
        vocab_size=50, q_lora_rank=16, kv_lora_rank=8, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=8,
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"build must be a function: .* layers\.0\.self_attn has head dimension 12"):
        attnrank.recommend_head_dim(config, {"input_ids": torch.arange(10)[None]}, (4, 16), seeds=2)
    with pytest.raises(ValueError, match="build must be a function for a configuration without a width"):
        attnrank.recommend_head_dim(tf.CLIPConfig(), torch.zeros(1, 10), (4, 16), seeds=2)
    grouped = tf.FalconConfig(**FALCON, new_decoder_architecture=True, num_kv_heads=2)
    with pytest.raises(ValueError, match="build must be a function for grouped queries"):
        attnrank.recommend_head_dim(grouped, {"input_ids": torch.arange(10)[None]}, (4, 16), seeds=2)


def test_what_a_configuration_cannot_have():
    tf = pytest.importorskip("transformers")
    config = tf.GPT2Config(**CONFIGURATIONS["GPT2Config"])
    ids = torch.zeros(1, 10, dtype=torch.int64)
    with pytest.raises(ValueError, match="head_dims must divide the width 32 of this configuration, got 12"):
        attnrank.recommend_head_dim(config, ids, (8, 12), seeds=2)
    with pytest.raises(ValueError, match="n must be at most the number of tokens .* n = 11"):
        attnrank.recommend_head_dim(config, ids, (8, 16), n=11, seeds=2)
    with pytest.raises(ValueError, match=r"for shape \(1, 3, 8, 8\)"):
        attnrank.recommend_head_dim(Heads, torch.zeros(1, 3, 8, 8), (8, 16), n=2, seeds=2)
    with pytest.raises(ValueError, match="build must be a function"):
        attnrank.recommend_head_dim(None, ids, (8, 16), seeds=2)


def without_generator(head_dim):
    return nn.Identity()


def without_a_model(head_dim, generator):
    return [head_dim]


def other_names(*, head_dim, generator):
    return nn.Identity()


@pytest.mark.parametrize(("build", "message"), [
    (without_generator, r"build must be callable as build\(head_dim, generator\), and without_generator is not: too "),
    (other_names, r"build\(head_dim, generator\), and other_names is not: "),
    (without_a_model, r"build\(8, generator\) must return a model, a torch.nn.Module, got list"),
    (lambda head_dim, generator: nn.Identity, r"must return a model, a torch.nn.Module, got the class Identity"),
    (nn.Linear(3, 3), "build must be a function that returns a model, or a configuration of transformers, got a model"),
    ("gpt2", "build must be a function or a configuration of transformers, got str"),
])  # fmt: skip
def test_what_builds_no_model_is_refused_by_name(build, message):
    with pytest.raises(ValueError, match=message):
        attnrank.recommend_head_dim(build, tokens(), (8, 16), seeds=2)


def test_errors_of_a_function_that_builds_are_its_own():
    def build(head_dim, generator):
        return len(head_dim)

    with pytest.raises(TypeError, match="has no len"):
        attnrank.recommend_head_dim(build, tokens(), (8, 16), seeds=2)


def test_layers_may_come_from_an_iterator():
    def build(head_dim, generator):
        return nn.TransformerEncoderLayer(8, 8 // head_dim, 16, batch_first=True)

    found = attnrank.recommend_head_dim(build, torch.zeros(1, 3, 8), [2, 4], seeds=2, layers=iter(["self_attn"]))
    assert found.head_dim == 2
