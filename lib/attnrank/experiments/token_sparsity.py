"""Tables of the chapter token_sparsity: how many tokens are active, and which patches of real images."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from attnrank import _check, convex, data
from attnrank.experiments.experiment import Exact, Experiment, Rounding
from attnrank.experiments.shared.statistics import seeded, summary
from attnrank.sweep import Setting, grid

#: Patch side for each data set: 16 patches of 2 x 2 grey values, 64 patches of 4 x 4 x 3 colour values.
PATCH = {"digits": 2, "cifar10": 4}
MOST_PATCHES = 64
#: Animals of CIFAR-10 (bird, cat, deer, dog, frog, horse); the other four classes are vehicles. Digits: 5 and more.
SECOND_CLASS = {"digits": (5, 6, 7, 8, 9), "cifar10": (2, 3, 4, 5, 6, 7)}


def active_tokens(samples: int, n: int, d: int, share: float, outputs: int, instances: int, seed: int) -> Setting:
    """Active tokens of random programs: Gaussian tokens, Gaussian targets, half-squared loss, beta = share beta_max."""
    generator = seeded(seed)
    found = []
    for _ in range(_check.integer("instances", instances, minimum=2)):
        x = torch.randn(samples, n, d, generator=generator, dtype=torch.float64)
        y = torch.randn(samples, outputs, generator=generator, dtype=torch.float64)
        beta = share * convex.beta_max(x, y)
        found.append(len(convex.solve(x, y, beta).active))
    return summary("active", torch.tensor(found)) | {"active_max": max(found)}


def patches(images: Tensor, side: int) -> Tensor:
    """Patches (N, n, channels side^2) of images (N, channels, height, width), row by row."""
    cut = images.unfold(2, side, side).unfold(3, side, side)  # N, channels, rows, columns, side, side
    return cut.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)


@lru_cache(maxsize=4)
def split(dataset: str, samples: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Patches and labels of the first ``samples`` training images in random order, and of the test images.

    Every feature has the training mean subtracted, which stands for an intercept.
    """
    train, labels = data.images(dataset, count=samples, generator=seeded(0))
    test, test_labels = data.images(
        dataset,
        "test",
        count=None if dataset == "digits" else 5000,
        generator=None if dataset == "digits" else seeded(1),
    )
    side = PATCH[_check.choice("dataset", dataset, PATCH)]
    x, x_test = patches(train, side), patches(test, side)
    mean = x.mean(0)
    return x - mean, labels, x_test - mean, test_labels


def targets(dataset: str, labels: Tensor, task: str) -> Tensor:
    """Centred targets: "ten", one column a class; "two", the second class of ``SECOND_CLASS`` against the rest."""
    if _check.choice("task", task, ("ten", "two")) == "ten":
        y = torch.nn.functional.one_hot(labels, 10).double()
    else:
        y = torch.isin(labels, torch.tensor(SECOND_CLASS[dataset])).double()
    return y


#: Added to the number of a bootstrap sample, so that it is not drawn as the samples are.
RESAMPLE_SEEDS = 1000


def fitted(
    dataset: str, samples: int, task: str, share: float, resample: int = 0
) -> tuple[convex.Solution, float, float]:
    """The classifier by half-squared loss on centred targets, its accuracy in training and in test.

    ``resample``: 0 for the samples themselves, otherwise the number of a bootstrap sample of them.
    """
    x, labels, x_test, test_labels = split(dataset, samples)
    if resample:
        rows = torch.randint(samples, (samples,), generator=seeded(RESAMPLE_SEEDS + resample))
        x, labels = x[rows], labels[rows]
        shift = x.mean(0)
        x, x_test = x - shift, x_test - shift
    y = targets(dataset, labels, task)
    mean = y.mean(0)
    y = y - mean
    solution = convex.solve(x, y, share * convex.beta_max(x, y), tol=1e-9)
    found = []
    for tokens, truth in ((x, labels), (x_test, test_labels)):
        u = convex.predict(tokens, solution.z) + mean
        if task == "ten":
            right = u.argmax(1) == truth
        else:
            right = (u > 0.5) == torch.isin(truth, torch.tensor(SECOND_CLASS[dataset]))
        found.append(right.double().mean().item())
    train, test = found
    return solution, train, test


def patch_path(dataset: str, samples: int, task: str, share: float) -> Setting:
    """Accuracy, number of active patches, and the share of each patch in the penalty (t00, t01, ...; 0 beyond)."""
    solution, train, test = fitted(dataset, samples, task, share)
    sizes = solution.z.norm(dim=1) if task == "two" else solution.z.norm(dim=1).sum(1)
    sizes = sizes / sizes.sum()
    shares = sizes.tolist() + [0.0] * (MOST_PATCHES - len(sizes))
    columns = {f"t{k:02d}": size for k, size in enumerate(shares)}
    return {"train_accuracy": train, "accuracy": test, "active": len(solution.active)} | columns


