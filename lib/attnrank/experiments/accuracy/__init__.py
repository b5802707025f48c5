"""Accuracy of trained Vision Transformers across head dimensions, and the ranks of their attention."""

from attnrank.experiments.accuracy.tables import EXPERIMENTS

__all__ = ["EXPERIMENTS"]
