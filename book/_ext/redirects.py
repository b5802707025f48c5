"""Old addresses lead to the new ones: ``redirects`` in _config.yml names pages that have moved, old: new, without
suffix."""

from __future__ import annotations

import html
from pathlib import Path, PurePosixPath

from sphinx.application import Sphinx
from sphinx.errors import ConfigError
from sphinx.util.osutil import relative_uri
from sphinx.util.typing import ExtensionMetadata

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>This page has moved</title>
<meta http-equiv="refresh" content="0; url={target}"><link rel="canonical" href="{target}">
<meta name="robots" content="noindex">
</head><body><article><p>This page has moved: <a href="{target}">{name}</a>.</p></article></body></html>
"""


def write_redirects(app: Sphinx, exception: Exception | None) -> None:
    """A page at each old address; an old name that is a page again, or a target that is none, is an error."""
    if exception is not None or app.builder.format != "html":
        return
    for old, new in app.config.redirects.items():
        if old in app.env.found_docs or new not in app.env.found_docs:
            raise ConfigError(f"redirects: {old} must have gone and {new} must be a page")
        target = relative_uri(f"{old}.html", f"{new}.html")
        page = Path(app.outdir, *PurePosixPath(f"{old}.html").parts)
        page.parent.mkdir(parents=True, exist_ok=True)  # the folder may have gone with its last page
        page.write_text(
            PAGE.format(target=html.escape(target), name=html.escape(app.env.titles[new].astext())), encoding="utf-8"
        )


def setup(app: Sphinx) -> ExtensionMetadata:
    app.add_config_value("redirects", {}, "html", [dict])
    app.connect("build-finished", write_redirects)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
