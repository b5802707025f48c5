"""experiments.choosing_head_dimension: the rule's rows, its judgement, and trained heads cut down."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from attnrank import sweep
from attnrank.experiments.accuracy import runs, tables
from attnrank.experiments.accuracy.arms import SHAPE
from attnrank.experiments.accuracy.compare import Spread
from attnrank.experiments.choosing_head_dimension import judge, rule, seconds, trained, truncation
from attnrank.experiments.text import runs as text_runs
from attnrank.experiments.text import tables as text_tables
from attnrank.models import Attention, TransformerConfig, pretrained
from attnrank.models.keywords import KeywordTransformer
from attnrank.models.route import RouteEncoder

TINY = tables._TINY[0] | {"heads": 2, "qk_dim": 4}


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# The rule


def test_the_recommendation_is_read_off_the_shares():
    few = {gap: rule.recommended_heads("permutation", "scores", gap, 2) for gap in (0.01, 0.3)}
    assert few[0.01]["head_dim"] > few[0.3]["head_dim"]
    assert all(row["largest"] - row["share"] <= gap for gap, row in few.items())
    assert len(rule.inputs("permutation")) == len(rule.inputs("nearest")) == 32
    with pytest.raises(ValueError, match="family must be 'scores' for the task 'nearest'"):
        rule.recommended_heads("nearest", "coupled", 0.05, 2)


@pytest.mark.parametrize(("task", "family"), [("permutation", "scores"), ("digits", "coupled")])
def test_other_draws_are_not_taken_for_rounding(monkeypatch, task, family):
    repeats, honest = rule.EXPERIMENTS["recommended_heads"].repeats, rule.builder
    row = rule.recommended_heads(task, family, 0.1, 2)
    monkeypatch.setattr(rule, "builder", lambda *of: lambda d, generator: honest(*of)(d, generator.manual_seed(9)))
    assert repeats.difference(row, rule.recommended_heads(task, family, 0.1, 2), 21) is not None
    assert repeats.difference(row, row | {"share": row["share"] + 1 / 32768}, 21) is None  # a key of float32 scores
    assert repeats.difference(row, row | {"share": row["share"] + 1 / 4096}, 21) is not None  # one of float64 scores


def test_models_of_the_rule_are_those_that_were_trained():
    model = rule.builder("digits", "coupled")(4, torch.Generator().manual_seed(3))
    setting = next(s for s in tables.SERIES["digits"] if s["heads"] == 8 and s["qk_dim"] == 4 and s["value_dim"] == 4)
    expected = runs.untrained(setting | {"seed": 3}).state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in model.state_dict().items())


def test_text_models_of_the_rule_are_those_that_were_trained():
    series = [s for s in text_tables.SERIES["64 words"] if s["seed"] == 0 and s["intervention"] == "none"]
    changed = [s for s in series if s["value_dim"] == text_tables.BASE["value_dim"]]
    assert {s["qk_dim"] for s in changed} == set(rule.CANDIDATES["imdb"])
    setting = changed[1]
    model = rule.builder("imdb", "scores")(setting["qk_dim"], torch.Generator().manual_seed(3))
    expected = text_runs.untrained(setting | {"seed": 3}).state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in model.state_dict().items())
    made = pd.DataFrame([s | {"stopped": "", "accuracy": 0.7, "parameters": 9, "parameters_without_embedding": 5,
                              "flops_per_text": 3} for s in text_tables.SERIES["64 words"]])  # fmt: skip
    rows = judge.trained_rows("imdb", "scores", {"text_accuracy": made})
    assert rows.groupby("head_dim").seed.nunique().to_dict() == dict.fromkeys(rule.CANDIDATES["imdb"], 3)
    assert len(rows) == 3 * len(rule.CANDIDATES["imdb"])  # without uniform attention, whose shape is the base's
    assert (rows.parameters == 5).all() and judge.default_head_dim("imdb") == text_tables.BASE["qk_dim"]


def test_the_default_is_the_width_over_the_heads_as_far_as_it_was_trained():
    found = {task: judge.default_head_dim(task) for task in ("digits", "cifar10", "permutation", "nearest")}
    assert found == {"digits": 8, "cifar10": 16, "permutation": 16, "nearest": 16}


@pytest.mark.parametrize("task", rule.CANDIDATES)
def test_every_task_is_timed_on_inputs_of_its_shape(task, monkeypatch):
    monkeypatch.setattr(seconds, "TURN", 0.0)
    row = seconds.head_dim_seconds(task, 2, 1, seconds.processor())
    assert row["low"] <= row["ratio"] <= row["high"] and row["seconds"] > 0
    model = rule.builder(task, "scores")(2, torch.Generator().manual_seed(0)).float()
    assert len(model(seconds.inputs(task))) == seconds.BATCH
    with pytest.raises(ValueError, match="processor must be the one at hand"):
        seconds.head_dim_seconds(task, 2, 1, "another")


def test_times_are_over_those_of_the_largest_head_dimension(monkeypatch):
    """In the same rounds: 1 s beside 2 s, and 3 s beside 4 s."""
    monkeypatch.setattr(seconds, "interleaved", lambda passes, rounds, turn: [[1.0, 3.0], [2.0, 4.0]])
    row = seconds.head_dim_seconds("permutation", 2, 2, seconds.processor())
    assert (row["seconds"], row["ratio"], row["low"], row["high"]) == pytest.approx((2.0, 2 / 3, 0.5, 0.75))


def test_choices():
    rows = pd.DataFrame([
        {"head_dim": d, "seed": s, "accuracy": a + 0.01 * s, "parameters": 100 * d, "flops": 10.0 * d}
        for d, a in ((1, 0.5), (2, 0.8), (4, 0.8), (8, 0.9)) for s in range(3 if d < 8 else 1)
    ])  # fmt: skip
    found = judge.choices(rows, recommended=4, default=16).set_index("choice")
    assert found.head_dim.to_dict() == {"recommended": 4, "default": 16, "best": 2}  # 8 has fewer seeds
    assert found.behind["recommended"] == pytest.approx(0) and found.half_width["recommended"] == pytest.approx(0)
    assert np.isnan(found.accuracy["default"]) and found.seeds["default"] == 0
    assert found.interval["best"] == pytest.approx(4.302653 * 0.01 / 3**0.5)  # Student's t, two degrees of freedom
    assert np.isnan(found.half_width["best"])  # from itself it differs by nothing
    worse = judge.choices(rows, recommended=1, default=2).set_index("choice")
    assert worse.behind["recommended"] == pytest.approx(0.3) and worse.parameters["recommended"] == 100
    assert worse.half_width["recommended"] == pytest.approx(0)  # paired: seeds differ alike
    pooled = judge.choices(rows, recommended=1, default=2, pooled=Spread(0.02, 10)).set_index("choice")
    assert pooled.half_width["recommended"] == pytest.approx(2.228139 * 0.02 * (2 / 3) ** 0.5)


def test_the_spread_of_a_task_is_that_of_its_series():
    of = {name: sweep.read(name) for name in ("accuracy", "text_accuracy")}
    arms = of["accuracy"].query("dataset == 'cifar10' and patch == 8 and epochs == 5 and width == 64")
    groups = arms.groupby([*SHAPE]).accuracy
    variance = (groups.var() * (groups.count() - 1)).sum() / (groups.count() - 1).sum()
    assert judge.pooled_spread("cifar10", of).deviation == pytest.approx(variance**0.5)
    assert judge.pooled_spread("imdb", of).freedom > 4 and judge.pooled_spread("permutation", of) is None


def test_the_best_is_chosen_on_the_seeds_that_all_share():
    """The default alone has five seeds: it is not the best for that, nor for what it reached on the other two."""
    rows = pd.DataFrame([
        {"head_dim": d, "seed": s, "accuracy": a + (d == 8) * (s > 2), "parameters": d, "flops": 1.0 * d}
        for d, a in ((1, 0.9), (4, 0.5), (8, 0.8)) for s in range(5 if d == 8 else 3)
    ])  # fmt: skip
    found = judge.choices(rows, recommended=4, default=8).set_index("choice")
    assert found.head_dim["best"] == 1 and found.seeds.to_dict() == {"recommended": 3, "default": 5, "best": 3}
    assert found.behind.to_dict() == pytest.approx({"recommended": 0.4, "default": 0.1, "best": 0.0})


def test_costs_are_those_of_the_layer():
    layer = Attention(TransformerConfig(32, 1, 4, 1, value_dim=32), torch.Generator())
    rows = judge.trained_rows("permutation", "scores", {"task_heads": sweep.read("task_heads")})
    assert len(rows) == 18 and not rows.duplicated(["head_dim", "seed"]).any()
    row = rows[rows.head_dim == 4].iloc[0]
    assert row.parameters == sum(value.numel() for part in (layer.query, layer.key) for value in part.parameters())
    with torch.utils.flop_counter.FlopCounterMode(display=False) as counter:
        q, k = layer.queries_keys(draw(1, 16, 32))
        q @ k.mT
    assert row.flops == counter.get_total_flops()


def test_stopped_runs_are_left_out():
    table = sweep.read("task_heads")
    row = table.query("task == 'permutation' and readout == 'pointer' and n == 16 and heads == 1").index[0]
    table.loc[row, "stopped"] = "the loss is nan"
    assert len(judge.trained_rows("permutation", "scores", {"task_heads": table})) == 17


# Heads cut down


@pytest.mark.parametrize("model", [RouteEncoder, KeywordTransformer])
def test_layers_cut_down(model):
    torch.manual_seed(0)
    whole = model().double()
    heads = 1 if model is KeywordTransformer else 8
    dims = whole.layers[0].q.out_features // heads
    before = [(layer.q.weight.clone(), layer.k.weight.clone()) for layer in whole.layers]
    assert truncation._cut_layers(whole, dims) == pytest.approx(1)
    for (q, k), layer in zip(before, whole.layers, strict=True):
        for h in range(heads):
            part = slice(h * dims, (h + 1) * dims)
            torch.testing.assert_close(layer.q.weight[part].T @ layer.k.weight[part], q[part].T @ k[part])
    kept = truncation._cut_layers(whole, 3)
    product = before[-1][0][:dims].T @ before[-1][1][:dims]
    sigma = torch.linalg.svdvals(product)
    cut = whole.layers[-1].q.weight[:dims].T @ whole.layers[-1].k.weight[:dims]
    sigmas = [torch.linalg.svdvals(q[h * dims : (h + 1) * dims].T @ k[h * dims : (h + 1) * dims])
              for q, k in before for h in range(heads)]  # fmt: skip
    shares = [(s[:3].square().sum() / s.square().sum()).item() for s in sigmas]
    assert torch.linalg.matrix_rank(cut) == 3 and kept == pytest.approx(np.mean(shares))
    assert (product - cut).norm().item() == pytest.approx(sigma[3:].square().sum().sqrt().item())


def test_planes_of_rotation_cut():
    """Queries lose whole pairs of dimensions that turn together: scores at every distance lose the same terms."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
                                      num_hidden_layers=1, intermediate_size=8, vocab_size=8)  # fmt: skip
    model = transformers.LlamaForCausalLM(config).double()
    assert truncation._cut_planes(model, 8) == pytest.approx(1)
    kept = truncation._cut_planes(model, 4)
    rows = model.model.layers[0].self_attn.q_proj.weight.view(4, 2, 4, 32).abs().sum(-1) > 0
    assert torch.equal(rows[:, 0], rows[:, 1]) and (rows[:, 0].sum(-1) == 2).all() and 0.5 <= kept < 1
    for rank in (3, 10):
        with pytest.raises(ValueError, match="rank must be even and at most 8"):
            truncation._cut_planes(model, rank)


