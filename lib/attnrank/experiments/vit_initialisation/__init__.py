"""Tables of the chapter vit_initialisation: Vision Transformers at initialisation, and where real tokens stand."""

from attnrank.experiments.vit_initialisation import blocks, real_tokens
from attnrank.experiments.vit_initialisation.blocks import vit_hardmax, vit_layers, vit_softmax, vit_tokens

__all__ = ["EXPERIMENTS", "vit_hardmax", "vit_layers", "vit_softmax", "vit_tokens"]

EXPERIMENTS = blocks.EXPERIMENTS | real_tokens.EXPERIMENTS
