"""Models that others trained: they do what their authors say, the probe counts their ranks, and wrong files are
refused.

Their files are no part of the repository: where ATTNRANK_MODELS or ATTNRANK_DATA does not name a folder that has them,
only what needs no file is tested.
"""

from __future__ import annotations

import hashlib
import math
import wave

import numpy as np
import pytest
import torch
from probe_reference import TOL, assert_frame
from scipy import stats

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


# What random weights compute, against plain numpy: a model whose files are not here is tested, too


def scrambled(model, seed=0):
    """In float64, with a random value of order one for every parameter and buffer, so that each one matters."""
    model, generator = model.double(), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if value.is_floating_point():
                drawn = torch.randn(value.shape, generator=generator, dtype=torch.float64)
                value.copy_(drawn / math.sqrt(value.shape[-1]) if value.ndim > 1 else 1 + drawn / 4)
                if name.endswith("running_var"):
                    value.abs_()
    return model.eval().requires_grad_(False)


def arrays(model):
    return {name: value.numpy() for name, value in model.state_dict().items()}


def softmax(scores):
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def head_by_head(q, k, v, heads):
    """Queries, keys and values (n, width) of one sequence, attended to in heads, side by side."""
    cut = [np.split(y, heads, axis=-1) for y in (q, k, v)]
    return np.concatenate([softmax(a @ b.T / math.sqrt(a.shape[-1])) @ c for a, b, c in zip(*cut, strict=True)], -1)


def route_by_hand(points, w):
    """The encoder on the points of one problem: add, then normalise by the running statistics of the batches."""

    def normalised(x, name):
        scaled = (x - w[f"{name}.running_mean"]) / np.sqrt(w[f"{name}.running_var"] + 1e-5)
        return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]

    x = points @ w["embed.weight"].T + w["embed.bias"]
    for layer in range(3):
        at = f"layers.{layer}"
        q, k, v = (x @ w[f"{at}.{name}.weight"].T for name in "qkv")
        x = normalised(x + head_by_head(q, k, v, 8) @ w[f"{at}.o.weight"].T, f"{at}.bn1")
        hidden = np.maximum(x @ w[f"{at}.fc1.weight"].T + w[f"{at}.fc1.bias"], 0)
        x = normalised(x + hidden @ w[f"{at}.fc2.weight"].T + w[f"{at}.fc2.bias"], f"{at}.bn2")
    return x


def tour_by_hand(h, w):
    """The greedy tour: from the mean of all places, the first and the last visited, to the best of those left."""
    keys, values, pointer = np.split(h @ w["decoder.nodes.weight"].T, 3, axis=-1)
    graph, tour = w["decoder.graph.weight"] @ h.mean(0), []
    while len(tour) < len(h):
        left = [place for place in range(len(h)) if place not in tour]
        ends = np.concatenate([h[tour[0]], h[tour[-1]]]) if tour else w["decoder.placeholder"]
        query = graph + w["decoder.step.weight"] @ ends
        glimpse = head_by_head(query[None], keys[left], values[left], 8)[0]
        tour.append(left[int(np.argmax(pointer[left] @ (w["decoder.out.weight"] @ glimpse)))])
    return tour


