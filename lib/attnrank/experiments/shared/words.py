"""Texts as sequences of words."""

from __future__ import annotations

import re

TEXTS = ("imdb", "docstrings")


def words_of(text: str) -> list[str]:
    """The words of a text: runs of letters and apostrophes, in lower case, HTML line breaks left out."""
    return re.findall(r"[a-z']+", re.sub(r"<br\s*/?>", " ", text.lower()))
