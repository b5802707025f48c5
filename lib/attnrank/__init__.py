"""attnrank: measure and bound the rank of attention matrices.

The modules, each of which imports only from those before it: theory (bounds and limits), scores (queries, keys,
attention matrices), ranks, inputs (synthetic tokens), data (images and texts), models (Vision Transformer), training
(one loop, checkpoints), sweep (published tables), report (claims and figures), benchmarks (routines timed side by
side), experiments (what the published tables are made of). The commands, ``python -m attnrank.sweep`` and
``attnrank.benchmarks``, stand above all.
"""

from attnrank import inputs, theory
from attnrank.ranks import effective_rank, hardmax_rank, numerical_rank, singular_values, stable_rank
from attnrank.scores import attention, gaussian_weights, queries_keys

__version__ = "0.1.0"

__all__ = [
    "attention",
    "effective_rank",
    "gaussian_weights",
    "hardmax_rank",
    "inputs",
    "numerical_rank",
    "queries_keys",
    "singular_values",
    "stable_rank",
    "theory",
]