def test_the_route_encoder_and_its_tours_against_numpy():
    model = scrambled(RouteEncoder())
    model.decoder.out.weight *= 0.01  # or all logits are cut at the same 10
    points = torch.rand(6, 9, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    places, tours = model(points), model.tour(points)
    for at, each in enumerate(points.numpy()):
        np.testing.assert_allclose(places[at], route_by_hand(each, arrays(model)), rtol=1e-9, atol=1e-10)
        assert tours[at].tolist() == tour_by_hand(places[at].numpy(), arrays(model))
    closed = [sum(math.dist(each[a], each[b]) for a, b in zip(tour, [*tour[1:], tour[0]], strict=True))
              for each, tour in zip(points.tolist(), tours.tolist(), strict=True)]  # fmt: skip
    torch.testing.assert_close(tour_length(points, tours), torch.tensor(closed, dtype=torch.float64))


def test_random_routes_are_normalised_as_random_problems_are():
    """On new problems what goes into each normalisation has the mean and variance that are kept for it, up to the
    chance of 64 problems, of which these are: six standard errors, a false alarm in 300,000 over the 1536 numbers."""
    model, seen = pretrained.load("route_tsp50", seed=0), {}
    norms = {name: module for name, module in model.named_modules() if isinstance(module, torch.nn.BatchNorm1d)}
    for name, module in norms.items():
        module.register_forward_pre_hook(lambda _, given, name=name: seen.__setitem__(name, given[0]))
    model(torch.rand(512, 50, 2, generator=torch.Generator().manual_seed(5)))
    model = RouteEncoder()
    assert len(seen) == 6 and not any(module.training for module in model.modules())
    assert {module.momentum for module in model.modules() if isinstance(module, torch.nn.BatchNorm1d)} == {0.1}
    for name, module in norms.items():
        found = seen[name].double()
        squares = (found - module.running_mean[:, None]).square()
        for values, kept in ((found, module.running_mean), (squares, module.running_var)):
            of_problems = values.mean(2)  # the points of a problem are not independent
            error = of_problems.std(0) * (1 / 64 + 1 / 512) ** 0.5
            assert ((of_problems.mean(0) - kept).abs() < 6 * error).all(), name


def keywords_by_hand(sound, w):
    """Logits of one recording: frames to coefficients, then twelve layers that add and normalise, read at the first."""
    frames = np.array([sound[160 * t : 160 * t + 480] for t in range(98)]) * w["frontend.window"]
    real, imaginary = (frames @ w[f"frontend.dft_{part}"].T for part in ("real", "imag"))
    mel = np.maximum(np.hypot(real, imaginary) @ w["frontend.mel"].T, w["frontend.log_floor"])
    features = (np.log(mel) @ w["frontend.dct"].T - w["frontend.mean"]) * w["frontend.scale"]

    def linear(name, x):
        return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0)

    def normalised(name, x):
        centred = x - x.mean(1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-6) * w[f"{name}.weight"] + w[f"{name}.bias"]

    x = np.concatenate([w["class_emb"][0], linear("patch", features)]) + w["pos_emb"][0]
    for layer in range(12):
        at = f"layers.{layer}"
        mixed = head_by_head(*(linear(f"{at}.{name}", x) for name in "qkv"), 1)
        x = normalised(f"{at}.ln1", x + linear(f"{at}.o", mixed))
        u = linear(f"{at}.fc1", x)
        gelu = u * (1 + np.tanh(math.sqrt(2 / math.pi) * (u + 0.044715 * u**3))) / 2
        x = normalised(f"{at}.ln2", x + linear(f"{at}.fc2", gelu))
    return linear("head", x[0]), features


def test_the_keyword_transformer_against_numpy():
    model = scrambled(KeywordTransformer())
    sounds = torch.rand(2, 16000, generator=torch.Generator().manual_seed(1), dtype=torch.float64) - 0.5
    logits = model(sounds)
    for at, sound in enumerate(sounds.numpy()):
        expected, features = keywords_by_hand(sound, arrays(model))
        np.testing.assert_allclose(logits[at], expected, rtol=1e-7, atol=1e-8)
        again = model(torch.from_numpy(features)[None])
        torch.testing.assert_close(again[0], logits[at], rtol=1e-7, atol=1e-8)


def test_random_keyword_weights_are_cut_at_twice_their_deviation():
    """As the book's own ``truncated_normal``, of which 4.5 % would lie outside were it not cut; biases are 0."""
    model = pretrained.load("kwt1", seed=0)
    matrices = torch.cat([value.flatten() for value in model.parameters() if value.ndim == 2])
    vectors = torch.cat([model.class_emb, model.pos_emb], 1)
    for drawn, rel in ((matrices, 0.01), (vectors, 0.05)):
        assert drawn.abs().max() <= 0.04 and drawn.std().item() == pytest.approx(0.0176, rel=rel)


