"""Random convex attention programs, tiny, and their optima by CVXPY."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import torch

from attnrank import convex

#: Every pairing of loss, penalty, one output or several, and no gates or some: 16 programs.
PROGRAMS = {
    f"{loss}, {penalty}, {outputs or 1} out, {gates} gates": {
        "loss": loss, "penalty": penalty, "outputs": outputs, "gates": gates
    }
    for loss in ("squared", "cross_entropy") for penalty in ("group", "nuclear")
    for outputs in (0, 3) for gates in (0, 2)
}  # fmt: skip
#: Relative accuracy of CLARABEL's optima, with the settings below.
ACCURACY = 1e-7


def tensor(array):
    return torch.from_numpy(np.ascontiguousarray(array, dtype=float))


def instance(program, seed):
    """x, y, beta and the keywords of `solve`: Gaussian tokens, 3 to 10 samples, beta between .05 and .8 of beta_max."""
    r = np.random.default_rng([seed, list(PROGRAMS).index(program)])
    form = PROGRAMS[program]
    most = 3 if form["gates"] else 4 if form["penalty"] == "nuclear" else 5
    samples, n, d = r.integers(3, 11), r.integers(2, most + 1), r.integers(2, 5)
    x = tensor(r.standard_normal((samples, n, d)))
    raw = r.standard_normal((samples, form["outputs"]) if form["outputs"] else samples)
    y = tensor(raw)
    if form["loss"] == "cross_entropy":
        y = torch.nn.functional.one_hot(y.argmax(1), form["outputs"]).double() if form["outputs"] else (y > 0).double()
    options = {"loss": form["loss"], "penalty": form["penalty"]}
    if form["gates"]:
        options["gates"] = tensor(r.standard_normal((samples, form["gates"])) > 0)
    beta = float(r.uniform(0.05, 0.8)) * convex.beta_max(x, y, **options)
    return x, y, max(beta, 0.01), options


def loss_of(u, y, loss):
    if loss == "squared":
        return cp.sum_squares(u - y) / 2
    if y.ndim == 1:
        return cp.sum(cp.logistic(u)) - y @ u
    return cp.sum(cp.log_sum_exp(u, axis=1)) - cp.sum(cp.multiply(y, u))


def optimum(x, y, beta, *, loss, penalty, gates=None):
    """The optimal value and z, one block (d, outputs) for each gate and token."""
    if gates is not None:
        x = convex.gated(x, gates)
    outputs = y.shape[1] if y.ndim == 2 else 1
    samples, tokens, d = x.shape
    z = cp.Variable((tokens * d, outputs))  # token after token
    u = x.flatten(1).numpy() @ z
    u = u[:, 0] if y.ndim == 1 else u
    if penalty == "nuclear":
        size = sum(cp.normNuc(z[k * d : (k + 1) * d]) for k in range(tokens))
    else:
        size = cp.sum(cp.norm(cp.reshape(z, (d, tokens * outputs), order="F"), 2, axis=0))
    value = solved(cp.Problem(cp.Minimize(loss_of(u, y.numpy(), loss) + beta * size)))
    return value, z.value.reshape(tokens, d, outputs)


def sequence_optimum(x, y, beta, *, loss, reading):
    samples, n, d = x.shape
    targets = y[..., None] if y.ndim == 2 else y
    outputs = targets.shape[2]
    u = [[0.0] * outputs for _ in range(samples)]
    constraints, size = [], 0
    for q in range(d):
        for out in range(outputs):
            if reading == "stochastic":
                plus, minus = cp.Variable((n, n), nonneg=True), cp.Variable((n, n), nonneg=True)
                t = cp.Variable(2)
                constraints += [cp.sum(plus, axis=1) == t[0], cp.sum(minus, axis=1) == t[1]]
                c, size = plus - minus, size + cp.sum(t)
            else:
                c = cp.Variable((n, n))
                size = size + cp.norm(c, "inf")  # of a matrix: the largest row sum of absolute values
            for i in range(samples):
                u[i][out] = u[i][out] + c @ x[i, :, q].numpy()
    u = cp.vstack([cp.vstack([u[i][out][r] for i in range(samples) for r in range(n)]).T for out in range(outputs)]).T
    flat = targets.reshape(-1, outputs).numpy()
    total = loss_of(u if y.ndim == 3 else u[:, 0], flat if y.ndim == 3 else flat[:, 0], loss)
    return solved(cp.Problem(cp.Minimize(total + beta * size), constraints))


def solved(program):
    program.solve(solver=cp.CLARABEL, tol_gap_abs=1e-9, tol_gap_rel=1e-9, tol_feas=1e-9)
    assert program.status in ("optimal", "optimal_inaccurate"), program.status
    return program.value
