"""The routines on a device with memory of its own: a GPU, or a simulated one. Same numbers, and nothing left behind."""

from __future__ import annotations

import pytest
import torch
from test_ranks_certified import ADVERSARIAL
from test_ranks_hardmax import DTYPES, PATHS, draw, force, integers, nearly_tied, repeated_rows

from attnrank import (
    attention,
    effective_rank,
    hardmax_rank,
    models,
    numerical_rank,
    probe,
    singular_values,
    stable_rank,
)
from attnrank.benchmarks import CONTESTS, extra_gpu_memory
from attnrank.experiments import EXPERIMENTS
from attnrank.experiments.experiment import Measured, Statistical
from attnrank.experiments.shared import heads as counting
from attnrank.models import pretrained
from attnrank.models.truncation import truncate_query_key
from attnrank.ranks import certified_rank
from second_device import MEMORY, activated, second_device  # noqa: F401 (fixture)


def back(x, device):
    """A result that must be on the device, on the CPU."""
    assert x.device.type == device
    return x.cpu()


def test_tensors_of_two_devices_do_not_meet(second_device):  # noqa: F811
    x = torch.ones(3)
    far = x.to(second_device)
    assert far.device.type == second_device and (far + 1).tolist() == [2.0, 2.0, 2.0]
    for meeting in (lambda: far + x, lambda: far @ x, lambda: torch.zeros(2, 3) @ far, lambda: torch.cat([far, x])):
        with pytest.raises(RuntimeError, match="same device|two devices"):
            meeting()
    far[1:] += 1.0  # through a view
    assert far.tolist() == [1.0, 2.0, 2.0] and x.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU stays where it is")
def test_the_device_is_gone_afterwards():
    with activated() as device:
        assert torch._utils._get_available_device_type() == device and torch.accelerator.is_available()
    assert torch._utils._get_available_device_type() is None and not torch.accelerator.is_available()
    everywhere = torch.nn.DataParallel(torch.nn.Linear(2, 3))  # on all devices that there are
    assert everywhere(torch.zeros(1, 2)).shape == (1, 3)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_hardmax_ranks(monkeypatch, second_device, dtype, path):  # noqa: F811
    for q, k in (
        (integers(54, 5, 80, 4, size=3).to(dtype), integers(55, 5, 80, 4, size=3).to(dtype)),
        [x.expand(2, -1, -1) for x in nearly_tied(56, 100, 100, 4, dtype)],
        repeated_rows(57, 90, 90, 5, 20, dtype)[:2],
        (draw(58, 2, 300, 16, dtype=dtype), draw(59, 2, 300, 16, dtype=dtype)),
    ):
        for options in ({}, {"causal": True, "tile": 70}):
            expected = hardmax_rank(q, k, **options)
            with monkeypatch.context() as patch:
                force(patch, path, keys=70)
                counted = hardmax_rank(q.to(second_device), k.to(second_device), **options)
            assert torch.equal(back(counted, second_device), expected)


@pytest.mark.parametrize("d_h", [4, 64])
def test_hardmax_ranks_of_a_large_matrix(second_device, d_h):  # noqa: F811
    q, k = draw(60, 2500, d_h, dtype=torch.float32), draw(61, 2500, d_h, dtype=torch.float32)
    counted = hardmax_rank(q.to(second_device), k.to(second_device))
    assert back(counted, second_device) == hardmax_rank(q, k)


@pytest.mark.parametrize("relative", [False, True])
def test_numerical_ranks_of_difficult_matrices(second_device, relative):  # noqa: F811
    for name, (matrix, tol) in ADVERSARIAL.items():
        a = torch.tensor(matrix)
        rank, by_svd = certified_rank(a, tol, relative=relative)
        results = certified_rank(a.to(second_device), tol, relative=relative)
        there, by_other_svd = (back(x, second_device) for x in results)
        assert torch.equal(there, rank), name
        if second_device != "cuda":  # whose rounding may certify another one
            assert torch.equal(by_other_svd, by_svd), name


def test_numerical_ranks_of_a_batch_of_softmax_matrices(second_device):  # noqa: F811
    q, k = draw(62, 5, 160, 8), draw(63, 5, 160, 8)
    a, far = (attention(x, y, temperature=1 / 8) for x, y in ((q, k), (q.to(second_device), k.to(second_device))))
    assert torch.allclose(back(far, second_device), a, rtol=1e-12, atol=0)
    far = a.to(second_device)
    for options in ({}, {"relative": True}):
        rank = numerical_rank(far, 1e-3, **options)
        assert torch.equal(back(rank, second_device), numerical_rank(a, 1e-3, **options))
    for measure in (stable_rank, effective_rank, singular_values):
        assert torch.allclose(back(measure(far), second_device), measure(a), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"hard": True}, {"causal": True, "hard": True}])
def test_attention(second_device, options):  # noqa: F811
    q, k = draw(64, 3, 20, 4), draw(65, 3, 20, 4)
    far = attention(q.to(second_device), k.to(second_device), **options)
    assert torch.allclose(back(far, second_device), attention(q, k, **options), rtol=1e-12, atol=0)


def test_memory_on_the_device_does_not_grow_with_the_square(second_device):  # noqa: F811
    n = 100_000
    q, k = (draw(seed, n, 8, dtype=torch.float32).to(second_device) for seed in (66, 67))
    if second_device == "cuda":
        extra = extra_gpu_memory(lambda: hardmax_rank(q, k))
    else:
        before = MEMORY.reset()
        hardmax_rank(q, k)
        extra = MEMORY.peak - before
    assert extra < 4 * n**2 / 100  # a hundredth of the scores


