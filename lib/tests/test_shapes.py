"""Shapes: the package runs under jaxtyping and beartype, so that its annotations say what its functions take and give.

A second copy of the package is imported with every annotation enforced; the copy of the other tests is left alone.
"""

import importlib
import inspect
import sys
from types import SimpleNamespace

import jaxtyping
import pytest
import torch

# With the numeric tower of PEP 484, in which an int is good for a float, as for every static type checker.
TYPECHECKER = "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))"
MODULES = ("scores", "ranks", "inputs", "data", "models", "training")


@pytest.fixture(scope="module")
def checked():
    """The modules with their annotations enforced."""
    ours = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "attnrank"}
    for name in ours:
        del sys.modules[name]
    try:
        with jaxtyping.install_import_hook("attnrank", TYPECHECKER):
            copies = {name: importlib.import_module(f"attnrank.{name}") for name in MODULES}
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "attnrank"]:
            del sys.modules[name]
        sys.modules.update(ours)
    return SimpleNamespace(**copies)


def seeded():
    return torch.Generator().manual_seed(0)


def draw(*shape, dtype=torch.float64):
    return torch.empty(shape, dtype=torch.float64).normal_(generator=seeded()).to(dtype)


def hardmax_rank(p):
    for batch in [(), (1,), (2, 3)]:
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            p.ranks.hardmax_rank(draw(*batch, 5, 3, dtype=dtype), draw(*batch, 7, 3, dtype=dtype), tile=2)
        p.ranks.hardmax_rank(draw(*batch, 5, 3), draw(*batch, 5, 3), causal=True)


def of_a_matrix(function, *arguments, **options):
    def calls(p):
        for shape in [(1, 1), (4, 6), (6, 4), (2, 4, 6), (2, 3, 6, 4)]:
            for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
                getattr(p.ranks, function)(draw(*shape, dtype=dtype), *arguments, **options)
                getattr(p.ranks, function)(torch.zeros(shape, dtype=dtype), *arguments, **options)

    return calls


def gaussian_weights(p):
    for heads in (None, 1, 3):
        p.scores.gaussian_weights(4, 6, heads=heads, generator=seeded())


def queries_keys(p):
    for batch in [(), (2,), (2, 5)]:
        for heads in [(), (1,), (3,)]:
            p.scores.queries_keys(draw(*batch, 5, 4), draw(*heads, 4, 6), draw(*heads, 4, 6))


def attention(p):
    for batch_q, batch_k in [((), ()), ((2,), (2,)), ((2, 1), (3,)), ((), (2, 3)), ((1,), (4,)), ((2, 3), (2, 1))]:
        for hard in (False, True):
            p.scores.attention(draw(*batch_q, 5, 3), draw(*batch_k, 7, 3), hard=hard)
            p.scores.attention(draw(*batch_q, 5, 3), draw(*batch_k, 5, 3), hard=hard, causal=True, temperature=0.5)


def tokens(p):
    for kind in p.inputs.KINDS:
        for n, d in [(1, 1), (1, 4), (3, 3), (3, 8)]:
            p.inputs.tokens(kind, n, d, generator=seeded())
    p.inputs.tokens("repeated_vocabulary", 9, 2, generator=seeded(), vocabulary=3)
    p.inputs.tokens("uniform", 9, 2, generator=seeded(), low=-1, high=0.5)


def images(p):
    p.data.images("digits")
    p.data.images("digits", "test", count=3, generator=seeded(), standardise=True)


def texts(p):
    with pytest.MonkeyPatch.context() as patch:  # collecting the docstrings takes seconds
        patch.setattr(p.data.docstrings, "load", lambda split: (["a", "b", "c"], [0, 2, 1]))
        p.data.texts("docstrings", "test", count=2)


def draw_weight(p):
    for init in p.models.INITIALISATIONS:
        p.models.draw_weight(init, 3, 5, seeded())


def patches(p):
    for size in (1, 2, 4):
        p.models.patches(draw(2, 3, 8, 4), size)


def sinusoids(p):
    for n, width in [(1, 1), (3, 4), (4, 5)]:
        p.models.sinusoids(n, width)


