"""training: the loop against torch by hand, resuming bit for bit, checkpoints, augmentation, schedule, ranks, FLOPs."""

from __future__ import annotations

import io
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from attnrank import data, training
from attnrank.data import SOURCES
from attnrank.models import TransformerConfig, VisionTransformer
from attnrank.training import Images, NonFiniteLoss, Recipe, loop, train

CONFIG = TransformerConfig(width=8, heads=2, head_dim=3, depth=2, mlp_width=12, value_dim=5, init="lecun")
RECIPE = Recipe(epochs=3, batch=16, rate=3e-3)

pytestmark = pytest.mark.usefixtures("one_thread")


def images(count=50, **options):
    generator = torch.Generator().manual_seed(3)

    def drawn(rows):
        labels = torch.randint(3, (rows,), generator=generator)
        noise = torch.randint(120, (rows, 2, 8, 8), generator=generator)
        return (noise + 40 * labels[:, None, None, None]).to(torch.uint8), labels

    return Images(
        drawn(count), drawn(30), **{"mean": (90.0, 90.0), "std": (50.0, 50.0), "pad": 1, "flip": True} | options
    )


def model(config=CONFIG, dtype=torch.float64, **options):
    generator = torch.Generator().manual_seed(0)
    options = {
        "image_size": 8,
        "patch_size": 2,
        "classes": 3,
        "channels": 2,
        "pool": "sequence",
        "dtype": dtype,
    } | options
    return VisionTransformer(config, generator=generator, **options)


def double(source):
    """The same source with inputs in float64."""
    plain = source.standardised
    source.standardised = lambda x: plain(x).double()
    return source


def weights(of):
    return {name: value.clone() for name, value in of.state_dict().items()}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# The loop


def test_training_is_what_the_recipe_says_step_by_step():
    """Against a loop of torch's own scheduler, optimiser and loss, written without the module."""
    recipe = replace(RECIPE, clip=0.5, smoothing=0.2, decay=0.3, warmup=0.25, final=0.1)
    ours, other, source = model(), model(), double(images())
    run = train(ours, source, recipe, seed=5)
    matrices = [v for n, v in other.named_parameters() if v.ndim == 2 and n not in ("position", "class_token")]
    others = [v for n, v in other.named_parameters() if v.ndim != 2 or n in ("position", "class_token")]
    groups = [{"params": matrices, "weight_decay": 0.3}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-3)
    rising = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / 3, 1.0, total_iters=2)
    losses, seen = [], 0
    for step in range(12):
        x, y = source.batch(5, step // 4, step % 4, 16)
        rate = rising.get_last_lr()[0] if step < 3 else 3e-3 * (0.55 + 0.45 * math.cos(math.pi * (step - 3) / 8))
        for group in optimizer.param_groups:
            group["lr"] = rate
        logits = other(x)
        target = torch.full_like(logits, 0.2 / 3).scatter_(1, y[:, None], 0.8 + 0.2 / 3)
        loss = -(target * logits.log_softmax(1)).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        length = torch.sqrt(sum(p.grad.square().sum() for p in other.parameters()))
        for p in other.parameters():
            p.grad *= min(1.0, 0.5 / (length.item() + 1e-6))
        optimizer.step()
        rising.step()
        if step >= 8:
            losses.append(loss.item() * len(y))
            seen += len(y)
    for name, value in other.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value, rtol=1e-9, atol=1e-11)
    assert run.final["train_loss"] == pytest.approx(sum(losses) / seen, rel=1e-9)
    assert run.final["rate"] == pytest.approx(3e-4, rel=1e-9)
    assert [entry["epoch"] for entry in run.epochs] == [0, 1, 2, 3] and run.steps == 12


