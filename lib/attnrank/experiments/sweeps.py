"""The published tables of chapter 06."""

from attnrank.experiments import sweeps_depth, sweeps_heads, sweeps_rules

EXPERIMENTS = sweeps_heads.EXPERIMENTS | sweeps_rules.EXPERIMENTS | sweeps_depth.EXPERIMENTS
