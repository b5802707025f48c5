"""Tables of the chapter vit_initialisation: Vision Transformers at initialisation, and where real tokens stand."""

from attnrank.experiments.experiment import merge
from attnrank.experiments.vit_initialisation import blocks, choices, real_tokens
from attnrank.experiments.vit_initialisation.blocks import vit_hardmax, vit_layers, vit_softmax, vit_tokens
from attnrank.experiments.vit_initialisation.choices import CHOICES, vit_choices

__all__ = ["CHOICES", "EXPERIMENTS", "vit_choices", "vit_hardmax", "vit_layers", "vit_softmax", "vit_tokens"]

EXPERIMENTS = merge([blocks, choices, real_tokens])
