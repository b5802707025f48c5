"""The page "How to read and rerun": its examples run as they stand."""

import re
import subprocess
import sys
from pathlib import Path

from attnrank import sweep


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
