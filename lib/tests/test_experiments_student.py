"""experiments.convex_experiments: lessons of a teacher, the two layers, and what is counted of a student."""

import math

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from attnrank import convex
from attnrank.experiments.convex_experiments import layers, student, tables, teacher

SETTING = tables._TINY_STUDENTS[0]


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    monkeypatch.delenv("ATTNRANK_RUNS", raising=False)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def lessons():
    return teacher.lessons("docstrings", 40, 40, 0)


def test_the_last_layer_continues_a_lesson_to_what_the_teacher_says(lessons):
    """The rest of the teacher, run on its frozen tokens with its own attention, gives the targets."""
    model, (tokens, _), _ = teacher._taught("docstrings")
    drawn = torch.randperm(len(tokens), generator=teacher.generator_of(0, 40))[:40]
    hidden = model.embed(tokens[drawn])
    for block in model.encoder.blocks[:-1]:
        hidden = block(hidden)
    last = model.encoder.blocks[-1]
    hidden = hidden + last.attention(lessons[0].x)
    said = model.classifier(model.encoder.norm(hidden + last.mlp(last.norm2(hidden))).mean(1)).double()
    margin = said[:, 1] - said[:, 0]
    torch.testing.assert_close((margin - margin.mean()) / margin.std(), lessons[0].target, rtol=1e-4, atol=1e-4)
    assert torch.equal(lessons[0].target > lessons[0].threshold, margin > 0)


def test_parts_are_disjoint_and_unit(lessons):
    train, valid, test = lessons
    assert train.target.mean().abs() < 1e-12 and train.target.std() == pytest.approx(1.0)
    assert len(train.x) == len(valid.x) == len(test.x) == 40
    assert not {tuple(row) for row in train.x[:, 0].tolist()} >= {tuple(row) for row in valid.x[:, 0].tolist()}
    with pytest.raises(ValueError, match="count must leave enough"):
        teacher.lessons("docstrings", 10**6, 1, 0)


def test_the_softmax_layer_against_numpy():
    generator = torch.Generator().manual_seed(0)
    layer = layers.SoftmaxLayer(3, 2, 4, generator).double()
    x = torch.randn(5, 6, 3, generator=generator, dtype=torch.float64)
    expected = np.zeros(5)
    for j in range(2):
        q, k, v, o = (part.detach().numpy()[j] for part in (layer.query, layer.key, layer.value, layer.output))
        for i, tokens in enumerate(x.numpy()):
            scores = tokens @ q @ k.T @ tokens.T
            a = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
            expected[i] += (a @ tokens @ v).mean() * o
    np.testing.assert_allclose(layer(x).detach().numpy(), expected, rtol=1e-12)
    uniform = torch.full((2, 6), 1 / 6, dtype=torch.float64)
    pooled = layer.predict(x, uniform) - ((x.mean(1) @ layer.value.mT) * layer.output).sum(1)
    assert pooled.abs().max() < 1e-12 and layers.attended(uniform) == pytest.approx(6.0)
    with FlopCounterMode(display=False) as counter:
        layer(x)
    products = counter.get_total_flops()  # the products with the value and with the weights are einsums or sums
    assert layer.forward_flops(5, 6, 3, 2, 4) == pytest.approx(products, rel=0.1)


def test_the_free_layer_is_that_of_its_heads():
    generator = torch.Generator().manual_seed(0)
    layer = layers.FreeLayer(6, 3, 4, generator)
    x = torch.randn(5, 6, 3, generator=generator)
    torch.testing.assert_close(layer(x).double(), layer.heads().predict(x.double()), rtol=1e-5, atol=1e-5)
    half = 0.5 * sum(part.double().square().sum() for part in layer.decayed())
    assert layer.heads().penalty() == pytest.approx(half.item()) and layer.logits not in set(layer.decayed())


@pytest.mark.parametrize("setting", tables._TINY_STUDENTS, ids=lambda setting: setting["method"])
def test_a_student(setting, tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNRANK_RUNS", str(tmp_path))
    student.taught.cache_clear()
    row = student.student_runs(**setting)
    if setting["method"] == "program":
        x, y = (getattr(teacher.lessons("docstrings", 40, 40, 0)[0], name) for name in ("x", "target"))
        z = student.taught(**setting).model.z
        beta = setting["share"] * convex.beta_max(x.double(), y)
        value = 0.5 * (convex.predict(x.double(), z) - y).square().sum() + beta * z.norm(dim=1).sum()
        assert row["objective"] == pytest.approx(value.item()) and row["certificate"] <= student.TOLERANCE
        return
    assert (row["excess"] > 0) and (setting["method"] == "softmax" or row["certificate"] >= row["excess"])
    assert 1 <= row["attended"] <= row["tokens"] and row["operations"] > 0
    first = student.student_traces(**setting, look=0)
    last = student.student_traces(**setting, look=len(student.LOOKS) - 1)
    assert first["operations"] == 0 and last["objective"] == row["objective"] < first["objective"]
    student.taught.cache_clear()  # found again in its file, with the same numbers
    again = student.student_runs(**setting)
    assert {k: v for k, v in again.items() if k != "seconds"} == {k: v for k, v in row.items() if k != "seconds"}
    maps = [student.student_maps(**setting, position=k) for k in range(int(row["tokens"]))]
    assert math.fsum(each["mean"] for each in maps) == pytest.approx(1.0, abs=1e-5)
    assert all((each["over_texts"] > 0) == (setting["method"] == "softmax") for each in maps)


def test_factorisations_are_counted():
    a = 5 * torch.eye(6, dtype=torch.float64)
    with FlopCounterMode(display=False, custom_mapping=student.FACTORISATIONS) as counter:
        factor = torch.linalg.cholesky(a)
        torch.cholesky_solve(torch.ones(6, 2, dtype=torch.float64), factor)
        torch.linalg.eigh(a)
    assert counter.get_total_flops() == 6**3 // 3 + 2 * 6**2 * 2 * 1 + 9 * 6**3
