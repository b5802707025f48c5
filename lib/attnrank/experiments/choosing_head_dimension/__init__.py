"""Tables of the chapter choosing_head_dimension: the rule judged, and trained heads made smaller."""

from attnrank.experiments.choosing_head_dimension import rule, seconds, trained, truncation

__all__ = ["EXPERIMENTS"]

EXPERIMENTS = rule.EXPERIMENTS | seconds.EXPERIMENTS | truncation.EXPERIMENTS | trained.EXPERIMENTS
