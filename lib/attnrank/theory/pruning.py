"""How many keys a search for the best key has to look at when it begins with the longest."""

from __future__ import annotations

import math

import numpy as np
import scipy

from attnrank import _check
from attnrank._quadrature import gauss_legendre, panel_edges
from attnrank.theory.head_dimension import LARGEST


def examined_fraction(m: int, d_h: float) -> float:
    """Expected fraction of m Gaussian keys that a query looks at, longest first: ``E[Phi(R)^{m-1}]``, R ~ chi(d_h).

    The keys are independent standard normal vectors of R^{d_h}, of any common scale; the query is independent of them
    and not zero. It looks at keys in decreasing order of length, and stops as soon as its best score is at least its
    own length times that of the next key: no further key can score more. The formula is exact for every m and d_h. It
    is close to P(R > a) with a the typical maximum of m normals, about sqrt(2 log m): the search pays while d_h is
    below 2 log m. For fixed d_h the expected number of keys, m times the fraction, grows only like
    (2 log m)^{(d_h - 1) / 2}.

    Parameters
    ----------
    m : number of keys, >= 1; up to 1e12.
    d_h : head dimension, 1 to 1e6; need not be an integer.

    Returns
    -------
    float, in (0, 1].

    Raises
    ------
    ValueError : m not an integer >= 1, d_h not a number in [1, 1e6].

    Examples
    --------
    >>> from attnrank import theory
    >>> round(theory.examined_fraction(1024, 2), 3)
    0.008

    Source: the reference page on measuring, "Why small heads need few scores".
    """
    m = _check.whole("m", m, minimum=1)
    d_h = _check.real("d_h", d_h, minimum=1.0, maximum=LARGEST)
    if m == 1:
        return 1.0

    def log_integrand(r: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore"):
            return scipy.stats.chi.logpdf(r, d_h) + (m - 1) * scipy.special.log_ndtr(r)

    end = math.sqrt(d_h) + math.sqrt(2.0 * math.log(m)) + 12.0
    nodes, weights = gauss_legendre(panel_edges(log_integrand, 1, end), order=24)
    return min(1.0, float(np.sum(weights * np.exp(log_integrand(nodes)))))
