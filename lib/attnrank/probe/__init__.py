"""Ranks of every attention layer and head of a torch model that the probe was not told about.

    import attnrank
    attnrank.probe(model, batch)

The model runs once, under a mode of PyTorch that sees every operation. Of each attention it keeps the queries and keys
(or the scores, where these are not a multiple of ``q k^T``), computes the ranks on the spot and lets go of them:
nothing with n x n entries is kept. What it cannot see it refuses by name.

The package ``attnrank`` shows the function under the name of this module: ``attnrank.probe(...)`` and
``from attnrank import probe`` are the function, as ``tqdm.tqdm`` is, while ``python -m attnrank.probe`` finds the
module by its file. Nobody but the package's own commands and tests needs the module as such.
"""

from attnrank.probe._attention import Attention
from attnrank.probe._probe import RANKS, attentions, probe
from attnrank.probe._recommend import Recommendation, recommend_head_dim

__all__ = ["RANKS", "Attention", "Recommendation", "attentions", "probe", "recommend_head_dim"]