def vision_transformer(p, **options):
    config = p.models.TransformerConfig(width=6, heads=2, head_dim=5, depth=2, value_dim=4, temperature=0.5)
    return p.models.VisionTransformer(config, image_size=8, patch_size=4, classes=3, generator=seeded(), **options)


def models(p):
    for options in ({}, {"pool": "mean", "positions": "sinusoidal"}, {"positions": "none", "dtype": torch.float64}):
        model = vision_transformer(p, **options)
        x = draw(2, 3, 8, 8)
        model(x)
        model.queries_keys(x)
        model.queries_keys(x, [1])
    for batch in [(), (2,), (2, 3)]:
        model.encoder(draw(*batch, 5, 6))
        model.encoder.queries_keys(draw(*batch, 5, 6), [0])
        model.encoder.blocks[0].attention.values(draw(*batch, 5, 6))


def model_variants(p):
    for change in ({"qk_norm": True}, {"tied": True, "learn_temperature": True}, {"frozen": True}):
        config = p.models.TransformerConfig(width=6, heads=2, head_dim=5, depth=2, value_dim=4, **change)
        model = p.models.VisionTransformer(
            config, image_size=8, patch_size=4, classes=3, generator=seeded(), pool="sequence"
        )
        model(draw(2, 3, 8, 8))
        model.queries_keys(draw(2, 3, 8, 8), scaled=True)
        model.encoder.blocks[0].attention.scaled_queries_keys(draw(2, 3, 5, 6, dtype=torch.float32))


def pixels(p):
    p.data.pixels("digits", "test", count=2)


def crop_and_flip(p):
    for dtype in (torch.uint8, torch.float32):
        p.training.crop_and_flip(torch.zeros(2, 3, 8, 6, dtype=dtype), pad=1, flip=True, generator=seeded())


def training(p):
    drawn = torch.zeros(6, 3, 8, 8, dtype=torch.uint8), torch.arange(6) % 3
    source = p.training.Images(drawn, drawn, mean=(1.0,) * 3, std=(2.0,) * 3, pad=1)
    model = vision_transformer(p, pool="sequence")
    p.training.train(model, source, p.training.Recipe(1, batch=4), seed=0, probe=source.standardised(drawn[0][:2]))


def text_model(p):
    config = p.models.TransformerConfig(width=6, heads=2, head_dim=5, depth=2)
    model = p.models.TextTransformer(config, vocabulary=9, length=5, classes=3, generator=seeded())
    tokens = torch.tensor([[3, 1, 4, 1, 5], [2, 6, 0, 0, 0]])
    for given in (tokens, tokens.int(), tokens[:1]):
        model(given)
        model.queries_keys(given, scaled=True)


def training_on_texts(p):
    texts = torch.tensor([[3, 1, 4], [2, 6, 0], [5, 0, 0]]).int(), torch.tensor([0, 1, 1])
    model = p.models.TextTransformer(p.models.TransformerConfig(width=6, heads=2, head_dim=5, depth=1), vocabulary=9,
                                     length=3, classes=2, generator=seeded())  # fmt: skip
    source = p.training.Sequences(texts, texts, hide=0.5)
    p.training.train(model, source, p.training.Recipe(1, batch=2), seed=0, probe=texts[0][:1])


CALLS = {
    "ranks.hardmax_rank": hardmax_rank,
    "ranks.numerical_rank": of_a_matrix("numerical_rank", 0.1),
    "ranks.certified_rank": of_a_matrix("certified_rank", 0.1),
    "ranks.numerical_rank, relative": of_a_matrix("numerical_rank", 0.1, relative=True),
    "ranks.stable_rank": of_a_matrix("stable_rank"),
    "ranks.effective_rank": of_a_matrix("effective_rank"),
    "ranks.singular_values": of_a_matrix("singular_values"),
    "scores.gaussian_weights": gaussian_weights,
    "scores.queries_keys": queries_keys,
    "scores.attention": attention,
    "inputs.tokens": tokens,
    "data.images": images,
    "data.pixels": pixels,
    "data.texts": texts,
    "models.draw_weight": draw_weight,
    "models.patches": patches,
    "models.sinusoids": sinusoids,
    "models.VisionTransformer": models,
    "models.VisionTransformer, variants": model_variants,
    "models.TextTransformer": text_model,
    "training.crop_and_flip": crop_and_flip,
    "training.train": training,
    "training.train, texts": training_on_texts,
}


