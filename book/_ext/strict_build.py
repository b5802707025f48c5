"""A warning fails the build: a failing cell, stderr output of a cell, a reference that leads nowhere.

It also stops where the halves of a notebook pair differ: pages are built from the executed half, so that an edit of the
text would be lost without a word. Plain ``jupyter-book build .`` exits with 0 in all these cases. With this extension
every problem is still reported in one run and the exit status is 1. A build with problems leaves no environment behind,
and a build that reads one page writes all pages: Sphinx would otherwise pass over a problem in a page that did not
change itself.
"""

from __future__ import annotations

from pathlib import Path

from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.environment import BuildEnvironment
from sphinx.errors import ExtensionError
from sphinx.util.typing import ExtensionMetadata

import pairs


def refuse_drift(app: Sphinx, config: Config) -> None:
    found = [
        fault for executed in sorted(Path(app.srcdir, "notebooks").glob("*.ipynb")) for fault in pairs.drift(executed)
    ]
    if found:
        raise ExtensionError("the halves of a notebook pair differ\n" + "\n".join(found))


def note_changes(app: Sphinx, env: BuildEnvironment, added: set, changed: set, removed: set) -> list[str]:
    app.something_changed = bool(added or changed or removed)
    return []


def write_all_pages(app: Sphinx, env: BuildEnvironment) -> list[str]:
    return sorted(env.found_docs) if app.something_changed else []


def forget_faulty_build(app: Sphinx, exception: Exception | None) -> None:
    if app._warncount or exception:
        Path(app.doctreedir, "environment.pickle").unlink(missing_ok=True)


def setup(app: Sphinx) -> ExtensionMetadata:
    if not app.warningiserror:
        app.keep_going = True
    app.connect("config-inited", refuse_drift)
    app.connect("env-get-outdated", note_changes, priority=999)
    app.connect("env-updated", write_all_pages)
    app.connect("build-finished", forget_faulty_build)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
