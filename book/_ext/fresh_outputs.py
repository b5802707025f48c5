"""Notebooks run again when anything that their outputs depend on has changed.

jupyter-cache compares the code cells of a notebook only. Here the cache also depends on the files matched by
``fresh_outputs_sources`` (the package, the requirements, the published tables) and on the versions of Python and torch:
their digest names the folder of the cache. The folder is a setting that Sphinx compares between builds, so a new digest
makes it read, and hence execute, every notebook again. The few latest folders are kept.

Sphinx also overlooks a changed style sheet as long as no page changes; a second digest makes it write all pages then.

The environment variable ATTNRANK_BOOK_EXECUTE=off builds the site from the outputs stored in the notebooks.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
from importlib.metadata import version
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.util.typing import ExtensionMetadata

from pairs import ONE_THREAD

KEPT = 3


def digest(root: Path, patterns: list[str], ignored: list[str]) -> str:
    """A digest of the names and contents of the files that match, and of the versions of Python and torch."""
    total = hashlib.sha256(f"python {platform.python_version()} torch {version('torch')}".encode())
    paths = {path for pattern in patterns for path in root.glob(pattern) if path.is_file()}
    for path in sorted(paths - {root / name for name in ignored}):
        content = path.read_bytes().replace(b"\r\n", b"\n")
        total.update(f"{path.relative_to(root).as_posix()} {len(content)}\n".encode() + content)
    return total.hexdigest()[:16]


def choose_cache(app: Sphinx, config: Config) -> None:
    mode = os.environ.get("ATTNRANK_BOOK_EXECUTE")
    if mode not in (None, "", "cache", "off"):
        raise ValueError(f"ATTNRANK_BOOK_EXECUTE must be 'cache' or 'off', got {mode!r}")
    config.nb_execution_mode = mode or config.nb_execution_mode
    caches = Path(app.outdir).parent / ".jupyter_cache"
    cache = caches / digest(Path(app.srcdir), config.fresh_outputs_sources, config.fresh_outputs_ignored)
    config.nb_execution_cache_path = str(cache)
    static = [f"{folder}/{files}" for folder in config.html_static_path for files in ("*", "explorables/*")]
    config.fresh_outputs_static = digest(Path(app.srcdir), static, [])
    if config.nb_execution_mode == "cache":
        cache.mkdir(parents=True, exist_ok=True)
        os.utime(cache)
        folders = sorted((path for path in caches.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime)
        for old in folders[:-KEPT]:
            shutil.rmtree(old)


def setup(app: Sphinx) -> ExtensionMetadata:
    os.environ.update(dict.fromkeys(ONE_THREAD, "1"))  # inherited by the kernels
    app.add_config_value("fresh_outputs_sources", [], "", [list])
    app.add_config_value("fresh_outputs_ignored", [], "", [list])
    app.add_config_value("fresh_outputs_static", "", "html", [str])
    app.connect("config-inited", choose_cache)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
