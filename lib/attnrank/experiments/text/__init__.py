"""Text Transformers on film reviews: ranks before training, and accuracy across head dimensions."""

from attnrank.experiments.text.tables import EXPERIMENTS

__all__ = ["EXPERIMENTS"]
