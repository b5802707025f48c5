"""Random layers make tokens alike: a mean-field recursion for the cosine of two tokens, layer by layer."""

from __future__ import annotations

import math

import numpy as np

from attnrank import _check


def random_layer_cosines(
    n: int, depth: int, *, width: int = 128, weight_variance: float | None = None, score_variance: float = 1.0,
    scale: float = 1.0, cosine: float = 0.0, attention: bool = True, mlp: bool = True,
) -> np.ndarray:  # fmt: skip
    """Cosine of two tokens as they enter each block of a random pre-LayerNorm encoder.

    Let C and V be the mean inner product of two tokens and the mean square of one, per dimension, c = C / V. Attention
    adds to C and V the same share g_a of c + (1 - c) / n and c + (1 - c) w: all tokens average the same values, w being
    the sum of the squared weights in a row, min(1, exp(s (1 - c)) / n) for scores of variance s. An MLP of width 4 d
    adds g_m E[f(u) f(v)], u and v normal with correlation c and f = GELU, which has a positive mean: it gives all
    tokens a common part even where c = 0. A heuristic: all products of random weights are taken at their means.

    Parameters
    ----------
    n, depth, width : tokens, blocks and width d, >= 1.
    weight_variance : variance of the entries of all weights, > 0; None means 1 / fan-in. Times the width in
        [1e-100, 1e100].
    score_variance : variance of the scores of a row at cosine 0, divided by the squared temperature, >= 0.
    scale : root mean square of the entries of the tokens that enter, in [1e-100, 1e100].
    cosine : cosine of two tokens as they enter the first block, in [0, 1].
    attention, mlp : which parts a block has.

    Returns
    -------
    array (depth,), the first entry ``cosine``.

    Raises
    ------
    ValueError : an argument out of its range.

    Examples
    --------
    >>> from attnrank import theory
    >>> theory.random_layer_cosines(64, 3).round(3).tolist()
    [0.0, 0.067, 0.145]

    Source: chapter depth.
    """
    n, depth, width = (
        _check.whole(name, value, minimum=1) for name, value in (("n", n), ("depth", depth), ("width", width))
    )
    s = _check.real("score_variance", score_variance, minimum=0.0)
    scale = _check.real("scale", scale, minimum=1e-100, maximum=1e100)
    if weight_variance is not None:
        weight_variance = _check.real("weight_variance", weight_variance, above=0.0)
        _check.real("weight_variance times width", weight_variance * width, minimum=1e-100, maximum=1e100)
    attention, mlp = _check.flag("attention", attention), _check.flag("mlp", mlp)

    def gain(fan_in: int) -> float:
        return 1.0 if weight_variance is None else weight_variance * fan_in

    square, cosines = scale**2, []
    common = square * _check.real("cosine", cosine, minimum=0.0, maximum=1.0)
    for _ in range(depth):
        c = common / square
        cosines.append(c)
        if attention:
            concentration = min(1.0, math.exp(min(s * (1.0 - c), math.log(n))) / n)
            square += gain(width) ** 2 * (c + (1.0 - c) * concentration)
            common += gain(width) ** 2 * (c + (1.0 - c) / n)
            c = common / square
        if mlp:
            square += gain(4 * width) * gelu_product(1.0, gain(width))
            common += gain(4 * width) * gelu_product(c, gain(width))
    return np.array(cosines)


def gelu_product(correlation: float, variance: float) -> float:
    """E[f(u) f(v)] for f = GELU and (u, v) normal of mean 0, the given variance and correlation.

    In closed form: twice by parts, E[u g(u, v)] = s E[g_u] + k E[g_v] with s the variance and k the covariance. For
    variance 1 it is 1 / (4 pi) at correlation 0 and 1/3 + 1 / (2 pi sqrt 3) at correlation 1.
    """
    s, c = variance, min(max(correlation, -1.0), 1.0)
    k = c * s
    root = math.sqrt(1.0 + 2.0 * s + (1.0 - c * c) * s * s)
    densities = (s * s + k * k * (1.0 - s) / (1.0 + s)) / root
    return k / 4.0 + (densities + k * math.asin(k / (1.0 + s))) / (2.0 * math.pi)
