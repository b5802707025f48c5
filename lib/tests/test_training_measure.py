"""training: batches and augmentation by hand; ranks and FLOPs against hooks, numpy and torch's counter."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch.utils.flop_counter import FlopCounterMode

from attnrank import training
from attnrank.models import TextTransformer, TransformerConfig
from attnrank.training.source import generator_of
from training_cases import CONFIG, images, model

pytestmark = pytest.mark.usefixtures("one_thread")


# Batches


def test_every_image_once_an_epoch_in_an_order_of_its_own():
    source = images(pad=0, flip=False)
    epochs = [torch.cat([source.batch(0, epoch, step, 16)[0] for step in range(source.steps(16))]) for epoch in (0, 1)]
    ordered = source.standardised(source.train_images)
    for epoch in epochs:
        assert sorted(epoch.flatten(1).tolist()) == sorted(ordered.flatten(1).tolist())
    assert not torch.equal(*epochs)
    assert source.steps(16) == 4 and source.steps(50) == 1


def test_seed_and_epoch_decide_the_order_and_the_step_decides_the_augmentation_too():
    """Each argument matters, and nothing else does."""
    plain, alike = images(pad=0, flip=False), images()
    alike.train_inputs = alike.train_inputs[:1].expand(50, -1, -1, -1)  # batches differ by what is drawn for them
    orders = {(seed, epoch): plain.batch(seed, epoch, 0, 50)[0] for seed in (0, 1) for epoch in (0, 1)}
    drawn = {at: alike.batch(*at, 16)[0] for at in itertools.product((0, 1), repeat=3)}
    for found in (orders, drawn):
        assert not any(torch.equal(a, b) for a, b in itertools.combinations(found.values(), 2))
    assert all(torch.equal(x, alike.batch(*at, 16)[0]) for at, x in drawn.items())


def test_seeds_of_steps_are_those_of_the_published_runs():
    """A linear congruence with Knuth's factor and summand, its upper bits folded into the lower: another is as good."""
    found = [generator_of(*numbers).initial_seed() for numbers in ((0,), (1, 2), (5, 0, 3))]
    assert found == [1442695038202829496, 16815723851287942248, 9975483508839664092]


def test_crops_and_mirror_images_by_hand():
    pixels = torch.arange(40 * 2 * 5 * 4).reshape(40, 2, 5, 4)
    drawn = training.crop_and_flip(pixels, pad=2, flip=True, generator=torch.Generator().manual_seed(0))
    padded = np.pad(pixels.numpy(), ((0, 0), (0, 0), (2, 2), (2, 2)))
    seen = set()
    for image, choices in zip(drawn.numpy(), padded):
        found = [(y, x, mirrored) for y in range(5) for x in range(5) for mirrored in (False, True)
                 if np.array_equal(choices[:, y : y + 5, x : x + 4][..., :: -1 if mirrored else 1], image)]  # fmt: skip
        assert len(found) == 1
        seen.add(found[0])
    assert {mirrored for _, _, mirrored in seen} == {False, True}
    assert (
        {y for y, _, _ in seen} == {x for _, x, _ in seen} == set(range(5))
    )  # misses one: chance 10 * 0.8^40 ~ 1e-3; seed 0
    assert training.crop_and_flip(pixels, pad=0, flip=False, generator=torch.Generator()) is pixels


def test_every_other_image_is_mirrored():
    """Of 4,000; a false alarm in a million for another seed."""
    pixels = torch.tensor([0, 1]).expand(4000, 1, 1, 2)
    drawn = training.crop_and_flip(pixels, pad=0, flip=True, generator=torch.Generator().manual_seed(0))
    assert stats.binomtest(int(drawn[..., 0].sum()), 4000, 0.5).pvalue > 1e-6


def test_what_images_are_is_said_by_their_sums():
    source = images(pad=2, flip=False, name="made")
    sums = [int(x.double().sum()) for x in (source.train_images, source.train_labels, source.test_images)]
    assert source.describe() == {"name": "made", "train": 50, "test": 30, "sums": sums, "pad": 2, "flip": False}


# Ranks and FLOPs


