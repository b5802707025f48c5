"""Convex attention: programs that a certificate can be had for, their solver, and the way to heads and back.

Ergen, Neyshabur and Mehta, "Convexifying Transformers" (2022), corrected and extended; proofs are in the chapters
convex_attention and token_sparsity.
"""

from attnrank.convex.certificate import check, gated
from attnrank.convex.heads import Heads, HeadsCertificate, certify_heads, from_heads, to_heads
from attnrank.convex.sequence import SequenceSolution, solve_sequence
from attnrank.convex.solver import NotConvergedError, Solution, beta_max, path, predict, solve

__all__ = [
    "Heads",
    "HeadsCertificate",
    "NotConvergedError",
    "SequenceSolution",
    "Solution",
    "beta_max",
    "certify_heads",
    "check",
    "from_heads",
    "gated",
    "path",
    "predict",
    "solve",
    "solve_sequence",
    "to_heads",
]
