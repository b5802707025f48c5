"""Tables of the chapter depth: what becomes of the rank from layer to layer, and which part of a block does it."""

from attnrank.experiments.depth import causes, layers
from attnrank.experiments.depth.layers import depth_ranks, random_encoders
from attnrank.experiments.experiment import merge

__all__ = ["EXPERIMENTS", "depth_ranks", "random_encoders"]

EXPERIMENTS = merge([layers, causes])
