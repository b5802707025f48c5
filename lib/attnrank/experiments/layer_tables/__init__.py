"""Tables of the chapter layer_tables: the first paper's layer tables, and what reproduces their shape."""

from attnrank.experiments.experiment import merge
from attnrank.experiments.layer_tables import causes, encoders, search
from attnrank.experiments.layer_tables.causes import EXPONENTS, HEAD_DIMS, WIDTHS, distance, scores_apart

__all__ = ["EXPERIMENTS", "EXPONENTS", "HEAD_DIMS", "WIDTHS", "distance", "scores_apart"]

EXPERIMENTS = merge([causes, encoders, search])
