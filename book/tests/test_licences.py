"""Everything that the book needs or brings along says under which licence."""

from __future__ import annotations

from email.message import Message
from pathlib import Path, PurePosixPath
from types import SimpleNamespace

import licences
import pytest


def package(files: dict[str, str] | None = None, **about: str | list[str]) -> SimpleNamespace:
    """Metadata as importlib gives them, with underscores for the hyphens of names."""
    metadata = Message()
    for name, values in about.items():
        for value in [values] if isinstance(values, str) else values:
            metadata[name.replace("_", "-")] = value
    listed = [SimpleNamespace(name=PurePosixPath(path).name, read_text=lambda text=text: text)
              for path, text in (files or {}).items()]
    return SimpleNamespace(metadata=metadata, files=listed)


def test_every_dependency_declares_a_licence(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert licences.main([str(root / "requirements.txt")]) == 0
    *lines, total = capsys.readouterr().out.splitlines()
    listed = {line.split()[0]: line for line in lines}
    assert len(listed) == len(lines) > 100 and total == f"{len(lines)} packages, 0 without a declared licence"
    assert listed["attnrank"].endswith(" MIT") and "BSD-3-Clause" in listed["numpy"]
    assert {"torch", "sphinx", "pytest", "pybtex", "markupsafe"} <= listed.keys()  # named, and needed by those


def test_the_package_alone_needs_less(capsys: pytest.CaptureFixture[str]) -> None:
    licences.main([])
    listed = {line.split()[0] for line in capsys.readouterr().out.splitlines()}
    assert {"attnrank", "torch", "seaborn", "distributed"} <= listed and not {"sphinx", "pytest"} & listed
    assert "distributed" not in licences.needed(["dask"]) and "distributed" in licences.needed(["dask[distributed]"])


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        (package(License_Expression="MIT", License="other"), "MIT"),
        (package(License="BSD", Classifier="License :: OSI Approved :: BSD License"), "BSD"),
        (package(License="MIT License\n" + "text " * 99, Classifier="License :: OSI Approved :: MIT License"),
         "MIT License"),
        (package(Classifier=["License :: OSI Approved", "License :: OSI Approved :: A", "License :: B"]), "A; B"),
        (package({"x.dist-info/LICENSE.txt": "ISC License\nCopyright", "x/code.py": "code"}, License="UNKNOWN"),
         "ISC License"),
        (package({"x/code.py": "code"}, License="UNKNOWN", Classifier="License :: OSI Approved"), ""),
    ],
)  # fmt: skip
def test_what_is_declared_is_found(known: SimpleNamespace, expected: str) -> None:
    assert licences.licence(known) == expected


def test_a_package_without_licence_fails_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(licences, "licence", lambda package: "" if package.name == "tqdm" else "MIT")
    assert licences.main([]) == 1
    out = capsys.readouterr().out
    assert "NOT DECLARED" in out and out.endswith(" 1 without a declared licence\n")


def test_names_are_read_from_a_requirements_file() -> None:
    text = "# all\n-e ./lib[data,book]\nnumpy==2.4.6\n\nipykernel<7.3  # a warning\n--find-links x\n"
    assert licences.named(text) == ["attnrank[data,book]", "numpy==2.4.6", "ipykernel<7.3"]
    with pytest.raises(ValueError, match="no-such-package is not installed"):
        licences.needed(["no-such-package"])


def test_what_the_site_brings_along_has_its_licence(root: Path) -> None:
    for folder in ("katex", "fonts"):
        assert (root / "book/_static" / folder / "LICENSE").stat().st_size > 500
