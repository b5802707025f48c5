"""Convex attention in experiments: modular division, and a student of a trained text model."""

from attnrank.experiments.convex_experiments.tables import EXPERIMENTS

__all__ = ["EXPERIMENTS"]
