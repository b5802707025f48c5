"""training: the loop against torch by hand, recipe and schedule, mixed precision, non-finite losses."""

from __future__ import annotations

import io
import math
import re
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from attnrank import data, training
from attnrank.data import SOURCES
from attnrank.experiments.shared.runs import train_or_stop
from attnrank.models import TransformerConfig
from attnrank.training import Images, NonFiniteLoss, Recipe, loop, train
from attnrank.training import step as one_step
from training_cases import CONFIG, RECIPE, double, images, model, weights

pytestmark = pytest.mark.usefixtures("one_thread")


# The loop


def test_training_is_what_the_recipe_says_step_by_step():
    """Against a loop of torch's own scheduler, optimiser and loss, written without the module."""
    recipe = replace(RECIPE, clip=0.5, smoothing=0.2, decay=0.3, warmup=0.25, final=0.1, beta1=0.8, beta2=0.98)
    ours, other, source = model(), model(), double(images())
    run = train(ours, source, recipe, seed=5)
    matrices = [v for n, v in other.named_parameters() if v.ndim == 2 and n not in ("position", "class_token")]
    others = [v for n, v in other.named_parameters() if v.ndim != 2 or n in ("position", "class_token")]
    groups = [{"params": matrices, "weight_decay": 0.3}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-3, betas=(0.8, 0.98))
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


def test_positions_and_tokens_do_not_decay_in_a_part_of_a_model_either():
    groups = training.decay_groups(torch.nn.Sequential(model(pool="class")), 0.1)
    assert [len(group["params"]) for group in groups] == [len(group["params"]) for group in training.decay_groups(
        model(pool="class"), 0.1)]  # fmt: skip


@pytest.mark.parametrize(("device", "dtype", "mixed"), [
    ("cuda", torch.float32, True), ("cuda", torch.float64, False), ("cpu", torch.float32, False),
])  # fmt: skip
def test_precision_is_mixed_on_a_gpu_only(device, dtype, mixed):
    assert one_step.can_mix(model(dtype=dtype), SimpleNamespace(device=torch.device(device))) is mixed


def test_mixed_precision_keeps_weights_and_loss_in_float32(monkeypatch, tmp_path):
    """As a GPU would, on the CPU: products in bfloat16, which the loss shows a little, everything kept in float32."""
    plain, mixed, path = model(dtype=torch.float32), model(dtype=torch.float32), tmp_path / "run.safetensors"
    one = replace(RECIPE, epochs=1)
    expected = train(plain, images(), one, seed=0)
    monkeypatch.setattr(one_step, "can_mix", lambda net, inputs: True)
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
    path, size = tmp_path / "run.safetensors", "the loss is (nan|inf)" if bad == "loss" else r"the loss is \d\S* .* inf"
    with pytest.raises(NonFiniteLoss, match=rf"^{size}.* epoch 2, step 2, at the step size .*lower .* after 4 steps$"):
        train(net, source, RECIPE, seed=0, checkpoint=path, started=runs.append)
    assert not any(part.training for part in net.modules())
    assert [entry["epoch"] for entry in runs[0].epochs] == [0, 1]
    stored, record = training.load(path)
    assert record["progress"]["steps"] == 4
    assert all(value.isfinite().all() for value in stored.values())


DIVERGING = Recipe(3, batch=64, rate=1e30, clip=None, warmup=0)


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("batch", [64, 16])  # one step an epoch: it spoils the weights, and no other step follows
def test_a_run_that_diverges_is_stopped_and_says_which_step_is_kept(batch, kept, tmp_path):
    path = tmp_path / "run.safetensors" if kept else None
    net, recipe = model(dtype=torch.float32), replace(DIVERGING, batch=batch)
    run, stopped = train_or_stop(net, images(), recipe, seed=0, checkpoint=path)
    assert [entry["epoch"] for entry in run.epochs] == [0]
    assert stopped.startswith("the test loss is nan after epoch 1, at the step size 1e+30" if batch == 64 else "the lo")
    assert stopped.endswith("or clip" if path is None else "or clip; the checkpoint has the weights after 0 steps")
    if path is not None:
        assert training.load(path)[1]["progress"]["steps"] == 0
        again = train_or_stop(model(dtype=torch.float32), images(), recipe, seed=0, checkpoint=path)
        assert again[1] == stopped


