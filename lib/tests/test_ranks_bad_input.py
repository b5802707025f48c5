"""What the ranks refuse, and how they say it."""

import math

import numpy as np
import pytest
import torch

from attnrank import effective_rank, hardmax_rank, numerical_rank, singular_values, stable_rank
from bad_calls import assert_refused, bad_calls
from spectra_cases import (
    draw,
)

NAN, INFINITE = torch.tensor([[1.0, math.nan]]), torch.tensor([[1.0, -math.inf]])
Q, K, A = draw(40, 2, 5, 3), draw(41, 2, 5, 3), draw(42, 2, 5, 4)

HARDMAX_VALID = {"q": Q, "k": K, "causal": True, "tile": 2}
HARDMAX_BAD = [
    ({"q": Q.numpy()}, r"q must be a torch\.Tensor, got ndarray; torch\.from_numpy\(q\)"),
    ({"k": [[1.0]]}, r"k must be a torch\.Tensor, got list; torch\.tensor\(k\)"),
    ({"q": Q[0, 0]}, r"q must have shape \(\.\.\., rows, columns\), got \(3,\)"),
    ({"k": K[0, 0]}, r"k must have shape \(\.\.\., rows, columns\), got \(3,\)"),
    ({"q": Q[:, :0]}, r"q must not be empty, got shape \(2, 0, 3\)"),
    ({"k": K[:0]}, r"k must not be empty, got shape \(0, 5, 3\)"),
    ({"q": Q[..., :0], "k": K[..., :0]}, r"q must not be empty, got shape \(2, 5, 0\)"),
    ({"q": Q.long()}, r"q must be floating point, got torch\.int64"),
    ({"k": K.to(torch.complex128)}, r"k must be floating point, got torch\.complex128"),
    ({"q": NAN, "k": torch.ones(1, 2)}, r"q must be finite, got NaN in a tensor of shape \(1, 2\)"),
    ({"k": INFINITE, "q": torch.ones(1, 2)}, r"k must be finite, got infinite values in a tensor of shape \(1, 2\)"),
    ({"k": K[..., :2]}, r"q and k must have the same .* q of shape \(2, 5, 3\) and k of shape \(2, 5, 2\)"),
    ({"k": K[0]}, r"q and k must have the same .* q of shape \(2, 5, 3\) and k of shape \(5, 3\)"),
    ({"q": Q.float()}, r"q and k must share dtype and device, got .*32 on cpu, .*64 on cpu; take k\.to\(q\)$"),
    ({"q": Q[:, :4]}, r"causal needs as many keys as queries, got 4 queries and 5 keys"),
    ({"tile": 0}, r"tile must be at least 1, got 0"),
    ({"tile": -3}, r"tile must be at least 1, got -3"),
    ({"tile": 2.0}, r"tile must be an integer, got 2\.0"),
    ({"tile": True}, r"tile must be an integer, got True"),
    ({"q": Q[:1], "k": K}, r"same leading .*: to use some for several, expand them, as in k\.expand"),
    ({"q": Q[:, None].expand(2, 4, 5, 3), "k": K[:, None].expand(2, 2, 5, 3)}, r"k\.repeat_interleave\(2, dim=-3\)"),
    ({"q": 1e200 * Q, "k": 1e200 * K}, r"q and k must have finite scores: q k\^T overflows torch\.float64"),
]

MATRIX_VALID = {"a": A}
MATRIX_BAD = [
    ({"a": A.numpy()}, r"a must be a torch\.Tensor, got ndarray; torch\.from_numpy\(a\) makes one"),
    ({"a": A.tolist()}, r"a must be a torch\.Tensor, got list; torch\.tensor\(a\) makes one"),
    ({"a": None}, r"a must be a torch\.Tensor, got NoneType"),
    ({"a": A[0, 0]}, r"a must have shape \(\.\.\., rows, columns\), got \(4,\)"),
    ({"a": A[:, :0]}, r"a must not be empty, got shape \(2, 0, 4\)"),
    ({"a": A[..., :0]}, r"a must not be empty, got shape \(2, 5, 0\)"),
    ({"a": A.bool()}, r"a must be floating point, got torch\.bool"),
    ({"a": NAN}, r"a must be finite, got NaN in a tensor of shape \(1, 2\)"),
    ({"a": INFINITE}, r"a must be finite, got infinite values in a tensor of shape \(1, 2\)"),
]

NUMERICAL_VALID = MATRIX_VALID | {"tol": 0.5}
NUMERICAL_BAD = MATRIX_BAD + [
    ({"tol": -1e-300}, r"tol must be at least 0\.0, got -1e-300"),
    ({"tol": math.nan}, r"tol must be a finite number, got nan"),
    ({"tol": math.inf}, r"tol must be a finite number, got inf"),
    ({"tol": 10**400}, r"tol must be a finite number, got about 1e400"),
    ({"tol": "0.1"}, r"tol must be a finite number, got '0\.1'"),
    ({"tol": None}, r"tol must be given: 1e-3, say, or with relative=True a fraction of the largest singular value"),
    ({"tol": torch.ones(3, 4)}, r"tol must be a finite number, got Tensor of shape \(3, 4\)$"),
    ({"tol": torch.tensor(0.5)}, r"tol must be a finite number, got Tensor of shape \(\); its \.item\(\) is a number"),
    ({"tol": np.ones(2)}, r"tol must be a finite number, got ndarray of shape \(2,\)$"),
    ({"tol": True}, r"tol must be a finite number, got True"),
    ({"tol": 1j}, r"tol must be a finite number, got 1j"),
]

BAD = bad_calls(
    (hardmax_rank, HARDMAX_VALID, HARDMAX_BAD),
    (numerical_rank, NUMERICAL_VALID, NUMERICAL_BAD),
    (stable_rank, MATRIX_VALID, MATRIX_BAD),
    (effective_rank, MATRIX_VALID, MATRIX_BAD),
    (singular_values, MATRIX_VALID, MATRIX_BAD),
)


@pytest.mark.parametrize(("function", "valid", "bad", "message"), BAD)
def test_bad_input_is_refused_by_name(function, valid, bad, message):
    assert_refused(function, valid, bad, message)


def test_only_heads_that_divide_are_taken_for_groups():
    q, k = torch.ones(2, 6, 5, 3), torch.ones(2, 4, 5, 3)
    with pytest.raises(ValueError, match="to use some for several, expand them"):
        hardmax_rank(q, k)
    with pytest.raises(ValueError, match=r"for grouped queries pass k\.repeat_interleave\(3, dim=-3\)"):
        hardmax_rank(q, k[:, :2])
