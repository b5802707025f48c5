"""The Vision Transformers of the chapter accuracy, cut down to a smaller query-key dimension after training."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch.nn import functional as F

from attnrank.experiments.accuracy.arms import BASES, runs
from attnrank.experiments.accuracy.runs import probe_images, seconds_to_train, source, trained
from attnrank.experiments.experiment import Experiment, Statistical
from attnrank.experiments.shared.runs import setting_of
from attnrank.models import VisionTransformer
from attnrank.models.encoder import Attention
from attnrank.models.truncation import truncate_query_key
from attnrank.probe import probe
from attnrank.sweep import Setting


def truncated_vits(
    dataset: str, patch: int, width: int, depth: int, heads: int, qk_dim: int, value_dim: int, mlp_width: int,
    intervention: str, epochs: int, seed: int, rank: int,
) -> Setting:
    """Test loss and accuracy of a run of `accuracy` whose heads are cut down to dimension ``rank``, without training.

    The temperature stays. ``kept`` is the share of the squared singular values of W_q W_k^T, biases included, mean over
    heads; ``hardmax`` the hardmax rank / n, mean over layers and heads of 32 test images.
    """
    setting = setting_of(locals(), "rank")
    model, images = _whole(tuple(setting.items())), source(dataset)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    try:
        kept = [_cut(block.attention, rank) for block in model.encoder.blocks]
        frame = probe(model, probe_images(dataset), ranks="hardmax")
        measured = images.test(model)
    finally:
        model.load_state_dict(state)
    hardmax = float((frame["hardmax_rank"] / frame["n"]).mean())
    return measured | {"kept": torch.cat(kept).mean().item(), "hardmax": hardmax}


@lru_cache(maxsize=1)
def _whole(key: tuple) -> VisionTransformer:
    return trained(dict(key), None)[0].eval()


@torch.no_grad()
def _cut(attention: Attention, rank: int) -> torch.Tensor:
    """Cut the heads down: the rest of their dimensions is 0, and so is their bias; returns the share that is kept.

    The scores are those of the tokens (x, 1) and the weights with the bias as a last row.
    """
    assert attention.key is not None, "queries and keys have weights of their own"
    layers = (attention.query, attention.key)
    joined = (torch.cat([layer.weight.T, layer.bias[None]]).double() for layer in layers)
    w_q, w_k = (w.unflatten(1, (attention.heads, -1)).transpose(0, 1) for w in joined)
    *small, sigma = truncate_query_key(w_q, w_k, rank)
    for layer, w in zip(layers, small, strict=True):
        padded = F.pad(w, (0, w_q.shape[-1] - rank)).transpose(0, 1).flatten(1)
        layer.weight.copy_(padded[:-1].T)
        layer.bias.copy_(padded[-1])
    return sigma[:, :rank].square().sum(-1) / sigma.square().sum(-1)


def _grid(dataset: str, patch: int, epochs: int, seeds: int) -> list[Setting]:
    base = BASES["digits" if dataset == "digits" else "photographs"]
    ranks = [2**power for power in range(base["qk_dim"].bit_length())]
    settings = runs([base], dataset=dataset, patch=patch, epochs=epochs, seeds=range(seeds))
    return [setting | {"rank": rank} for setting in settings for rank in ranks]


#: Digits: what MKL_CBWR=COMPATIBLE changed of seeds 0 and 1, at most, rounded up; a wrong seed shows. CIFAR-10 was not
#: measured.
_ERRORS = {
    "test_loss": {"digits": 5e-4, "cifar10": 0.1}, "test_accuracy": {"digits": 0.003, "cifar10": 0.03},
    "kept": {"digits": 1e-4, "cifar10": 0.05}, "hardmax": {"digits": 0.001, "cifar10": 0.05},
}  # fmt: skip

EXPERIMENTS = {
    "truncated_vits": Experiment(
        "What do Vision Transformers of the chapter accuracy lose when their heads are cut down after training?",
        truncated_vits,
        quick=_grid("digits", 2, 2, 1)[:2],
        paper=[*_grid("digits", 2, 12, 5), *_grid("cifar10", 8, 5, 3)],
        chapter="choosing_head_dimension",
        repeats=Statistical(_ERRORS, by="dataset"),
        data="dataset",
        seconds_again=seconds_to_train,
    ),
}
