"""experiments.layer_tables: the paper's numbers, distances, matrices of repeated tokens, heads and encoders."""

import csv
import math
from importlib import resources

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnrank import sweep, theory
from attnrank.experiments.layer_tables import causes as module
from attnrank.experiments.layer_tables import encoders, search
from attnrank.models import Encoder, TransformerConfig, sinusoids


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


# The paper's numbers

def test_layer_tables_are_the_file_of_the_package_number_by_number():
    table = module.layer_tables()
    path = resources.files("attnrank.experiments.layer_tables").joinpath("layer_tables.csv")
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(table) == 2 * len(module.WIDTHS) * len(module.HEAD_DIMS)
    for row in rows:
        stored = module.layer_table_row(int(row["layer"]), int(row["embed_dim"]), int(row["head_dim"]))
        assert stored == {"rank_mean": float(row["rank_mean"]), "rank_std": float(row["rank_std"])}


def test_some_cells_of_the_layer_tables():
    assert module.layer_table_row(2, 32, 2) == {"rank_mean": 0.0609, "rank_std": 0.0026}
    assert module.layer_table_row(4, 512, 16) == {"rank_mean": 0.2598, "rank_std": 0.0139}
    sums = module.layer_tables()[["rank_mean", "rank_std"]].sum()
    assert sums.tolist() == pytest.approx([7.2208, 0.3111], abs=1e-9)


def test_distance_is_in_standard_deviations():
    rows = module.layer_tables().query("layer == 2 and embed_dim == 32")
    curve, spread = rows.rank_mean.to_numpy(), rows.rank_std.to_numpy()
    assert module.distance(curve, rows) == 0
    assert module.distance(curve + spread, rows) == pytest.approx(1)
    assert module.scores_apart(curve - 2 * spread, rows) == pytest.approx(np.full(5, -2))
    shuffled = rows.sample(frac=1, random_state=0)
    assert module.distance(curve + 3 * spread, shuffled) == pytest.approx(3)
    curves = curve + spread * np.array([[0.0], [1.0], [-2.0]])
    assert module.distance(curves, rows) == pytest.approx([0, 1, 2])
    with pytest.raises(ValueError):
        module.distance(curve[:4], rows)


# Matrices of repeated tokens

@given(counts=st.lists(st.integers(1, 6), min_size=1, max_size=7), d_h=st.integers(1, 4), seed=st.integers(0, 99))
@settings(deadline=None)
def test_compressed_softmax_has_the_singular_values_of_the_whole(counts, d_h, seed):
    q, k = normal(2, len(counts), d_h, seed=seed)
    order = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    order = order[torch.randperm(len(order), generator=seeded(seed))]
    whole = torch.linalg.svdvals((q[order] @ k[order].T / 1.7).softmax(-1))
    small = torch.linalg.svdvals(module.compressed_softmax(q, k, torch.tensor(counts, dtype=torch.float64), 1.7))
    torch.testing.assert_close(small, whole[: len(counts)], rtol=0, atol=1e-12)
    assert (whole[len(counts) :] < 1e-12).all()


def test_compressed_softmax_with_fewer_keys_and_with_masked_keys():
    q, k = normal(2, 9, 3)
    short = module.compressed_softmax(q, k[:4], torch.ones(4, dtype=torch.float64), 1.0)
    torch.testing.assert_close(short, (q @ k[:4].T).softmax(-1))
    counts = torch.tensor([1.0, 1, 1, 1, 0, 0, 0, 0, 0], dtype=torch.float64)
    masked = module.compressed_softmax(q, k, counts, 1.0)
    torch.testing.assert_close(masked, torch.cat([short, torch.zeros(9, 5, dtype=torch.float64)], -1))


def test_compressed_softmax_causal():
    q, k = normal(2, 6, 3)
    a = module.compressed_softmax(q, k, torch.ones(6, dtype=torch.float64), 1.0, causal=True)
    for i in range(6):
        torch.testing.assert_close(a[i, : i + 1], (q[i] @ k[: i + 1].T).softmax(-1))
        assert (a[i, i + 1 :] == 0).all()


