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
