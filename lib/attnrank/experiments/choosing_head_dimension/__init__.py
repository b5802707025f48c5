"""Tables of the chapter choosing_head_dimension: the rule judged, and trained heads made smaller."""

from attnrank.experiments.choosing_head_dimension import rule, seconds, trained, truncation
from attnrank.experiments.experiment import merge

__all__ = ["EXPERIMENTS"]

EXPERIMENTS = merge([rule, seconds, truncation, trained])