@pytest.mark.parametrize("init", ["lecun", "truncated_normal"])
def test_advance_is_the_block_on_the_whole_sequence(init):
    encoder = Encoder(TransformerConfig(12, 3, 5, depth=2, init=init, temperature=0.7), seeded(1))
    tokens, counts = normal(4, 12, seed=2), torch.tensor([3, 1, 2, 5])
    order = torch.repeat_interleave(torch.arange(4), counts)
    with torch.no_grad():
        x, whole = tokens, tokens[order]
        for block in encoder.blocks:
            x, whole = encoders.advance(block, x, counts.double()), block(whole)
    torch.testing.assert_close(x[order], whole, rtol=1e-10, atol=1e-12)


def test_advance_gives_masked_keys_no_weight():
    block = Encoder(TransformerConfig(8, 2, 3, depth=1, init="lecun"), seeded()).blocks[0]
    x, counts = normal(5, 8), torch.tensor([1.0, 1, 1, 0, 0], dtype=torch.float64)
    changed = x.clone()
    changed[3:] += 1
    with torch.no_grad():
        before, after = encoders.advance(block, x, counts), encoders.advance(block, changed, counts)
    torch.testing.assert_close(before[:3], after[:3])
    assert not torch.allclose(before[3:], after[3:])


# Random heads

AMOUNTS = {"repeated": 0.3, "zipf": 1.2, "padding": 0.7, "masked": 0.7, "directions": 4.0, "cosine": 0.5}


@pytest.mark.parametrize("cause", module.CAUSES)
def test_heads_have_as_many_tokens_as_asked(cause):
    amount = AMOUNTS.get(cause, 0.0)
    q, k, counts = module._drawn(cause, amount, 60, 3, seeded())
    assert q.shape[-1] == k.shape[-1] == 3 and len(k) == len(counts)
    assert counts.sum() == (18 if cause == "masked" else 60)
    assert len(q) == {"padding": 19, "repeated": len(counts), "zipf": len(counts)}.get(cause, 60)
    assert torch.equal(q, k) == (cause == "tied")


def test_heads_do_what_their_causes_say():
    q, k, _ = module._drawn("directions", 2.0, 60, 5, seeded())
    assert torch.linalg.matrix_rank(q) == torch.linalg.matrix_rank(k) == 2
    _, k, _ = module._drawn("unit_keys", 0.0, 60, 5, seeded())
    torch.testing.assert_close(k.norm(dim=-1), torch.full((60,), math.sqrt(5), dtype=torch.float64))
    _, _, counts = module._drawn("padding", 0.75, 60, 5, seeded())
    assert counts.tolist() == [1.0] * 15 + [45.0]
    q, _, _ = module._drawn("cosine", 0.5, 2000, 4000, seeded())  # inner products concentrate: sd 0.02
    assert torch.nn.functional.cosine_similarity(q[0], q[1], dim=0) == pytest.approx(0.5, abs=0.1)
    words = [len(module._drawn("zipf", s, 512, 2, seeded())[0]) for s in (1.0, 1.25, 1.5)]
    assert words == sorted(words, reverse=True) and words[0] > 2 * words[-1]


@pytest.mark.parametrize("cause", module.CAUSES)
def test_layer_causes_keeps_below_the_cap_of_distinct_tokens(cause):
    amount = AMOUNTS.get(cause, 0.0)
    row = module.layer_causes(cause, amount, 32, 0.5, 1.0, 2, 0)
    values = [row[f"{kind}_{d}"] for kind in ("soft", "hard") for d in module.HEAD_DIMS]
    assert all(1 / 32 <= value <= row["distinct"] + 1e-12 for value in values)
    assert row["exponent"] in module.FINE_EXPONENTS
    assert row == module.layer_causes(cause, amount, 32, 0.5, 1.0, 2, 0)


def test_layer_causes_without_a_cause_obeys_the_barrier_of_the_head_dimension():
    samples = 200
    row = module.layer_causes("none", 0.0, 64, 0.5, 1.0, samples, 0)
    margin = theory.occupancy_margin(64, 1e-6 / len(module.HEAD_DIMS), samples)
    for d in module.HEAD_DIMS:
        assert 64 * row[f"hard_{d}"] <= theory.head_dim_bound(64, d) + margin


def test_layer_causes_fits_the_tolerance():
    row = module.layer_causes("padding", 0.74, 128, 0.5, 2.0, 2, 0)
    tables = module.layer_tables().query("layer == 2")
    fitted = module.distance([row[f"soft_{d}"] for d in module.HEAD_DIMS], tables)
    hard = module.distance([row[f"hard_{d}"] for d in module.HEAD_DIMS], tables)
    assert fitted < hard