def test_planes_that_are_kept_have_the_largest_products_with_the_keys_of_their_group():
    """Query heads 0 and 1 share key head 0, 2 and 3 key head 1."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
                                      num_hidden_layers=1, intermediate_size=8, vocab_size=8)  # fmt: skip
    model = transformers.LlamaForCausalLM(config).double()
    of = model.model.layers[0].self_attn
    of.q_proj.weight.data, of.k_proj.weight.data = draw(32, 32, seed=1), draw(16, 32, seed=2)
    q, k = (w.weight.detach().view(-1, 2, 4, 32).square().sum((1, 3)) for w in (of.q_proj, of.k_proj))
    products = torch.stack([q[head] * k[head // 2] for head in range(4)])
    largest = products.sort(-1, descending=True).values
    kept = truncation._cut_planes(model, 4)
    assert kept == pytest.approx((largest[:, :2].sum(-1) / largest.sum(-1)).mean().item())
    rows = of.q_proj.weight.view(4, 2, 4, 32).abs().sum((1, 3)) > 0
    assert torch.equal(rows, products >= largest[:, 1:2])


def test_what_a_cut_costs_is_over_the_whole_model_on_the_same_inputs(monkeypatch):
    losses = {None: torch.tensor([1.0, 2.0, 4.0, 5.0]), 2: torch.tensor([1.5, 2.0, 5.0, 5.5])}
    answers = {None: torch.tensor([0, 1, 2, 3]), 2: torch.tensor([0, 1, 2, 0])}
    monkeypatch.setattr(truncation, "_outcome", lambda model, rank: (losses[rank], answers[rank], 0.5, 0.25))
    row = truncation.truncated_heads("any", 2)
    spread = pd.Series(losses[2].tolist()).std(), pd.Series([0.5, 0.0, 1.0, 0.5]).std()
    assert row == pytest.approx({"loss": 3.5, "loss_error": spread[0] / 2, "excess": 0.5, "same": 0.75, "kept": 0.5,
                                 "excess_error": spread[1] / 2, "hardmax": 0.25})  # fmt: skip


def test_losses_of_words_and_of_recordings_by_hand(monkeypatch):
    """Of the next token in nats; the divergence of what is said from what the whole model says, in this order."""
    tokens, scores = torch.tensor([[1, 2, 0, 1]]).expand(16, -1), draw(4, 3)
    monkeypatch.setattr(truncation, "_texts", lambda: tokens)
    losses, said = truncation._read(lambda input_ids: SimpleNamespace(logits=scores.expand(16, 4, 3)), "stories260K")
    shares = scores.exp() / scores.exp().sum(-1, keepdim=True)
    assert losses.tolist() == pytest.approx([-shares[[0, 1, 2], [2, 0, 1]].log().mean().item()] * 16)
    assert torch.equal(said[0], scores[:3].argmax(-1))
    monkeypatch.setattr(truncation, "_recordings", lambda: None)
    whole = SimpleNamespace(double=lambda: lambda sound: 2 * scores)
    monkeypatch.setattr(truncation.pretrained, "load", lambda name: whole)
    p = (2 * scores).exp() / (2 * scores).exp().sum(-1, keepdim=True)
    losses, said = truncation._listen(lambda sound: scores, "kwt1")
    assert losses.tolist() == pytest.approx((p * (p / shares).log()).sum(-1).tolist())
    assert torch.equal(said, scores.argmax(-1))


def test_biases_are_cut_with_the_weights():
    layer = Attention(TransformerConfig(12, 2, 5, 1), torch.Generator().manual_seed(0))
    with torch.no_grad():
        for part in (layer.query, layer.key):
            part.bias.copy_(draw(10, seed=4))
    x = draw(1, 7, 12)
    q, k = layer.queries_keys(x)
    before = (q @ k.mT).detach()
    assert trained._cut(layer, 5).tolist() == pytest.approx([1, 1])
    q, k = layer.queries_keys(x)
    torch.testing.assert_close(q @ k.mT, before)
    rows = [torch.cat([part.weight.detach().T, part.bias.detach()[None]]) for part in (layer.query, layer.key)]
    kept = trained._cut(layer, 2)
    for head, share in enumerate(kept):
        sigma = torch.linalg.svdvals(rows[0][:, 5 * head : 5 * head + 5] @ rows[1][:, 5 * head : 5 * head + 5].T)
        assert share.item() == pytest.approx((sigma[:2].square().sum() / sigma.square().sum()).item())
    q, k = layer.queries_keys(x)
    assert (torch.linalg.matrix_rank(q @ k.mT) == 2).all()


def test_a_trained_model_is_left_as_it_was(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNRANK_RUNS", str(tmp_path))
    trained._whole.cache_clear()
    whole = runs.accuracy(**TINY)
    rows = {rank: trained.truncated_vits(**TINY, rank=rank) for rank in (1, 4)}
    assert rows[4]["test_accuracy"] == pytest.approx(whole["accuracy"], abs=0.01)
    assert rows[4]["kept"] == pytest.approx(1)
    assert rows[1]["kept"] < 1 and rows[1] == trained.truncated_vits(**TINY, rank=1)
    trained._whole.cache_clear()


@pytest.mark.skipif(not pretrained.at_hand("route_tsp20"), reason="the trained models are not at hand")
def test_the_whole_model_is_at_full_rank():
    row = truncation.truncated_heads("route_tsp20", 16)
    assert row["same"] == 1 and abs(row["excess"]) < 1e-9 and row["kept"] == pytest.approx(1)
    assert dataclasses.asdict(truncation.EXPERIMENTS["truncated_heads"].repeats)["rtol"] == 1e-6