def test_random_route_weights_have_the_law_of_their_authors():
    """Uniform on +-1/sqrt of a parameter's last dimension: 16 for their queries, keys and values (heads, width, 16)."""
    model = pretrained.load("route_tsp20", seed=0)
    laws = {"embed": 2**-0.5, "fc1": 128**-0.5, "fc2": 512**-0.5, "o": 128**-0.5, "q": 0.25, "k": 0.25, "v": 0.25}
    for name, weight in model.named_parameters():
        bound = laws.get(name.split(".")[-2]) if name.endswith("weight") else None
        if bound:
            assert stats.kstest(weight.flatten().numpy(), stats.uniform(-bound, 2 * bound).cdf).pvalue > 1e-6, name
    assert model.decoder.placeholder.min() < -0.9 and model.decoder.placeholder.max() > 0.9


def test_random_keyword_biases_are_zero():
    model = pretrained.load("kwt1", seed=0)
    assert not any(value.any() for name, value in model.named_parameters() if name.endswith("bias"))


# Files, as small as they can be


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """A folder of models, and what puts a model's files into it and makes them the right ones."""
    monkeypatch.delenv("ATTNRANK_MODELS", raising=False)
    monkeypatch.setenv("ATTNRANK_DATA", str(tmp_path))

    def known(name):
        folder = tmp_path / "models" / name
        names = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]
        sums = {file: hashlib.sha256((folder / file).read_bytes()).hexdigest() for file in names}
        monkeypatch.setitem(pretrained.FILES, name, sums)

    return tmp_path / "models", known


def sound_file(path, samples, *, channels=1, rate=16000):
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setparams((channels, 2, rate, 0, "NONE", ""))
        file.writeframes(np.array(samples, dtype="<i2").tobytes())


def test_a_model_whose_files_are_here_is_loaded(stored, monkeypatch, tmp_path):
    save_file = pytest.importorskip("safetensors.torch").save_file
    root, known = stored
    sound_file(root / "kwt1/clips/yes.wav", [2**14, -(2**15), 1])
    given = {name: value + 0.5 for name, value in pretrained.load("kwt1", seed=9).state_dict().items()}
    save_file(given, root / "kwt1/model.safetensors")
    known("kwt1")
    assert pretrained.at_hand("kwt1") and pretrained.files("kwt1") == root / "kwt1"
    model = pretrained.load("kwt1")
    torch.testing.assert_close(model.state_dict(), given, rtol=0, atol=0)
    assert not any(value.requires_grad for value in model.parameters())
    heard = pretrained.clip("yes")
    assert heard.shape == (16000,) and heard.dtype == torch.float32 and not heard[3:].any()
    assert heard[:3].tolist() == [0.5, -1.0, 2.0**-15]
    monkeypatch.setenv("ATTNRANK_MODELS", str(tmp_path))  # it comes before the folder of the data
    assert not pretrained.at_hand("kwt1")
    monkeypatch.delenv("ATTNRANK_MODELS")
    (root / "kwt1/clips/yes.wav").unlink()
    assert not pretrained.at_hand("kwt1")


@pytest.mark.parametrize("form", [{"channels": 2}, {"rate": 8000}], ids=str)
def test_a_recording_of_another_form_is_refused(stored, form):
    root, known = stored
    sound_file(root / "kwt1/clips/no.wav", [1, 2], **form)
    known("kwt1")
    with pytest.raises(ValueError, match="the clip no is not 16 bit mono at 16 kHz"):
        pretrained.clip("no")


