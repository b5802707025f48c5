"""The page "How to read and rerun": its examples run as they stand, its numbers of random heads hold."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from scipy import stats

from attnrank import hardmax_rank, sweep, theory


def test_a_table_of_ones_own(root: Path, tmp_path: Path) -> None:
    """On one process: that workers know a function of a script is a matter of the sweep's own tests."""
    page = (root / "book" / "reading.md").read_text(encoding="utf-8")
    [code] = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "sweep.run(" in block]
    script = tmp_path / "own.py"
    script.write_text(code.replace("workers=4", "workers=1"), encoding="utf-8")
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    table = sweep.read("my_heads", folder=tmp_path / "tables")
    assert len(table) == 40 and table["rank"].between(30, 0.7 * table["n"]).all()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("n", "d_h", "heads"), [(64, 16, 8000), (256, 16, 4000), (256, 64, 4000), (1024, 32, 1000)])
def test_how_far_chance_moves_a_head(n: int, d_h: int, heads: int, causal: bool) -> None:
    """What the page says of random heads: a spread of about 0.3 to 0.4 sqrt n, fewer than 1 in 200 above the bound by
    more than sqrt n. The exact binomial test of 1 in 200 fails by chance at most once in a million, all cases together;
    the negative control is half of that distance."""
    generator = torch.Generator().manual_seed(n + d_h + causal)
    drawn = (torch.randn(2, 100, n, d_h, generator=generator) for _ in range(heads // 100))
    rank = torch.cat([hardmax_rank(q, k, causal=causal) for q, k in drawn]).double()
    bound = theory.causal_head_dim_bound(n, d_h) if causal else theory.head_dim_bound(n, d_h)
    assert 0.28 < rank.std() / n**0.5 < 0.43
    most = stats.binom.isf(1e-6 / 8, heads, 1 / 200)
    assert (rank > bound + n**0.5).sum() <= most < (rank > bound + 0.5 * n**0.5).sum()


def test_chance_moves_small_heads_by_less() -> None:
    generator = torch.Generator().manual_seed(4)
    for n, d_h in ((256, 2), (1024, 4)):
        q, k = torch.randn(2, 1000, n, d_h, generator=generator)
        assert hardmax_rank(q, k).double().std() / n**0.5 < 0.25
