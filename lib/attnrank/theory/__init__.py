"""Closed forms and quadratures: what bounds the rank of an attention matrix. numpy and scipy only.

Every bound is in units of rank (tokens), not divided by the number of tokens, unless it says otherwise; numbers are
Python's floats and integers. Every function raises ValueError for an argument out of its range, and names it.
"""

from attnrank.theory.anisotropy import anisotropic_bound, anisotropic_exponent
from attnrank.theory.any_mask import mask_bound
from attnrank.theory.barrier import occupancy_bound, occupancy_margin, occupancy_variance
from attnrank.theory.causal import causal_bound, causal_head_dim_bound, causal_limit
from attnrank.theory.effective_head_dim import effective_head_dim, latent_head_dim
from attnrank.theory.eigenvalue import effective_queries_bound, half_space_exponent, smallest_eigenvalue_bound
from attnrank.theory.geometry import poisson_voronoi_variance, polytope_vertices, qk_norm_limit
from attnrank.theory.head_dimension import head_dim_bound
from attnrank.theory.heads import multihead_limit, tied_bound, two_head_deficit
from attnrank.theory.large_heads import large_head_loss
from attnrank.theory.lower_bound import cell_second_moment, head_dim_lower_bound
from attnrank.theory.masks import causal_isotropic_bound, window_limit
from attnrank.theory.normalised import normalised_lower_bound, normalised_second_moment
from attnrank.theory.perturbation import perturbation_bound, simplex_first_order, small_cosine_bound
from attnrank.theory.pruning import examined_fraction
from attnrank.theory.random_layers import random_layer_cosines
from attnrank.theory.saturation import (
    doubling_head_dim,
    lognormal_limit,
    lognormal_variance,
    marginal_head_dim,
    saturation_head_dim,
)
from attnrank.theory.softmax import freezing_temperature, gap_density
from attnrank.theory.spectrum import (
    softmax_rank_limit,
    softmax_ratio,
    softmax_singular_values,
    softmax_stable_rank_limit,
)
from attnrank.theory.stopping_rules import gap_stop, increment_stop, seeds_needed, stop_interval
from attnrank.theory.token_geometry import token_geometry_rank

__all__ = [
    "anisotropic_bound",
    "anisotropic_exponent",
    "causal_bound",
    "causal_head_dim_bound",
    "causal_isotropic_bound",
    "causal_limit",
    "cell_second_moment",
    "doubling_head_dim",
    "effective_head_dim",
    "effective_queries_bound",
    "examined_fraction",
    "freezing_temperature",
    "gap_density",
    "gap_stop",
    "half_space_exponent",
    "head_dim_bound",
    "head_dim_lower_bound",
    "increment_stop",
    "large_head_loss",
    "latent_head_dim",
    "lognormal_limit",
    "lognormal_variance",
    "marginal_head_dim",
    "mask_bound",
    "multihead_limit",
    "normalised_lower_bound",
    "normalised_second_moment",
    "occupancy_bound",
    "occupancy_margin",
    "occupancy_variance",
    "perturbation_bound",
    "poisson_voronoi_variance",
    "polytope_vertices",
    "qk_norm_limit",
    "random_layer_cosines",
    "saturation_head_dim",
    "seeds_needed",
    "simplex_first_order",
    "small_cosine_bound",
    "smallest_eigenvalue_bound",
    "softmax_rank_limit",
    "softmax_ratio",
    "softmax_singular_values",
    "softmax_stable_rank_limit",
    "stop_interval",
    "tied_bound",
    "token_geometry_rank",
    "two_head_deficit",
    "window_limit",
]