def test_the_storyteller_of_a_folder(stored):
    """With a seed its configuration alone is that of the folder, and the weights are those of the seed."""
    transformers = pytest.importorskip("transformers")
    root, known = stored
    config = transformers.LlamaConfig(vocab_size=20, hidden_size=8, intermediate_size=12, num_hidden_layers=1,
                                      num_attention_heads=2)  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(root / "stories260K")
    known("stories260K")
    told = transformers.AutoModelForCausalLM.from_pretrained(root / "stories260K")
    trained, one, two, other = (pretrained.load("stories260K", seed=seed) for seed in (None, 0, 0, 1))
    first = [next(iter(model.parameters())) for model in (told, trained, one, two, other)]
    assert torch.equal(first[0], first[1]) and torch.equal(first[2], first[3])
    assert not torch.equal(first[1], first[2]) and not torch.equal(first[3], first[4])
    double = pretrained.load("stories260K", seed=0, dtype=torch.float64)
    assert {value.dtype for value in double.parameters()} == {torch.float64}
    for model in (trained, one):
        assert not model.training and not any(value.requires_grad for value in model.parameters())


@pytest.mark.parametrize("name", ["route_tsp20", "kwt1"])
def test_random_weights_need_no_file_and_leave_the_global_generator_alone(name, monkeypatch):
    """Also those of seed 0; routes repeat in evaluation mode, whose statistics do not move."""
    for variable in ("ATTNRANK_MODELS", "ATTNRANK_DATA"):
        monkeypatch.delenv(variable, raising=False)
    before = torch.get_rng_state()
    model = pretrained.load(name, seed=0)
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(module.training for module in model.modules())
    assert not any(value.requires_grad for value in model.parameters())


def test_generators_of_other_devices_are_left_alone(monkeypatch):
    """torch.manual_seed seeds those of every device, and only the CPU's is given back."""
    seeded = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    monkeypatch.setattr(torch.mps, "manual_seed", seeded.append)
    pretrained.load("route_tsp20", seed=3)
    assert seeded == []


@pytest.mark.parametrize("seed", [1.7, True, "3", -1])
def test_seeds_that_are_none_are_refused(seed):
    with pytest.raises(ValueError, match="seed must be"):
        pretrained.load("kwt1", seed=seed)


@pytest.mark.parametrize("name", ["route_tsp20", "kwt1"])
def test_random_weights_in_float64_have_the_law_of_those_in_float32(name):
    """Spreads of 256 weights or more agree to 6 standard errors; a halved gain is 8 of them off at the smallest."""
    before = torch.get_default_dtype()
    single, double = (pretrained.load(name, seed=1, dtype=of).state_dict() for of in (torch.float32, torch.float64))
    assert torch.get_default_dtype() == before
    for key, value in double.items():
        assert value.dtype == (torch.float64 if single[key].is_floating_point() else single[key].dtype), key
        if value.numel() < 256 or value.std() == 0:
            continue
        ratio = (value.std() / single[key].double().std()).item()
        assert abs(ratio - 1) < 6 / value.numel() ** 0.5, key


@pytest.mark.parametrize(("seed", "dtype"), [(None, torch.float64), (0, torch.float16), (0, "float64")])
def test_dtypes_of_weights_that_are_not_drawn_in_them_are_refused(seed, dtype):
    with pytest.raises(ValueError, match="dtype must be float32"):
        pretrained.load("kwt1", seed=seed, dtype=dtype)


@pytest.mark.parametrize("name", ["route_tsp20", "kwt1"])
def test_weights_are_drawn_on_the_cpu_whatever_the_default_device(name):
    with torch.device("meta"):
        found = pretrained.load(name, seed=0).state_dict()
    torch.testing.assert_close(found, dict(pretrained.load(name, seed=0).state_dict()), rtol=0, atol=0)


def test_the_storyteller_is_never_unpickled(tmp_path, monkeypatch):
    transformers, asked = pytest.importorskip("transformers"), {}

    def from_pretrained(folder, **options):
        asked.update(options)
        return torch.nn.Identity()

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", from_pretrained)
    monkeypatch.setattr(pretrained, "files", lambda name: tmp_path)
    pretrained.load("stories260K")
    assert asked["use_safetensors"] is True and not asked.get("trust_remote_code")


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