@pytest.mark.parametrize("change", [{}, {"qk_norm": True}, {"tied": True}, {"learn_temperature": True}])
def test_attention_ranks_against_hooks_and_numpy(change):
    net, source = model(replace(CONFIG, **change), torch.float32), images()
    x = source.standardised(source.test_images[:3])
    seen = []
    exact = model(replace(CONFIG, **change))
    exact.load_state_dict(net.state_dict())
    hooks = [
        block.attention.register_forward_pre_hook(lambda m, args: seen.append((m, args[0])))
        for block in exact.encoder.blocks
    ]
    exact(x.double())
    rows = training.attention_ranks(net, x, spectra=2)
    assert [(row["layer"], row["head"]) for row in rows] == [(layer, head) for layer in (1, 2) for head in (0, 1)]
    for row in rows:
        module, tokens = seen[row["layer"] - 1]
        q, k = (y[:, row["head"]] for y in module.scaled_queries_keys(tokens))
        scores = (q @ k.mT).detach().numpy()
        hard = [len(set(matrix.argmax(1))) for matrix in scores]
        assert row["hardmax"] == pytest.approx(np.mean(hard) / 16)
        soft = np.exp(scores[:2]) / np.exp(scores[:2]).sum(2, keepdims=True)
        sigma = np.linalg.svd(soft, compute_uv=False)
        assert row["rank_at_tenth"] == pytest.approx((sigma >= 0.1).sum(1).mean() / 16)
        assert row["rank_at_hundredth"] == pytest.approx((sigma >= 0.01).sum(1).mean() / 16)
        assert row["stable"] == pytest.approx(((sigma**2).sum(1) / sigma[:, 0] ** 2).mean() / 16)
    for hook in hooks:
        hook.remove()


def test_spectra_are_those_of_eight_inputs():
    """As the tables of ranks say."""
    net, source = model(), images()
    x = source.standardised(source.test_images[:9])
    found = training.attention_ranks(net, x)
    assert found == training.attention_ranks(net, x, spectra=8)
    assert all(found != training.attention_ranks(net, x, spectra=spectra) for spectra in (7, 9))


def test_ranks_are_those_of_evaluation_and_the_model_is_left_alone():
    class Noisy(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = model(dtype=torch.float32)

        def queries_keys(self, x, scaled):
            return self.net.queries_keys(torch.nn.functional.dropout(x, 0.9, self.training), scaled=scaled)

    net, source = Noisy().train(), images()
    x = source.standardised(source.test_images[:3])
    assert training.attention_ranks(net, x) == training.attention_ranks(net.net, x)
    assert net.training and next(net.parameters()).dtype == torch.float32


@pytest.mark.parametrize("pool", ["class", "mean", "sequence"])
@pytest.mark.parametrize("change", [{}, {"tied": True}, {"head_dim": 8, "value_dim": None, "mlp_width": None}])
def test_flops_are_those_of_the_counter_of_torch(pool, change):
    net = model(replace(CONFIG, **change), pool=pool)
    with FlopCounterMode(display=False) as counter, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        net(torch.zeros(4, 2, 8, 8, dtype=torch.float64))
    assert counter.get_total_flops() == 4 * training.image_flops(net)


@pytest.mark.parametrize("pool", ["class", "mean", "sequence"])
def test_flops_of_training_are_three_forward_passes_but_for_what_needs_no_gradient(pool):
    """The counter of torch sees one product fewer: the gradient of the images, which the patch embedding leaves out."""
    net = model(CONFIG, pool=pool)
    x = torch.zeros(10, 2, 8, 8, dtype=torch.float64)
    with FlopCounterMode(display=False) as counter, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        net(x).sum().backward()
    patches = net.tokens - (pool == "class")
    left_out = 2 * 10 * patches * net.embedding.weight.numel()
    assert training.training_flops(net, 10) == counter.get_total_flops() + left_out


def test_ranks_of_texts_with_padding_are_refused():
    config = TransformerConfig(width=8, heads=2, head_dim=3, depth=1)
    net = TextTransformer(config, vocabulary=20, length=9, classes=2, generator=torch.Generator().manual_seed(0))
    text = torch.randint(1, 20, (2, 6), generator=torch.Generator().manual_seed(1), dtype=torch.int32)
    assert len(training.attention_ranks(net, text)) == 2
    with pytest.raises(ValueError, match="inputs must have no padding"):
        training.attention_ranks(net, torch.nn.functional.pad(text, (0, 3)))


@pytest.mark.parametrize("tolerances", [{"a": float("nan")}, {"a": -1.0}, {"stable": 0.1}, {"layer": 0.1}])
def test_bad_tolerances_are_refused(tolerances):
    with pytest.raises(ValueError, match="tolerances"):
        training.attention_ranks(torch.nn.Identity(), torch.zeros(1), tolerances=tolerances)
