"""Softmax attention of random scores at low temperature: the gap to hardmax, and freezing."""

from __future__ import annotations

import math

import numpy as np
import scipy

from attnrank import _check
from attnrank._quadrature import panels, reach


def gap_density(n: int) -> float:
    """Density at 0 of the gap between the two largest of n i.i.d. N(0,1) scores, n(n-1) E[phi(G) Phi(G)^{n-2}].

    It is the rate at which soft and hard attention part as the temperature rises from 0, in units of 1 / score; n at
    most 1e20.

    Examples
    --------
    >>> from attnrank import theory
    >>> round(theory.gap_density(1024), 3)
    3.248

    Source: chapter softmax, the gap between soft and hard attention.
    """
    n = _check.whole("n", n, minimum=2, maximum=1e20)
    x, weight = panels(-9.0, reach(n), 4000)
    others = np.exp((n - 2) * scipy.special.log_ndtr(x))
    return n * (n - 1) * float(np.sum(weight * scipy.stats.norm.pdf(x) ** 2 * others))


def freezing_temperature(n: int) -> float:
    """sqrt(2 / log n): below it a few logits of standard deviation 1/T decide the squared sum of a row of n.

    Examples
    --------
    >>> from attnrank import theory
    >>> round(theory.freezing_temperature(1024), 3)
    0.537

    Source: chapter softmax, stable rank; the freezing of Derrida's random energy model at twice the inverse
    temperature.
    """
    return math.sqrt(2.0 / math.log(_check.whole("n", n, minimum=2)))
