"""The bounds at random settings, each with a negative control that violates a hypothesis.

Tokens and weights are drawn as the theorems have them, and ranks counted. The test is the empirical Bernstein bound of
Maurer and Pontil (2009), which holds for every sample size and needs no normal approximation: over all settings of this
file a true bound is reported as violated with a probability of at most 1e-6.
"""

import math

import pytest
import torch

from attnrank import hardmax_rank, theory
from attnrank.experiments.shared.gram import perturbed_gram
from attnrank.inputs import tokens
from attnrank.report import bernstein_margin

FALSE_ALARM = 1e-6
EACH = 6  # settings of a family
SAMPLES = 1000


def normal(generator, *shape):
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def pick(generator, values):
    return values[torch.randint(len(values), (), generator=generator).item()]


def unit(x):
    return torch.nn.functional.normalize(x, dim=-1)


def arbitrary_keys(generator, n, d_h):
    """Keys that no hypothesis restricts: heavy tails, few directions, unequal lengths, repeated."""
    k = normal(generator, n, d_h)
    kind = pick(generator, ["gaussian", "heavy tails", "few directions", "unequal lengths", "repeated", "sphere"])
    if kind == "heavy tails":
        k = k / torch.rand(n, 1, generator=generator, dtype=torch.float64)
    if kind == "few directions":
        k[:, 1:] *= 1e-3
    if kind == "unequal lengths":
        k *= torch.linspace(0.1, 3, n, dtype=torch.float64)[:, None]
    if kind == "repeated":
        k = k[torch.randint(n, (n,), generator=generator)]
    return unit(k) if kind == "sphere" else k


def weights(generator, d, d_h):
    return normal(generator, SAMPLES, d, d_h)


def shared(k):
    return k.expand(SAMPLES, *k.shape)


def own_keys(generator, n, d_h):
    """The control of most families: queries that depend on the keys, each the unit vector of its own."""
    k = unit(normal(generator, SAMPLES, n, d_h))
    return hardmax_rank(k, k)


# A family draws a setting and gives: ranks, their bound, the ranks of a control, the bound that it must violate,
# and the largest rank that there can be.

def any_keys(g):
    n, d_h = pick(g, [16, 24, 48]), pick(g, [2, 3, 8, 40])
    law = pick(g, ["gaussian", "uniform", "heavy tails"])
    q = normal(g, SAMPLES, n, d_h)
    if law == "uniform":
        q = torch.rand(SAMPLES, n, d_h, generator=g, dtype=torch.float64) + 0.3
    if law == "heavy tails":
        q = q / torch.rand(SAMPLES, n, 1, generator=g, dtype=torch.float64) ** 2 + 0.5
    bound = theory.occupancy_bound(n)
    return hardmax_rank(q, shared(arbitrary_keys(g, n, d_h))), bound, own_keys(g, n, d_h), bound, n


def cross_attention(g):
    n, m, d, d_h = pick(g, [10, 30, 60]), pick(g, [20, 40]), pick(g, [4, 32]), pick(g, [2, 8, 16])
    x = tokens("uniform", n * SAMPLES, d, generator=g).reshape(SAMPLES, n, d)  # i.i.d. tokens, trained weights
    q = x @ (normal(g, d, d_h) * torch.arange(1, d_h + 1))
    spread = unit(normal(g, SAMPLES, m, d_h))  # the control: queries that go round the keys one after the other
    control = hardmax_rank(spread[:, torch.arange(n) % m], spread)
    bound = theory.occupancy_bound(n, m)
    return hardmax_rank(q, shared(arbitrary_keys(g, m, d_h))), bound, control, bound, min(n, m)


def orthogonal_tokens(g):
    n, d_h = pick(g, [16, 32]), pick(g, [2, 8, 24])
    lengths = 0.1 + torch.rand(n, 1, generator=g, dtype=torch.float64)
    x = lengths * tokens("orthonormal", n, n + pick(g, [0, 5, 40]), generator=g)
    trained = normal(g, x.shape[1], d_h) @ torch.diag(torch.logspace(0, -3, d_h, dtype=torch.float64))
    bound = theory.occupancy_bound(n)
    return hardmax_rank(x @ weights(g, x.shape[1], d_h), shared(x @ trained)), bound, own_keys(g, n, d_h), bound, n


def common_direction(g):
    n, d_h, rho = pick(g, [16, 40]), pick(g, [2, 8, 24]), pick(g, [0.01, 0.3, 0.9])
    gram = rho + (1 - rho) * torch.eye(n, dtype=torch.float64)
    q = torch.linalg.cholesky(gram) @ weights(g, n, d_h)
    bound = theory.occupancy_bound(n)
    return hardmax_rank(q, shared(arbitrary_keys(g, n, d_h))), bound, own_keys(g, n, d_h), bound, n


def head_dimension(g):
    n, d_h = pick(g, [24, 40, 64]), pick(g, [2, 3, 4, 6])
    x = tokens("orthonormal", n, n + 3, generator=g)
    q, k = x @ weights(g, n + 3, d_h), x @ weights(g, n + 3, d_h)
    bound = theory.head_dim_bound(n, d_h)
    return hardmax_rank(q, k), bound, hardmax_rank(q, unit(k)), bound, n  # the control: keys of equal length


