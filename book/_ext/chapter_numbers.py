"""A chapter is numbered by its file: notebooks/14_vit_initialisation is chapter 14, wherever it stands in the book.

Sections, figures, tables, theorems and exercises follow: Figure 7.2, Theorem 7.1. Only toctrees that are ``numbered``
in _toc.yml take part. sphinx-external-toc can count on through the parts or start afresh in each, not leave gaps.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.environment.collectors.toctree import TocTreeCollector
from sphinx.util.typing import ExtensionMetadata
from sphinx_external_toc.collectors import TocTreeCollectorWithStyles


def assign_section_numbers(self: TocTreeCollector, env: BuildEnvironment) -> list[str]:
    """Number the sections as Sphinx does, then replace the chapter by the number in the file name."""
    before = env.toc_secnumbers
    TocTreeCollector.assign_section_numbers(self, env)
    for page, numbers in env.toc_secnumbers.items():
        name = re.match(r"\d+", PurePosixPath(page).name)
        if not name:
            continue
        chapter = int(name[0])
        env.toc_secnumbers[page] = {anchor: (chapter, *rest[1:]) if rest else () for anchor, rest in numbers.items()}
        for node in [env.titles[page], *env.tocs[page].findall(nodes.reference)]:
            if node.get("secnumber"):
                node["secnumber"] = [chapter, *node["secnumber"][1:]]
    return [page for page, numbers in env.toc_secnumbers.items() if numbers != before.get(page)]


def setup(app: Sphinx) -> ExtensionMetadata:
    TocTreeCollectorWithStyles.assign_section_numbers = assign_section_numbers
    return {"parallel_read_safe": True, "parallel_write_safe": True}
