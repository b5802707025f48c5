"""Files that are replaced in one step, and where those of runs are kept."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

#: The environment variable that names the folder in which functions of runs of training keep these, and find them
#: again.
RUNS = "ATTNRANK_RUNS"


def replace(temporary: Path, path: Path) -> None:
    """Put a finished file in the place of another; PermissionError if that stays open elsewhere for two seconds."""
    for _ in range(100):  # Windows refuses while another process has the file open for reading
        with suppress(PermissionError):
            return os.replace(temporary, path)
        time.sleep(0.02)
    os.replace(temporary, path)