def test_digits_are_learned():
    facts = SOURCES["digits"]
    source = Images(data.pixels("digits"), data.pixels("digits", "test"), mean=[16 * facts.mean[0]],
                    std=[16 * facts.std[0]])  # fmt: skip
    config = TransformerConfig(width=32, heads=4, head_dim=8, depth=2, mlp_width=64, init="lecun")
    run = train(model(config, torch.float32, classes=10, channels=1), source, Recipe(5, batch=32, rate=6e-3), seed=0)
    accuracies = [entry["test_accuracy"] for entry in run.epochs]
    assert accuracies[0] < 0.3 < 0.6 < accuracies[-1]  # chance: 0.1
    assert run.best["test_accuracy"] == max(accuracies)


class Terminal(io.StringIO):
    """What is written to a terminal."""

    def isatty(self):
        return True


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_shows_loss_accuracy_speed_and_remaining_time(terminal, monkeypatch):
    stream = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(sys, "__stderr__", stream)
    train(model(), double(images()), RECIPE, seed=0, label="arm")
    shown = stream.getvalue()
    if terminal:
        pattern = r"arm: .*12/12 \[\d+:\d+<\d+:\d+, .*loss \d\.\d{3}, accuracy [01]\.\d{3}, \d+ inputs/s"
        assert re.search(pattern, shown), shown[-300:]
    else:
        assert shown == ""


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_matrices_decay_and_every_parameter_is_trained(decay):
    net = model(replace(CONFIG, learn_temperature=True), pool="class")
    groups = training.decay_groups(net, decay)
    names = {id(value): name for name, value in net.named_parameters()}
    assert sorted(names[id(v)] for group in groups for v in group["params"]) == sorted(names.values())
    decayed = {names[id(v)] for group in groups if group["weight_decay"] == decay for v in group["params"]}
    expected = {n for n, v in net.named_parameters() if v.ndim == 2 and n not in ("class_token", "position")}
    assert decay == 0.0 or decayed == expected


@pytest.mark.parametrize(("device", "dtype", "mixed"), [
    ("cuda", torch.float32, True), ("cuda", torch.float64, False), ("cpu", torch.float32, False),
])  # fmt: skip
def test_precision_is_mixed_on_a_gpu_only(device, dtype, mixed):
    assert loop._mixed(model(dtype=dtype), SimpleNamespace(device=torch.device(device))) is mixed


def test_mixed_precision_keeps_weights_and_loss_in_float32(monkeypatch, tmp_path):
    """As a GPU would, on the CPU: products in bfloat16, which the loss shows a little, everything kept in float32."""
    plain, mixed, path = model(dtype=torch.float32), model(dtype=torch.float32), tmp_path / "run.safetensors"
    one = replace(RECIPE, epochs=1)
    expected = train(plain, images(), one, seed=0)
    monkeypatch.setattr(loop, "_mixed", lambda net, inputs: True)
    seen = []
    mixed.classifier.register_forward_hook(lambda module, args, logits: seen.append((module.training, logits.dtype)))
    found = train(mixed, images(), one, seed=0, checkpoint=path)
    assert {dtype for learning, dtype in seen if learning} == {torch.bfloat16}
    assert {dtype for learning, dtype in seen if not learning} == {torch.float32}  # the test is not rounded
    assert 0 < abs(found.final["train_loss"] - expected.final["train_loss"]) < 0.01
    assert all(value.dtype == torch.float32 for value in training.load(path)[0].values() if value.ndim)


def test_test_is_loss_and_accuracy_of_all_images():
    source, net = double(images(test_batch=7)), model()
    logits = net(source.standardised(source.test_images))
    expected = {"test_loss": F.cross_entropy(logits, source.test_labels).item(),
                "test_accuracy": (logits.argmax(1) == source.test_labels).double().mean().item()}  # fmt: skip
    assert source.test(net) == pytest.approx(expected, rel=1e-12)


def test_frozen_weights_stay_and_all_others_move():
    net = model(replace(CONFIG, frozen=True, learn_temperature=True))
    before = weights(net)
    train(net, double(images()), replace(RECIPE, epochs=1), seed=0)
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name]) == any(part in name for part in ("attention.query", "attention.key")), (
            name
        )


