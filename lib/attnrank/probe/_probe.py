"""attnrank.probe: one call, all layers and heads."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from tqdm import tqdm

from attnrank import _check
from attnrank.heads import LayoutWarning
from attnrank.probe._arguments import RANKS, Choice, batches_of, check_batch, check_model, ranks_wanted, sizes
from attnrank.probe._attention import Attention
from attnrank.probe._layers import Layers
from attnrank.probe._measure import measure
from attnrank.probe._origins import Origins
from attnrank.probe._reporter import Reporter
from attnrank.probe._scripted import scripted
from attnrank.probe._table import table_of
from attnrank.probe._traces import Traces
from attnrank.probe._untouched import own, untouched
from attnrank.probe._watch import Watch

#: Tokens up to which spectra are computed without being asked for.
LONG = 2048

#: Deviations beyond which a layer did something else than softmax(q k^T) v; in bfloat16 the rounding of scores of some
#: hundreds alone makes a tenth.
REFUSED, REFUSED_COARSE = 1e-3, 0.5


def probe(
    model: nn.Module,
    batch: Tensor | tuple | Mapping | Iterable,
    *,
    tol: float = 1e-2,
    layers: Iterable[str | int] | str | int | None = None,
    ranks: Iterable[str] | str | None = None,
    per_sample: bool = False,
) -> pd.DataFrame:
    """Ranks of every attention layer and head of a torch model, on a batch of one's own.

    The model runs in evaluation mode, uncompiled, without gradients, and is left as it was found: parameters, buffers,
    training modes, hooks, caches handed in, random states. Only parameters that its forward pass writes into stay
    changed, with a warning where PyTorch counts such writes, as it does not through ``.data``.

    ``scaled_dot_product_attention``, ``nn.MultiheadAttention`` and ``nn.TransformerEncoder`` are seen, and attention
    written out as product, softmax, product; with grouped queries, positions of any kind, normalised queries and keys,
    masks, sinks, cross-attention and caches.

    Parameters
    ----------
    model : nn.Module on any device.
    batch : what the model is called with: a tensor; a tuple of positional arguments; a mapping of keyword arguments. A
        list or another iterable holds several of these (a list among them is taken as positional arguments), which are
        asked for one after the other and averaged over; a terminal then shows a progress bar.
    tol : tolerance >= 0 of the numerical rank, in the units of the singular values; see ``attnrank.numerical_rank``.
    layers : names, patterns such as ``"encoder.*"``, or places (0 is the first attention that runs, -1 the last) of the
        layers to measure; None means all.
    ranks : which of "hardmax", "numerical", "stable", "effective" to compute. None means all, but only the hardmax rank
        for layers with more than 2,048 queries or keys: their spectra take time and memory. What is not computed is
        NaN.
    per_sample : a row for each sample of the batch in place of the mean over samples, with a column ``sample``: its
        number through all batches, in which samples that are all padding count.

    Returns
    -------
    DataFrame with a row for each layer and head, and the tolerance as ``frame.attrs["tol"]``:

    - layer : qualified name of the module that attends; ``name#2`` for the second time that it does.
    - head : from 0.
    - n, m : numbers of queries and keys without padding.
    - head_dim, kv_heads : d_h, and the number of different key heads.
    - mask : "none", "causal", "window" or "other"; "+ padding" where padding was left out; "+ bias" where the scores
      are no multiple of q k^T on the visible keys, as with position biases and soft-capping.
    - hardmax_rank : distinct best keys. By the exact routine from queries and keys in the model's own precision; with a
      bias from the scores in float64. A sink never counts as a key.
    - numerical_rank (at ``tol``), stable_rank, effective_rank : of the softmax at the model's own temperature, computed
      in float64 from queries and keys (with a sink, from the scores; its column is left out).
    - bound : on the expected hardmax rank of a random head, in tokens, fitting mask, n and d_h: see ``attnrank.theory``
      (``head_dim_bound``, ``occupancy_bound`` for keys of other tokens, ``causal_head_dim_bound``). For windows and
      other masks, the expected rank of uniform picks among the keys that each query sees.
    - deviation : the largest difference between softmax(q k^T) v and what the model computed there, in units of the
      largest entry of v; over all queries where a spectrum is computed, else over 64 of them. The maximum over samples.
    - sink_mass, only with a sink : the share of attention that it takes.
    - rotary_dim, only in latent attention : the part of head_dim that carries positions.

    Raises
    ------
    ValueError : bad arguments; a model or batch on the meta device; a model in which no attention is seen; an attention
        that is not seen whole, by the name of layer and operation: flex_attention with a score function or block mask,
        custom kernels, TorchScript, torch.func, linear attention, a softmax over other than the keys or of products in
        a form that cannot be followed, one whose result is changed or dropped in part before it meets the values, keys
        or values that are added or left out, scores that are NaN, or a deviation that is not rounding (above 0.001;
        above 0.5 in half formats). ``layers`` leaves such a layer out. What a model computes outside of torch (NumPy,
        other threads) cannot be seen, and not be refused either.

    Warns
    -----
    LayoutWarning : once, for a layer that takes tokens first (``batch_first=False``, the default of
        ``nn.MultiheadAttention``) and was given more samples than tokens, as by a batch whose samples come first.

    Examples
    --------
    >>> import attnrank, torch
    >>> _ = torch.manual_seed(0)
    >>> layer = torch.nn.TransformerEncoderLayer(32, 2, batch_first=True, dtype=torch.float64)
    >>> table = attnrank.probe(layer, torch.randn(3, 50, 32, dtype=torch.float64))
    >>> table[['layer', 'head', 'n', 'head_dim', 'mask']].values.tolist()
    [['self_attn', 0, 50, 16, 'none'], ['self_attn', 1, 50, 16, 'none']]

    Source: chapter "After training"; on what can be seen, PyTorch's ``TorchFunctionMode``.
    """
    check_model(model)
    tol, per_sample = _check.real("tol", tol, minimum=0.0), _check.flag("per_sample", per_sample)
    wanted = ranks_wanted(ranks)
    choice = Choice(layers)
    batches, total = batches_of(batch)
    shown = total != 1 and sys.stderr is sys.__stderr__ and sys.stderr is not None and sys.stderr.isatty()
    rows: list[dict] = []
    samples = 0
    with tqdm(total=total, desc="probe", unit="batch", disable=not shown) as bar:
        for given in batches:
            found, count = _run(model, given, wanted, tol, choice)
            rows += [row | {"sample": row["sample"] + samples} for row in found]
            samples += count
            bar.update()
    if not rows:
        raise ValueError("batch must not be empty, nor all padding")
    if ranks is None and any(max(row["n"], row["m"]) > LONG for row in rows):
        warnings.warn(
            f"spectra of layers with more than {LONG} tokens are left out; ranks={RANKS} computes them", stacklevel=2
        )
    doubt = next((row["doubt"] for row in rows if row["doubt"]), None)
    if doubt:
        warnings.warn(doubt, LayoutWarning, stacklevel=2)
    frame = table_of(rows, per_sample)
    frame.attrs["tol"] = tol
    return frame


def attentions(model: nn.Module, batch: Tensor | tuple | Mapping) -> list[Attention]:
    """The attentions of a model on one batch, in the order in which they run: queries, keys, values, masks of each.

    What the probe measures, for measurements that it does not have. Memory grows with the number of layers, and not
    with n x n where the model attends by ``scaled_dot_product_attention``. Of a list of batches the first is taken.

    Raises
    ------
    ValueError : as :func:`probe`.
    """
    check_model(model)
    given = next(batches_of(batch)[0], None)
    if given is None:
        raise ValueError("batch must not be empty")
    found: list[Attention] = []
    _visit(model, given, Choice(None), lambda attention, place: found.append(attention))
    if not any(len(attention.output) for attention in found):
        raise ValueError("batch must not be empty")
    return found


def _run(
    model: nn.Module, batch: Mapping | tuple, wanted: frozenset[str] | None, tol: float, choice: Choice
) -> tuple[list[dict], int]:
    """Rows of one batch, a row for each layer, sample and head; and its number of samples, those all padding too."""
    found: dict[int, tuple[list[dict], int]] = {}

    def take(attention: Attention, place: int) -> None:
        if choice.takes(attention.layer, place, None):
            found[place] = _rows(attention, wanted, tol), attention.output.shape[0]

    seen = _visit(model, batch, choice, take)
    choice.check(seen)
    chosen = [one for place, one in found.items() if choice.takes(seen[place], place, len(seen))]
    return [row for rows, _ in chosen for row in rows], max(count for _, count in chosen)


def _visit(
    model: nn.Module, batch: Mapping | tuple, choice: Choice, take: Callable[[Attention, int], None]
) -> list[str]:
    """Run the model and call ``take(attention, place)`` as each attention runs; returns the names of all."""
    check_batch(batch)
    origins = Origins()
    followed = Layers(model, origins)
    seen: list[str] = []

    def refuse(layer: str, what: str) -> None:
        if choice.named(layer):
            raise ValueError(f"layer {layer}: {what}. To measure the other layers, choose them with layers=")

    def found(attention: Attention) -> None:
        seen.append(attention.layer)
        take(attention, len(seen) - 1)

    args, kwargs = ((), own(batch)) if isinstance(batch, Mapping) else (own(batch), {})
    report = Reporter(followed, found, refuse, sizes(batch))
    watch = Watch(report, Traces(model, origins))
    with untouched(model), followed.followed(refuse), scripted(report), watch:
        model(*args, **kwargs)
    watch.finish()
    if not seen:
        raise ValueError(f"model {type(model).__name__} ran, and no attention was seen in it")
    return seen


def _rows(attention: Attention, wanted: frozenset[str] | None, tol: float) -> list[dict]:
    if wanted is None:
        wanted = frozenset(RANKS if max(attention.mask.n, attention.mask.m) <= LONG else ("hardmax",))
    try:
        rows = measure(attention, wanted, tol)
    except ValueError as error:
        raise ValueError(f"layer {attention.layer}: {error}") from None
    worst = float(np.max([row["deviation"] for row in rows], initial=0.0))
    if math.isnan(worst):
        raise ValueError(f"layer {attention.layer}: the model's own output, or its values, are NaN or infinite there")
    if not worst <= (REFUSED_COARSE if _is_coarse(attention) else REFUSED):
        raise ValueError(
            f"layer {attention.layer}: the model computed something else than softmax(q k^T) v, by {worst:.2g} of the "
            "largest value. To measure the other layers, choose them with layers="
        )
    return [row | {"layer": attention.layer, "doubt": _doubt(attention)} for row in rows]


def _doubt(attention: Attention) -> str:
    """What the layer took for tokens and for samples, where it is more often the other way round; else ""."""
    samples, n = attention.output.shape[0], attention.mask.n
    if not (attention.tokens_first and samples > n):
        return ""
    return (
        f"layer {attention.layer} takes tokens first (batch_first=False) and was given {n} tokens of {samples} "
        "samples; if the samples come first, build it with batch_first=True, or transpose the batch; if it is meant, "
        "warnings.simplefilter('ignore', attnrank.LayoutWarning)"
    )


def _is_coarse(attention: Attention) -> bool:
    """Whether half formats are at hand, or float32 that torch is allowed to multiply as TensorFloat32 or bfloat16."""
    formats = {x.dtype for x in (attention.q, attention.k, attention.v, attention.output) if x is not None}
    reduced = torch.get_float32_matmul_precision() != "highest" and torch.float32 in formats
    return reduced or bool(formats & {torch.float16, torch.bfloat16})