def patch_stability(dataset: str, samples: int, task: str, share: float, resample: int) -> Setting:
    """A bootstrap sample beside the whole: active patches, those in common over those in either, test accuracy."""
    whole = set(fitted(dataset, samples, task, share)[0].active.tolist())
    solution, _, test = fitted(dataset, samples, task, share, resample)
    drawn = set(solution.active.tolist())
    return {"active": len(drawn), "overlap": len(drawn & whole) / max(len(drawn | whole), 1), "accuracy": test}


def patch_baseline(dataset: str, samples: int, task: str, c: float) -> Setting:
    """Logistic regression of scikit-learn on the same pixels, with its regularisation C: accuracy in training and
    test."""
    from sklearn.linear_model import LogisticRegression

    x, labels, x_test, test_labels = split(dataset, samples)
    y, y_test = labels, test_labels
    if task == "two":
        y, y_test = (torch.isin(part, torch.tensor(SECOND_CLASS[dataset])) for part in (labels, test_labels))
    model = LogisticRegression(C=c, max_iter=300, tol=1e-4).fit(x.flatten(1).numpy(), y.numpy())
    return {
        "train_accuracy": model.score(x.flatten(1).numpy(), y.numpy()),
        "accuracy": model.score(x_test.flatten(1).numpy(), y_test.numpy()),
    }


_SHARES = [0.9, 0.7, 0.5, 0.35, 0.25, 0.15, 0.1, 0.05, 0.02, 0.01]

EXPERIMENTS = {
    "active_tokens": Experiment(
        "How many tokens are active, by samples, tokens, dimension, beta and outputs?",
        active_tokens,
        quick=grid(samples=[5], n=[16], d=[4], share=[0.1], outputs=[1], instances=[3], seed=[0]),
        paper=[
            *grid(samples=[2, 5, 10, 20, 40, 80], n=[64], d=[4, 16], share=[0.5, 0.1, 0.01], outputs=[1],
            instances=[20], seed=[0]),
            *grid(samples=[20], n=[16, 256], d=[16], share=[0.5, 0.1, 0.01], outputs=[1], instances=[20], seed=[0]),
            *grid(samples=[2, 5, 10, 20], n=[64], d=[16], share=[0.01], outputs=[3], instances=[20], seed=[0]),
        ],
        chapter="token_sparsity",
        repeats=Exact(),
    ),
    "patch_path": Experiment(
        "Which patches of real images does the classifier use as beta falls, and how accurate is it?",
        patch_path,
        quick=grid(dataset=["digits"], samples=[200], task=["two"], share=[0.5, 0.1]),
        paper=[
            *grid(dataset=["cifar10"], samples=[5000], task=["two"], share=_SHARES),
            *grid(dataset=["cifar10"], samples=[5000], task=["ten"], share=[0.5, 0.25, 0.1, 0.05]),
            *grid(dataset=["digits"], samples=[1400], task=["two", "ten"], share=_SHARES),
        ],
        chapter="token_sparsity",
        repeats=Rounding(1e-3),
        data="dataset",
    ),
    "patch_stability": Experiment(
        "Are the same patches active on bootstrap samples?",
        patch_stability,
        quick=grid(dataset=["digits"], samples=[200], task=["two"], share=[0.5], resample=[1]),
        paper=[
            *grid(dataset=["digits"], samples=[1400], task=["two"], share=[0.7, 0.35, 0.1], resample=list(range(1,
            21))),
            *grid(dataset=["cifar10"], samples=[2000], task=["two"], share=[0.7, 0.35], resample=list(range(1, 11))),
        ],
        chapter="token_sparsity",
        repeats=Rounding(1e-3),
        data="dataset",
    ),
    "patch_baseline": Experiment(
        "How accurate is logistic regression on the same pixels?",
        patch_baseline,
        quick=grid(dataset=["digits"], samples=[200], task=["two"], c=[0.1]),
        paper=[
            *grid(dataset=["digits"], samples=[1400], task=["two", "ten"], c=[0.01, 0.1, 1.0, 10.0]),
            *grid(dataset=["cifar10"], samples=[5000], task=["two"], c=[0.001, 0.01, 0.1]),
            *grid(dataset=["cifar10"], samples=[5000], task=["ten"], c=[0.001, 0.01]),
        ],
        chapter="token_sparsity",
        repeats=Rounding(1e-7),
        data="dataset",
    ),
}  # fmt: skip