@pytest.mark.parametrize("bad", ["loss", "gradient"])
def test_non_finite_loss_stops_the_run_and_keeps_what_was_good(bad, tmp_path):
    net, source, runs = model(), double(images()), []
    plain = source.batch

    def spoiled(seed, epoch, step, batch):
        x, y = plain(seed, epoch, step, batch)
        if (epoch, step) == (1, 2):
            with torch.no_grad():
                net.classifier.weight.fill_(math.inf if bad == "loss" else 1e200)
        return x, y

    source.batch = spoiled
    path = tmp_path / "run.safetensors"
    with pytest.raises(NonFiniteLoss, match=r"epoch 2, step 2, at the step size .*lower the recipe's rate"):
        train(net, source, RECIPE, seed=0, checkpoint=path, started=runs.append)
    assert [entry["epoch"] for entry in runs[0].epochs] == [0, 1]
    stored, record = training.load(path)
    assert record["progress"]["steps"] == 4
    assert all(value.isfinite().all() for value in stored.values())


# Resuming


@pytest.mark.parametrize("stop", range(0, 12, 3))
def test_a_run_that_is_interrupted_ends_with_the_same_bits(stop, tmp_path):
    whole, source = model(), double(images())
    probe = source.standardised(source.test_images[:2])
    complete = train(whole, source, RECIPE, seed=1, probe=probe)
    part, cut = model(), double(images())
    plain = cut.batch

    def interrupted(seed, epoch, step, batch):
        if epoch * 4 + step == stop:
            raise KeyboardInterrupt
        return plain(seed, epoch, step, batch)

    cut.batch = interrupted
    path = tmp_path / "run.safetensors"
    with pytest.raises(KeyboardInterrupt):
        train(part, cut, RECIPE, seed=1, probe=probe, checkpoint=path, checkpoint_seconds=0)
    assert training.load(path)[1]["progress"]["steps"] == stop
    again = model()
    resumed = train(again, double(images()), RECIPE, seed=1, probe=probe, checkpoint=path)
    assert same(weights(again), weights(whole))
    assert resumed.epochs == complete.epochs and resumed.sessions == 2
    done = train(model(), double(images()), RECIPE, seed=1, probe=probe, checkpoint=path)  # nothing left to do
    assert done.epochs == complete.epochs and done.seconds >= resumed.seconds


JOB = """
import sys, time, torch
sys.path.insert(0, {tests!r})
import test_training as t
torch.set_num_threads(1)
source = t.double(t.images())
plain = source.batch
taken = []
def slow(*arguments):
    taken.append(arguments)
    while len(taken) > 12:  # two such processes do not reach the end, however late they are killed
        time.sleep(1)
    time.sleep(0.02)
    return plain(*arguments)
if {slow}:
    source.batch = slow
net = t.model()
run = t.train(net, source, t.replace(t.RECIPE, epochs=8), seed=1, checkpoint={path!r}, checkpoint_seconds=0)
t.save_file(t.weights(net), {path!r} + ".end")
"""


def test_a_run_that_is_killed_ends_with_the_same_bits(tmp_path):
    """By the signal that cannot be caught, twice, wherever it happens to be."""
    path, tests = str(tmp_path / "run.safetensors"), os.path.dirname(__file__)
    for kills in (1, 2):
        job = subprocess.Popen([sys.executable, "-c", JOB.format(tests=tests, slow=True, path=path)])
        try:
            mark = os.path.getmtime(path) if os.path.exists(path) else 0
            while job.poll() is None and (not os.path.exists(path) or os.path.getmtime(path) == mark):
                time.sleep(0.01)
            time.sleep(0.05 * kills)
        finally:
            job.send_signal(signal.SIGKILL)
            job.wait()
    steps = training.load(path)[1]["progress"]["steps"]
    assert 0 < steps <= 24
    subprocess.run([sys.executable, "-c", JOB.format(tests=tests, slow=False, path=path)], check=True)
    whole = model()
    train(whole, double(images()), replace(RECIPE, epochs=8), seed=1)
    with safe_open(path + ".end", "pt") as file:
        assert same({name: file.get_tensor(name) for name in file.keys()}, weights(whole))  # noqa: SIM118
    leftovers = [name for name in os.listdir(tmp_path) if name.endswith(".tmp")]
    assert len(leftovers) <= 2  # a kill in the middle of writing leaves the new file unfinished, and the old one whole


