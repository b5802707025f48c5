"""The licences of everything that is installed for the book, as the packages themselves declare them.

    python book/_ext/licences.py requirements.txt     the package, the site, the tests
    python book/_ext/licences.py                      the package alone, with all its extras

lists the named packages and what they need in turn, as installed here, and exits with 1 if one declares no licence.
What the site brings along itself, KaTeX and fonts, has its licence beside it in book/_static.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LONGEST = 60


def needed(names: Iterable[str]) -> dict[str, Distribution]:
    """The installed packages that requirements such as ``"attnrank[data]"`` name, and all that they need, by name.

    Raises:
        ValueError: if a named package is not installed.
    """
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()

    def follow(wanted: Requirement, required: bool) -> None:
        name = canonicalize_name(wanted.name)
        try:
            package = found.get(name) or distribution(name)
        except PackageNotFoundError:
            if required:
                raise ValueError(f"names: {wanted.name} is not installed") from None
            return  # needed elsewhere only, or left out on purpose
        found[name] = package
        for extra in {"", *wanted.extras}:
            if (name, extra) not in seen:
                seen.add((name, extra))
                for other in map(Requirement, package.requires or ()):
                    if other.marker is None or other.marker.evaluate({"extra": extra}):
                        follow(other, required=False)

    for name in names:
        follow(Requirement(name), required=True)
    return dict(sorted(found.items()))


def licence(package: Distribution) -> str:
    """What a package declares: an expression, a name, classifiers, or the title of its licence file; or nothing, ""."""
    about = package.metadata
    stated = (about.get("License") or "").strip()
    if len(stated) > LONGEST or stated == "UNKNOWN":  # some give the whole text
        stated = ""
    classes = [line.split(" :: ")[-1] for line in about.get_all("Classifier", []) if line.startswith("License ::")]
    files = [file for file in package.files or () if re.match(r"(?i)licen[cs]e|copying", file.name)]
    titles = [line.strip() for file in files for line in (file.read_text() or "").splitlines()[:1]]
    found = [about.get("License-Expression"), stated, "; ".join(text for text in classes if text != "OSI Approved")]
    return next(filter(None, [*found, *titles]), "")


def named(requirements: str) -> list[str]:
    """The packages that a requirements file names; ``-e ./lib[data]`` is the package attnrank with its extras."""
    lines = [re.sub(r"\s*#.*", "", line).strip() for line in requirements.splitlines()]
    lines = [re.sub(r"^-e\s+\./lib", "attnrank", line) for line in lines]
    return [line for line in lines if line and not line.startswith("-")]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python book/_ext/licences.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("requirements", nargs="?", type=Path, help="a requirements file; without it, the package alone")
    path = parser.parse_args(arguments).requirements
    extras = ",".join(distribution("attnrank").metadata.get_all("Provides-Extra", []))
    names = named(path.read_text(encoding="utf-8")) if path else [f"attnrank[{extras}]"]
    packages = needed(names)
    without = [name for name, package in packages.items() if not licence(package)]
    for name, package in packages.items():
        print(f"{name:32} {package.version:16} {licence(package) or 'NOT DECLARED'}")
    print(f"{len(packages)} packages, {len(without)} without a declared licence")
    return 1 if without else 0


if __name__ == "__main__":
    sys.exit(main())
