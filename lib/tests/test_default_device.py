"""A default device (torch.set_default_device) that is not that of the data changes no answer.

The default device of these tests is "meta", which holds no numbers: a tensor that is made without naming its device
fails, or spoils the answer.
"""

import pandas as pd
import pytest
import torch
from torch import nn
from torch.testing import assert_close

import attnrank
from attnrank import convex, data, training
from attnrank.models import TransformerConfig, VisionTransformer

GENERATOR = torch.Generator().manual_seed(0)
F64 = {"generator": GENERATOR, "dtype": torch.float64}
Q, K = torch.randn(2, 2, 20, 4, **F64)
TIED = torch.randint(0, 2, (2, 20, 4), generator=GENERATOR).double()
SCORES = Q @ K.mT
X = torch.randn(20, 6, 4, **F64)
Y = X[:, 2].sum(-1)
TWO = torch.stack([Y, -Y], 1)
CLASSES = nn.functional.one_hot((Y > 0).long(), 2).double()
GATES = (torch.randn(20, 3, **F64) > 0).double()
SEQUENCES = torch.randn(3, 4, 2, **F64)
TOKENS = torch.randn(3, 10, 8, **F64)
LONG = torch.randn(1, 100, 8, **F64)  # of so many tokens the softmax is checked on some only
PADDED = torch.arange(10).expand(3, 10) >= 8
PROBED = torch.zeros(2, 3, 8, 8)
LEARNED = torch.randint(0, 256, (40, 3, 8, 8), generator=GENERATOR, dtype=torch.uint8), torch.arange(40) % 3
TEXTS = (torch.arange(240, dtype=torch.int32) % 9 + 2).view(40, 6), torch.arange(40) % 3


def encoder():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dtype=torch.float64, device="cpu")
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    for value in model.parameters():
        nn.init.normal_(value, generator=torch.Generator().manual_seed(0))
    return model


ENCODER = encoder()
NOTHING = torch.zeros(6, 4, 2, dtype=torch.float64)
SOLVED = convex.solve(X, Y, beta=0.5)


def trained():
    model = VisionTransformer(
        TransformerConfig(8, 2, 4, 1), image_size=8, patch_size=4, channels=3, classes=3, pool="sequence",
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    grey = {"mean": (128.0, 128.0, 128.0), "std": (64.0, 64.0, 64.0)}
    images = training.Images(LEARNED, LEARNED, **grey, pad=1, flip=True, name="noise")
    run = training.train(model, images, training.Recipe(1, batch=20, rate=1e-3), seed=0, probe=PROBED)
    return run.epochs


def batches_of_texts():
    texts = training.Sequences(TEXTS, TEXTS, hide=0.5)
    return [values.tolist() for step in range(4) for values in texts.batch(0, 0, step, 10)]


CALLS = {
    "attention": lambda: attnrank.attention(Q, K, causal=True),
    "effective_rank": lambda: attnrank.effective_rank(SCORES),
    "hardmax_rank": lambda: attnrank.hardmax_rank(Q, K),
    "hardmax_rank of ties": lambda: attnrank.hardmax_rank(TIED, TIED, causal=True),
    "hardmax_rank_of": lambda: attnrank.hardmax_rank_of(SCORES.softmax(-1)),
    "head_ranks": lambda: attnrank.head_ranks(Q, K, causal=True),
    "numerical_rank": lambda: attnrank.numerical_rank(SCORES, 0.1),
    "singular_values": lambda: attnrank.singular_values(SCORES),
    "stable_rank": lambda: attnrank.stable_rank(SCORES),
    "probe": lambda: attnrank.probe(ENCODER, TOKENS),
    "probe, padding": lambda: attnrank.probe(ENCODER, {"src": TOKENS, "src_key_padding_mask": PADDED}),
    "probe, hardmax": lambda: attnrank.probe(ENCODER, LONG, ranks="hardmax"),
    "beta_max": lambda: convex.beta_max(X, Y),
    "certify_heads": lambda: convex.certify_heads(X, Y, 0.5, convex.to_heads(SOLVED.z)).gap,
    "check": lambda: convex.check(X, CLASSES, 0.5, NOTHING, CLASSES - 0.5, loss="cross_entropy"),
    "check, outside the dual": lambda: convex.check(X, CLASSES, 0.5, NOTHING, CLASSES + 1, loss="cross_entropy"),
    "heads and back": lambda: convex.from_heads(convex.to_heads(SOLVED.z)),
    "gated": lambda: convex.gated(X, GATES),
    "predict": lambda: convex.predict(X, SOLVED.z),
    "path": lambda: [solution.z for solution in convex.path(X, Y, betas=[0.9, 0.5])][-1],
    "solve": lambda: convex.solve(X, Y, beta=0.5).z,
    "solve, cross-entropy": lambda: convex.solve(X, CLASSES, beta=0.5, loss="cross_entropy").z,
    "solve, cross-entropy, nuclear": lambda: convex.solve(X, CLASSES, 0.5, loss="cross_entropy", penalty="nuclear").z,
    "solve, gates": lambda: convex.solve(X, Y, beta=0.5, gates=GATES).z,
    "solve, gates, nuclear": lambda: convex.solve(X, TWO, beta=0.5, gates=GATES, penalty="nuclear").z,
    "solve, nuclear": lambda: convex.solve(X, TWO, beta=0.5, penalty="nuclear").z,
    "solve_sequence": lambda: convex.solve_sequence(SEQUENCES, SEQUENCES.sum(-1), beta=0.1).predict(SEQUENCES),
    "solve_sequence, max_row_sum": lambda: convex.solve_sequence(
        SEQUENCES, SEQUENCES.sum(-1), beta=0.1, reading="max_row_sum"
    ).predict(SEQUENCES),
    "images": lambda: data.images("digits", "test", count=3, generator=torch.Generator().manual_seed(0))[0],
    "train": trained,
    "batches of texts": batches_of_texts,
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_answers_do_not_depend_on_the_default_device(call):
    expected = call()
    with torch.device("meta"):
        found = call()
    if isinstance(expected, pd.DataFrame):
        pd.testing.assert_frame_equal(found, expected)
    elif isinstance(expected, torch.Tensor):
        assert_close(found, expected, rtol=0, atol=0)
    else:
        assert found == expected
