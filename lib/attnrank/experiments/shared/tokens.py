"""Texts as token numbers: word-level and subword tokenizers, trained on the training texts of a set."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Int32, Int64
from torch import Tensor

from attnrank import _check, data
from attnrank._optional import optional
from attnrank.models import PADDING

if TYPE_CHECKING:
    import tokenizers
else:
    tokenizers = optional("tokenizers", "models")

KINDS = ("words", "subwords")
UNKNOWN = 1
#: Texts beyond this many tokens are cut.
LONGEST = 1024


@lru_cache(maxsize=4)
def tokenizer(dataset: str, kind: str, vocabulary: int) -> tokenizers.Tokenizer:
    """A tokenizer with at most so many tokens, of which 0 is padding and 1 stands for what is unknown.

    Texts are in lower case without HTML line breaks, cut at spaces and around punctuation. ``words`` keeps the most
    frequent of these pieces; ``subwords`` builds them from characters by merging pairs that are frequent (byte-pair
    encoding, Sennrich et al. 2016). Raises ValueError for an unknown kind and what `attnrank.data.texts` raises.
    """
    special: dict[str, Any] = {
        "vocab_size": _check.integer("vocabulary", vocabulary, minimum=3), "show_progress": False,
        "special_tokens": ["[padding]", "[unknown]"],
    }  # fmt: skip
    words = _check.choice("kind", kind, KINDS) == "words"
    models, normalizers, trainers = tokenizers.models, tokenizers.normalizers, tokenizers.trainers
    made = tokenizers.Tokenizer((models.WordLevel if words else models.BPE)(unk_token="[unknown]"))
    made.normalizer = normalizers.Sequence([normalizers.Replace("<br />", " "), normalizers.Lowercase()])
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(**special) if words else trainers.BpeTrainer(**special)
    made.train_from_iterator(data.texts(dataset)[0], trainer)
    return made


@lru_cache(maxsize=4)
def token_numbers(
    dataset: str, split: str, kind: str, vocabulary: int
) -> tuple[Int32[Tensor, "rows longest"], Int64[Tensor, " rows"]]:
    """The first `LONGEST` tokens of every text of a split, padded with 0, and the labels."""
    made = tokenizer(dataset, kind, vocabulary)
    texts, labels = data.texts(dataset, split)
    rows = [encoding.ids[:LONGEST] for encoding in made.encode_batch_fast(texts, add_special_tokens=False)]
    tokens = torch.full((len(rows), LONGEST), PADDING, dtype=torch.int32)
    for row, ids in zip(tokens, rows, strict=True):
        row[: len(ids)] = torch.tensor(ids, dtype=torch.int32)
    return tokens, labels