# Schedule


def test_schedule():
    recipe = Recipe(1, rate=2.0, warmup=0.3, final=0.5)
    rates = [training.learning_rate(step, 10, recipe) for step in range(10)]
    assert rates[:3] == pytest.approx([2 / 3, 4 / 3, 2.0]) and rates[3] == 2.0 and rates[-1] == pytest.approx(1.0)
    assert rates[6] == pytest.approx(1.5) and all(a >= b for a, b in zip(rates[2:], rates[3:]))
    for step, steps in ((10, 10), (-1, 10), (0, 0)):
        with pytest.raises(ValueError, match="step"):
            training.learning_rate(step, steps, recipe)


@pytest.mark.parametrize(("share", "steps", "rising"), [(0.07, 100, 7), (10 / 2100, 2100, 10), (0.1, 30, 3),
                                                        (0.1, 31, 4), (1.0, 10, 10), (0.0, 10, 1)])  # fmt: skip
def test_the_warm_up_is_rounded_up_but_not_for_rounding(share, steps, rising):
    rates = [training.learning_rate(step, steps, Recipe(1, rate=1.0, warmup=share)) for step in range(steps)]
    assert rates.index(1.0) + 1 == rising


@pytest.mark.parametrize(("share", "steps", "last"), [(0.5, 2, 0.25), (0.9, 10, 0.25), (1.0, 10, 1.0), (0.0, 1, 1.0)])
def test_one_step_after_the_warm_up_is_the_last(share, steps, last):
    assert training.learning_rate(steps - 1, steps, Recipe(1, rate=1.0, warmup=share, final=0.25)) == last


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_numbers_of_numpy_are_kept_as_plain_ones(kind, tmp_path):
    half = dict.fromkeys(("rate", "warmup", "final", "decay", "smoothing", "beta1", "beta2", "clip"), kind(0.5))
    recipe = Recipe(np.int64(1), batch=np.int32(16), **half)
    assert recipe == Recipe(1, batch=16, **dict.fromkeys(half, 0.5))
    assert {type(value) for value in vars(recipe).values()} == {int, float}
    sizes = ("width", "heads", "head_dim", "depth", "mlp_width", "value_dim")
    shape = {name: np.int64(vars(CONFIG)[name]) for name in sizes}
    flags = {name: np.bool_(vars(CONFIG)[name]) for name in ("qk_norm", "tied", "learn_temperature", "frozen")}
    config = TransformerConfig(**shape | flags | {"temperature": kind(1.5)}, init=CONFIG.init)
    assert config == replace(CONFIG, temperature=1.5)
    source = images(pad=np.int64(1), flip=np.bool_(True))
    train(model(config), source, recipe, seed=0, checkpoint=tmp_path / "run.safetensors")


def test_a_configuration_that_is_no_dataclass_is_left_out(tmp_path):
    net = model()
    net.config = {"hidden_size": 8}
    assert train(net, images(), replace(RECIPE, epochs=1), seed=0, checkpoint=tmp_path / "r.safetensors").steps


@pytest.mark.parametrize(("field", "value"), [
    ("epochs", 0), ("batch", 2.5), ("rate", 0.0), ("warmup", 1.5), ("final", -0.1), ("decay", -1.0), ("smoothing", 2.0),
    ("clip", 0.0), ("beta1", 1.0), ("beta2", math.nan),
])  # fmt: skip
def test_bad_recipes_are_refused(field, value):
    with pytest.raises(ValueError, match=f"{field} must"):
        replace(RECIPE, **{field: value})


