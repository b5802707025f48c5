"""experiments.shared: the lines of figures against independent formulas, quadratures and simulations; runs."""

import math

import numpy as np
import pytest
from scipy import integrate, special, stats

from attnrank._files import RUNS
from attnrank.experiments.shared import lines, runs
from attnrank.sweep import _recompute


def test_curves_at_points_computed_another_way():
    def value(curve, n, x):
        return lines.formula_lines(curve, n, x)["value"]

    limit = integrate.quad(lambda g: stats.norm.pdf(g) * -math.expm1(-math.exp(math.sqrt(0.7) * g - 0.35)), -12, 12)[0]
    assert value("collapse", 0, 1.4) == pytest.approx(limit, rel=1e-9)
    assert value("collapse, first term", 0, 1.4) == pytest.approx(1 - math.exp(-1) - 1.4 / (4 * math.e))
    v = stats.norm.isf(1e-4) ** 4 / (2 * value("collapsed head dimension", 10**4, lines.GAP))
    assert value("collapse", 0, 2 * v) == pytest.approx(1 - math.exp(-1) - lines.GAP, abs=1e-9)
    assert value("normalised keys", 0, 2) == pytest.approx(5 / 9)
    assert value("tied", 50, 3) == pytest.approx(
        integrate.quad(lambda r: stats.chi.pdf(r, 3) * special.ndtr(r) ** 49, 0, np.inf)[0], rel=1e-7)  # fmt: skip
    assert value("softmax, first order", 2, 0.1) == pytest.approx(0.1 * math.log(2) / math.sqrt(math.pi))
    assert value("stable rank", 0, 1.0) == pytest.approx(math.e)
    assert value("freezing", 100, 0) == pytest.approx(math.sqrt(2 / math.log(100)))
    assert value("causal window", 512, 2) == pytest.approx((1 + 510 * 0.75 + 0.5 - 0.25 + 0.25) / 512, abs=1e-3)
    assert value("head dimension 8 on x tokens", 0, 2) == pytest.approx(0.75)
    assert value("heads together, d_h = 8", 2, 3) == pytest.approx(1 - 0.25**3)
    assert value("heads together, d_h = 512", 2, 1) == pytest.approx(0.75)
    assert value("anisotropic", 256, 0.0) == pytest.approx(1 - (1 - 1 / 256) ** 256)
    assert value("head dimension bound", 2, 16) == pytest.approx(0.75)
    assert value("random tokens, any keys", 256, 1.0) == 1.0
    assert {setting["curve"] for setting in lines.line_points()} == set(lines.CURVES)


def test_an_unknown_line_is_named():
    with pytest.raises(ValueError, match="^curve must"):
        lines.formula_lines("spiral", 0, 1.0)


def test_runs_are_kept_where_rows_that_are_computed_again_look_for_them(tmp_path, monkeypatch):
    """One name of the variable, or a row would be compared with the run that it came from."""
    monkeypatch.setenv(RUNS, str(tmp_path))
    assert runs.runs_folder() == tmp_path
    with _recompute._runs_kept(None):
        assert runs.runs_folder() is None
    (tmp_path / "other").mkdir()
    with _recompute._runs_kept(tmp_path / "other"):
        assert runs.runs_folder() == tmp_path / "other"
    assert runs.runs_folder() == tmp_path
    monkeypatch.setenv(RUNS, str(tmp_path / "missing"))
    with pytest.raises(ValueError, match=f"{RUNS} must name an existing folder"):
        runs.runs_folder()
