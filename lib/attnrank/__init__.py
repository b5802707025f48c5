"""attnrank: measure and bound the rank of attention matrices.

The modules, each of which imports only from those before it: theory (bounds and limits), scores (queries, keys,
attention matrices), ranks, heads (a table per head), probe (ranks of every head of any model), inputs (synthetic
tokens), data (images and texts), models (Transformers), convex (convex attention, solved and certified), training (one
loop), sweep (published tables), report (claims and figures), benchmarks (routines timed side by side), experiments
(what the published tables are made of). The commands, ``python -m attnrank.sweep``, ``attnrank.benchmarks`` and
``attnrank.probe``, stand above all.
"""

import importlib
from types import ModuleType

from attnrank import convex, inputs, theory
from attnrank.heads import LayoutWarning, hardmax_rank_of, head_ranks
from attnrank.probe import (  # attnrank.probe is the function; python -m attnrank.probe finds the module
    probe,
    recommend_head_dim,
)
from attnrank.ranks import effective_rank, hardmax_rank, numerical_rank, singular_values, stable_rank
from attnrank.scores import attention, gaussian_weights, queries_keys

__version__ = "0.1.0"

__all__ = [
    "LayoutWarning",
    "attention",
    "convex",
    "effective_rank",
    "gaussian_weights",
    "hardmax_rank",
    "hardmax_rank_of",
    "head_ranks",
    "inputs",
    "numerical_rank",
    "probe",
    "queries_keys",
    "recommend_head_dim",
    "singular_values",
    "stable_rank",
    "theory",
]

#: Parts that are imported when they are first used: some need packages that an extra installs.
_LATER = ("benchmarks", "data", "experiments", "models", "report", "sweep", "training")


def __getattr__(name: str) -> ModuleType:
    if name in _LATER:
        return importlib.import_module(f"attnrank.{name}")
    raise AttributeError(f"module 'attnrank' has no attribute {name!r}")
