"""What stands in the place of the head dimension where the variance of a score varies otherwise: heuristics."""

from __future__ import annotations

from attnrank import _check


def latent_head_dim(content: int, rotary: int, query_latent: int, key_latent: int, normalise: bool) -> float:
    """Effective head dimension of latent attention: 2 / (relative variance over keys of the variance of a score).

    It is d_h for an ordinary head, whose scores with a key have variance |k|^2, a chi-square of d_h degrees of freedom.
    Here the variance of the content scores is z^T M z, z the latent of the key and M = W_k (W_q^T W_q / q) W_k^T, whose
    normalised traces are those of free Wishart matrices; that of the rotary scores is added. A latent of 0 is none.

    An asymptotic heuristic. Source: chapter heads_and_weights, latent attention.

    Examples
    --------
    >>> from attnrank import theory
    >>> round(theory.latent_head_dim(128, 64, 1536, 512, True), 3)
    180.005
    """
    content = _check.whole("content", content, minimum=1, maximum=1e50)
    rotary = _check.whole("rotary", rotary, minimum=0, maximum=1e50)
    query_latent = _check.whole("query_latent", query_latent, minimum=0, maximum=1e50)
    key_latent = _check.whole("key_latent", key_latent, minimum=0, maximum=1e50)
    normalise = _check.flag("normalise", normalise)
    spread_q = content / query_latent if query_latent else 0.0
    spread_k = content / key_latent if key_latent else 0.0
    # content * tr M^2 / (tr M)^2 for free matrices of unit mean with second moments 1 + spread.
    square = (1 + spread_q) + (1 + spread_k) - 1
    relative = 2 * square / content
    if normalise and key_latent:  # z on a sphere instead of Gaussian
        relative = 2 / (key_latent + 2) * (key_latent * square / content - 1)
    rotary_square = 1 + (rotary / query_latent if query_latent else 0.0)
    variance = content**2 * relative + 2 * rotary * rotary_square
    return 2 * (content + rotary) ** 2 / variance


def effective_head_dim(d_h: float, d: float, length_variance: float) -> float:
    """Head dimension that the tokens' width leaves: 1 / (1/d_h + 1/d + length_variance / 2), a heuristic.

    ``length_variance`` is the variance of |x|^2 over its squared mean: 0 on the sphere, 2/d for Gaussian tokens. The
    result is 2 over the relative variance, over keys, of the variance of a score, to first order.

    Examples
    --------
    >>> from attnrank import theory
    >>> round(theory.effective_head_dim(64, 768, 0.0), 3)
    59.077
    """
    d_h, d = _check.real("d_h", d_h, minimum=1.0), _check.real("d", d, minimum=1.0)
    return 1.0 / (1.0 / d_h + 1.0 / d + _check.real("length_variance", length_variance, minimum=0.0) / 2.0)
