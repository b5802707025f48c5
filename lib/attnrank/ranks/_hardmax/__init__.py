"""The hardmax rank: the number of keys that are the best key of some query, exactly. How it is found, and where.

1. `working`: queries and keys, keys measured from their mean where that may make them much shorter; and for every
   query a slack that bounds all rounding errors of its scores (`rounding`). A query is decided if one key alone scores
   within the slack of its best score: then that key is the best in exact arithmetic, too. A query that is zero chooses
   key 0.
   Where numbers are extreme, NaN, infinite ones and scores that overflow are refused, by a rule that knows no order of
   summation (`range`), and each matrix is scaled by a power of two, once. Nothing of this changes an argmax.
2. The scores, in tiles that the cache holds (`tiles`), and never all at once:
   `blocks`, where a matrix has few, or more of a long head: one product, then the maxima, the comparison and the sum
   over the queries;
   `search`, where it has many: first only the best score of every query in every tile of keys, longest keys first, and
   no further than a query could still be served better; then for each query the one tile that holds its best key again.
3. `undecided`: what is left, all ties among it. Where much is, keys that equal an earlier one are left out
   (`repeated`). Few keys of a query are compared as pairs, without those that equal its first; many by the matrix,
   equal ones once. Scores of short numbers are exact in float64; of others they have an error bound for each key in
   place of one for all, and what then is left is decided in `exact` arithmetic: numbers are cut into slices of few
   bits, products and sums of which float64 holds without error. A few pairs are decided one by one, without torch
   (`few`). The first of several best keys wins.

So float32 does nearly all of the work, or float64 in `blocks` where a GPU is fast in it, and decides nothing that
rounding could change: the rank does not depend on the tile, the batch, the threads, the device or the precision of
products that the user allows.
"""

from attnrank.ranks._hardmax.blocks import block_ranks
from attnrank.ranks._hardmax.search import search_rank
from attnrank.ranks._hardmax.tiles import block_dtype, cached_numbers
from attnrank.ranks._hardmax.working import Heads

__all__ = ["Heads", "block_dtype", "block_ranks", "cached_numbers", "search_rank"]
