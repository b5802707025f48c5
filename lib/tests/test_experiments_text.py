"""experiments.text: tokens against counting by hand, ranks against argmax, runs recomputed from their checkpoints."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest
import torch
from safetensors import safe_open

from attnrank import data, training
from attnrank.data import SOURCES
from attnrank.experiments import EXPERIMENTS
from attnrank.experiments.accuracy.__main__ import is_finished, main
from attnrank.experiments.shared import runs as shared_runs
from attnrank.experiments.shared.tokens import LONGEST, UNKNOWN, token_numbers, tokenizer
from attnrank.experiments.text import baseline, ranks, runs, tables
from attnrank.models import TextTransformer, TransformerConfig
from attnrank.theory import token_geometry_rank

TINY = tables._TINY[0] | {"depth": 2, "qk_dim": 3}
RANKS = EXPERIMENTS["text_ranks"].quick[0] | {"texts": 5, "length": 24}

pytestmark = pytest.mark.usefixtures("one_thread")


def pieces(text):
    return re.findall(r"\w+|[^\w\s]+", text.replace("<br />", " ").lower())


# Tokens


def test_words_are_the_most_frequent_pieces_of_the_training_texts():
    train, test = (data.texts("docstrings", split)[0] for split in ("train", "test"))
    counts = Counter(piece for text in train for piece in pieces(text))
    vocabulary = tokenizer("docstrings", "words", 500).get_vocab()
    kept = {word: counts[word] for word in vocabulary if not word.startswith("[p") and word != "[unknown]"}
    assert len(vocabulary) == 500 and len(kept) == 498
    assert sorted(kept.values()) == sorted(count for _, count in counts.most_common(498))
    numbers, labels = token_numbers("docstrings", "test", "words", 500)
    assert torch.equal(labels, data.texts("docstrings", "test")[1]) and numbers.shape == (len(test), LONGEST)
    for text, row in zip(test[:50], numbers[:50], strict=True):
        expected = [vocabulary.get(piece, UNKNOWN) for piece in pieces(text)][:LONGEST]
        assert row.tolist() == expected + [0] * (LONGEST - len(expected))


def test_subwords_spell_the_texts_and_are_merged_by_frequency():
    made = tokenizer("docstrings", "subwords", 500)
    numbers, _ = token_numbers("docstrings", "test", "subwords", 500)
    known = set("".join(pieces(" ".join(data.texts("docstrings")[0]))))
    spelled = 0
    for text, row in zip(data.texts("docstrings", "test")[0][:50], numbers[:50], strict=True):
        whole = "".join(pieces(text))
        if set(whole) <= known and (row == 0).any():
            assert "".join(made.id_to_token(i) for i in row.tolist() if i) == whole
            spelled += 1
    assert spelled > 10
    pairs = Counter(a + b for text in data.texts("docstrings")[0] for p in pieces(text) for a, b in zip(p, p[1:]))
    letters = sum(len(made.id_to_token(i)) == 1 for i in range(2, 500))
    assert made.id_to_token(2 + letters) == pairs.most_common(1)[0][0]  # the first merge


def test_bad_tokenizers_are_refused():
    with pytest.raises(ValueError, match="kind"):
        tokenizer("docstrings", "letters", 500)
    with pytest.raises(ValueError, match="vocabulary"):
        tokenizer("docstrings", "words", 2)


# Ranks before training


@pytest.mark.parametrize("positions", ranks.POSITIONS)
@pytest.mark.parametrize("padding", ranks.PADDINGS)
def test_ranks_are_those_of_all_tokens_one_by_one(padding, positions):
    """In layer 2, where it matters who is attended to: without compressing equal tokens, by argmax."""
    setting = RANKS | {"padding": padding, "positions": positions, "layer": 2, "head_dim": 3, "length": 60}
    row = ranks.text_ranks(**setting)
    generator = torch.Generator().manual_seed(0)
    numbers, _ = token_numbers("docstrings", "train", "words", 500)
    chosen = numbers[torch.randperm(len(numbers), generator=generator)[:5], :60]
    model = TextTransformer(
        TransformerConfig(16, 2, 3, depth=2, init="lecun"), vocabulary=500, length=60, classes=2, positions=positions,
        generator=generator, dtype=torch.float64,
    )  # fmt: skip
    shares, kinds, lengths, ranked = [], [], [], []
    for tokens in chosen:
        if padding == "dropped":
            tokens = tokens[tokens != 0]
        x = model.embed(tokens[None])
        q, k = model.encoder.queries_keys(x)[1]
        best = (q @ k.mT)[0].detach()
        # equal tokens come with rounding of their own: a key is the first of those within it
        first = (best >= best.amax(-1, keepdim=True) - 1e-12).byte().argmax(-1)
        shares.append(np.mean([len(set(head.tolist())) for head in first]) / len(tokens))
        kinds.append(len(set(tokens.tolist())) / len(tokens))
        lengths.append(len(tokens))
        ranked.append([len(set(head.tolist())) for head in first])
    assert row["rank_fraction"] == pytest.approx(np.mean(shares), abs=1e-12)
    assert row["distinct"] == pytest.approx(np.mean(kinds), abs=1e-12)
    assert row["texts_std"] == pytest.approx(np.std(shares, ddof=1), abs=1e-12)
    words, ranked = np.array(kinds) * lengths, np.array(ranked)
    assert row["n"] == np.mean(lengths) and row["excess"] == pytest.approx((ranked - words[:, None]).max())
    assert row["rank_per_distinct"] == pytest.approx((ranked / words[:, None]).mean())
    law = [token_geometry_rank(round(m), 3, 16, 0.0) / n for m, n in zip(words, lengths, strict=True)]
    assert row["law"] == pytest.approx(np.mean(law))


def test_shares_are_counted_by_hand():
    row = ranks.text_shares("docstrings", "words", 500, 40)
    rows = token_numbers("docstrings", "train", "words", 500)[0][:, :40].tolist()
    numbers = [[i for i in text if i] for text in rows]
    assert row["texts"] == len(numbers) and row["filled"] == np.mean([len(text) == 40 for text in numbers])
    assert row["distinct"] == pytest.approx(np.mean([len(set(text)) / len(text) for text in numbers]))
    padded = [len(set(text + [0] * (40 - len(text)))) / 40 for text in numbers]
    assert row["distinct_padded"] == pytest.approx(np.mean(padded))
    assert row["unknown"] == pytest.approx(np.mean([text.count(1) / len(text) for text in numbers]))


# The line to beat


def test_the_baseline_learns_and_a_cut_text_says_less():
    whole, cut = (baseline.text_baseline("docstrings", length, 1) for length in (0, 8))
    assert 0.125 + 0.1 < cut["accuracy"] < whole["accuracy"] < 1 and cut["terms"] < whole["terms"]
    counts = Counter(piece for text in data.texts("docstrings")[0] for piece in set(pieces(text)[:8]))
    assert cut["terms"] == sum(texts > 1 for texts in counts.values())
    assert baseline.text_baseline("docstrings", 8, 2)["terms"] > cut["terms"]
    with pytest.raises(ValueError, match="ngrams"):
        baseline.text_baseline("docstrings", 8, 0)


# Runs


def test_arms_and_series():
    for arm in tables.ARMS[1:]:
        changed = {name for name in tables.BASE if arm[name] != tables.BASE[name]}
        assert changed in ({"qk_dim"}, {"value_dim"}, {"intervention"}, {"qk_dim", "intervention"})
    for name, series in tables.SERIES.items():
        keys = [tuple(setting.items()) for setting in series]
        assert len(keys) == len(set(keys)) and 0 <= tables.FINISHED[name] <= len(series)
        assert len({setting["epochs"] for setting in series}) == 1  # identical budgets
    assert EXPERIMENTS["text_accuracy"].paper == tables.finished()
    assert tables.progress()["64 words"] == (tables.FINISHED["64 words"], 24)


def test_the_recipe_is_that_of_the_published_runs():
    """Every number of it, and what is hidden: no test trains reviews again."""
    for dataset, batch in (("docstrings", 32), ("imdb", 128)):
        expected = training.Recipe(
            7, batch=batch, rate=4e-3, warmup=0.1, final=0.0, decay=0.05, smoothing=0.0, clip=1.0, beta1=0.9,
            beta2=0.999,
        )  # fmt: skip
        assert runs.recipe(TINY | {"dataset": dataset, "epochs": 7}) == expected
    source = runs.source("docstrings", "words", 500, 32)
    assert (source.hide, source.unknown, source.train_inputs.shape[1]) == (0.3, UNKNOWN, 32)
    flops = training.text_flops(runs.untrained(TINY), 32) * SOURCES["docstrings"].rows("train") * TINY["epochs"]
    assert runs.seconds_to_train(TINY) == pytest.approx(3 * flops / 5e9)


def test_uniform_attention_is_the_mean_of_all_tokens():
    model = runs.untrained(TINY | {"intervention": "uniform"})
    tokens = runs.source("docstrings", "words", 500, 32).test_inputs[-3:]
    x = model.embed(tokens)
    attention = model.encoder.blocks[0].attention
    mean = attention.output(attention.values(x).mean(-2, keepdim=True).transpose(-3, -2).flatten(-2))
    torch.testing.assert_close(attention(x), mean.expand(-1, 32, -1), rtol=1e-4, atol=1e-5)
    assert not any(layer.weight.requires_grad for layer in (attention.query, attention.key))
    plain = runs.untrained(TINY).encoder.blocks[0].attention
    assert not torch.allclose(plain(10 * x), mean.expand(-1, 32, -1), rtol=1e-4, atol=1e-5)


def test_a_run_is_recomputed_from_its_file(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ATTNRANK_RUNS", str(tmp_path))
    assert main(["tiny"], series={"tiny": [TINY]}, published={"tiny": 0}, compute=runs.text_accuracy) == 0
    assert "1 of 1 runs are finished" in capsys.readouterr().out and is_finished(TINY)
    row = runs.text_accuracy(**TINY)
    with safe_open(shared_runs.run_file(TINY, tmp_path), "pt") as file:
        weights = {name.removeprefix("model."): file.get_tensor(name)
                   for name in file.keys() if name.startswith("model.")}  # noqa: SIM118  # fmt: skip
    model = runs.untrained(TINY | {"seed": 9}).double().requires_grad_(False)
    model.load_state_dict(weights)
    numbers, labels = token_numbers("docstrings", "test", "words", 500)
    logits = torch.cat([model(text[text != 0][None, :32]) for text in numbers])
    assert (logits.argmax(1) == labels).double().mean().item() == pytest.approx(row["accuracy"], abs=1.5 / len(labels))
    assert row["parameters"] == sum(value.numel() for value in weights.values())
    assert row["parameters_without_embedding"] == row["parameters"] - 8 * (500 + 32)
    assert row["flops_per_text"] == training.text_flops(model, 32) and row["stopped"] == ""
    probe = runs.probe_texts(runs.source("docstrings", "words", 500, 32))
    found = []
    for q, k in model.queries_keys(probe):
        best = (q @ k.mT).argmax(-1)
        found.append(np.mean([len(set(head.tolist())) / 32 for sample in best for head in sample]))
    assert row["rank_after"] == pytest.approx(found[0]) and row["rank_after_all"] == pytest.approx(np.mean(found))
    last = [runs.text_epochs(**TINY, epoch=1, layer=layer) for layer in (1, 2)]
    assert [each["hardmax"] for each in last] == pytest.approx(found)
    assert {each["test_accuracy"] for each in last} == {row["accuracy"]}
    assert runs.text_epochs(**TINY, epoch=0, layer=1)["hardmax"] == row["rank_before"]
    with pytest.raises(ValueError, match="epoch"):
        runs.text_epochs(**TINY, epoch=2, layer=1)


def test_a_run_that_diverges_says_so(monkeypatch):
    def diverge(*arguments, started, **options):
        entry = dict.fromkeys(("test_accuracy", "test_loss", "train_accuracy", "ranks"))
        started(training.Run(epochs=[entry]))
        raise training.NonFiniteLoss("the loss is nan")

    monkeypatch.setattr(shared_runs, "train", diverge)
    row = runs.text_accuracy(**TINY)
    assert row["stopped"] == "the loss is nan" and row["accuracy"] is None and row["rank_after"] is None