def apart(first, second) -> float:
    """Largest difference of two models' weights, biases of keys left out.

    These add the same to all scores of a query and change nothing: their gradient is 0 but for rounding, and AdamW
    divides it by its own size, so that they go wherever the rounding of the processor leads.
    """
    there = weights(second)
    pairs = {name: (value - there[name]).abs().max().item() for name, value in weights(first).items()}
    return max(distance for name, distance in pairs.items() if not name.endswith("key.bias"))


@pytest.mark.parametrize("threads", [1, 2])
def test_a_run_that_goes_on_in_float32_ends_within_the_stated_margin(threads, tmp_path):
    """Interrupted in mid-epoch, resumed with another number of threads: 1e-6 over 12 steps; a step left out is 1e-3."""
    whole, short = model(dtype=torch.float32), model(dtype=torch.float32)
    complete = train(whole, images(), RECIPE, seed=1)
    cut, path = images(), tmp_path / "run.safetensors"
    plain = cut.batch

    def interrupted(seed, epoch, step, batch):
        if epoch * 4 + step == 6:
            raise KeyboardInterrupt
        return plain(seed, epoch, step, batch)

    cut.batch = interrupted
    with pytest.raises(KeyboardInterrupt):
        train(model(dtype=torch.float32), cut, RECIPE, seed=1, checkpoint=path, checkpoint_seconds=0)
    torch.set_num_threads(threads)
    resumed = train(short, images(), RECIPE, seed=1, checkpoint=path)
    assert apart(whole, short) < 1e-6
    assert resumed.final["test_loss"] == pytest.approx(complete.final["test_loss"], abs=1e-6)
    other = model(dtype=torch.float32)
    train(other, images(), replace(RECIPE, rate=RECIPE.rate * 11 / 12), seed=1)
    assert apart(whole, other) > 1e-3


