"""Convex attention programs: optima against CVXPY and celer, optimality conditions, known values, exact edge cases."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from convex_cases import ACCURACY, PROGRAMS, instance, optimum, tensor

from attnrank import convex
from second_device import second_device  # noqa: F401 (fixture)

INSTANCES = 60


def draw(*shape, seed=0):
    return tensor(np.random.default_rng(seed).standard_normal(shape))


def assert_certified(solution, x, y, beta, tol, *, loss="squared", penalty="group", gates=None):
    """By the check that knows nothing of the solver, and by the optimality conditions of every block."""
    z = solution.z
    if gates is not None:
        x, z = convex.gated(x, gates), z.flatten(0, 1)
    primal, dual, feasible = convex.check(x, y, beta, z, solution.dual_point, loss=loss, penalty=penalty)
    assert feasible <= 1.0 + 1e-12
    assert primal == pytest.approx(solution.primal, rel=1e-12) and dual == pytest.approx(solution.dual, rel=1e-12)
    assert primal - dual <= tol * primal + 1e-15
    z, y = (z if z.ndim == 3 else z[..., None]), (y if y.ndim == 2 else y[:, None])
    u = torch.einsum("ikd,kdl->il", x, z)
    p = u if loss == "squared" else torch.sigmoid(u) if y.shape[1] == 1 else torch.softmax(u, 1)
    c = torch.einsum("ikd,il->kdl", x, y - p) / beta
    # Half the squared distance of the residual to the optimal one is at most the gap, for both losses.
    near = (2 * tol * primal) ** 0.5 * torch.linalg.matrix_norm(x.transpose(0, 1), 2).max().item() / beta + 1e-9
    if penalty == "group":
        assert c.norm(dim=1).max() <= 1 + near
        size = z.norm(dim=1)
        aligned = (c * z).sum(1)
    else:
        assert torch.linalg.svdvals(c).max() <= 1 + near
        size = torch.linalg.svdvals(z).sum(1)
        aligned = (c * z).sum((1, 2))
    assert ((aligned - size).abs() <= near * size + 1e-12).all()


@pytest.mark.parametrize("program", PROGRAMS)
def test_optima_and_active_tokens_are_those_of_cvxpy(program):
    several, instances = 0, INSTANCES if PROGRAMS[program]["penalty"] == "group" else INSTANCES // 3
    for seed in range(instances):
        x, y, beta, options = instance(program, seed)
        solution = convex.solve(x, y, beta, **options)
        assert_certified(solution, x, y, beta, 1e-7 if options["penalty"] == "nuclear" else 1e-9, **options)
        value, blocks = optimum(x, y, beta, **options)
        assert solution.primal == pytest.approx(value, rel=ACCURACY, abs=1e-8)
        sizes = np.linalg.norm(blocks.reshape(len(blocks), -1), axis=1)
        tokens = sizes.reshape(-1, x.shape[1]).max(0)
        # What lies between these bounds may be rounding of CLARABEL; outside both must agree.
        surely = set(np.flatnonzero(tokens > 1e-3))
        assert surely <= set(solution.active.tolist()) <= set(np.flatnonzero(tokens > 1e-9))
        several += 0 < len(surely) < x.shape[1]
    assert several > instances / 4  # sparsity was at stake


def test_optima_are_those_of_celer():
    celer = pytest.importorskip("celer")
    for seed, share in enumerate((0.5, 0.1, 0.02)):
        x, y = draw(30, 8, 4, seed=seed), draw(30, seed=100 + seed)
        beta = share * convex.beta_max(x, y)
        model = celer.GroupLasso(groups=4, alpha=beta / 30, tol=1e-12, fit_intercept=False, max_iter=1000)
        model.fit(np.asfortranarray(x.flatten(1).numpy()), y.numpy())
        theirs = torch.from_numpy(model.coef_).view(8, 4)
        solution = convex.solve(x, y, beta, tol=1e-12)
        assert_certified(solution, x, y, beta, 1e-12)
        value = convex.check(x, y, beta, theirs, solution.dual_point)[0]
        assert value == pytest.approx(solution.primal, rel=1e-9)
        assert torch.allclose(theirs, solution.z, atol=1e-5)
        assert theirs.norm(dim=1).gt(1e-7).nonzero()[:, 0].tolist() == solution.active.tolist()


def test_golden_toy():
    r = np.random.default_rng(0)
    x, y = tensor(r.standard_normal((8, 6, 4))), tensor(r.standard_normal(8))
    solution = convex.solve(x, y, 0.5)
    assert solution.primal == pytest.approx(0.526259984, abs=1e-8)
    assert solution.active.tolist() == [0, 1, 2, 4]


def test_golden_values_of_the_corrected_statement():
    # The squared error without the half is twice the half-squared loss with half the beta.
    two = tensor([[[1.0], [0.0]], [[0.0], [1.0]]])
    assert 2 * convex.solve(two, tensor([1.0, -1.0]), 1 / 16).primal == pytest.approx(31 / 128, abs=1e-8)
    shares = torch.linspace(0, 1, 1001, dtype=torch.float64)  # one head: w_1 = (a, 1 - a), w = w_2 w_3
    w = torch.linspace(-2, 2, 4001, dtype=torch.float64)[:, None]
    one_head = (shares * w - 1).square() + ((1 - shares) * w + 1).square() + w.abs() / 8
    assert one_head.min().item() == pytest.approx(287 / 256, abs=1e-6)  # of the grid; exactly: the next line
    assert ((torch.tensor(15 / 16) - 1) ** 2 + 1 + 15 / 128).item() == 287 / 256
    second = convex.solve(tensor([[[0.0], [1.0]]]), tensor([1.0]), 1 / 8)
    assert second.primal == pytest.approx(15 / 128, abs=1e-8) and second.active.tolist() == [1]
    assert second.z.flatten().tolist() == pytest.approx([0.0, 7 / 8], abs=1e-8)
    nothing = convex.solve(torch.zeros(1, 1, 1, dtype=torch.float64), tensor([1.0]), 1.0)
    assert 2 * nothing.primal == pytest.approx(1.0, abs=1e-8) and nothing.primal == pytest.approx(0.5, abs=1e-8)


@pytest.mark.parametrize("options", [{}, {"penalty": "nuclear"}, {"loss": "cross_entropy"}])
def test_beyond_beta_max_everything_is_exactly_zero(options):
    x = draw(9, 5, 3)
    y = torch.softmax(draw(9, 3, seed=1), 1)
    largest = convex.beta_max(x, y, **options)
    for beta in (largest, 1.5 * largest):
        solution = convex.solve(x, y, beta, **options)
        assert torch.equal(solution.z, torch.zeros_like(solution.z)) and solution.active.tolist() == []
        assert solution.gap <= 1e-12 * solution.primal and solution.iterations == 0
    assert len(convex.solve(x, y, 0.999 * largest, **options).active) == 1


def test_exact_answers_of_degenerate_programs():
    x, y = draw(6, 4, 3), draw(6, seed=1)
    zero = convex.solve(x, torch.zeros_like(y), 0.1)
    assert zero.primal == 0.0 == zero.gap and not zero.z.any()
    none = convex.solve(torch.zeros_like(x), y, 0.1)
    assert none.primal == pytest.approx(0.5 * y.square().sum().item(), rel=1e-15) and not none.z.any()
    # One sample: the longest token alone, shrunk along itself.
    one = convex.solve(x[:1], y[:1], 0.1)
    lengths = x[0].norm(dim=1)
    k = lengths.argmax()
    fit = y[0].sign() * (y[0].abs() - 0.1 / lengths[k])
    assert one.active.tolist() == [k.item()]
    assert torch.allclose(one.z[k], fit * x[0, k] / lengths[k] ** 2, atol=1e-9)
    # One token: a ridge-like program with a single group.
    single = convex.solve(x[:, :1], y, 0.1)
    assert_certified(single, x[:, :1], y, 0.1, 1e-9)
    # A token twice: the same optimum as with it once, divided in some way.
    doubled = torch.cat([x, x[:, :1]], 1)
    twice = convex.solve(doubled, y, 0.3)
    assert_certified(twice, doubled, y, 0.3, 1e-9)
    assert twice.primal == pytest.approx(convex.solve(x, y, 0.3).primal, rel=1e-8)


@pytest.mark.parametrize("options", [{}, {"penalty": "nuclear"}, {"loss": "cross_entropy"}])
@pytest.mark.parametrize("shape", [(4, 3, 6), (30, 3, 6)])
def test_difficult_designs(options, shape):
    x = draw(*shape)
    y = torch.softmax(draw(shape[0], 2, seed=1), 1)
    low_rank = x @ draw(6, 2, seed=2) @ draw(2, 6, seed=3)
    scaled = x * torch.logspace(-4, 4, 6, dtype=torch.float64)
    same = x[:, :1].expand(shape)
    for tokens in (low_rank, scaled, same, torch.cat([x, 1e-9 * x], 1)):
        for share in (0.5, 0.01):
            beta = share * convex.beta_max(tokens, y, **options)
            solution = convex.solve(tokens, y, beta, **options)
            assert_certified(solution, tokens, y, beta, 1e-7 if "penalty" in options else 1e-9, **options)


@pytest.mark.parametrize("seed", [5, 7, 13, 60, 131, 134, 192, 201, 217, 274, 297, 308])
def test_correlated_tokens(seed):
    """Common factors make Newton's step for the secular equations go uphill (192, 201, 274), and predictions cancel
    (131, 297)."""
    r = np.random.default_rng(seed)
    samples, n, d = r.integers(5, 120), r.integers(2, 30), r.integers(1, 12)
    x = r.standard_normal((samples, n, d)) * 10 ** r.uniform(-2, 0)
    x += r.standard_normal((samples, 1, 1)) * r.standard_normal((n, d))
    x += 3 * r.uniform() * r.random((samples, n, 1)) * r.standard_normal((n, d))
    x = tensor(np.abs(x) if seed % 3 == 0 else x)
    y = tensor(np.sign(r.standard_normal(samples)) if seed % 2 else r.standard_normal(samples))
    options = {} if seed % 5 else {"loss": "cross_entropy"}
    y = (y > 0).double() if options else y
    beta = 10 ** r.uniform(-3, -0.1) * convex.beta_max(x, y, **options)
    assert_certified(convex.solve(x, y, beta, **options), x, y, beta, 1e-9, **options)


def test_a_path_has_the_solutions_of_single_runs():
    x, y = draw(12, 6, 3), draw(12, 2, seed=1)
    for penalty in ("group", "nuclear"):
        largest = convex.beta_max(x, y, penalty=penalty)
        betas = (largest * np.geomspace(1.2, 0.03, 8)).tolist()
        for beta, solution in zip(betas, convex.path(x, y, betas, penalty=penalty), strict=True):
            alone = convex.solve(x, y, beta, penalty=penalty)
            assert solution.beta == beta
            assert_certified(solution, x, y, beta, 1e-7 if penalty == "nuclear" else 1e-9, penalty=penalty)
            assert solution.primal == pytest.approx(alone.primal, rel=2e-7)
            assert solution.active.tolist() == alone.active.tolist()


def test_each_way_of_solving_linear_equations_gives_the_same():
    x, y = draw(20, 6, 5), draw(20, seed=1)  # by tokens with up to 4 active, by samples with more
    for beta in (0.5, 5.0):
        solution = convex.solve(x, y, beta * 0.1, tol=1e-12)
        narrow = torch.cat([x, x.new_zeros(20, 6, 40)], 2)  # the same program, now always by samples
        assert convex.solve(narrow, y, beta * 0.1, tol=1e-12).primal == pytest.approx(solution.primal, rel=1e-11)
        tall = torch.cat([x, x.new_zeros(200, 6, 5)])  # and now always by tokens
        assert convex.solve(tall, torch.cat([y, y.new_zeros(200)]), beta * 0.1, tol=1e-12).primal == pytest.approx(
            solution.primal, rel=1e-11
        )


def test_few_kernels_kept_or_many(monkeypatch):
    from attnrank.convex import _gram

    x, y = draw(8, 12, 5), draw(8, seed=1)
    expected = convex.solve(x, y, 0.2).primal
    monkeypatch.setattr(_gram, "KERNEL_BYTES", 3 * 8 * 8 * 8)
    assert convex.solve(x, y, 0.2).primal == pytest.approx(expected, rel=2e-9)


@pytest.mark.parametrize("y", [[1.0], [[1.0, 0.0]]])
@pytest.mark.parametrize("beta", [1e-4, 1e-6, 1e-8, 1e-10])
def test_cross_entropy_that_nearly_vanishes_keeps_its_digits(y, beta):
    """One token of length 1: the optimum is -log(1 - beta) + beta log((1 - beta) / beta), to a certified gap."""
    optimum = -np.log1p(-beta) + beta * np.log((1 - beta) / beta)
    solution = convex.solve(torch.ones(1, 1, 1).double(), tensor(y), beta, loss="cross_entropy")
    assert solution.dual <= optimum * (1 + 1e-13) and solution.primal >= optimum * (1 - 1e-13)
    assert solution.primal <= optimum * (1 + 1e-9)


def test_targets_that_miss_one_by_a_rounding_are_divided_by_their_sum():
    """Without it the objective at z, 1e6 along both outputs, is less than the lower bound that is printed."""
    x, y = torch.ones(1, 1, 1).double(), torch.full((1, 2), 0.5 + 4.5e-10).double()
    solution = convex.solve(x, y, 1e-10, loss="cross_entropy")
    far = torch.full((1, 1, 2), 1e6).double()
    primal, dual, feasible = convex.check(x, y, 1e-10, far, solution.dual_point, loss="cross_entropy")
    assert feasible <= 1 and primal >= solution.dual and primal >= dual


def test_an_output_without_targets_is_as_if_it_were_not_there():
    x, y = draw(20, 6, 4), draw(20, 2, seed=1)
    y[:, 1] = 0
    both, one = convex.solve(x, y, 2.0), convex.solve(x, y[:, :1], 2.0)
    assert (both.z[..., 1] == 0).all() and both.primal == pytest.approx(one.primal, rel=1e-9)


def test_a_solution_is_not_the_start():
    x, y = draw(12, 6, 3), torch.softmax(draw(12, 3, seed=1), 1)
    for options in ({}, {"loss": "cross_entropy"}, {"penalty": "nuclear"}):
        beta = 0.3 * convex.beta_max(x, y, **options)
        start = convex.solve(x, y, beta, **options).z
        again = convex.solve(x, y, beta, start=start, tol=1e-5, **options)
        before = again.z.clone()
        start.zero_()
        assert torch.equal(again.z, before)


def test_gradient_steps_beyond_single_precision_give_up():
    from attnrank.convex._approach import approach

    a, y = draw(30, 12, 4), draw(30, seed=1)
    z, _, reached, _ = approach(a * 1e25, y, 0.1e25, torch.zeros(12, 4).double(), 1e-9, 50)
    assert not reached and torch.isfinite(z).all()


def test_no_convergence_carries_the_best_point():
    x, y = draw(12, 6, 3), draw(12, 3, seed=1)
    for options in ({}, {"loss": "cross_entropy"}, {"penalty": "nuclear"}):
        targets = torch.softmax(y, 1)
        beta = 0.01 * convex.beta_max(x, targets, **options)
        with pytest.raises(convex.NotConvergedError, match="tol = 0 was not reached") as caught:
            convex.solve(x, targets, beta, tol=0.0, max_iterations=3, **options)
        assert isinstance(caught.value, ValueError)
        point = caught.value.solution
        assert point.gap > 0 and point.z.shape == (6, 3, 3)
        assert point.dual <= convex.solve(x, targets, beta, **options).primal


BAD = {
    "x": (lambda x, y: (x.numpy(), y, 0.1), {}, "x must be a torch.Tensor, got a numpy array: use torch.from_numpy"),
    "list": (lambda x, y: ([1.0], y, 0.1), {}, "x must be a torch.Tensor, got list"),
    "axes": (lambda x, y: (x[0], y, 0.1), {}, "x must have shape"),
    "empty": (lambda x, y: (x[:, :0], y, 0.1), {}, "x must have shape .* not be empty"),
    "nan": (lambda x, y: (x * float("nan"), y, 0.1), {}, "x must be finite, got NaN"),
    "infinite": (lambda x, y: (x, y / 0.0, 0.1), {}, "y must be finite"),
    "rows": (lambda x, y: (x, y[:-1], 0.1), {}, "y must have one row for each of the 6 samples of x, got 5"),
    "labels": (lambda x, y: (x, (y > 0).long(), 0.1), {}, "y must be floating point"),
    "zero": (lambda x, y: (x, y, 0.0), {}, "beta must be greater than 0"),
    "negative": (lambda x, y: (x, y, -1.0), {}, "beta must be greater than 0"),
    "beta": (lambda x, y: (x, y, float("nan")), {}, "beta must be a finite number"),
    "loss": (lambda x, y: (x, y, 0.1), {"loss": "hinge"}, "loss must be one of cross_entropy, squared"),
    "penalty": (lambda x, y: (x, y, 0.1), {"penalty": "lasso"}, "penalty must be one of group, nuclear"),
    "probabilities": (lambda x, y: (x, y, 0.1), {"loss": "cross_entropy"}, "y must be probabilities"),
    "gates": (lambda x, y: (x, y, 0.1), {"gates": torch.ones(5, 2)}, "gates must have one row for each of the 6"),
    "tol": (lambda x, y: (x, y, 0.1), {"tol": -1.0}, "tol must be at least 0"),
    "limit": (lambda x, y: (x, y, 0.1), {"max_iterations": 0}, "max_iterations must be at least 1"),
    "overflow": (lambda x, y: (x * 1e200, y, 0.1), {"gates": draw(6, 2) * 1e200}, "gates times x must be finite"),
    "large": (lambda x, y: (x * 1e70, y, 0.1), {}, r"x must have its largest entry in \[1e-60, 1e\+60\], got"),
    "small": (lambda x, y: (x, y * 1e-170, 1e-171), {}, "y must have its largest entry in"),
    "start's nan": (lambda x, y: (x, y, 0.1), {"start": torch.full((4, 3), float("nan"))}, "start must be finite, got"),
    "start": (lambda x, y: (x, y, 0.1), {"start": torch.ones(2)}, "start must be a tensor of z's shape"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(name):
    arguments, options, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        convex.solve(*arguments(draw(6, 4, 3), draw(6, seed=1)), **options)


def test_probabilities_must_sum_to_one():
    x = draw(6, 4, 3)
    with pytest.raises(ValueError, match="rows that sum to 1"):
        convex.solve(x, torch.full((6, 2), 0.4, dtype=torch.float64), 0.1, loss="cross_entropy")
    with pytest.raises(ValueError, match="at least 2 columns"):
        convex.solve(x, torch.ones(6, 1, dtype=torch.float64), 0.1, loss="cross_entropy")
    for one in (torch.tensor(1.0), np.array(1.0)):
        with pytest.raises(ValueError, match="betas must be several numbers"):
            convex.path(x, draw(6), one)
    with pytest.raises(ValueError, match="betas must not be empty"):
        convex.path(x, draw(6), [])


def test_precision_of_the_input_does_not_matter():
    x, y = draw(6, 4, 3).float(), draw(6, seed=1).float()
    solution = convex.solve(x, y, 0.3)
    assert solution.z.dtype == torch.float64
    assert torch.equal(solution.z, convex.solve(x.double(), y.double(), 0.3).z)


@pytest.mark.parametrize("options", [{}, {"penalty": "nuclear"}, {"loss": "cross_entropy"}])
def test_on_another_device(second_device, options):  # noqa: F811
    for shape in ((20, 3, 4), (6, 4, 5)):
        x, y = draw(*shape), torch.softmax(draw(shape[0], 2, seed=1), 1)
        targets = (y[:, 0], y) if options != {"penalty": "nuclear"} else (y,)
        for target in targets:
            beta = 0.2 * convex.beta_max(x, target, **options)
            here = convex.solve(x, target, beta, **options)
            there = convex.solve(x.to(second_device), target.to(second_device), beta, **options)
            assert there.z.device.type == second_device
            assert there.primal == pytest.approx(here.primal, rel=1e-7)
            assert there.active.tolist() == here.active.tolist()


def test_gradient_steps_before_newton_steps(monkeypatch):
    """Where Newton steps are costly: the same optimum, whether gradient steps reach it or give up."""
    from attnrank.convex import _approach, _group

    taken = []
    monkeypatch.setattr(_approach, "SMALL", 0)
    monkeypatch.setattr(_group, "approach", lambda *a: taken.append(_approach.approach(*a)) or taken[-1])
    for seed in range(6):
        x, y = draw(30, 12, 4, seed=seed), draw(30, seed=50 + seed)
        patience = (0.0, 1e4)[seed % 2]
        monkeypatch.setattr(_approach, "_steps_worth", lambda *_, patience=patience: patience)
        for share in (0.1, 0.01):
            beta = share * convex.beta_max(x, y)
            solution = convex.solve(x, y, beta)
            assert_certified(solution, x, y, beta, 1e-9)
            with monkeypatch.context() as context:
                context.setattr(_group, "costly", lambda *_: False)
                assert convex.solve(x, y, beta).primal == pytest.approx(solution.primal, rel=2e-9)
    assert {run[2] for run in taken} == {False, True}
