"""The probe leaves a model as it found it, bit for bit: outputs, parameters, buffers, modes, hooks, random states."""

from __future__ import annotations

import random
import sys
from io import StringIO

import numpy as np
import pytest
import torch
from probe_reference import TOL
from torch import nn
from torch.nn import functional as F

from attnrank import probe
from attnrank.models import TextTransformer, TransformerConfig

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs",
         "_forward_hooks_always_called", "_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks")  # fmt: skip


def draw(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def torch_encoder(**options):
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, **options)
    padded = torch.arange(10).expand(3, 10) >= torch.tensor([10, 7, 9])[:, None]
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not options)
    return model, {"src": draw(3, 10, 16), "src_key_padding_mask": padded}


def compiled():
    model, batch = torch_encoder()
    model = torch.compile(model, backend="eager")
    model(**batch)  # what is compiled must still be there afterwards
    return model, batch


def normalised():
    """Batch normalisation: a forward pass in training mode changes its buffers."""

    class Normalised(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.attend = nn.BatchNorm1d(10), nn.MultiheadAttention(16, 2, dropout=0.5, batch_first=True)
            self.norm.register_forward_hook(lambda module, args, result: result + 1)

        def forward(self, x):
            x = self.norm(x)
            return self.attend(x, x, x)[0] + torch.rand(()) + random.random() + np.random.rand()

    return Normalised(), {"x": draw(3, 10, 16)}


def book():
    config = TransformerConfig(width=16, heads=2, head_dim=4, depth=2, init="lecun")
    model = TextTransformer(config, vocabulary=9, length=8, classes=3, generator=torch.Generator().manual_seed(0))
    return model, {"tokens": torch.tensor([[1, 2, 3, 4, 0], [5, 6, 7, 8, 1]])}


def family(name, attention):
    def build():
        pytest.importorskip("transformers")
        import test_probe_families

        model, batch, _ = test_probe_families.build(name, attention)
        return model.float(), {k: v.float() if v.is_floating_point() else v for k, v in batch.items()}

    return build


MODELS = {
    "torch.nn": torch_encoder,
    "torch.nn, norm first": lambda: torch_encoder(norm_first=True),
    "compiled": compiled,
    "batch normalisation, a hook, random numbers": normalised,
    "the book's": book,
    "bidirectional": family("bidirectional", "sdpa"),
    "bidirectional, eager": family("bidirectional", "eager"),
    "causal": family("causal", "sdpa"),
    "grouped": family("grouped", "sdpa"),
    "sliding window": family("sliding window", "sdpa"),
    "latent": family("latent", "sdpa"),
    "mixture of experts": family("mixture of experts", "sdpa"),
    "sink": family("sink", "eager"),
    "encoder-decoder": family("encoder-decoder", "sdpa"),
    "vision": family("vision", "sdpa"),
}


def bits(x):
    return x.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def random_states():
    """Of torch on every device, of Python and of numpy."""
    cuda = [bits(state) for state in torch.cuda.get_rng_state_all()] if torch.cuda.is_available() else []
    kind, keys, *place = np.random.get_state()
    return bits(torch.get_rng_state()), cuda, random.getstate(), (kind, keys.tolist(), *place)


def state(model):
    """Everything that a model holds, tensors as their bits and their places in memory."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return {
        "tensors": {name: (bits(x), x.data_ptr(), x.dtype, x.requires_grad, x.grad) for name, x in tensors},
        "modes": {name: module.training for name, module in model.named_modules()},
        "hooks": {name: [list(getattr(module, hooks)) for hooks in HOOKS] for name, module in model.named_modules()},
        "attributes": {name: sorted(vars(module)) for name, module in model.named_modules()},
    }


def outputs(model, batch):
    """The bits of everything that the model returns, the random numbers that it draws being those of seed 0."""
    kept = torch.get_rng_state(), random.getstate(), np.random.get_state()
    torch.manual_seed(0), random.seed(0), np.random.seed(0)
    result = model(**batch)
    torch.set_rng_state(kept[0]), random.setstate(kept[1]), np.random.set_state(kept[2])
    result = result.to_tuple() if hasattr(result, "to_tuple") else result
    return [bits(x) for x in torch.utils._pytree.tree_leaves(result) if isinstance(x, torch.Tensor)]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_nothing_of_a_model_changes(name, training):
    torch.manual_seed(0)
    model, batch = MODELS[name]()
    model.train(training)
    next(model.children()).train(not training)  # modes are those of each module, not of the whole
    given = {key: bits(x) for key, x in batch.items()}
    outputs(model, batch)  # what is made when a model first runs
    before = outputs(model, batch), state(model), random_states()  # in this order: a pass changes batch statistics
    assert before[0]
    probe(model, batch, tol=TOL)
    assert state(model) == before[1] and random_states() == before[2] and torch.is_grad_enabled()
    assert {key: bits(x) for key, x in batch.items()} == given
    if not (training and name.startswith("batch")):  # its statistics differ from pass to pass
        assert outputs(model, batch) == before[0]


def test_a_change_of_one_bit_would_be_seen():
    model, batch = torch_encoder()
    before = state(model), outputs(model.eval(), batch), random_states()
    with torch.no_grad():
        weight = model.layers[1].linear2.weight
        weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(9.0))
    assert state(model)["tensors"] != before[0]["tensors"]
    with torch.no_grad():
        model.layers[1].norm2.bias += 1e-6
    assert outputs(model, batch) != before[1]
    torch.rand(())
    assert random_states() != before[2]


class Changed(nn.Module):
    """Attention in whose forward pass ``change`` does something to the module first."""

    def __init__(self, change):
        super().__init__()
        self.change, self.attend = change, nn.MultiheadAttention(16, 2, batch_first=True)
        self.register_buffer("mask", None, persistent=False)
        self.register_buffer("calls", torch.zeros(2))
        self.register_buffer("undefined", torch.full((2,), torch.nan))

    def forward(self, x):
        self.change(self, len(x[0]))
        return self.attend(x, x, x, attn_mask=self.mask)[0]


def fill(model, n):
    if model.mask is None:
        model.register_buffer("mask", torch.ones(n, n).triu(1).bool(), persistent=False)


def another(model, n):
    model.register_buffer("cache", torch.ones(n), persistent=True)


def delete(model, n):
    del model.calls


def replace(model, n):
    model.calls = model.calls + 1


def add(model, n):
    model.calls += 1


def normalise_data(model, n):
    model.attend.in_proj_weight.data = F.normalize(model.attend.in_proj_weight.data, dim=-1)


def exchange(model, n):
    model.attend.in_proj_weight = nn.Parameter(model.attend.in_proj_weight.detach() / 2)


@pytest.mark.parametrize("change", [fill, another, delete, replace, add])
def test_buffers_are_those_that_were_there(change):
    model = Changed(change)
    names, kept = list(model._buffers), set(model._non_persistent_buffers_set)
    objects, before = list(model._buffers.values()), model.undefined
    probe(model, draw(2, 6, 16))
    assert list(model._buffers) == names and model._non_persistent_buffers_set == kept
    assert all(x is y for x, y in zip(model._buffers.values(), objects, strict=True))
    assert model.mask is None and not model.calls.any() and model.undefined is before
    assert model(draw(2, 9, 16)).shape == (2, 9, 16)  # of another length: no mask of the first is left


@pytest.mark.parametrize("change", [normalise_data, exchange])
@pytest.mark.parametrize("raises", [False, True])
def test_parameters_that_a_forward_pass_replaces_are_those_that_were_there(change, raises):
    def run(model, n):
        change(model, n)
        if raises:
            raise RuntimeError("no kernel")

    model = Changed(run)
    weight = model.attend.in_proj_weight
    before, place = weight.detach().clone(), weight.data_ptr()
    if raises:
        with pytest.raises(RuntimeError, match="no kernel"):
            probe(model, draw(2, 6, 16))
    else:
        probe(model, draw(2, 6, 16))
    assert model.attend.in_proj_weight is weight and torch.equal(weight, before) and weight.data_ptr() == place


def test_parameters_that_a_forward_pass_writes_into_are_named():
    """As of models that put their weights back on a sphere: a copy of all would take their memory twice."""

    def normalise(model, n):
        weight = model.attend.in_proj_weight
        weight.copy_(F.normalize(weight, dim=-1))

    with pytest.warns(UserWarning, match=r"model has changed its own attend\.in_proj_weight in place: it stays so"):
        probe(Changed(normalise), draw(2, 6, 16))


def test_models_of_inference_mode():
    with torch.inference_mode():
        model = Changed(add)
        probe(model, draw(2, 6, 16))
    assert not model.calls.any()


IN_PLACE = {
    "by keyword": lambda y: torch.relu_(input=y),
    "of a list": lambda y: torch._foreach_mul_([y], 2.0),
    "of torch.nn.init": nn.init.normal_,
    "out": lambda y: torch.mul(y, 2, out=y),
    "of a view": lambda y: y[:, 1:].mul_(2.0),
}


@pytest.mark.parametrize("how", IN_PLACE)
def test_operations_in_place_are_followed_however_they_are_called(how):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.attend = nn.MultiheadAttention(16, 2, batch_first=True)

        def forward(self, x):
            y = x.clone()
            IN_PLACE[how](y)
            return self.attend(y, y, y)[0]

    assert len(probe(Model(), draw(2, 6, 16))) == 2


def test_a_model_without_numbers_is_refused():
    with torch.device("meta"):
        model = torch_encoder()[0]
    with pytest.raises(ValueError, match="on the meta device, which holds no numbers"):
        probe(model, draw(2, 6, 16))
    with pytest.raises(ValueError, match="on the meta device, which holds no numbers"):
        probe(torch_encoder()[0], torch.ones(2, 6, 16, device="meta"))


class Terminal(StringIO):
    def __init__(self, attached):
        super().__init__()
        self.attached = attached

    def isatty(self):
        return self.attached


@pytest.mark.parametrize(("attached", "batches", "shown"), [(True, 3, True), (True, 1, False), (False, 3, False)])
def test_a_terminal_shows_a_bar_for_many_batches(monkeypatch, attached, batches, shown):
    model, batch = torch_encoder()
    terminal = Terminal(attached)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(sys, "__stderr__", terminal)
    probe(model, [batch] * batches, ranks="hardmax")
    text = terminal.getvalue()
    assert ("3/3" in text and "batch" in text) if shown else text == ""


def test_batches_are_taken_one_after_the_other():
    """A loader of more data than memory holds: a batch is asked for when the one before has been measured."""
    model, batch = torch_encoder()
    passes = []
    model.register_forward_hook(lambda *_: passes.append(1))

    def loader():
        for i in range(4):
            assert len(passes) == i
            yield batch

    many = probe(model, loader(), ranks="hardmax", per_sample=True)
    assert len(passes) == 4 and many["sample"].nunique() == 12
    with pytest.raises(ValueError, match="batch must not be empty"):
        probe(model, iter([]))


def test_a_loader_of_unknown_length_is_read():
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            yield from torch.zeros(3, 5, 8)

    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    loader = torch.utils.data.DataLoader(Stream(), batch_size=1)
    assert len(probe(layer, loader, per_sample=True)) == 2 * 3