def test_one_epoch_more_is_another_run(tmp_path):
    path = tmp_path / "run.safetensors"
    train(model(), double(images()), RECIPE, seed=0, checkpoint=path)
    before = path.read_bytes()
    for net, recipe, seed, source, shown in (
        (model(), replace(RECIPE, epochs=4), 0, images(), "epochs"),
        (model(), RECIPE, 1, images(), "seed is 0, not 1"),
        (model(), RECIPE, 0, images(49), "data"),
        (model(replace(CONFIG, head_dim=4)), RECIPE, 0, images(), "model"),
        (model(replace(CONFIG, temperature=9.0)), RECIPE, 0, images(), "config"),
    ):
        with pytest.raises(ValueError, match=f"(?s)another run: .*{shown}.*delete the file"):
            train(net, double(source), recipe, seed=seed, checkpoint=path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("damage", ["cut", "flipped", "record", "foreign", "text", "empty"])
def test_damaged_and_foreign_checkpoints_are_refused(damage, tmp_path):
    path = tmp_path / "run.safetensors"
    training.save(path, {"model.x": torch.arange(6.0)}, {"run": {"seed": 1}})
    assert training.load(path, run={"seed": 1})[0]["model.x"].tolist() == [0, 1, 2, 3, 4, 5]
    whole = path.read_bytes()
    if damage == "foreign":
        save_file({"x": torch.zeros(2)}, path)
    else:
        path.write_bytes({
            "cut": whole[:-3], "flipped": whole[:-2] + bytes([whole[-2] ^ 1]) + whole[-1:], "text": b"not a model",
            "record": whole.replace(b'\\"seed\\": 1', b'\\"seed\\": 2'), "empty": b"",
        }[damage])  # fmt: skip
    assert path.read_bytes() != whole
    shown = "not a checkpoint of this package" if damage == "foreign" else "damaged"
    with pytest.raises(ValueError, match=f"run.safetensors: {shown}.*delete the file to train from the start"):
        training.load(path)
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        training.load(tmp_path / "other.safetensors")


def test_checkpoints_are_safetensors_and_json(tmp_path):
    path = tmp_path / "run.safetensors"
    net = model()
    train(net, double(images()), RECIPE, seed=0, checkpoint=path)
    with safe_open(path, "np") as file:
        record = json.loads(file.metadata()["record"])
        for name, value in net.state_dict().items():
            np.testing.assert_array_equal(file.get_tensor(f"model.{name}"), value.numpy())
    assert record["run"]["recipe"]["epochs"] == 3 and len(record["progress"]["epochs"]) == 4
    assert sorted(os.listdir(tmp_path)) == ["run.safetensors"]


# Batches


def test_every_image_once_an_epoch_in_an_order_of_its_own():
    source = images(pad=0, flip=False)
    epochs = [torch.cat([source.batch(0, epoch, step, 16)[0] for step in range(source.steps(16))]) for epoch in (0, 1)]
    ordered = source.standardised(source.train_images)
    for epoch in epochs:
        assert sorted(epoch.flatten(1).tolist()) == sorted(ordered.flatten(1).tolist())
    assert not torch.equal(*epochs)
    assert source.steps(16) == 4 and source.steps(50) == 1


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


# Schedule


def test_schedule():
    recipe = Recipe(1, rate=2.0, warmup=0.3, final=0.5)
    rates = [training.learning_rate(step, 10, recipe) for step in range(10)]
    assert rates[:3] == pytest.approx([2 / 3, 4 / 3, 2.0]) and rates[3] == 2.0 and rates[-1] == pytest.approx(1.0)
    assert rates[6] == pytest.approx(1.5) and all(a >= b for a, b in zip(rates[2:], rates[3:]))
    for step, steps in ((10, 10), (-1, 10), (0, 0)):
        with pytest.raises(ValueError, match="step"):
            training.learning_rate(step, steps, recipe)


@pytest.mark.parametrize(("field", "value"), [
    ("epochs", 0), ("batch", 2.5), ("rate", 0.0), ("warmup", 1.5), ("final", -0.1), ("decay", -1.0), ("smoothing", 2.0),
    ("clip", 0.0), ("beta1", 1.0), ("beta2", math.nan),
])  # fmt: skip
def test_bad_recipes_are_refused(field, value):
    with pytest.raises(ValueError, match=f"{field} must"):
        replace(RECIPE, **{field: value})


def test_bad_arguments_are_refused(tmp_path):
    with pytest.raises(ValueError, match="seed"):
        train(model(), images(), RECIPE, seed=-1)
    with pytest.raises(ValueError, match="checkpoint_seconds"):
        train(model(), images(), RECIPE, seed=0, checkpoint_seconds=-1)
    with pytest.raises(ValueError, match="train must be uint8 images"):
        Images(
            (torch.zeros(2, 1, 4, 4), torch.zeros(2)), (torch.zeros(2, 1, 4, 4), torch.zeros(2)), mean=(0,), std=(1,)
        )
    with pytest.raises(ValueError, match="requires a gradient"):
        train(model().requires_grad_(False), images(), RECIPE, seed=0)
    with pytest.raises(ValueError, match="queries_keys"):
        training.attention_ranks(torch.nn.Linear(2, 2), torch.zeros(1, 2))


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


@pytest.mark.parametrize("pool", ["class", "mean", "sequence"])
@pytest.mark.parametrize("change", [{}, {"tied": True}, {"head_dim": 8, "value_dim": None, "mlp_width": None}])
def test_flops_are_those_of_the_counter_of_torch(pool, change):
    net = model(replace(CONFIG, **change), pool=pool)
    with FlopCounterMode(display=False) as counter, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        net(torch.zeros(4, 2, 8, 8, dtype=torch.float64))
    assert counter.get_total_flops() == 4 * training.image_flops(net)
    assert training.training_flops(net, 10) == 30 * training.image_flops(net)
