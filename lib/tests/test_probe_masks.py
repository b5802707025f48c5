"""Ranks under masks against brute force in exact arithmetic, what kind of mask is read off, and what counts as
padding."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from probe_reference import assert_frame
from torch import nn
from torch.nn import functional as F

from attnrank import hardmax_rank, probe, theory
from attnrank.probe import _masks
from attnrank.probe._bounds import bounds
from attnrank.probe._masks import Mask, Structure, structure
from attnrank.ranks import masked
from attnrank.ranks.masked import masked_ranks

CPU = torch.device("cpu")


def exact_rank(q, k, visible):
    """Distinct best visible keys by rational numbers, the first of equals."""
    chosen = set()
    for i, row in enumerate(q.tolist()):
        scores = {
            j: sum(Fraction(a) * Fraction(b) for a, b in zip(row, k[j].tolist(), strict=True))
            for j in range(len(k))
            if visible[i, j]
        }
        chosen.add(max(scores, key=scores.get))
    return len(chosen)


def draw_mask(generator, n, m):
    visible = torch.rand(n, m, generator=generator) < 0.4
    visible[torch.arange(n), torch.randint(m, (n,), generator=generator)] = True
    return visible


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 7), st.integers(1, 7), st.integers(1, 4),
       st.sampled_from(["normal", "whole", "close", "equal"]), st.sampled_from([torch.float64, torch.float32,
       torch.bfloat16]))  # fmt: skip
def test_masked_ranks_equal_exact_arithmetic(seed, n, m, d, kind, dtype):
    generator = torch.Generator().manual_seed(seed)
    q, k = torch.randn(2, 2, max(n, m), d, generator=generator, dtype=torch.float64)
    q, k = q[:, :n], k[:, :m]
    if kind == "whole":
        q, k = q.round(), k.round()  # ties, and queries that are zero
    if kind == "close":
        k = k[:, :1] + 1e-16 * k  # scores that differ by less than float64 products can tell
    if kind == "equal":
        k = k[:, :1].expand_as(k)
    q, k = q.to(dtype), k.to(dtype)
    visible = draw_mask(generator, n, m)
    expected = [exact_rank(*pair, visible) for pair in zip(q, k, strict=True)]
    assert masked_ranks(q, k, visible).tolist() == expected


def test_exact_comparison_is_what_decides_close_scores(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 40, 3, generator=generator, dtype=torch.float64)
    k = k[:, :1] * (1 + 1e-17) + 4e-16 * k
    visible = torch.ones(40, 40, dtype=torch.bool).tril()
    rounded = len(set((q @ k.mT).masked_fill(~visible, -torch.inf).argmax(-1)[0].tolist()))
    assert masked_ranks(q, k, visible).item() == exact_rank(q[0], k[0], visible) != rounded


SCALES = [(-535, -535), (-530, -540), (-560, 400), (400, -560), (-1060, 900), (900, -1060), (0, 520), (520, 0),
          (500, 520), (-200, -1060), (-1060, -1060), (511, 511), (1020, -300)]  # fmt: skip


@pytest.mark.parametrize("scales", SCALES, ids=str)
@pytest.mark.parametrize("kind", ["normal", "close", "whole"])
def test_masked_ranks_at_the_ends_of_float64(scales, kind):
    """Products, and squares in norms, under- and overflow; scores are finite, or compared exactly nevertheless."""
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 8, 16, 4, generator=generator, dtype=torch.float64)
    k = k[:, :1] + 2.0**-50 * k if kind == "close" else k
    q, k = (x.round() if kind == "whole" else x for x in (q, k))
    q[:, 0] = 0.0
    q, k = (torch.from_numpy(np.ldexp(x.numpy(), e)) for x, e in zip((q, k), scales, strict=True))
    visible = draw_mask(generator, 16, 16)
    visible[0] = torch.arange(16) > 9
    expected = [exact_rank(*pair, visible) for pair in zip(q, k, strict=True)]
    assert masked_ranks(q, k, visible).tolist() == expected


def test_masked_ranks_are_hardmax_ranks_where_products_underflow():
    q, k = 2.0**-535 * torch.randn(2, 40, 30, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert torch.equal(masked_ranks(q, k, torch.ones(30, 30, dtype=torch.bool)), hardmax_rank(q, k))


def test_blocks_of_rows_do_not_change_the_count(monkeypatch):
    generator = torch.Generator().manual_seed(1)
    q, k = torch.randn(2, 3, 50, 4, generator=generator, dtype=torch.float64)
    visible = draw_mask(generator, 50, 50)
    whole = masked_ranks(q, k, visible)
    monkeypatch.setattr(masked, "BLOCK", 120)
    assert torch.equal(masked_ranks(q, k, visible), whole)


def window(n, m, before, after):
    place = torch.arange(n)[:, None] + m - n
    return (torch.arange(m) >= place - before) & (torch.arange(m) <= place + after)


def read(visible, crosses=False):
    return structure(Mask.of(visible, *visible.shape[-2:]), 0, 0, crosses=crosses, device=CPU)


MASKS = {
    "none": torch.ones(6, 6, dtype=torch.bool),
    "causal": window(6, 6, 9, 0),
    "causal, cached": window(3, 8, 9, 0),
    "window": window(8, 8, 2, 0),
    "window, cached": window(3, 8, 2, 0),
    "window, both sides": window(8, 8, 2, 2),
    "other: documents": torch.block_diag(*[torch.ones(s, s) for s in (3, 2, 3)]).bool().tril(),
    "other: prefix": window(6, 6, 9, 0) | (torch.arange(6) < 3),
    "other: more queries than keys": window(8, 5, 0, 3),
    "other: gaps": torch.eye(6, dtype=torch.bool) | (torch.arange(6) == 0),
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("added", ["boolean", "-inf", "-10000", "least float16"])
def test_the_kind_of_a_mask_is_read_off(name, added, monkeypatch):
    monkeypatch.setattr(_masks, "BLOCK", 17)  # two rows at a time
    visible = MASKS[name]
    hidden = {"-inf": -torch.inf, "-10000": -1e4, "least float16": torch.finfo(torch.float16).min}
    given = visible if added == "boolean" else torch.where(visible, 0.0, hidden[added])
    found = read(given)
    assert found.kind == name.partition(",")[0].partition(":")[0] and not found.padded
    assert (found.n, found.m) == (len(visible), int(visible.any(0).sum()))  # a window may be out of reach of old keys


def hide(visible, padded, *, unseen):
    """Padded keys hidden; padded queries see nothing, everything, or what the others see."""
    visible = visible & ~padded
    if unseen != "as others":
        visible = visible.clone()
        visible[padded] = unseen == "everything"
    return visible


@pytest.mark.parametrize("kind", ["none", "causal", "window"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("unseen", ["nothing", "everything", "as others"])
def test_padding_leaves_queries_and_keys(kind, side, unseen):
    if unseen == "everything" and (side == "right" or kind == "none"):
        return  # a padded key would be seen; a query that would see the real ones is not let see all
    padded = torch.arange(9) < 3 if side == "left" else torch.arange(9) >= 6
    full = {"none": torch.ones(9, 9, dtype=torch.bool), "causal": window(9, 9, 9, 0), "window": window(9, 9, 2, 0)}[
        kind
    ]
    found = read(hide(full, padded, unseen=unseen))
    assert found.kind == kind and found.padded and (found.n, found.m) == (6, 6)
    assert torch.equal(found.queries, ~padded) and torch.equal(found.keys, ~padded)


@pytest.mark.parametrize("n", [9, 17])
@pytest.mark.parametrize("others", ["all", "both sides"])
def test_a_token_that_reads_all_and_that_nobody_sees_is_no_padding(n, others, monkeypatch):
    monkeypatch.setattr(_masks, "BLOCK", 40)
    visible = window(n, n, n, n) if others == "all" else window(n, n, 1, 1)
    visible[1:, 0] = False
    visible[0] = True
    found = read(visible)
    assert (found.n, found.m, found.kind, found.padded) == (n, n, "other", False)


@pytest.mark.parametrize("padded", [torch.arange(9) < 3, torch.arange(9) >= 7, torch.arange(9) % 4 == 1], ids=range(3))
def test_padding_that_sees_itself_beside_the_tokens(padded, monkeypatch):
    """As XLNet has it, where every query sees its own key."""
    monkeypatch.setattr(_masks, "BLOCK", 20)
    found = read(~padded | torch.eye(9, dtype=torch.bool))
    real = int((~padded).sum())
    assert (found.n, found.m, found.kind, found.padded) == (real, real, "none", True)
    assert torch.equal(found.queries, ~padded) and torch.equal(found.keys, ~padded)


def test_one_token_that_reads_the_others_is_padding_where_other_samples_have_none():
    visible = torch.ones(2, 1, 9, 9, dtype=torch.bool)
    visible[1, :, 1:, 0] = False
    assert structure(Mask.of(visible, 9, 9), 1, 0, crosses=False, device=CPU).n == 8
    assert structure(Mask.of(visible[1:], 9, 9), 0, 0, crosses=False, device=CPU).n == 9


REST = torch.eye(5).index_fill(1, torch.tensor([0]), 1.0)  # every query sees the first key and its own


@pytest.mark.parametrize("visible", [torch.eye(5), torch.ones(5, 5), *(torch.ones(n, n).tril() for n in (3, 4)), REST],
                         ids=["diagonal", "none", "causal, 3", "causal, 4", "rest"])  # fmt: skip
def test_queries_that_see_their_own_key_are_no_padding(visible):
    found = read(visible.bool())
    assert (found.n, found.m, found.padded) == (*visible.shape, False)


def test_a_single_token_that_sees_nothing_is_padding():
    found = read(torch.zeros(1, 1, dtype=torch.bool))
    assert (found.n, found.m) == (0, 0)


def test_padding_of_other_tokens_leaves_the_queries():
    padded = torch.arange(9) >= 6
    full = torch.ones(9, 9, dtype=torch.bool)
    found = read(hide(full, padded, unseen="as others"), crosses=True)
    assert (found.n, found.m, found.kind) == (9, 6, "none")


def test_a_query_that_sees_nothing_leaves_its_key_to_the_others():
    visible = torch.ones(9, 9, dtype=torch.bool)
    visible[5] = False
    found = read(visible)
    assert (found.n, found.m, found.kind, found.padded) == (8, 9, "none", True)
    assert torch.equal(found.queries, torch.arange(9) != 5) and found.keys.all()


@pytest.mark.parametrize("n", [2, 3, 9])
@pytest.mark.parametrize("padded", [0, 2, 3])
@pytest.mark.parametrize("side", ["left", "right"])
def test_strictly_causal_masks_leave_out_the_first_query_and_the_last_key(n, padded, side, monkeypatch):
    """Two padded tokens or more: one on the right is not to be told from a last token whose key nobody can see."""
    monkeypatch.setattr(_masks, "BLOCK", 17)
    place, first = torch.arange(n + padded), padded if side == "left" else 0
    real = (place >= first) & (place < first + n)
    found = read((place < place[:, None]) & real)
    assert (found.n, found.m) == (n - 1, n - 1) and found.kind == ("causal" if n > 2 else "none")
    assert torch.equal(found.queries, real & (place > first))
    assert torch.equal(found.keys, real & (place < first + n - 1))


@pytest.mark.parametrize("mask", ["sees nothing", "strictly causal"])
def test_ranks_where_a_query_sees_nothing(mask):
    n, generator = 24, torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 2, 3, n, 4, generator=generator, dtype=torch.float64)
    visible = torch.ones(n, n, dtype=torch.bool)
    visible = visible.tril(-1) if mask == "strictly causal" else visible.index_fill(0, torch.tensor([5]), False)
    a = (q @ k.mT / 2).masked_fill(~visible, -torch.inf).softmax(-1).nan_to_num()
    frame = probe(Masked(visible), {"query": q, "key": k, "value": v}, per_sample=True)
    assert_frame(frame, "Masked", a, visible.any(1).expand(2, n))


@pytest.mark.parametrize("name", [name for name in MASKS if not name.startswith("none")])
def test_the_limit_of_uniform_picks_is_their_expected_rank(name):
    visible = MASKS[name]
    choices = [row.nonzero().flatten().tolist() for row in visible]
    if np.prod([len(c) for c in choices], dtype=float) > 2e5:
        choices, visible = choices[:5], visible[:5]
    expected = np.mean([len(set(picks)) for picks in itertools.product(*choices)])
    found = structure(Mask(*visible.shape, visible=visible[None, None]), 0, 0, crosses=True, device=CPU)
    uniform = found.uniform
    if uniform is None:  # causal, n = m: in closed form elsewhere
        uniform = theory.causal_limit(len(visible))
    seen_by_none = int((~visible.any(0)).sum())
    assert found.m == visible.shape[1] - seen_by_none
    assert uniform == pytest.approx(expected, rel=1e-12)


class Masked(nn.Module):
    """scaled_dot_product_attention of what it is given under one mask."""

    def __init__(self, mask):
        super().__init__()
        self.mask = mask

    def forward(self, query, key, value):
        return F.scaled_dot_product_attention(query, key, value, attn_mask=self.mask)


@pytest.mark.parametrize("shape", [(4, 4), (2, 4), (6, 4), (1, 4), (3, 2, 4)])
def test_a_mask_for_each_head_is_set_against_the_queries_from_the_right(shape):
    n, generator = 20, torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, *shape, n, 3, generator=generator, dtype=torch.float64)
    heads = torch.stack([window(n, n, w, w) for w in (1, 3, 6, n)])
    for mask in (heads, heads[None], torch.where(heads, 0.0, -torch.inf).double()):
        frame = probe(Masked(mask), (q, k, v), per_sample=True)
        a = (q @ k.mT / 3**0.5).masked_fill(~heads, -torch.inf).softmax(-1)
        assert_frame(frame, "Masked", a.flatten(0, -4))
        assert frame.groupby("head")["mask"].first().tolist() == ["window"] * 3 + ["none"]


def test_a_mask_of_three_dimensions_beside_queries_of_three():
    n, generator = 12, torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 3, n, 3, generator=generator, dtype=torch.float64)
    masks = torch.stack([window(n, n, w, w) for w in (1, 3, 6)])
    for mask in (masks, masks[:1]):
        a = (q @ k.mT / 3**0.5).masked_fill(~mask, -torch.inf).softmax(-1)
        assert_frame(probe(Masked(mask), (q, k, v), per_sample=True), "Masked", a[:, None])


def test_bounds_fit_the_mask():
    plain = Structure(None, None, 12, 12, "none", None)
    assert bounds([plain], 8) == [theory.head_dim_bound(12, 8)]
    assert bounds([plain], None) == [theory.occupancy_bound(12)]
    assert bounds([Structure(None, None, 12, 5, "none", None)], 8) == [theory.occupancy_bound(12, 5)]
    assert bounds([Structure(None, None, 12, 12, "causal", None)], 8) == [theory.causal_head_dim_bound(12, 8)]
    assert bounds([Structure(None, None, 12, 12, "window", 7.5)], 8) == [7.5]


@pytest.mark.parametrize("lengths", [range(20, 98, 7), range(32, 1024, 91)])
def test_interpolated_causal_bounds_are_good_to_a_thousandth(lengths):
    found = bounds([Structure(None, None, n, n, "causal", None) for n in lengths], 1)  # d_h = 1: in closed form
    for n, bound in zip(lengths, found, strict=True):
        assert bound / n == pytest.approx(theory.causal_head_dim_bound(n, 1) / n, abs=1e-3)


def test_a_single_token_has_rank_one_among_many_lengths_too():
    """Between lengths the bound is a polynomial, but for the length at which every rank is 1."""
    found = bounds([Structure(None, None, n, n, "causal", None) for n in (1, 20, 30, 40, 50)], 1)
    assert found[0] == 1.0 and found[-1] == pytest.approx(theory.causal_head_dim_bound(50, 1))
