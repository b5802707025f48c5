"""A text classification set that needs no download: which installed package does this docstring come from?

The sources are parsed, never imported or run. The texts depend on the installed versions of the packages;
for given versions they are the same on every machine.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import re
import warnings
from collections.abc import Iterator
from functools import lru_cache
from itertools import chain
from pathlib import Path

from attnrank import _check

PACKAGES = ("matplotlib", "networkx", "numpy", "pandas", "scipy", "sklearn", "sympy", "torch")
ROWS_PER_CLASS = {"train": 240, "test": 60}
SHORTEST = 200  # characters: a shorter docstring says too little to be told apart
MOST_PER_FILE = 20  # keeps one long file from filling a class
MOST_BYTES = 3000  # per docstring: parsing takes nearly all of the time, so files with little text are left out
RUN = 8  # words: texts with most of their runs of this many words in an earlier text are near-copies

# Tests, and folders that hold copies of code of other packages.
_SKIPPED_FOLDERS = {
    "tests", "test", "testing", "_testing", "externals", "_vendor", "_vendored", "array_api_compat", "array_api_extra",
    "_numpy",
}
# The names go wherever they occur, inside words too; the usual abbreviations go where they stand alone.
_NAMES = re.compile(
    r"matplotlib|networkx|numpy|pandas|scipy|scikit-?learn|sklearn|sympy|pytorch|torch"
    r"|\b(?:mpl|plt|pyplot|nx|np|pd|sp)\b",
    re.IGNORECASE,
)


def _files(package: str) -> list[Path]:
    """The source files of an installed package in a scattered order that is the same on every machine."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(f"the docstrings set needs the package {package}: install the requirements of attnrank")
    root = Path(spec.submodule_search_locations[0])
    files = {path.relative_to(root).as_posix(): path for path in root.rglob("*.py")}
    kept = [name for name in files if not _SKIPPED_FOLDERS.intersection(name.split("/")[:-1])]
    return [files[name] for name in sorted(kept, key=lambda name: hashlib.sha256(name.encode()).digest())]


def _public(body: list[ast.stmt]) -> Iterator[str]:
    """Docstrings of the public functions and classes in ``body``, and of the public methods of those classes."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
            yield ast.get_docstring(node) or ""
            if isinstance(node, ast.ClassDef):
                yield from _public(node.body)


def _of_file(path: Path) -> list[str]:
    """The public docstrings of one source file, without package names, as single lines; none if it does not parse."""
    source = path.read_bytes()
    if len(source) > MOST_BYTES * (source.count(b'"""') // 2):
        return []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in somebody else's source
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return []
    texts = (" ".join(_NAMES.sub("", text).split()) for text in _public(tree.body) if len(text) >= SHORTEST)
    return [text for text in texts if len(text) >= SHORTEST]


def _new(texts: list[str], seen: set[int]) -> list[str]:
    """The texts that are no near-copy of an earlier one; their runs of words join ``seen``."""
    fresh = []
    for text in texts:
        words = text.lower().split()
        runs = {hash(tuple(words[start : start + RUN])) for start in range(max(1, len(words) - RUN + 1))}
        if 2 * len(runs & seen) <= len(runs):
            fresh.append(text)
        seen |= runs
    return fresh


def _of_package(package: str, seen: set[int]) -> dict[str, list[str]]:
    """Fill the splits of one class; a file gives to one split only."""
    splits: dict[str, list[str]] = {"test": [], "train": []}
    for path in _files(package):
        split = "test" if len(splits["test"]) < ROWS_PER_CLASS["test"] else "train"
        if len(splits[split]) >= ROWS_PER_CLASS[split]:
            break
        splits[split].extend(_new(_of_file(path), seen)[:MOST_PER_FILE])
    for split, rows in ROWS_PER_CLASS.items():
        if len(splits[split]) < rows:
            raise RuntimeError(f"{package} as installed has {len(splits[split])} docstrings for {split}; {rows} needed")
    return {split: splits[split][:rows] for split, rows in ROWS_PER_CLASS.items()}


@lru_cache(maxsize=1)
def _collect() -> dict[str, tuple[str, ...]]:
    seen: set[int] = set()
    classes = [_of_package(package, seen) for package in PACKAGES]
    return {
        split: tuple(chain.from_iterable(zip(*(texts[split] for texts in classes), strict=True)))
        for split in ROWS_PER_CLASS
    }


def load(split: str) -> tuple[list[str], list[int]]:
    """Docstrings of public functions, classes and methods, and the index in ``PACKAGES`` of where each comes from.

    240 texts a class for ``"train"``, 60 for ``"test"``, in turn one of each class. Each text is one line of at
    least 200 characters. The names of all the packages and their usual abbreviations (``np``, ``plt``, ...) are
    removed, so that the answer is not given away; the vocabulary (``Axes``, ``DataFrame``) stays. A source file
    gives to one split only, and a text most of whose runs of eight words occur in earlier ones is left out, so
    that no near-copy of a test text is in train.

    Raises
    ------
    ValueError
        For an unknown split.
    ImportError
        If one of the packages is not installed.
    RuntimeError
        If the installed version of one has too few docstrings.
    """
    _check.choice("split", split, ROWS_PER_CLASS)
    texts = _collect()[split]
    return list(texts), [row % len(PACKAGES) for row in range(len(texts))]
