"""Tables of the chapter rank_and_convexity: norms, vertices and margins."""

from __future__ import annotations

from attnrank.experiments.experiment import Experiment, Rounding, Statistical
from attnrank.experiments.rank_and_convexity import margins, norms, vertices
from attnrank.sweep import grid

CHAPTER = "rank_and_convexity"

EXPERIMENTS = {
    "constraint_norms": Experiment(
        "Which structure does the set of attention weights favour: few tokens or low rank?",
        norms.constraint_norms,
        quick=grid(target=["rank one"], constraint=["ball"], seeds=[2]),
        paper=grid(target=list(norms.TARGETS), constraint=list(norms.CONSTRAINTS), seeds=[20]),
        chapter=CHAPTER,
        repeats=Rounding(1e-4),
    ),
    "linear_heads": Experiment(
        "Do as many heads of linear self-attention as the convex optimum has rank reach it, and fewer not?",
        norms.linear_heads,
        quick=grid(seed=[0], share=[0.05], heads=[1], starts=[1]),
        paper=grid(seed=[0, 1, 2, 3, 4], share=[0.05], heads=[1, 2, 3, 4, 6], starts=[6]),
        chapter=CHAPTER,
        repeats=Rounding(1e-5, atol=1e-11),  # what is left above an optimum that is reached is rounding
    ),
    "softmax_vertices": Experiment(
        "How fast does a softmax come near the vertices of the simplex, and how do its logits grow?",
        vertices.softmax_vertices,
        quick=grid(attention=["softmax"], rate=[0.02], seeds=[2], steps=[100]),
        paper=grid(attention=["softmax", "projected"], rate=[0.02], seeds=[10], steps=list(vertices.LOOKS)),
        chapter=CHAPTER,
        repeats=Rounding(1e-6, atol=1e-12),  # the gap of the projected weights ends at rounding
    ),
    "trained_selections": Experiment(
        "What is the hardmax rank of convex attention that was trained, beside the barrier?",
        vertices.trained_selections,
        quick=grid(kind=["noise"], n=[4], samples=[8], share=[0.5], seeds=[2]),
        paper=[
            *grid(kind=["noise"], n=[4, 8, 16], samples=[64], share=[0.99, 0.5], seeds=[40]),
            *grid(kind=["permutation", "two blocks", "mean"], n=[8], samples=[64], share=[0.5], seeds=[40]),
        ],
        chapter=CHAPTER,
        repeats=Statistical({  # the same seeds, solved to the same gap: a rank of a few of the 40 may move by one
            "hardmax_share_mean": 0.001, "hardmax_share_standard_error": 0.001, "rank_mean": 0.01,
            "rank_standard_error": 0.01,
        }),  # fmt: skip
    ),
    "attention_svm": Experiment(
        "Which least norm does training find, and what is its rank?",
        margins.attention_svm,
        quick=grid(parameters=["W"], steps=[100], seeds=[1]),
        paper=grid(parameters=list(margins.PARAMETERS), steps=list(margins.LOOKS), seeds=[10]),
        chapter=CHAPTER,
        # 10,000 steps on keys and queries carry a change of 1e-14 at the start to 6e-5 in an excess
        repeats=Rounding(1e-3, atol=2e-4),
    ),
}