@pytest.mark.parametrize("without", [torch.no_grad, torch.inference_mode])
def test_training_without_gradients_is_refused(without):
    with without(), pytest.raises(RuntimeError, match=r"train needs gradients: call it outside torch\.no_grad\(\)"):
        train(model(), images(), RECIPE, seed=0)


def test_bad_arguments_are_refused(tmp_path):
    with pytest.raises(ValueError, match="seed"):
        train(model(), images(), RECIPE, seed=-1)
    with pytest.raises(ValueError, match="checkpoint_seconds"):
        train(model(), images(), RECIPE, seed=0, checkpoint_seconds=-1)
    with pytest.raises(ValueError, match="train must be uint8 images"):
        Images(
            (torch.zeros(2, 1, 4, 4), torch.zeros(2)), (torch.zeros(2, 1, 4, 4), torch.zeros(2)), mean=(0,), std=(1,)
        )
    for options, message in (
        ({"test_batch": -1}, "test_batch must be at least 1"), ({"pad": -1}, "pad must be at least 0"),
        ({"flip": "no"}, "flip must be True or False"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            images(**options)
    with pytest.raises(ValueError, match="requires a gradient"):
        train(model().requires_grad_(False), images(), RECIPE, seed=0)
    with pytest.raises(ValueError, match="queries_keys"):
        training.attention_ranks(torch.nn.Linear(2, 2), torch.zeros(1, 2))
    with pytest.raises(ValueError, match="checkpoint must be a file in an existing folder, got .*nowhere"):
        train(model(), images(), RECIPE, seed=0, checkpoint=tmp_path / "nowhere" / "run.safetensors")


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"std": (0.0,)}, "std"), ({"std": (-1.0,)}, "std"), ({"mean": (math.nan,)}, "mean"),
        ({"mean": (0.0, 0.0, 0.0)}, "mean"), ({"std": (1.0, 1.0, 1.0)}, "std"),
    ],
)  # fmt: skip
def test_what_images_are_standardised_with_must_fit_them(change, name):
    part = torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ValueError, match=name):
        Images(part, part, **({"mean": (0.0,), "std": (1.0,)} | change))
    with pytest.raises(ValueError, match="train must have labels int64"):
        Images((part[0], part[1].float()), part, mean=(0.0,), std=(1.0,))


@pytest.mark.parametrize("part", ["train", "test"])
@pytest.mark.parametrize("label", [3, -1, -100])
def test_labels_that_are_no_class_of_the_model_are_refused(part, label):
    """PyTorch leaves examples of the label -100 out without a word."""
    source = double(images())
    getattr(source, f"{part}_labels")[4] = label
    with pytest.raises(ValueError, match=rf"the labels of {part} must be in 0..2, .* got {label}"):
        train(model(), source, RECIPE, seed=0)


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_recorded_steps_are_the_steps(dtype):
    """The last batch of an epoch is smaller, and goes without; the same kernels, but for the order of their sums."""
    found = []
    for graph in (False, True):
        net, source = model(dtype=dtype), images()
        run = train(net, source if dtype == torch.float32 else double(source), RECIPE, seed=0, device="cuda",
                    graph=graph)  # fmt: skip
        found.append((run.final["train_loss"], weights(net)))
    assert found[1][0] == pytest.approx(found[0][0], rel=1e-3 if dtype == torch.float32 else 1e-10)
    scale = 1e-2 if dtype == torch.float32 else 1e-9
    for name, value in found[0][1].items():
        torch.testing.assert_close(found[1][1][name], value, rtol=scale, atol=scale)


