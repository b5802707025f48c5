"""Tables from trained text Transformers: accuracy, and the attention ranks of every epoch."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from attnrank import _check
from attnrank.data import SOURCES
from attnrank.experiments.shared.runs import epoch_of, mean_rank, path_of, ranks_of_layer, setting_of, train_or_stop
from attnrank.experiments.shared.tokens import token_numbers
from attnrank.models import PADDING, TextTransformer, TransformerConfig
from attnrank.sweep import Setting, device
from attnrank.training import Recipe, Run, Sequences, text_flops

#: What is done to the scores, beside their dimension: the fields of `TransformerConfig` that differ.
INTERVENTIONS: dict[str, dict] = {
    "none": {},
    "qk_norm": {"qk_norm": True},
    "frozen": {"frozen": True},
    "uniform": {"frozen": True, "temperature": 1e6},  # each token takes the mean of all: what is left without attention
}
PROBE_TEXTS = 32
#: Share of the training tokens that are hidden.
HIDDEN = 0.3


def text_accuracy(
    dataset: str, tokens: str, vocabulary: int, length: int, width: int, depth: int, heads: int, qk_dim: int,
    value_dim: int, mlp_width: int, intervention: str, epochs: int, seed: int, *, folder: str | Path | None = None,
) -> Setting:
    """Train one text Transformer, or go on with it, and return its accuracies, ranks and cost.

    Reviews are cut to ``length`` tokens. Ranks are hardmax ranks / n averaged over heads and a probe of 32 test texts
    that fill the length, before and after training, of the first block and averaged over blocks. ``best_accuracy`` is
    the best of the epochs, chosen on the test texts. A run whose loss was not finite has ``stopped`` set to the reason,
    and no accuracies. ``folder`` keeps the run's checkpoint while it trains.
    """
    setting = setting_of(locals(), "folder")
    model, run, stopped = trained(setting, folder)
    before, after = run.epochs[0], run.final
    if stopped:
        after = dict.fromkeys(after) | {"ranks": None}
    return {
        "parameters": sum(value.numel() for value in model.parameters()),
        "parameters_without_embedding": sum(v.numel() for v in (*model.encoder.parameters(),
                                                                *model.classifier.parameters())),
        "flops_per_text": text_flops(model, length),
        "accuracy": after["test_accuracy"],
        "best_accuracy": None if stopped else run.best["test_accuracy"],
        "test_loss": after["test_loss"],
        "train_accuracy": after["train_accuracy"],
        "rank_before": mean_rank(before["ranks"], layer=1),
        "rank_before_all": mean_rank(before["ranks"]),
        "rank_after": mean_rank(after["ranks"], layer=1),
        "rank_after_all": mean_rank(after["ranks"]),
        "seconds": round(run.seconds, 1),
        "threads": run.threads or torch.get_num_threads(),
        "device": run.device,
        "stopped": stopped,
    }  # fmt: skip


def text_epochs(
    dataset: str, tokens: str, vocabulary: int, length: int, width: int, depth: int, heads: int, qk_dim: int,
    value_dim: int, mlp_width: int, intervention: str, epochs: int, seed: int, epoch: int, layer: int,
) -> Setting:
    """One epoch of a run of `text_accuracy`, 0 being the untrained model: its accuracies and the ranks / n of a layer.

    Layers count from 1; ranks are means over the heads, of the hardmax also the least and the largest. ``hardmax`` on
    32 test texts; of the softmax the numerical rank at 0.1 and 0.01, and the stable rank, on 8 of them.
    """
    setting = setting_of(locals(), "epoch", "layer")
    entry = epoch_of(_trained_run(tuple(setting.items())), epoch, epochs)
    result: Setting = {name: entry.get(name) for name in ("train_accuracy", "test_accuracy")}
    return result | ranks_of_layer(entry.get("ranks"), layer)


def untrained(setting: Setting) -> TextTransformer:
    """The model of a setting as it is drawn from its seed: embeddings and learned positions as BERT's."""
    changes = INTERVENTIONS[_check.choice("intervention", setting["intervention"], INTERVENTIONS)]
    config = TransformerConfig(
        setting["width"], setting["heads"], setting["qk_dim"], setting["depth"], mlp_width=setting["mlp_width"],
        value_dim=setting["value_dim"], init="lecun", **changes,
    )  # fmt: skip
    return TextTransformer(
        config, vocabulary=setting["vocabulary"], length=setting["length"],
        classes=SOURCES[setting["dataset"]].classes,
        generator=torch.Generator().manual_seed(_check.integer("seed", setting["seed"], minimum=0)),
    )  # fmt: skip


def recipe(setting: Setting) -> Recipe:
    """How every model of the tables is trained; the same for all that are compared."""
    batch = 32 if setting["dataset"] == "docstrings" else 128
    return Recipe(setting["epochs"], batch=batch, rate=4e-3, warmup=0.1, decay=0.05, smoothing=0.0, clip=1.0)


def trained(setting: Setting, folder: str | Path | None) -> tuple[TextTransformer, Run, str]:
    """The model of a setting after training, its run, and why it was stopped ("" if it was not).

    Its checkpoint is kept in the folder of runs if there is one, else in ``folder``; None: nothing is kept.
    """
    model = untrained(setting)
    texts = source(*(setting[name] for name in ("dataset", "tokens", "vocabulary", "length")))
    return model, *train_or_stop(
        model, texts, recipe(setting), seed=setting["seed"], device=device(), probe=probe_texts(texts),
        checkpoint=path_of(setting, folder), label=setting["intervention"],
    )  # fmt: skip


@lru_cache(maxsize=2)
def source(dataset: str, tokens: str, vocabulary: int, length: int) -> Sequences:
    """The texts of a set, cut to a length."""
    splits = [token_numbers(dataset, split, tokens, vocabulary) for split in ("train", "test")]
    cut = [(numbers[:, :length].contiguous(), labels) for numbers, labels in splits]
    return Sequences(*cut, hide=HIDDEN, name=f"{dataset}, {tokens}")


def probe_texts(texts: Sequences) -> Tensor:
    """Test texts that fill the length, as many as `PROBE_TEXTS` where there are, drawn once with seed 0."""
    full = texts.test_inputs[texts.test_inputs[:, -1] != PADDING]
    if not len(full):
        raise ValueError(f"length must be that of some test text, got {texts.test_inputs.shape[1]}")
    return full[torch.randperm(len(full), generator=torch.Generator().manual_seed(0))[:PROBE_TEXTS].to(full.device)]


def seconds_to_train(setting: Setting) -> float:
    """About what it takes to train a run, on one core that is shared with others: 5e9 operations a second."""
    texts = SOURCES[setting["dataset"]].rows("train") * setting["epochs"]
    return 3 * texts * text_flops(untrained(setting), setting["length"]) / 5e9


@lru_cache(maxsize=2)
def _trained_run(key: tuple) -> Run:
    return trained(dict(key), None)[1]