@pytest.mark.parametrize("name", CALLS)
def test_annotations_hold_for_valid_input(checked, name):
    CALLS[name](checked)


def test_every_annotated_function_is_called(checked):
    annotated = {
        f"{module}.{name}"
        for module in MODULES
        for name, function in inspect.getmembers(getattr(checked, module), inspect.isfunction)
        if f"{function.__module__}.".startswith(f"attnrank.{module}.") and not name.startswith("_")
        if any("[Tensor" in str(annotation) for annotation in inspect.get_annotations(function).values())
    }
    assert annotated >= {"ranks.hardmax_rank", "scores.attention", "inputs.tokens", "data.images", "models.patches"}
    assert annotated <= set(CALLS)


WRONG_ARGUMENTS = {
    "ranks.hardmax_rank: d_h": lambda p: p.ranks.hardmax_rank(draw(5, 3), draw(5, 4)),
    "ranks.hardmax_rank: batch": lambda p: p.ranks.hardmax_rank(draw(1, 5, 3), draw(2, 5, 3)),
    "ranks.numerical_rank": lambda p: p.ranks.numerical_rank(draw(5), 0.1),
    "ranks.stable_rank": lambda p: p.ranks.stable_rank(draw(5)),
    "ranks.effective_rank": lambda p: p.ranks.effective_rank(draw(5, 5).int()),
    "ranks.singular_values": lambda p: p.ranks.singular_values(draw(5, 5).numpy()),
    "scores.attention: d_h": lambda p: p.scores.attention(draw(5, 3), draw(5, 4)),
    "scores.attention: batch": lambda p: p.scores.attention(draw(2, 5, 3), draw(3, 5, 3)),
    "scores.queries_keys": lambda p: p.scores.queries_keys(draw(5, 4), draw(3, 6), draw(3, 6)),
    "scores.queries_keys: heads": lambda p: p.scores.queries_keys(draw(5, 4), draw(2, 4, 6), draw(3, 4, 6)),
    "models.patches": lambda p: p.models.patches(draw(3, 8, 8), 2),
    "models.VisionTransformer": lambda p: vision_transformer(p)(draw(3, 8, 8)),
}


@pytest.mark.parametrize("name", WRONG_ARGUMENTS)
def test_a_wrong_argument_is_caught(checked, name):
    with pytest.raises(jaxtyping.TypeCheckError):
        WRONG_ARGUMENTS[name](checked)


def test_a_wrong_result_is_caught(checked, monkeypatch):
    svdvals = torch.linalg.svdvals
    monkeypatch.setattr(torch.linalg, "svdvals", lambda a: svdvals(a)[0])  # loses the batch
    with pytest.raises(jaxtyping.TypeCheckError, match="return"):
        checked.ranks.stable_rank(draw(2, 5, 4))
    monkeypatch.setitem(checked.inputs.KINDS, "gaussian", lambda n, d, generator: draw(d, n))
    with pytest.raises(jaxtyping.TypeCheckError, match="return"):
        checked.inputs.tokens("gaussian", 3, 5, generator=seeded())
    monkeypatch.setattr(torch, "randn", lambda *shape, **options: draw(*shape).mT)
    with pytest.raises(jaxtyping.TypeCheckError, match="return"):
        checked.scores.gaussian_weights(3, 5, generator=seeded())
    monkeypatch.undo()
    monkeypatch.setattr(torch.Tensor, "softmax", lambda scores, dim: scores.mT)
    with pytest.raises(jaxtyping.TypeCheckError, match="return"):
        checked.scores.attention(draw(2, 5, 3), draw(2, 4, 3))


def test_the_other_tests_see_the_package_without_the_checks(checked):
    from attnrank import ranks

    assert ranks is sys.modules["attnrank.ranks"] and ranks is not checked.ranks
    with pytest.raises(ValueError, match="q and k must have the same"):
        ranks.hardmax_rank(draw(5, 3), draw(5, 4))
