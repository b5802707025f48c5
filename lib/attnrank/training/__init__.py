"""One training loop: AdamW with warm-up and cosine, checkpoints from which a run goes on bit for bit, ranks by epoch.

A `Source` gives batches and tests a model, a `Recipe` says how to train, and :func:`train` does it. Randomness comes
from the seed and the number of the step alone, so that a run that is killed and started again repeats nothing and
skips nothing. Models are those of :mod:`attnrank.models`, or any with ``queries_keys(inputs, scaled=True)``.
"""

from attnrank.training.checkpoint import ENDING, load, save
from attnrank.training.flops import flops_by_shape, forward_flops, image_flops, text_flops, training_flops
from attnrank.training.images import Images, crop_and_flip
from attnrank.training.labelled import Labelled
from attnrank.training.loop import NonFiniteLoss, Run, train
from attnrank.training.measure import TOLERANCES, attention_ranks
from attnrank.training.recipe import Recipe, decay_groups, learning_rate
from attnrank.training.sequences import Sequences
from attnrank.training.source import Source

__all__ = [
    "ENDING", "TOLERANCES", "Images", "Labelled", "NonFiniteLoss", "Recipe", "Run", "Sequences", "Source",
    "attention_ranks", "crop_and_flip", "decay_groups", "flops_by_shape", "forward_flops", "image_flops",
    "learning_rate", "load", "save", "text_flops", "train", "training_flops",
]
