"""Transformers whose width, head count and head dimension vary independently, to be read beside their equations.

Notation: X holds n tokens of width d as rows; h heads, each with queries and keys of dimension d_h and values of
dimension d_v; temperature T. Nothing ties d to h d_h. There is no dropout: train() and eval() compute the same.
Weights are drawn on the CPU in float64 from an explicit generator; cast or move a model with ``.to``.
"""

from attnrank.models.encoder import Attention, Block, Encoder, QueriesKeys
from attnrank.models.text import PADDING, TextTransformer
from attnrank.models.vision import POOLS, POSITIONS, VisionTransformer, patches, sinusoids
from attnrank.models.weights import INITIALISATIONS, TransformerConfig, draw_weight

__all__ = [
    "INITIALISATIONS",
    "PADDING",
    "POOLS",
    "POSITIONS",
    "Attention",
    "Block",
    "Encoder",
    "QueriesKeys",
    "TextTransformer",
    "TransformerConfig",
    "VisionTransformer",
    "draw_weight",
    "patches",
    "sinusoids",
]
