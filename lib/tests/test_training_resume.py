"""training: a run that is interrupted or killed goes on bit for bit; checkpoints, and which of them are refused."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from filelock import FileLock
from safetensors import safe_open
from safetensors.torch import save_file

from attnrank import training
from attnrank.training import state, train
from training_cases import CONFIG, RECIPE, double, images, model, same, stopping, weights

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("stop", [0, 3, 4, 9])  # an epoch has four steps
def test_a_run_that_is_interrupted_ends_with_the_same_bits(stop, tmp_path):
    whole, source = model(), double(images())
    probe = source.standardised(source.test_images[:2])
    complete = train(whole, source, RECIPE, seed=1, probe=probe)
    cut, path = stopping(double(images()), stop), tmp_path / "run.safetensors"
    with pytest.raises(KeyboardInterrupt):
        train(model(), cut, RECIPE, seed=1, probe=probe, checkpoint=path, checkpoint_seconds=0)
    assert training.load(path)[1]["progress"]["steps"] == stop
    again = model()
    resumed = train(again, double(images()), RECIPE, seed=1, probe=probe, checkpoint=path)
    assert same(weights(again), weights(whole))
    assert resumed.epochs == complete.epochs and resumed.sessions == 2
    found = model()
    done = train(found, double(images()), RECIPE, seed=1, probe=probe, checkpoint=path)  # nothing left to do
    assert done.epochs == complete.epochs and done.seconds >= resumed.seconds and done.sessions == 3
    assert not any(net.training for net in (whole, again, found))  # what is measured next is the same


def test_seconds_are_those_of_all_sessions_and_decide_when_the_file_is_written(tmp_path, monkeypatch):
    """With a clock that each batch moves on by one: written at step 2, not at 3, and of its time."""
    now, path = [100.0], tmp_path / "run.safetensors"
    monkeypatch.setattr(state, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def ticking(source):
        plain = source.batch
        source.batch = lambda *arguments: (plain(*arguments), now.append(now.pop() + 1))[0]
        return source

    with pytest.raises(KeyboardInterrupt):
        train(model(), ticking(stopping(images(), 3)), RECIPE, seed=1, checkpoint=path, checkpoint_seconds=2)
    progress = training.load(path)[1]["progress"]
    assert (progress["steps"], progress["seconds"]) == (2, 2)
    assert train(model(), ticking(images()), RECIPE, seed=1, checkpoint=path).seconds == 12


def test_the_best_epoch_is_the_first_of_several():
    run = training.Run(epochs=[{"epoch": at, "test_accuracy": x} for at, x in enumerate((0.1, 0.7, 0.6, 0.7))])
    assert (run.best["epoch"], run.final["epoch"]) == (1, 3)


JOB = """
import sys, time, torch
sys.path.insert(0, {tests!r})
import training_cases as t
from dataclasses import replace
from attnrank.training import train
from safetensors.torch import save_file
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
run = train(net, source, replace(t.RECIPE, epochs=8), seed=1, checkpoint={path!r}, checkpoint_seconds=0)
save_file(t.weights(net), {path!r} + ".end")
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
            job.kill()
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


