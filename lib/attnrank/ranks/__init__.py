"""Ranks of attention matrices: the hardmax rank by counting, the numerical, stable and effective rank by spectra."""

from attnrank.ranks.hardmax import hardmax_rank
from attnrank.ranks.spectra import certified_rank, effective_rank, numerical_rank, singular_values, stable_rank

__all__ = ["certified_rank", "effective_rank", "hardmax_rank", "numerical_rank", "singular_values", "stable_rank"]
