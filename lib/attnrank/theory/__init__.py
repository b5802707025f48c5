"""Closed forms and quadratures: what bounds the rank of an attention matrix. numpy and scipy only.

Every bound is in units of rank (tokens), not divided by the number of tokens.
"""

from attnrank.theory.barrier import occupancy_bound, occupancy_margin, occupancy_variance
from attnrank.theory.causal import causal_bound, causal_head_dim_bound, causal_limit
from attnrank.theory.eigenvalue import effective_queries_bound, half_space_exponent, smallest_eigenvalue_bound
from attnrank.theory.geometry import poisson_voronoi_variance, polytope_vertices, qk_norm_limit
from attnrank.theory.head_dimension import head_dim_bound
from attnrank.theory.heads import multihead_limit
from attnrank.theory.lower_bound import cell_second_moment, head_dim_lower_bound
from attnrank.theory.perturbation import perturbation_bound, small_cosine_bound
from attnrank.theory.pruning import examined_fraction
from attnrank.theory.saturation import lognormal_limit, lognormal_variance, marginal_head_dim, saturation_head_dim
from attnrank.theory.softmax import (
    softmax_rank_limit,
    softmax_ratio,
    softmax_singular_values,
    softmax_stable_rank_limit,
)

__all__ = [
    "causal_bound",
    "causal_head_dim_bound",
    "causal_limit",
    "cell_second_moment",
    "effective_queries_bound",
    "examined_fraction",
    "half_space_exponent",
    "head_dim_bound",
    "head_dim_lower_bound",
    "lognormal_limit",
    "lognormal_variance",
    "marginal_head_dim",
    "multihead_limit",
    "occupancy_bound",
    "occupancy_margin",
    "occupancy_variance",
    "perturbation_bound",
    "poisson_voronoi_variance",
    "polytope_vertices",
    "qk_norm_limit",
    "saturation_head_dim",
    "small_cosine_bound",
    "smallest_eigenvalue_bound",
    "softmax_rank_limit",
    "softmax_ratio",
    "softmax_singular_values",
    "softmax_stable_rank_limit",
]