HOLD = """
import sys, filelock
lock = filelock.FileLock(sys.argv[1])
lock.acquire()
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_process_is_refused_until_the_first_is_killed(tmp_path):
    """And leaves file and weights alone: the same call goes through then."""
    path, net = tmp_path.resolve() / "run.safetensors", model()
    with pytest.raises(KeyboardInterrupt):
        train(model(), stopping(double(images()), 6), RECIPE, seed=1, checkpoint=path)
    before = path.read_bytes(), weights(net)
    job = [sys.executable, "-c", HOLD, f"{path}.lock"]
    with subprocess.Popen(job, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        try:
            assert first.stdout.readline().strip() == b"held"
            shown = f"{path}: another process trains this run; wait until it has ended, or name another checkpoint"
            with pytest.raises(RuntimeError, match=f"^{re.escape(shown)}$"):
                train(net, double(images()), RECIPE, seed=1, checkpoint=path)
        finally:
            first.kill()
    assert path.read_bytes() == before[0] and same(weights(net), before[1])
    assert train(net, double(images()), RECIPE, seed=1, checkpoint=path).sessions == 2


def test_a_run_is_locked_from_its_first_step_to_its_last(tmp_path):
    """Against another thread, which has to take the lock by itself; a run that is interrupted lets go of it."""
    path, refused = tmp_path / "run.safetensors", []

    def try_too(entry):
        if entry["epoch"] == RECIPE.epochs:
            return  # it is finished, and read
        with ThreadPoolExecutor(1) as other, pytest.raises(RuntimeError, match="another process trains this run"):
            other.submit(train, model(), double(images()), RECIPE, seed=1, checkpoint=path).result()
        refused.append(entry["epoch"])

    with pytest.raises(KeyboardInterrupt):
        train(model(), stopping(double(images()), 6), RECIPE, seed=1, checkpoint=path, progress=try_too)
    with FileLock(f"{path}.lock", timeout=0):
        pass  # it is free
    train(model(), double(images()), RECIPE, seed=1, checkpoint=path, progress=try_too)
    assert refused == [0, 1, 2]


def test_a_finished_run_is_read_whoever_holds_the_lock(tmp_path):
    """Tables of its epochs are made of it by several processes at once, and out of folders that are read only."""
    path = tmp_path / "run.safetensors"
    run = train(model(), double(images()), RECIPE, seed=1, checkpoint=path)
    before = path.read_bytes()
    with FileLock(f"{path}.lock"):
        assert train(model(), double(images()), RECIPE, seed=1, checkpoint=path).epochs == run.epochs
    (tmp_path / "run.safetensors.lock").unlink(missing_ok=True)
    train(model(), double(images()), RECIPE, seed=1, checkpoint=path)
    assert os.listdir(tmp_path) == ["run.safetensors"] and path.read_bytes() == before


def test_what_another_process_did_until_the_lock_was_free_is_not_done_again(tmp_path, monkeypatch):
    path, other = tmp_path / "run.safetensors", tmp_path / "other.safetensors"
    whole = train(model(), double(images()), RECIPE, seed=1, checkpoint=other)
    held = state.files.held

    @contextmanager
    def late(path):
        other.replace(path)
        with held(path):
            yield

    monkeypatch.setattr(state.files, "held", late)
    assert train(model(), stopping(double(images()), 0), RECIPE, seed=1, checkpoint=path).epochs == whole.epochs


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
    path = tmp_path / "run.safetensors"
    with pytest.raises(KeyboardInterrupt):
        train(model(dtype=torch.float32), stopping(images(), 6), RECIPE, seed=1, checkpoint=path, checkpoint_seconds=0)
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
    before, frozen = path.read_bytes(), model()
    frozen.classifier.requires_grad_(False)
    for net, recipe, seed, source, shown in (
        (model(), replace(RECIPE, epochs=4), 0, images(), "epochs"),
        (model(), RECIPE, 1, images(), "seed is 0, not 1"),
        (model(), RECIPE, 0, images(49), "data"),
        (model(replace(CONFIG, head_dim=4)), RECIPE, 0, images(), "model"),
        (model(replace(CONFIG, temperature=9.0)), RECIPE, 0, images(), "config"),
        (model(dtype=torch.float32), RECIPE, 0, images(), "model is .*float64.*, not .*float32"),
        (frozen, RECIPE, 0, images(), "model is .*, not .* frozen"),
    ):
        with pytest.raises(ValueError, match=f"(?s)another run: .*{shown}.*delete the file"):
            train(net, double(source), recipe, seed=seed, checkpoint=path)
    assert path.read_bytes() == before


def permuted(source, *names):
    """The same source, the rows of these tensors in reverse: the sums of the identity stay the same."""
    for name in names:
        setattr(source, name, getattr(source, name).flip(0))
    return source


@pytest.mark.parametrize("shown, positions, source", [
    ("mean", "sinusoidal", images(mean=(0.0, 90.0))),
    ("std", "sinusoidal", images(std=(1.0, 50.0))),
    ("sha256", "sinusoidal", permuted(images(), "train_inputs", "train_labels")),
    ("sha256", "sinusoidal", permuted(images(), "test_labels")),
    ("sha256", "sinusoidal", permuted(images(), "test_inputs")),
    ("buffers", "none", images()),
])
def test_runs_that_no_parameter_and_no_sum_tells_apart_are_refused(shown, positions, source, tmp_path):
    """But not where the checkpoint does not say: those written before it did are gone on from as they were."""
    path = tmp_path / "run.safetensors"
    train(model(positions="sinusoidal"), double(images()), RECIPE, seed=0, checkpoint=path)
    before = path.read_bytes()
    net, source = model(positions=positions), double(source)
    with pytest.raises(ValueError, match=f"another run: {shown}.*delete the file"):
        train(net, source, RECIPE, seed=0, checkpoint=path)
    assert path.read_bytes() == before
    tensors, record = training.load(path)
    del record["details"]
    training.save(path, tensors, record)
    assert train(net, source, RECIPE, seed=0, checkpoint=path).sessions == 2


@pytest.mark.parametrize("stop", [0, 5, 12])
def test_other_initial_weights_and_another_probe_are_another_run(stop, tmp_path):
    """At any step. A file that does not say what they were is gone on from, and so is one that rounding tells apart."""
    source, path = double(images()), tmp_path / "run.safetensors"
    probe = source.standardised(source.test_images[:2])

    def go_on(net, probe=probe, source=source):
        return train(net, source, RECIPE, seed=1, probe=probe, checkpoint=path, checkpoint_seconds=0)

    if stop < 12:
        with pytest.raises(KeyboardInterrupt):
            go_on(model(), source=stopping(double(images()), stop))
    else:
        go_on(model())
    before = path.read_bytes()
    other, pooled, body = model(seed=77), model(), model()
    with torch.no_grad():
        pooled.pooling.weight.neg_()  # only the last matrix is another: a new head on a body that is kept
        for name, value in body.named_parameters():
            if "mlp" in name or "output" in name:
                value *= 1.01
    for net, taken, shown in (
        (other, probe, "initial_weights is '.*', not '"),
        (pooled, probe, "initial_weights is '.*', not '"),
        (body, probe, ".*initial_norms is '.*', not '"),
        (model(), None, r"probe is '\(2, 2, 8, 8\) of mean size 0.*', not None"),
        (model(), probe[:1], r"probe is '\(2, .*', not '\(1, "),
        (model(), probe.flip(0) * 1.01, r"probe is '\(2, .* of mean size 0.*', not '\(2, "),
    ):
        with pytest.raises(ValueError, match=f"another run: {shown}.*delete the file"):
            go_on(net, taken)
        assert path.read_bytes() == before
    tensors, record = training.load(path)
    for name in ("initial_weights", "initial_norms", "probe"):
        del record["details"][name]
    training.save(path, tensors, record)
    assert go_on(other).sessions == 2
    path.write_bytes(before)
    rounded = model()
    with torch.no_grad():
        for value in rounded.parameters():
            value *= 1 + 1e-7
    run = go_on(rounded, probe * (1 + 1e-9))
    assert run.sessions == 2 and all("ranks" in epoch for epoch in run.epochs)


def test_the_model_of_a_call_that_was_interrupted_goes_on(tmp_path):
    """The same call once more in one process, as in a notebook, though the model was trained a little meanwhile."""
    net, whole, path = model(), model(), tmp_path / "run.safetensors"
    train(whole, double(images()), RECIPE, seed=1)
    with pytest.raises(KeyboardInterrupt):
        train(net, stopping(double(images()), 6), RECIPE, seed=1, checkpoint=path)  # the file is of step 4
    assert train(net, double(images()), RECIPE, seed=1, checkpoint=path).sessions == 2
    assert same(weights(net), weights(whole))
    path.unlink()  # another run, of the trained model
    train(net, double(images()), RECIPE, seed=1, checkpoint=path)
    with pytest.raises(ValueError, match="another run: initial_weights"):
        train(model(), double(images()), RECIPE, seed=1, checkpoint=path)
    assert train(whole, double(images()), RECIPE, seed=1, checkpoint=path).sessions == 2


@pytest.mark.parametrize("damage", ["cut", "flipped", "record", "type", "foreign", "version", "text", "empty"])
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
            "type": whole.replace(b'"F32"', b'"I32"'), "version": whole.replace(b"training 1", b"training 2"),
        }[damage])  # fmt: skip
    assert path.read_bytes() != whole
    shown = "not a checkpoint of this package" if damage in ("foreign", "version") else "damaged"
    with pytest.raises(ValueError, match=f"run.safetensors: {shown}.*delete the file to train from the start"):
        training.load(path)
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        training.load(tmp_path / "other.safetensors")


def test_what_cannot_be_written_leaves_the_file_and_nothing_beside_it(tmp_path, monkeypatch):
    path = tmp_path / "run.safetensors"
    training.save(path, {"x": torch.zeros(2)}, {"loss": 1.0})
    before = path.read_bytes()
    with pytest.raises(ValueError, match="JSON"):
        training.save(path, {"x": torch.ones(2)}, {"loss": float("nan")})

    def full(temporary, path):
        raise OSError("no space")

    monkeypatch.setattr(training.checkpoint, "replace", full)
    with pytest.raises(OSError, match="no space"):
        training.save(path, {"x": torch.ones(2)}, {"loss": 0.5})
    assert os.listdir(tmp_path) == ["run.safetensors"] and path.read_bytes() == before


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="the system does not say which files are mapped")
def test_what_was_loaded_holds_no_part_of_the_file(tmp_path):
    """A file that is mapped into memory cannot be replaced on Windows."""
    path = tmp_path / "run.safetensors"
    training.save(path, {"x": torch.arange(6.0)}, {})
    tensors, _ = training.load(path)
    with open("/proc/self/maps", encoding="utf-8") as maps:
        assert str(path) not in maps.read() and tensors["x"].tolist() == [0, 1, 2, 3, 4, 5]


def test_checkpoints_are_safetensors_and_json(tmp_path):
    path = tmp_path / "run.safetensors"
    net = model()
    train(net, double(images()), RECIPE, seed=0, checkpoint=path)
    with safe_open(path, "np") as file:
        record = json.loads(file.metadata()["record"])
        for name, value in net.state_dict().items():
            np.testing.assert_array_equal(file.get_tensor(f"model.{name}"), value.numpy())
    assert record["run"]["recipe"]["epochs"] == 3 and len(record["progress"]["epochs"]) == 4
    assert [name for name in os.listdir(tmp_path) if not name.endswith(".lock")] == ["run.safetensors"]


def test_device_and_threads_are_those_of_the_training(tmp_path, monkeypatch):
    """Not of a table that collects a run which is finished; of a session that goes on with it, beside those before."""
    path = tmp_path / "run.safetensors"
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    run = train(model(), double(images()), RECIPE, seed=1, checkpoint=path)
    assert (run.device, run.threads) == ("cpu", torch.get_num_threads())
    tensors, record = training.load(path)
    record["progress"] |= {"device": "NVIDIA H100", "threads": 12}
    training.save(path, tensors, record)
    run = train(model(), double(images()), RECIPE, seed=1, checkpoint=path)
    assert (run.device, run.threads, run.sessions) == ("NVIDIA H100", 12, 2)
    path.unlink()
    with pytest.raises(KeyboardInterrupt):
        train(model(), stopping(double(images()), 6), RECIPE, seed=1, checkpoint=path)
    tensors, record = training.load(path)
    record["progress"] |= {"device": "NVIDIA H100"}
    del record["progress"]["threads"]  # as in files that were written before it came in
    training.save(path, tensors, record)
    run = train(model(), double(images()), RECIPE, seed=1, checkpoint=path)
    assert (run.device, run.threads) == ("NVIDIA H100, then cpu", torch.get_num_threads())


class Dropping(torch.nn.Module):
    """The same model, some of whose logits are dropped at random in training."""

    def __init__(self):
        super().__init__()
        self.net, self.drawn = model(), []

    def forward(self, x):
        if self.training:
            self.drawn.append(torch.random.initial_seed())
        return torch.nn.functional.dropout(self.net(x), 0.5, self.training)


def test_what_a_model_draws_itself_depends_on_seed_and_step_alone(tmp_path):
    """Dropout, in two runs and in one that is interrupted; the caller's own random numbers are left alone."""
    torch.manual_seed(5)
    whole = Dropping()
    before = torch.get_rng_state()
    train(whole, double(images()), RECIPE, seed=1)
    assert torch.equal(torch.get_rng_state(), before) and len(set(whole.drawn)) == 12  # each step draws anew
    torch.rand(7)
    net, path = Dropping(), tmp_path / "run.safetensors"
    with pytest.raises(KeyboardInterrupt):
        train(net, stopping(double(images()), 6), RECIPE, seed=1, checkpoint=path)
    net = Dropping()
    train(net, double(images()), RECIPE, seed=1, checkpoint=path)
    assert same(weights(net), weights(whole))
    other, plain = Dropping(), model()
    train(other, double(images()), RECIPE, seed=2), train(plain, double(images()), RECIPE, seed=1)
    assert not same(weights(other), weights(whole)) and not same(weights(plain), weights(whole.net))


def test_tied_weights_are_kept_in_a_checkpoint(tmp_path):
    shared = torch.randn(3, 2)
    training.save(tmp_path / "tied.safetensors", {"a": shared, "b": shared}, {})
    tensors, _ = training.load(tmp_path / "tied.safetensors")
    assert torch.equal(tensors["a"], shared) and torch.equal(tensors["b"], shared)
