"""Models that others trained: they do what their authors say, the probe counts their ranks, and wrong files are
refused.

Their files are no part of the repository: where ATTNRANK_MODELS or ATTNRANK_DATA does not name a folder that has them,
only what needs no file is tested.
"""

from __future__ import annotations

import pytest
import torch
from probe_reference import TOL, assert_frame

from attnrank import probe
from attnrank.models import pretrained
from attnrank.models.keywords import LABELS, KeywordTransformer
from attnrank.models.route import RouteEncoder, tour_length


def needs(name):
    return pytest.mark.skipif(not pretrained.at_hand(name), reason=f"the files of {name} are not here")


@pytest.mark.parametrize(("name", "n", "published"), [
    pytest.param("route_tsp20", 20, 3.848, marks=needs("route_tsp20")),
    pytest.param("route_tsp50", 50, 5.783, marks=needs("route_tsp50")),
])  # fmt: skip
def test_tours_are_as_long_as_their_authors(name, n, published):
    points = torch.rand(500, n, 2, generator=torch.Generator().manual_seed(0))
    tour = pretrained.load(name).tour(points)
    assert torch.equal(tour.sort(-1).values, torch.arange(n).expand(500, n))
    length = tour_length(points, tour)
    assert abs(length.mean() - published) < 5 * length.std() / 500**0.5  # a false alarm in a million


@needs("kwt1")
def test_the_keyword_transformer_hears_what_is_said():
    model = pretrained.load("kwt1")
    logits = model(torch.stack([pretrained.clip(name) for name in ("yes", "no", "silence")]))
    assert [LABELS[i] for i in logits.argmax(-1)] == ["yes", "no", "_silence_"]
    assert (logits.softmax(-1).amax(-1) > 0.9).all()


@needs("stories260K")
def test_the_storyteller_tells_its_story():
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(pretrained.files("stories260K"))
    model = pretrained.load("stories260K")
    ids = tokenizer("Once upon a time", return_tensors="pt").input_ids
    text = tokenizer.decode(model.generate(ids, max_new_tokens=40, do_sample=False)[0], skip_special_tokens=True)
    assert text.startswith(
        "Once upon a time, there was a little girl named Lily. She loved to play outside in the park."
    )


def projections(model, names, run):
    """What the linear maps of these names, in every layer, made of their inputs: layers of (batch, n, width)."""
    made = []
    modules = dict(model.named_modules())
    keep = lambda _module, _args, result: made.append(result)  # noqa: E731
    handles = [modules[name].register_forward_hook(keep) for name in names]
    run()
    for handle in handles:
        handle.remove()
    return made


@pytest.mark.parametrize("name", ["route_tsp20", "route_tsp50", "route_tsp100", "kwt1"])
@pytest.mark.parametrize("weights", ["trained", "random"])
def test_the_probe_counts_their_ranks(name, weights):
    if weights == "trained" and not pretrained.at_hand(name):
        pytest.skip(f"the files of {name} are not here")
    model = pretrained.load(name, seed=None if weights == "trained" else 3).double()
    generator = torch.Generator().manual_seed(0)
    shape, heads = ((2, 98, 40), 1) if name == "kwt1" else ((2, 30, 2), 8)
    x = torch.rand(shape, generator=generator, dtype=torch.float64)
    frame = probe(model, x, tol=TOL, per_sample=True)
    assert frame["layer"].nunique() == len(model.layers)
    names = [f"layers.{i}.{part}" for i in range(len(model.layers)) for part in "qk"]
    made = projections(model, names, lambda: model(x))
    assert len(made) == len(names)
    for layer, *pair in zip(dict.fromkeys(frame["layer"]), made[::2], made[1::2], strict=True):
        q, k = (y.unflatten(-1, (heads, -1)).transpose(1, 2) for y in pair)
        assert_frame(frame, layer, (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1))


@needs("stories260K")
@pytest.mark.parametrize("seed", [None, 3])
def test_the_probe_counts_the_ranks_of_the_storyteller(seed, monkeypatch):
    pytest.importorskip("transformers")
    # the family takes its softmax in float32
    monkeypatch.setattr(torch.nn.functional, "softmax", lambda x, dim=-1, dtype=None, **_: x.softmax(dim))
    model = pretrained.load("stories260K", seed=seed).double()
    ids = torch.randint(3, 512, (2, 40), generator=torch.Generator().manual_seed(0))
    frame = probe(model, ids, tol=TOL, per_sample=True)
    model.set_attn_implementation("eager")  # which returns its matrices
    matrices = model(ids, output_attentions=True).attentions
    for layer, matrix in zip(dict.fromkeys(frame["layer"]), matrices, strict=True):
        assert_frame(frame, layer, matrix)
    assert set(frame["mask"]) == {"causal"} and set(frame["kv_heads"]) == {4}


@pytest.mark.parametrize("build", [RouteEncoder, KeywordTransformer])
def test_random_weights_repeat(build):
    name = "route_tsp50" if build is RouteEncoder else "kwt1"
    one, two, other = (pretrained.load(name, seed=seed) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not torch.equal(one.layers[0].q.weight, other.layers[0].q.weight)


def test_wrong_and_missing_files_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNRANK_MODELS", str(tmp_path))
    assert not pretrained.at_hand("route_tsp20")
    with pytest.raises(ValueError, match=r"model\.safetensors is missing"):
        pretrained.load("route_tsp20")
    (tmp_path / "route_tsp20").mkdir()
    (tmp_path / "route_tsp20" / "model.safetensors").write_bytes(b"another model")
    assert pretrained.at_hand("route_tsp20")
    with pytest.raises(ValueError, match="is another file than the one measured here: its SHA-256 is"):
        pretrained.load("route_tsp20")
    monkeypatch.delenv("ATTNRANK_MODELS")
    monkeypatch.delenv("ATTNRANK_DATA", raising=False)
    with pytest.raises(ValueError, match="ATTNRANK_MODELS"):
        pretrained.load("kwt1")
    with pytest.raises(ValueError, match="name must be one of"):
        pretrained.load("gpt2")


def test_inputs_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"points must have shape \(batch, n, 2\)"):
        RouteEncoder()(torch.rand(4, 3))
    with pytest.raises(ValueError, match="x must have shape"):
        KeywordTransformer()(torch.rand(1, 98, 41))
