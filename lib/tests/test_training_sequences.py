"""training.Sequences: batches of texts of similar length, hidden tokens, the test, and runs that go on bit for bit."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from scipy import stats
from torch.nn import functional as F

from attnrank import training
from attnrank.models import PADDING, TextTransformer, TransformerConfig
from attnrank.training import Recipe, Sequences, train
from training_cases import stopping

CONFIG = TransformerConfig(width=8, heads=2, head_dim=3, depth=1, mlp_width=8, init="lecun")

pytestmark = pytest.mark.usefixtures("one_thread")


def texts(count, length=12, seed=0):
    """Texts of class 0 and 1 have many of the words 2 and 3; the other words are 4..19."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, (count,), generator=generator)
    tokens = torch.randint(4, 20, (count, length), generator=generator)
    tells = torch.rand(count, length, generator=generator) < 0.3
    tokens = torch.where(tells, 2 + labels[:, None], tokens)
    long = torch.randint(1, length + 1, (count, 1), generator=generator)
    return tokens.masked_fill(torch.arange(length) >= long, PADDING).int(), labels


def source(count=203, **options):
    return Sequences(texts(count), texts(61, seed=1), **options)


def model(seed=0):
    return TextTransformer(CONFIG, vocabulary=20, length=12, classes=2, dtype=torch.float64,
                           generator=torch.Generator().manual_seed(seed))  # fmt: skip


def padded(tokens, length=12):
    return F.pad(tokens, (0, length - tokens.shape[1]))


def test_every_text_once_an_epoch_in_batches_of_similar_lengths():
    data = source(count=1003)
    orders = []
    for epoch in (0, 1):
        batches = [data.batch(5, epoch, step, 8) for step in range(data.steps(8))]
        assert [len(labels) for _, labels in batches] == [8] * 125 + [3]
        met = torch.cat([torch.cat([padded(tokens), labels[:, None].int()], 1) for tokens, labels in batches])
        whole = torch.cat([data.train_inputs, data.train_labels[:, None].int()], 1)
        assert sorted(met.tolist()) == sorted(whole.tolist())
        assert all((tokens[:, -1] != PADDING).any() for tokens, _ in batches)  # cut to the longest
        orders.append(met)
        widths = [tokens.shape[1] for tokens, _ in batches]
        # Sorted by 20 batches: on average a batch is little longer than its mean text, and their order is random.
        assert sum(widths) / len(widths) < (data.train_inputs != PADDING).sum(1).double().mean() + 1
        assert abs(stats.spearmanr(range(125), widths[:125]).statistic) < 4.9 / math.sqrt(124)  # false alarm 1e-6
        # And a batch is nearly a random one: sorted all together, at most 11 batches would hold several lengths.
        assert sum(len(set((tokens != PADDING).sum(1).tolist())) > 1 for tokens, _ in batches) > 40
    assert not torch.equal(*orders)


def test_a_batch_depends_on_its_arguments_only():
    """And not on those of the batch before, whose order is kept."""
    one = source(hide=0.5)
    for arguments in ((0, 0, 0, 16), (0, 1, 2, 16), (0, 1, 2, 8), (1, 1, 2, 8)):
        for x, y in zip(one.batch(*arguments), source(hide=0.5).batch(*arguments), strict=True):
            assert torch.equal(x, y)


def test_hidden_tokens_are_as_many_as_was_said_and_never_padding():
    data, plain = source(count=2000, hide=0.3), source(count=2000)
    hidden = words = 0
    for step in range(data.steps(100)):
        (seen, _), (whole, _) = data.batch(0, 0, step, 100), plain.batch(0, 0, step, 100)
        changed = seen != whole
        assert (seen[changed] == 1).all() and torch.equal(seen == PADDING, whole == PADDING)
        hidden, words = hidden + int(changed.sum()), words + int((whole != PADDING).sum())
    assert stats.binomtest(hidden, words, 0.3).pvalue > 1e-6


def test_test_is_loss_and_accuracy_of_all_texts_one_by_one():
    data, net = source(test_batch=7), model()
    tokens, labels = texts(61, seed=1)
    logits = torch.cat([net(text[text != PADDING][None]) for text in tokens])
    assert data.test(net) == pytest.approx({
        "test_loss": F.cross_entropy(logits, labels).item(),
        "test_accuracy": (logits.argmax(1) == labels).double().mean().item(),
    }, rel=1e-12)  # fmt: skip


def test_texts_are_learned():
    run = train(model(), source(count=600), Recipe(4, batch=16, rate=1e-2), seed=0)
    assert run.epochs[0]["test_accuracy"] < 0.7 < 0.85 < run.final["test_accuracy"]


@pytest.mark.parametrize("stop", [3, 20])
def test_a_run_that_is_interrupted_ends_with_the_same_bits(stop, tmp_path):
    recipe, whole = Recipe(2, batch=16, rate=3e-3), model()
    probe = texts(9)[0][:, :1]
    complete = train(whole, source(hide=0.2), recipe, seed=1, probe=probe)
    cut, path = stopping(source(hide=0.2), stop), tmp_path / "run.safetensors"
    with pytest.raises(KeyboardInterrupt):
        train(model(), cut, recipe, seed=1, probe=probe, checkpoint=path, checkpoint_seconds=0)
    assert training.load(path)[1]["progress"]["steps"] == stop
    again = model()
    resumed = train(again, source(hide=0.2), recipe, seed=1, probe=probe, checkpoint=path)
    assert resumed.epochs == complete.epochs
    assert all(torch.equal(x, y) for x, y in zip(again.parameters(), whole.parameters(), strict=True))
    for other in (source(hide=0.3), source(hide=0.2, name="other"), source(count=202, hide=0.2)):
        with pytest.raises(ValueError, match="another run: data"):
            train(model(), other, recipe, seed=1, probe=probe, checkpoint=path)
    with pytest.raises(ValueError, match="another run: unknown is 1, not 2"):
        train(model(), source(hide=0.2, unknown=2), recipe, seed=1, probe=probe, checkpoint=path)


def test_flops_of_a_text_are_those_of_the_counter_of_torch():
    from torch.utils.flop_counter import FlopCounterMode

    net = TextTransformer(replace(CONFIG, value_dim=5, depth=2), vocabulary=20, length=12, classes=2,
                          generator=torch.Generator().manual_seed(0))  # fmt: skip
    with FlopCounterMode(display=False) as counter, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        net(torch.ones(4, 12, dtype=torch.int64))
    assert counter.get_total_flops() == 4 * training.text_flops(net, 12)


@pytest.mark.parametrize("bad", [
    {"train": (torch.ones(2, 3), torch.zeros(2))},
    {"train": (torch.ones(2, 3, dtype=torch.int32), torch.zeros(3))},
    {"test": (torch.ones(3, dtype=torch.int32), torch.zeros(3))},
    {"test": (torch.tensor([[1, 0, 2]]).int(), torch.zeros(1))},
    {"test": (torch.tensor([[0, 0, 0]]).int(), torch.zeros(1))},
    {"hide": 1.5}, {"unknown": 0},
])  # fmt: skip
def test_bad_arguments_are_refused(bad):
    given = {"train": texts(5), "test": texts(5)} | bad
    with pytest.raises(ValueError, match=f"{next(iter(bad))} must"):
        Sequences(given.pop("train"), given.pop("test"), **given)
