"""Tables of the chapter after_training: single heads of trained models, those of others and those of this book."""

from attnrank.experiments.after_training import others, own
from attnrank.experiments.after_training.others import HUB, LENGTHS, ROUTES, SAMPLES, trained_heads, written
from attnrank.experiments.after_training.own import own_heads
from attnrank.experiments.experiment import merge

__all__ = ["EXPERIMENTS", "HUB", "LENGTHS", "ROUTES", "SAMPLES", "own_heads", "trained_heads", "written"]

EXPERIMENTS = merge([others, own])