@pytest.mark.parametrize(
    "change", [{"cause": "no cause"}, {"temperature": 0.0}, {"power": math.nan}, {"samples": 0}, {"seed": -1}]
)
def test_layer_causes_refuses_bad_input(change):
    arguments = {"cause": "none", "amount": 0.0, "n": 8, "power": 0.5, "temperature": 1.0, "samples": 1, "seed": 0}
    with pytest.raises(ValueError):
        module.layer_causes(**(arguments | change))


def test_the_finals_are_the_settings_that_the_tables_chose():
    second, soft = module.layer_tables().query("layer == 2"), [f"soft_{d}" for d in module.HEAD_DIMS]
    setting = ["cause", "amount", "n", "power", "temperature"]
    for table, chosen in search.CHOSEN.items():
        rows = sweep.read(table).query("seed == 0").reset_index(drop=True)
        rows["distance"] = [module.distance(curve, second) for curve in rows[soft].to_numpy()]
        best = rows.loc[rows.groupby("cause").distance.idxmin(), setting]
        assert {row[:-1] for row in chosen} == set(best.itertuples(index=False, name=None))
    assert {row["seed"] for row in search.finals()} == {2, 3}


def test_finals_are_heads_that_had_no_part_in_the_choice():
    row = search.finals(1)[-1]
    assert row["samples"] == 1 and len(search.finals(1)) == len(search.finals())
    expected = module.layer_causes(**{name: value for name, value in row.items() if name != "chosen_by"})
    assert search.layer_finals(**row) == expected
    with pytest.raises(ValueError, match="chosen_by"):
        search.layer_finals(**(row | {"chosen_by": "layer_tables"}))


# Texts and encoders

def test_text_tokens_are_padded_cut_and_have_rare_words_replaced():
    texts, words = encoders.text_tokens("docstrings", 40, 100), encoders._words("docstrings")
    assert {len(text) for text in texts} == {40} and len(texts) == len(words)
    short = next(i for i, text in enumerate(words) if len(text) < 40)
    assert texts[short].count(encoders.PADDING) == 40 - len(words[short])
    vocabulary = {word for text in texts for word in text} - {encoders.PADDING, encoders.RARE}
    assert len(vocabulary) <= 100 and any(encoders.RARE in text for text in texts)
    assert not any(encoders.RARE in text for text in encoders.text_tokens("docstrings", 40, 0))


def test_distinct_share_counts_the_distinct_tokens():
    texts = encoders.text_tokens("docstrings", 40, 100)
    shares = [len(set(text)) / 40 for text in texts]
    row = encoders.distinct_share("docstrings", 40, 100)
    assert row["texts"] == len(texts)
    assert row["share_mean"] == pytest.approx(np.mean(shares))
    assert row["share_std"] == pytest.approx(np.std(shares, ddof=1))


def test_chosen_texts_have_the_share_of_all():
    chosen = encoders._chosen_texts("docstrings", 40, 100, 100)
    assert len({tuple(text) for text in chosen}) == 100
    share = np.mean([len(set(text)) / 40 for text in chosen])
    assert share == pytest.approx(encoders.distinct_share("docstrings", 40, 100)["share_mean"], abs=0.01)


ENCODER = {
    "dataset": "docstrings", "n": 40, "vocabulary": 100, "positions": "none", "init": "lecun", "temperature": 1.0,
    "width": 16, "heads": 2, "head_dim": 3, "layer": 2, "sequences": 3, "seed": 0,
}  # fmt: skip


def test_layer_encoders_measures_what_the_encoder_does_on_whole_texts():
    row = encoders.layer_encoders(**ENCODER)
    config = TransformerConfig(16, 2, 3, depth=2, init="lecun", temperature=math.sqrt(3))
    generator = seeded(0)
    encoder = Encoder(config, generator)
    texts = encoders._chosen_texts("docstrings", 40, 100, 3)
    index = {word: i for i, word in enumerate(sorted({word for text in texts for word in text}))}
    vectors = torch.randn(len(index), 16, generator=generator, dtype=torch.float64)
    ranks, hard = [], []
    with torch.no_grad():
        for text in texts:
            q, k = encoder.queries_keys(vectors[[index[word] for word in text]], layers=[1])[0]
            a = (q @ k.mT / math.sqrt(3)).softmax(-1).numpy()
            sigma = np.linalg.svd(a, compute_uv=False)
            ranks.append((sigma >= 1e-6 * sigma[..., :1]).sum(-1).mean() / 40)
            chosen = a.argmax(-1)
            hard.append(np.mean([len({text[j] for j in head}) for head in chosen]) / 40)  # equal words, one key
    assert row["soft_600"] == pytest.approx(np.mean(ranks), abs=1e-6)
    assert row["hardmax"] == pytest.approx(np.mean(hard), abs=1e-12)
    assert row["distinct"] == pytest.approx(np.mean([len(set(text)) / 40 for text in texts]))


