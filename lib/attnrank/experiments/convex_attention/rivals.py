"""What a user would run instead of `attnrank.convex.solve`: celer, adelie and CVXPY on the same program."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from attnrank import convex

#: A rival's run at one of its own tolerances: z, and the seconds that the rival says its solver took (None: by the
#: clock).
Run = Callable[[float], tuple[Tensor, float | None]]

#: The tolerances that a rival is given, in turn, until its gap is small enough. They mean different things.
TOLERANCES = {
    "celer": (1e-9, 1e-10, 1e-11, 1e-12, 1e-14),
    "adelie": (1e-12, 1e-14, 1e-16, 1e-18, 1e-20),
    "CVXPY, CLARABEL": (1e-8, 1e-9, 1e-10, 1e-11),
    "CVXPY, SCS": (1e-8, 1e-9, 1e-10),
}

#: CLARABEL gives up after so many seconds, with the point that it has.
LIMIT = 150.0


def program(
    samples: int, n: int, d: int, seed: int, *, outputs: int = 0, truth: int = 5, noise: float = 0.1
) -> tuple[Tensor, Tensor]:
    """Gaussian tokens x (samples, n, d), and targets from the first ``truth`` tokens with a share of noise.

    With ``outputs`` the true matrix of each token has rank 1, and y is (samples, outputs).
    """
    r = np.random.default_rng(seed)
    x = r.standard_normal((samples, n, d))
    if outputs:
        z = r.standard_normal((truth, d, 1)) * r.standard_normal((truth, 1, outputs))
    else:
        z = r.standard_normal((truth, d))
    y = np.einsum("ikd,kd...->i...", x[:, :truth], z)
    y += noise * y.std() * r.standard_normal(y.shape)
    return torch.from_numpy(x), torch.from_numpy(y)


def available(rival: str) -> bool:
    """Can this rival be imported here? adelie cannot be installed beside NumPy 2 by its own declaration."""
    return importlib.util.find_spec(_module(rival)) is not None


def version(rival: str) -> str:
    """Name and version of the rival's package."""
    name = _module(rival)
    return f"{name} {importlib.metadata.version(name)}"


def prepare(rival: str, x: Tensor, y: Tensor, beta: float, loss: str, penalty: str) -> Run:
    """The rival with its input as it likes it best: that is not timed."""
    if rival == "celer":
        return _celer(x, y, beta)
    if rival == "adelie":
        return _adelie(x, y, beta)
    return _cvxpy(x, y, beta, loss, penalty, rival.split(", ")[1])


def verified_gap(
    x: Tensor, y: Tensor, beta: float, z: Tensor, dual: float, *, loss: str = "squared", penalty: str = "group"
) -> float:
    """(objective at z - a certified lower bound of the optimum) / objective: the bound is not the rival's own."""
    objective = convex.check(x, y, beta, z, torch.zeros_like(y), loss=loss, penalty=penalty)[0]
    return (objective - dual) / objective


def _module(rival: str) -> str:
    return rival.split(",")[0].lower()


def _celer(x: Tensor, y: Tensor, beta: float) -> Run:
    samples, n, d = x.shape
    design, target = np.asfortranarray(x.flatten(1).numpy()), y.numpy()
    library = importlib.import_module("celer")

    def run(tol: float) -> tuple[Tensor, None]:
        model = library.GroupLasso(groups=d, alpha=beta / samples, tol=tol, fit_intercept=False, max_iter=1000)
        return torch.from_numpy(model.fit(design, target).coef_).view(n, d), None

    return run


def _adelie(x: Tensor, y: Tensor, beta: float) -> Run:
    samples, n, d = x.shape
    design, target = np.asfortranarray(x.flatten(1).numpy()), y.numpy()
    library = importlib.import_module("adelie")

    def run(tol: float) -> tuple[Tensor, None]:
        state = library.grpnet(
            library.matrix.dense(design, method="naive", n_threads=1),
            library.glm.gaussian(target),
            groups=np.arange(0, n * d, d),
            penalty=np.ones(n),
            lmda_path=[beta / samples],
            intercept=False,
            early_exit=False,
            tol=tol,
            progress_bar=False,
        )
        return torch.from_numpy(state.betas.toarray()[-1]).view(n, d), None

    return run


def _cvxpy(x: Tensor, y: Tensor, beta: float, loss: str, penalty: str, solver: str) -> Run:
    cp = importlib.import_module("cvxpy")
    samples, n, d = x.shape
    outputs = y.shape[1] if y.ndim == 2 else 1
    z = [cp.Variable((d, outputs)) for _ in range(n)]
    u = x.flatten(1).numpy() @ cp.vstack(z)
    size = cp.normNuc if penalty == "nuclear" else lambda block: cp.sum(cp.norm(block, 2, axis=0))
    if loss == "squared":
        fit = cp.sum_squares(u - y.numpy().reshape(samples, outputs)) / 2
    elif y.ndim == 1:
        fit = cp.sum(cp.logistic(u)) - y.numpy() @ u[:, 0]
    else:
        fit = cp.sum(cp.log_sum_exp(u, axis=1)) - cp.sum(cp.multiply(y.numpy(), u))
    model = cp.Problem(cp.Minimize(fit + beta * sum(size(block) for block in z)))

    def run(tol: float) -> tuple[Tensor, float]:
        if solver == "CLARABEL":
            options = {"tol_gap_abs": tol, "tol_gap_rel": tol, "tol_feas": tol, "time_limit": LIMIT}
        else:
            options = {"eps_abs": tol, "eps_rel": tol, "max_iters": 50_000}
        try:
            model.solve(solver=solver, warm_start=False, **options)  # a second run is as cold as the first
        except cp.error.SolverError as error:
            raise RuntimeError(str(error)) from error
        found = np.stack([block.value for block in z])
        return torch.from_numpy(found if y.ndim == 2 else found[:, :, 0]), model.solver_stats.solve_time

    return run