def polytopes(g):
    n, d_h = pick(g, [32, 48, 64]), pick(g, [2, 3])
    x = tokens("orthonormal", n, n, generator=g)
    q, k = x @ weights(g, n, d_h), x @ weights(g, n, d_h)
    bound = theory.polytope_vertices(n, d_h)
    return hardmax_rank(q, k), bound, hardmax_rank(q, unit(k)), bound, n


def almost_orthonormal(g):
    n, d_h = pick(g, [16, 32, 48]), pick(g, [3, 8, 24])
    error = perturbed_gram(pick(g, STRUCTURES), n, 1e-3, generator=g).fill_diagonal_(0.0)
    error *= 0.3 / math.sqrt(d_h) / error.norm()  # |E|_F <= 1/2
    x = torch.linalg.cholesky(torch.eye(n, dtype=torch.float64) + error)
    bound = theory.perturbation_bound(n, d_h, error.norm().item())
    keys = shared(arbitrary_keys(g, n, d_h))
    return hardmax_rank(x @ weights(g, n, d_h), keys), bound, own_keys(g, n, d_h), bound, n


def almost_equicorrelated(g):
    n, d_h, rho = pick(g, [16, 40]), pick(g, [3, 8, 24]), pick(g, [0.1, 0.5])
    error = perturbed_gram(pick(g, STRUCTURES), n, 1e-3, generator=g).fill_diagonal_(0.0)
    error *= 0.3 * (1 - rho) / math.sqrt(d_h) / error.norm()
    x = torch.linalg.cholesky(rho + (1 - rho) * torch.eye(n, dtype=torch.float64) + error)
    bound = theory.perturbation_bound(n, d_h, error.norm().item(), rho)
    return hardmax_rank(x @ weights(g, n, d_h), shared(arbitrary_keys(g, n, d_h))), bound, own_keys(g, n, d_h), bound, n


def smallest_eigenvalue(g):
    n, d_h = pick(g, [24, 48, 64]), pick(g, [2, 8, 24])
    kind = pick(g, ["gaussian", "sphere", "structure"])
    if kind == "structure":
        structure = pick(g, ["autoregressive", "blocks", "pairs", "common"])
        x = torch.linalg.cholesky(perturbed_gram(structure, n, pick(g, [0.1, 0.3]), generator=g))
    else:
        x = unit(tokens(kind, n, 20 * n, generator=g))
    smallest = torch.linalg.eigvalsh(x @ x.T)[0].item()
    assert smallest > 0.5
    bound = theory.smallest_eigenvalue_bound(n, smallest)
    keys = shared(arbitrary_keys(g, n, d_h))
    return hardmax_rank(x @ weights(g, x.shape[1], d_h), keys), bound, own_keys(g, n, d_h), bound, n


def effective_queries(g):
    n, d_h = pick(g, [16, 32, 48]), pick(g, [2, 8, 24])
    structure, epsilon = pick(g, [("pairs", 0.05), ("pairs", 0.2), ("autoregressive", 0.1), ("simplex", 0.2 / n)])
    x = torch.linalg.cholesky(perturbed_gram(structure, n, epsilon, generator=g))
    bound = theory.effective_queries_bound(n, torch.linalg.eigvalsh(x @ x.T)[0].item())
    keys = shared(arbitrary_keys(g, n, d_h))
    return hardmax_rank(x @ weights(g, n, d_h), keys), bound, own_keys(g, n, d_h), bound, n


def small_cosines(g):
    n, d_h = pick(g, [16, 32, 64]), pick(g, [2, 8, 24])
    structure, epsilon = pick(g, [("random", 1e-3), ("simplex", 1e-3), ("pairs", 1e-2)])
    gram = perturbed_gram(structure, n, epsilon, generator=g)
    bound = theory.small_cosine_bound(n, epsilon, gram.triu(1).abs().sum().item())
    keys = shared(arbitrary_keys(g, n, d_h))
    return hardmax_rank(torch.linalg.cholesky(gram) @ weights(g, n, d_h), keys), bound, own_keys(g, n, d_h), bound, n


STRUCTURES = ["random", "autoregressive", "blocks", "common", "simplex", "pairs"]
FAMILIES = [
    any_keys, cross_attention, orthogonal_tokens, common_direction, head_dimension, polytopes, almost_orthonormal,
    almost_equicorrelated, smallest_eigenvalue, effective_queries, small_cosines,
]  # fmt: skip
CASES = EACH * len(FAMILIES)


def margin(ranks, largest):
    """Exact for ranks from 1 to ``largest``; the chance to be exceeded is FALSE_ALARM / CASES."""
    error = float(ranks.std()) / math.sqrt(len(ranks))
    return float(bernstein_margin(error, len(ranks), largest - 1, cases=CASES, false_alarm=FALSE_ALARM))


def test_there_are_at_least_forty_settings():
    assert CASES >= 40


@pytest.mark.parametrize("number", range(EACH))
@pytest.mark.parametrize("family", FAMILIES)
def test_bound_holds_and_its_control_is_caught(family, number):
    generator = torch.Generator().manual_seed(1000 * FAMILIES.index(family) + number)
    ranks, bound, control, control_bound, largest = family(generator)
    ranks, control = ranks.double(), control.double()
    assert ranks.shape == control.shape == (SAMPLES,)
    assert ranks.min() >= 1 and max(ranks.max(), control.max()) <= largest
    assert ranks.mean() <= bound + margin(ranks, largest)
    assert control.mean() > control_bound + margin(control, largest)
