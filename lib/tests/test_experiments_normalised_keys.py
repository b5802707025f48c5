"""experiments.normalised_keys: which normalisation does something, and the plane's formula."""

import math

import pytest
from scipy import special, stats

from attnrank.experiments import normalised_keys

FALSE_ALARM = 1e-6


def test_normalising_queries_changes_nothing():
    for n, d_h in ((16, 2), (40, 5)):
        assert normalised_keys.normalised_heads(n, d_h, "queries", 0.0, 30, 1) == normalised_keys.normalised_heads(
            n, d_h, "none", 0.0, 30, 1
        )
        assert normalised_keys.normalised_heads(n, d_h, "both", 0.0, 30, 1) == normalised_keys.normalised_heads(
            n, d_h, "keys", 0.0, 30, 1
        )


def test_normalised_keys_in_the_plane_follow_the_hypergeometric_formula():
    n = 24
    expected = n * (1 - special.hyp2f1(-n, 2, n, 0.5))
    result = normalised_keys.normalised_heads(n, 2, "keys", 0.0, 4000, 2)
    margin = stats.norm.isf(FALSE_ALARM / 2) * result["rank_standard_error"]
    assert abs(result["rank_mean"] - expected) <= margin
    plain = normalised_keys.normalised_heads(n, 2, "none", 0.0, 4000, 2)  # control: lengths kept
    assert abs(plain["rank_mean"] - expected) > margin


def test_gains_make_normalised_keys_unequal_again():
    plain = normalised_keys.normalised_heads(128, 16, "keys", 0.0, 200, 3)
    stretched = normalised_keys.normalised_heads(128, 16, "both", 1.0, 200, 3)
    margin = stats.norm.isf(FALSE_ALARM) * math.hypot(plain["rank_standard_error"], stretched["rank_standard_error"])
    assert stretched["rank_mean"] < plain["rank_mean"] - margin


@pytest.mark.parametrize(
    ("arguments", "name"), [((8, 2, "values", 0.0, 4, 0), "normalised"), ((8, 2, "keys", -0.1, 4, 0), "gain_spread")]
)
def test_bad_settings_are_refused_by_name(arguments, name):
    with pytest.raises(ValueError, match=name):
        normalised_keys.normalised_heads(*arguments)