@needs_gpu
def test_a_run_on_a_gpu_goes_on_from_its_checkpoint(tmp_path):
    path, runs = tmp_path / "run.safetensors", []
    for stop in (2, None):
        def stopping(entry, stop=stop):
            if entry["epoch"] == stop:
                raise KeyboardInterrupt

        net = model(dtype=torch.float32)
        try:
            runs.append(train(net, images(), RECIPE, seed=0, device="cuda", graph=True, checkpoint=path,
                              progress=stopping))  # fmt: skip
        except KeyboardInterrupt:
            runs.append(None)
    whole = train(model(dtype=torch.float32), images(), RECIPE, seed=0, device="cuda", graph=True)
    assert runs[0] is None and runs[1].sessions == 2
    assert runs[1].final["train_loss"] == pytest.approx(whole.final["train_loss"], rel=1e-3)


@needs_gpu
def test_recorded_steps_meet_a_loss_that_is_not_finite():
    with pytest.raises(NonFiniteLoss, match="the loss is nan"):
        train(model(dtype=torch.float32), images(), replace(RECIPE, rate=1e30, clip=None), seed=0, device="cuda",
              graph=True)  # fmt: skip


def test_whole_batches_are_replayed_and_the_last_of_an_epoch_is_not(monkeypatch):
    """Without a GPU: what is replayed is computed again instead."""
    replayed, recorded = [], []

    class Recorded:
        def __init__(self, step, inputs, targets):
            self.step, self.size = step, len(inputs)
            self.moving = SimpleNamespace(replay=step.optimizer.step)
            recorded.append(step.made)

        def fits(self, inputs, targets):
            return len(inputs) == self.size

        def gradient(self, inputs, targets):
            replayed.append(len(inputs))
            return self.step.compute(inputs, targets)

    class Recording(one_step.Step):
        def __init__(self, *given, **options):
            super().__init__(*given, **options)
            self.graph = options["graph"]

    monkeypatch.setattr(one_step, "_Recorded", Recorded)
    monkeypatch.setattr(loop, "Step", Recording)
    plain, again = model(), model()  # 50 images in batches of 16: the fourth, with which recording could begin, has 2
    train(plain, double(images()), RECIPE, seed=0)
    train(again, double(images()), RECIPE, seed=0, graph=True)
    assert recorded == [4] and replayed == 6 * [16]
    torch.testing.assert_close(weights(again), weights(plain), rtol=0, atol=0)


def test_a_run_names_every_device_that_took_its_steps():
    begun = loop.Run(steps=3, device="NVIDIA H200")
    assert loop._devices(loop.Run(), "cpu") == "cpu"
    assert loop._devices(begun, "NVIDIA H200") == "NVIDIA H200"
    both = replace(begun, device=loop._devices(begun, "cpu"))
    assert both.device == "NVIDIA H200, then cpu" and loop._devices(both, "cpu") == both.device


@pytest.mark.parametrize("name", ["mixed", "graph"])
def test_flags_are_flags(name):
    with pytest.raises(ValueError, match=name):
        train(model(), images(), RECIPE, seed=0, **{name: "yes"})


def test_recording_changes_nothing_on_a_cpu():
    found = []
    for graph in (False, True):
        net = model()
        train(net, double(images()), RECIPE, seed=0, graph=graph)
        found.append(weights(net))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


def test_a_step_on_the_cpu_seeds_no_other_device(monkeypatch):
    """torch.manual_seed seeds every device, and only what the run trains on is given back."""
    seeded = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    monkeypatch.setattr(torch.mps, "manual_seed", seeded.append)
    with loop._randomness(torch.device("cpu"), 1, 2):
        assert torch.initial_seed() == training.source.generator_of(1, 2).initial_seed()
    assert seeded == []


@pytest.mark.parametrize("device", ["meta", "nowhere", 1.5])
def test_a_device_that_is_none_or_loses_the_weights_is_refused(device):
    layer = torch.nn.Linear(2, 2)
    with pytest.raises(ValueError, match="device must"):
        train(layer, images(), RECIPE, seed=0, device=device)
    assert layer.weight.device.type == "cpu"
