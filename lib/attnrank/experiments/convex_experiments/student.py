"""Students of a teacher: the last attention layer trained alone, as softmax (3), as heads (8), and as a program (9)."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from attnrank import _check, convex, training
from attnrank.experiments.convex_experiments.encoder_teacher import NotAtHandError
from attnrank.experiments.convex_experiments.layers import FreeLayer, SoftmaxLayer, attended
from attnrank.experiments.convex_experiments.operations import counted, pass_flops
from attnrank.experiments.convex_experiments.teacher import MISSING, Lesson, lessons
from attnrank.experiments.shared.runs import runs_folder
from attnrank.sweep import Setting
from attnrank.training.source import generator_of

METHODS = ("softmax", "heads", "program")
#: Dimension of queries and keys of the softmax layer.
QK_DIM = 16
BATCH = 50
#: Passes after which a student is looked at, as shares of all passes.
LOOKS = (0.0, 0.02, 0.1, 0.25, 0.5, 1.0)
#: Relative gap to which the program is solved.
TOLERANCE = 1e-8
#: What is measured of a student.
MEASURED = ("tokens", "beta", "objective", "excess", "certificate", "active", "valid_error", "test_error",
            "fixed_error", "agreement", "accuracy", "attended", "operations", "seconds")  # fmt: skip


@dataclass
class Look:
    """Where a student stands: passes, operations and seconds so far, its objective, and errors on unseen texts."""

    passes: float
    operations: float
    seconds: float
    objective: float
    valid_error: float
    test_error: float


@dataclass
class Student:
    """A student at the end, and its looks; ``optimum`` is that of the program with the same beta."""

    model: Any
    optimum: convex.Solution
    lessons: tuple[Lesson, Lesson, Lesson]
    looks: list[Look] = field(default_factory=list)

    def predict(self, x: Tensor) -> Tensor:
        return torch.cat([self.model(part) for part in x.split(250)]).double()


class Linear(torch.nn.Module):
    """The predictor of a solution z of the program."""

    def __init__(self, z: Tensor) -> None:
        super().__init__()
        self.z = z

    def forward(self, x: Tensor) -> Tensor:
        return x.double().flatten(1) @ self.z.flatten()

    def weights(self, x: Tensor) -> Tensor:
        sizes = self.z.norm(dim=1)
        return (sizes / sizes.sum().clamp_min(1e-300))[None]


def relative_error(predicted: Tensor, lesson: Lesson) -> float:
    """Mean squared difference from the teacher over the variance of what it says: 0 is perfect, 1 knows nothing."""
    return ((predicted - lesson.target).square().mean() / lesson.target.var(unbiased=False)).item()


@lru_cache(maxsize=2)
def taught(
    teacher: str, method: str, share: float, heads: int, count: int, tested: int, passes: int, rate: float, seed: int
) -> Student:
    """Train or solve one student. ``share``: beta / beta_max of the program on the texts trained on.

    A trained one is kept in `runs_folder` if there is one, and found again.
    """
    _check.choice("method", method, METHODS)
    three = lessons(teacher, count, tested, seed)
    optimum, operations, seconds = _optimum(teacher, share, count, tested, seed)
    if method == "program":
        student = Student(Linear(optimum.z), optimum, three)
        student.looks.append(_look(student, 1.0, operations, seconds, optimum.primal))
        return student
    n, d = three[0].x.shape[1:]
    generator = generator_of(seed, METHODS.index(method), heads)
    layer = SoftmaxLayer(d, heads, QK_DIM, generator) if method == "softmax" else FreeLayer(n, d, heads, generator)
    student = Student(layer, optimum, three)
    setting = [teacher, method, share, heads, count, tested, passes, rate, seed]
    folder = runs_folder()
    path = None if folder is None else folder / f"student-{'-'.join(map(str, setting))}{training.ENDING}"
    if path is not None and path.exists():
        weights, record = training.load(path, run={"student": setting})
        layer.load_state_dict(weights)
        student.looks = [Look(**look) for look in record["looks"]]
        return student
    _train(student, optimum.beta, passes, rate, seed)
    if path is not None:
        looks = [asdict(look) for look in student.looks]
        training.save(path, layer.state_dict(), {"run": {"student": setting}, "looks": looks})
    return student


@lru_cache(maxsize=32)
def _optimum(teacher: str, share: float, count: int, tested: int, seed: int) -> tuple[convex.Solution, float, float]:
    """The program solved, with the operations and the seconds that it took."""
    lesson = lessons(teacher, count, tested, seed)[0]
    x, y = lesson.x.double(), lesson.target
    beta = share * convex.beta_max(x, y)
    started = time.process_time()
    with counted() as operations:
        solution = convex.solve(x, y, beta, tol=TOLERANCE)
    return solution, operations.flops, time.process_time() - started


@torch.enable_grad()
def _train(student: Student, beta: float, passes: int, rate: float, seed: int) -> None:
    """Adam on batches of the objective divided by the number of texts, with a step size that falls linearly to 0."""
    model, lesson = student.model, student.lessons[0]
    x, y = lesson.x, lesson.target.float()
    count, batches = len(x), -(-len(x) // BATCH)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    looks = {round(share * passes) for share in LOOKS}
    n, d = x.shape[1:]
    cost = pass_flops(model, count, n, d, batches)
    seconds = 0.0
    for done in range(passes + 1):
        if done in looks:
            student.looks.append(_look(student, done, done * cost, seconds, _objective(student, beta)))
        if done == passes:
            return
        started = time.process_time()
        order = torch.randperm(count, generator=generator_of(seed, done))
        for step, rows in enumerate(order.split(BATCH)):
            for group in optimizer.param_groups:
                group["lr"] = rate * (1 - (done * batches + step) / (passes * batches))
            loss = 0.5 * (model(x[rows]) - y[rows]).square().mean()
            loss = loss + 0.5 * beta / count * sum(part.square().sum() for part in model.decayed())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        seconds += time.process_time() - started


@torch.no_grad()
def _objective(student: Student, beta: float) -> float:
    lesson = student.lessons[0]
    loss = 0.5 * (student.predict(lesson.x) - lesson.target).square().sum().item()
    return loss + 0.5 * beta * sum(part.double().square().sum().item() for part in student.model.decayed())


@torch.no_grad()
def _look(student: Student, passes: float, operations: float, seconds: float, objective: float) -> Look:
    valid, test = (relative_error(student.predict(part.x), part) for part in student.lessons[1:])
    return Look(passes, float(operations), seconds, objective, valid, test)


@torch.no_grad()
def student_runs(
    teacher: str, method: str, share: float, heads: int, count: int, tested: int, passes: int, rate: float, seed: int
) -> Setting:
    """Train or solve one student of a teacher on ``count`` texts, and test it on ``tested`` others.

    Errors are mean squared differences from the teacher over its variance. ``excess`` is objective / optimum - 1 with
    the certified optimum of the program for the same beta; the softmax layer has another objective, which the optimum
    does not bound. ``certificate`` bounds the excess without the optimum. ``agreement`` is the share of test texts of
    which the student says what the teacher says, ``accuracy`` that of right ones. ``attended`` is the mean number of
    positions that a head attends to, ``fixed_error`` the test error with attention weights replaced by their means over
    the texts trained on. ``operations`` are those of matrix products. ``status`` is "measured", or says that
    the teacher was not at hand; all else is missing then.
    """
    try:
        student = taught(teacher, method, share, heads, count, tested, passes, rate, seed)
    except NotAtHandError:
        return {"status": MISSING} | dict.fromkeys(MEASURED)
    last, lesson, test = student.looks[-1], student.lessons[0], student.lessons[2]
    predicted = student.predict(test.x)
    excess, certificate, fixed = last.objective / student.optimum.primal - 1, None, last.test_error
    if method == "program":
        certificate = student.optimum.relative_gap
    elif method == "heads":
        certificate = convex.certify_heads(
            lesson.x.double(), lesson.target, student.optimum.beta, student.model.heads()
        ).relative_gap
    else:
        mean = torch.cat([student.model.weights(part) for part in lesson.x.split(250)]).mean(0)
        fixed = relative_error(student.model.predict(test.x, mean).double(), test)
    says = predicted > test.threshold
    values = (
        float(lesson.x.shape[1]), student.optimum.beta, last.objective, excess, certificate,
        float(len(student.optimum.active)), last.valid_error, last.test_error, fixed,
        (says == (test.target > test.threshold)).double().mean().item(), (says == test.label).double().mean().item(),
        attended(student.model.weights(test.x[:250])), last.operations, round(last.seconds, 2),
    )  # fmt: skip
    return {"status": "measured"} | dict(zip(MEASURED, values, strict=True))


def student_traces(
    teacher: str, method: str, share: float, heads: int, count: int, tested: int, passes: int, rate: float, seed: int,
    look: int,
) -> Setting:
    """One look at a student of `student_runs`; ``seconds`` are those of a processor that was shared with others."""
    looks = taught(teacher, method, share, heads, count, tested, passes, rate, seed).looks
    found = looks[min(_check.integer("look", look, minimum=0), len(looks) - 1)]
    return {
        "done": float(found.passes), "operations": found.operations, "seconds": round(found.seconds, 2),
        "objective": found.objective, "valid_error": found.valid_error, "test_error": found.test_error,
    }  # fmt: skip


@torch.no_grad()
def student_maps(
    teacher: str, method: str, share: float, heads: int, count: int, tested: int, passes: int, rate: float, seed: int,
    position: int,
) -> Setting:
    """How much a student attends to one position: mean over heads and 250 test texts, and deviation over the texts.

    Heads of (8) count by |w_2j| |w_3j|, as a head without weights attends to nothing; (9) by the lengths of its rows.
    """
    student = taught(teacher, method, share, heads, count, tested, passes, rate, seed)
    weights = student.model.weights(student.lessons[2].x[:250])
    if method == "heads":
        size = student.model.value.norm(dim=1) * student.model.output.abs()
        weights = (weights * size[:, None] / size.sum()).sum(0, keepdim=True)
    if method != "softmax":
        return {"mean": weights[0, position].item(), "over_texts": 0.0}
    each = weights[:, :, position].mean(1).double()
    return {"mean": each.mean().item(), "over_texts": each.std().item()}
