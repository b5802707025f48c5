"""A pretrained encoder as the teacher: of the Hugging Face hub, or of a folder, with a linear read-out of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnrank import data
from attnrank.probe import hub
from attnrank.sweep import Setting
from attnrank.training.source import generator_of

#: Texts at a time.
BATCH = 50

Texts = tuple[Tensor, Tensor]
See = Callable[[Tensor], tuple[Tensor, Tensor]]


class NotAtHandError(ValueError):
    """The model is not in the folder or in the cache, and there is no network to get it from."""


def pretrained_encoder(setting: Setting) -> tuple[See, Texts, Texts]:
    """What a teacher is made of: what it sees and says of texts, and its texts of both splits with their labels.

    ``setting``: ``model``, a name on the hub or a folder; ``dataset``; ``length``, in the model's own tokens; ``texts``
    of each split at most, drawn once, of which those are used that fill the length. The model has blocks that add and
    then normalise, as BERT, so that its last attention layer reads the hidden states before the last block as they are.
    It tells class 1 from all others by logistic regression on the mean of its last hidden states, fitted to its train
    texts, whose labels are 1 and 0 accordingly. Raises NotAtHandError.
    """
    from sklearn.linear_model import LogisticRegression

    try:
        local = not hub.reachable()
        model: Any = hub.load(setting["model"], local=local).eval().requires_grad_(False)
    except ValueError as error:
        if "cannot be loaded" not in str(error) and "transformers" not in str(error):
            raise
        raise NotAtHandError(str(error)) from error
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    train, test = (_tokens(setting, split, local) for split in ("train", "test"))
    features = torch.cat([_hidden(model, part)[1] for part in train[0].split(BATCH)])
    fitted = LogisticRegression(max_iter=1000).fit(features.numpy(), train[1].numpy())
    weights, shift = torch.from_numpy(fitted.coef_[0]), float(fitted.intercept_[0])

    def see(tokens: Tensor) -> tuple[Tensor, Tensor]:
        parts = [_hidden(model, part) for part in tokens.split(BATCH)]
        return torch.cat([x for x, _ in parts]), torch.cat([mean for _, mean in parts]) @ weights + shift

    return see, train, test


def _tokens(setting: Setting, split: str, local: bool) -> Texts:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(setting["model"], trust_remote_code=False, local_files_only=local)
    texts, labels = data.texts(setting["dataset"], split)
    drawn = torch.randperm(len(texts), generator=generator_of(0, setting["length"]))[: setting["texts"]]
    cut = tokenizer([texts[i] for i in drawn.tolist()], truncation=True, max_length=setting["length"])["input_ids"]
    full = [i for i, ids in enumerate(cut) if len(ids) == setting["length"]]
    return torch.tensor([cut[i] for i in full]), (labels[drawn[full]] == 1).long()


@torch.no_grad()
def _hidden(model: Any, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Hidden states before the last block, and the mean over tokens of those after it, in float64."""
    out = model(
        input_ids=tokens.to(model.device), attention_mask=torch.ones_like(tokens).to(model.device),
        output_hidden_states=True,
    )  # fmt: skip
    return out.hidden_states[-2].float().cpu(), out.last_hidden_state.double().mean(1).cpu()
