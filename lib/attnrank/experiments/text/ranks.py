"""Tables from text Transformers before training: their ranks on real texts, and how many tokens of a text differ."""

from __future__ import annotations

import torch
from torch import Tensor

from attnrank import _check
from attnrank.experiments.layer_tables.encoders import advance
from attnrank.experiments.shared.heads import hardmax_rank_on_device
from attnrank.experiments.shared.tokens import UNKNOWN, token_numbers
from attnrank.models import PADDING, TextTransformer, TransformerConfig
from attnrank.sweep import Setting
from attnrank.theory import token_geometry_rank

PADDINGS = ("attended", "dropped")
POSITIONS = ("none", "learned")


@torch.no_grad()
def text_ranks(
    dataset: str, tokens: str, vocabulary: int, length: int, padding: str, positions: str, token_std: float, width: int,
    heads: int, head_dim: int, layer: int, texts: int, seed: int,
) -> Setting:
    """Hardmax rank in one layer (from 1) of a random text Transformer, averaged over heads and texts.

    Texts: ``texts`` of the training texts, drawn with the seed, cut to ``length`` tokens. ``padding``: "dropped", a
    shorter text has fewer tokens; "attended", it is filled up to the length with a token like any other. ``positions``:
    "none", or "learned". Entries of embeddings and positions are drawn with one standard deviation, ``token_std``
    (BERT: .02), which matters from the second layer on. With n the number of tokens of a text,
    ``n`` is its mean; ``rank_fraction`` the mean of rank / n, ``texts_std`` its standard deviation over texts;
    ``distinct`` the mean share of distinct tokens; ``rank_per_distinct`` the mean of rank / distinct tokens, ``excess``
    the largest rank less that number, over texts and heads; ``law`` the mean of rank / n that
    `theory.token_geometry_rank` gives for the distinct tokens, as random vectors of the model's width.
    """
    _check.choice("padding", padding, PADDINGS)
    layer = _check.integer("layer", layer, minimum=1)
    generator = torch.Generator().manual_seed(_check.integer("seed", seed, minimum=0))
    rows, _ = token_numbers(dataset, "train", tokens, vocabulary)
    chosen = rows[torch.randperm(len(rows), generator=generator)[: _check.integer("texts", texts, minimum=2)], :length]
    model = TextTransformer(
        TransformerConfig(width, heads, head_dim, depth=layer, init="lecun"), vocabulary=vocabulary, length=length,
        classes=2, positions=_check.choice("positions", positions, POSITIONS), token_std=token_std,
        position_std=token_std, generator=generator, dtype=torch.float64,
    )  # fmt: skip
    measured = [_ranks_of_text(model, text, layer, padding == "attended") for text in chosen]
    n, distinct = (torch.tensor([found[i] for found in measured], dtype=torch.float64) for i in (0, 1))
    rank = torch.stack([found[2] for found in measured]).double()  # texts, heads
    law = [token_geometry_rank(int(m), head_dim, width, 0.0) / float(all_) for m, all_ in zip(distinct, n, strict=True)]
    fraction = (rank / n[:, None]).mean(1)
    return {
        "n": n.mean().item(),
        "rank_fraction": fraction.mean().item(),
        "texts_std": fraction.std().item(),
        "distinct": (distinct / n).mean().item(),
        "rank_per_distinct": (rank / distinct[:, None]).mean().item(),
        "excess": (rank - distinct[:, None]).max().item(),
        "law": sum(law) / len(law),
    }


def _ranks_of_text(model: TextTransformer, text: Tensor, layer: int, attended: bool) -> tuple[int, int, Tensor]:
    """Number of tokens of a text, of distinct ones, and the hardmax rank of every head of a layer.

    Without positions equal tokens stay equal in every layer, and one stands for all.
    """
    text = text if attended else text[text != PADDING]
    kinds, counts = text.unique(return_counts=True)
    if model.position.shape[-1] == 1:  # no positions
        x, weights = model.embedding[kinds.long()], counts.double()
    else:
        x, weights = model.embed(text[None])[0], torch.ones(len(text), dtype=torch.float64)
    blocks = model.encoder.blocks
    for block in blocks[: layer - 1]:
        x = advance(block, x, weights)
    q, k = blocks[layer - 1].attention.queries_keys(blocks[layer - 1].norm1(x))
    return len(text), len(kinds), hardmax_rank_on_device(q, k)


def text_shares(dataset: str, tokens: str, vocabulary: int, length: int) -> Setting:
    """What the first ``length`` tokens of the training texts are: means over all texts.

    ``filled`` is the share of texts that are that long; ``n`` the number of tokens; ``distinct`` the share of distinct
    tokens among them, ``distinct_padded`` the same with shorter texts filled up by padding; ``unknown`` the share of
    tokens outside the vocabulary.
    """
    rows = token_numbers(dataset, "train", tokens, vocabulary)[0][:, :length]
    n = (rows != PADDING).sum(1).double()
    ordered = rows.sort(1).values
    kinds = 1 + (ordered[:, 1:] != ordered[:, :-1]).sum(1).double()  # padding is one more where there is any
    words = kinds - (n < length).double()
    return {
        "texts": len(rows),
        "filled": (n == length).double().mean().item(),
        "n": n.mean().item(),
        "distinct": (words / n).mean().item(),
        "distinct_padded": (kinds / length).mean().item(),
        "unknown": ((rows == UNKNOWN).sum(1) / n).mean().item(),
    }