class Heads(torch.nn.Module):
    """Attention in several ways, on whatever device its tokens are."""

    def __init__(self, form):
        super().__init__()
        self.form = form
        self.project = torch.nn.Parameter(draw(68, 8, 24))

    def forward(self, x, *others):
        q, k, v = ((x @ part).unflatten(-1, (2, 4)).transpose(1, 2) for part in self.project.chunk(3, 1))
        return self.form(q, k, v, *others)


SDPA = torch.nn.functional.scaled_dot_product_attention
FORMS = {
    "no mask": SDPA,
    "causal": lambda q, k, v: SDPA(q, k, v, is_causal=True),
    "padding": lambda q, k, v, seen: SDPA(q, k, v, attn_mask=seen[:, None, None]),
    "window": lambda q, k, v, seen: SDPA(q, k, v, attn_mask=torch.ones_like(q @ k.mT).bool().tril().triu(-3)),
    "bias": lambda q, k, v, seen: SDPA(q, k, v, attn_mask=0.1 * (q + k).cumsum(-2) @ k.mT),
    "written out": lambda q, k, v: (q @ k.mT / 2).softmax(-1) @ v,
}


@pytest.mark.parametrize("form", FORMS)
def test_the_probe(second_device, form):  # noqa: F811
    model, x = Heads(FORMS[form]), draw(69, 3, 9, 8)
    batch = (x, torch.arange(9) < torch.tensor([[9], [6], [9]])) if form in ("padding", "window", "bias") else (x,)
    expected = probe(model, batch, per_sample=True)
    model.project = torch.nn.Parameter(model.project.detach().to(second_device))
    found = probe(model, tuple(part.to(second_device) for part in batch), per_sample=True)
    counts = ["layer", "head", "sample", "n", "m", "mask", "hardmax_rank", "numerical_rank"]
    assert found[counts].equals(expected[counts]) and form in ("no mask", "written out", *found["mask"], "bias")
    for column in ("stable_rank", "effective_rank", "bound"):
        assert found[column].to_numpy() == pytest.approx(expected[column].to_numpy(), rel=1e-9)
    assert found["deviation"].max() < 1e-12


def test_rows_of_tables_are_the_same_with_ranks_counted_on_the_device(monkeypatch):
    counted = set()

    def row(name, device):
        experiment = EXPERIMENTS[name]
        with monkeypatch.context() as patch:
            patch.setattr(counting, "device", lambda: counted.add(name) or torch.device(device))
            return experiment.function(**experiment.quick[0])

    for name, experiment in EXPERIMENTS.items():
        if experiment.data or isinstance(experiment.repeats, Measured | Statistical):  # no number is repeated
            continue
        expected = row(name, "cpu")
        if name in counted:
            with activated() as device:
                assert experiment.repeats.difference(expected, row(name, device), 1) is None, name
    assert counted >= {"random_heads", "head_dimension", "normalised_heads", "synthetic_heads", "rank_increments"}


@pytest.mark.parametrize("contest", CONTESTS)
def test_contests(second_device, contest):  # noqa: F811
    for routine in CONTESTS[contest].prepare(20, 4, 2, "float32", second_device):
        result = routine()
        assert result is None or back(result, second_device).isfinite().all()


def test_extra_memory_is_the_peak_above_what_was_in_use_before(monkeypatch):
    use = {"now": 100, "peak": 900}

    def work():
        use.update(peak=use["now"] + 50)

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: use.update(peak=use["now"]))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: use["now"])
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: use["peak"])
    assert extra_gpu_memory(work) == 50


def test_models(second_device):  # noqa: F811
    """They make no tensor on the CPU that meets those of the device: padding's mask, places not yet visited."""
    config = models.TransformerConfig(width=6, heads=2, head_dim=3, depth=2, qk_norm=True, learn_temperature=True)
    given = {"generator": torch.Generator().manual_seed(0), "classes": 3, "dtype": torch.float64}
    vision = models.VisionTransformer(config, image_size=4, patch_size=2, pool="sequence", **given)
    text = models.TextTransformer(config, vocabulary=9, length=5, positions="sinusoidal", **given)
    route, sound = (pretrained.load(name, seed=0).double() for name in ("route_tsp20", "kwt1"))
    words, points = torch.tensor([[3, 1, 4, 0], [5, 2, 0, 0]]), torch.rand(2, 7, 2, dtype=torch.float64)
    for model, x in (
        (vision, draw(70, 2, 3, 4, 4)), (text, words), (sound, draw(71, 1, 98, 40)), (sound, draw(72, 1, 16000)),
        (route, points), (route.decoder, route(points)),
    ):  # fmt: skip
        values = model.state_dict() | dict(model.named_buffers())  # fixed positions are in the latter alone
        far = {name: value.detach().to(second_device) for name, value in values.items()}
        found = torch.func.functional_call(model, far, x.to(second_device))
        torch.testing.assert_close(back(found, second_device), model(x), rtol=1e-9, atol=1e-12)
    w_q, w_k = draw(73, 2, 8, 4), draw(74, 2, 8, 4)
    there, here = (
        truncate_query_key(w_q.to(place), w_k.to(place), 2) for place in (second_device, "cpu")
    )  # another library may turn the signs of singular vectors, of both at once
    far, near = ([q @ k.mT, q.abs(), k.abs(), sigma] for q, k, sigma in (there, here))
    for found, expected in zip(far, near, strict=True):
        torch.testing.assert_close(back(found, second_device), expected, rtol=1e-9, atol=1e-12)