@pytest.mark.parametrize("positions", encoders.POSITIONS)
def test_layer_encoders_ranks_grow_with_the_exponent_up_to_the_share_of_keys(positions):
    row = encoders.layer_encoders(**(ENCODER | {"positions": positions}))
    ranks = [row[f"soft_{round(100 * e)}"] for e in module.EXPONENTS]
    assert ranks == sorted(ranks) and ranks[-1] <= row["distinct"] + 1e-6
    assert row["hardmax"] <= row["distinct"]
    texts = encoders._chosen_texts("docstrings", 40, 100, 3)
    share = {
        "none": np.mean([len(set(text)) / 40 for text in texts]),
        "sinusoidal": 1.0,
        "masked padding": np.mean([1 - text.count(encoders.PADDING) / 40 for text in texts]),
    }
    assert row["distinct"] == pytest.approx(share[positions])


def test_encoder_inputs_with_positions():
    config = TransformerConfig(16, 2, 3, depth=1, init="lecun")
    (_, plain), (_, placed) = (
        encoders._encoder_inputs("docstrings", 40, 100, positions, config, 2, 0, seeded())
        for positions in ("none", "sinusoidal")
    )
    text = encoders._chosen_texts("docstrings", 40, 100, 2)[0]
    x = placed[0][0] - sinusoids(40, 16)
    for i, word in enumerate(text):
        torch.testing.assert_close(x[i], x[text.index(word)])
    assert plain[0][1].sum() == placed[0][1].sum() == 40


def test_layer_encoders_on_images():
    row = encoders.layer_encoders(**(ENCODER | {"dataset": "digits", "n": 16, "vocabulary": 0}))
    assert row["distinct"] == 1.0 and 1 / 16 <= row["hardmax"] <= 1


@pytest.mark.parametrize(
    "change",
    [{"positions": "relative"}, {"layer": 0}, {"temperature": -1.0}, {"init": "zero"}, {"seed": -1},
     {"dataset": "digits", "n": 15, "vocabulary": 0}, {"dataset": "digits", "n": 16}],
)  # fmt: skip
def test_layer_encoders_refuses_bad_input(change):
    with pytest.raises(ValueError):
        encoders.layer_encoders(**(ENCODER | change))


# The proposition of chapter layer_tables: rank at most the number of distinct tokens, and reached at every head
# dimension

@given(counts=st.lists(st.integers(1, 5), min_size=2, max_size=5), seed=st.integers(0, 99))
@settings(deadline=None)
def test_softmax_of_repeated_tokens_has_the_rank_of_the_distinct_ones(counts, seed):
    x = normal(len(counts), 4, seed=seed)
    order = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    w_q, w_k = normal(2, 4, 4, seed=seed + 1000)
    sigma = torch.linalg.svdvals((x[order] @ w_q @ (x[order] @ w_k).T / 2).softmax(-1))
    assert (sigma[len(counts) :] < 1e-13).all()
    assert sigma[len(counts) - 1] > 1e-13


def test_the_search_gives_every_cause_as_many_tries_from_the_same_ranges():
    tries = pd.DataFrame(search.tries(12, {64: 4, 128: 2}))
    assert set(tries.cause) == set(module.CAUSES)
    own = tries[tries.seed == 0]
    assert (own.groupby("cause").size() == 12).all() and len(tries) == 2 * len(own)
    assert own.temperature.between(0.1, 5.0).all() and set(own.power) == {0.0, 0.5, 1.0}
    for cause, rows in own.groupby("cause"):
        low, high = search.RANGES.get(cause, (0.0, 0.0))
        assert rows.amount.between(low, high).all()
        # A Latin hypercube: one try in each twelfth of the range of log temperature.
        place = np.log(rows.temperature / 0.1) / np.log(50.0) * 12
        assert len(set(np.floor(place.round(2).clip(0, 11.99)))) >= 11
    again = pd.DataFrame(search.tries(12, {64: 4, 128: 2}))
    pd.testing.assert_frame_equal(tries, again)
