"""What is installed is what is tested: the wheel in an environment that has nothing but what it declares.

The environment is bare: its packages are links to those of this one, of the distributions that the wheel requires and
those that they require in turn, and nothing else. What the package imports without declaring it is not there.
"""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LIB = Path(__file__).resolve().parents[1]
EXTRAS = ("data", "book", "cluster", "models")
#: What `import attnrank` and the rank routines must do without.
HEAVY = {"datasets", "pyarrow", "PIL", "sklearn", "matplotlib", "seaborn", "mpmath", "distributed", "dask",
"safetensors",
         "tokenizers", "transformers"}  # fmt: skip


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of a copy of lib/, so that building leaves nothing in the repository."""
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(LIB, folder / "lib", ignore=shutil.ignore_patterns("tests", "__pycache__", "*.egg-info", "build"))
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index",
               "-w", str(folder), str(folder / "lib")]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return next(folder.glob("*.whl"))


def required(requirements: list[str], extra: str = "") -> set[str]:
    """Names of the distributions that these requirements bring, and theirs in turn."""
    found: set[str] = set()
    queue = [(text, extra) for text in requirements]
    while queue:
        text, extra = queue.pop()
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        for asked in {"", *requirement.extras}:
            if (name, asked) not in found:
                found.add((name, asked))
                try:
                    queue += [(text, asked) for text in metadata.requires(name) or []]
                except metadata.PackageNotFoundError:  # of another platform's accelerator, for instance
                    continue
    return {name for name, _ in found}


def environment(folder: Path, wheel: Path, extras: tuple[str, ...]) -> Path:
    """Make a bare environment with the wheel and these extras, and return its interpreter."""
    venv.create(folder, with_pip=False, symlinks=True)
    [packages] = folder.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        declared = metadata.Distribution.at(packages / Path(name).parent).requires or []
    names = {name for extra in ("", *extras) for name in required(declared, extra)}
    for name in names:
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        for top in {Path(file).parts[0] for file in distribution.files or []} - {"..", "__pycache__"}:
            link, target = packages / top, Path(distribution.locate_file(top))
            if not link.exists() and target.exists():
                link.symlink_to(target)
    return folder / "bin" / "python"


def run(python: Path, code: str, folder: Path) -> str:
    done = subprocess.run([str(python), "-I", "-W", "ignore", "-c", code], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def bare(wheel, tmp_path_factory):
    return environment(tmp_path_factory.mktemp("bare"), wheel, ())


@pytest.fixture(scope="module")
def full(wheel, tmp_path_factory):
    return environment(tmp_path_factory.mktemp("full"), wheel, EXTRAS)


EVERY_MODULE = """
import importlib, pkgutil, sys, attnrank
assert "site-packages" in attnrank.__file__, attnrank.__file__
names = [m.name for m in pkgutil.walk_packages(attnrank.__path__, "attnrank.") if not m.name.endswith("__main__")]
for name in names: importlib.import_module(name)
print(len(names))
"""


@pytest.fixture(scope="module")
def modules(wheel):
    """Number of modules of the package when the wheel was built, by its sources."""
    return sum(path.name != "__main__.py" for path in (wheel.parent / "lib" / "attnrank").rglob("*.py")) - 1


def snippet() -> str:
    """The code of the package's page."""
    parts = (LIB / "README.md").read_text(encoding="utf-8").split("```python\n")[1:]
    return "".join(part.split("```")[0] for part in parts)


def test_the_package_page_runs_without_any_extra(bare, tmp_path):
    code = ast.unparse(ast.parse(snippet()))
    found = run(bare, f"{code}\nimport sys\nprint(rank, sorted({HEAVY!r} & sys.modules.keys()))", tmp_path)
    rank, heavy = found.split(maxsplit=1)
    assert 300 < int(rank) < 1000 and heavy.strip() == "[]"


def test_every_module_can_be_imported_without_any_extra(bare, modules, tmp_path):
    """What a module needs of an extra it imports when it is used; a module that was not packed is found missing."""
    assert int(run(bare, EVERY_MODULE, tmp_path)) == modules


def test_every_module_can_be_imported_with_all_extras(full, modules, tmp_path):
    code = (
        EVERY_MODULE
        + "\nfrom attnrank import data, report\nreport.setup()\nprint(data.images('digits', count=2)[0].shape)"
    )
    assert run(full, code, tmp_path).split("\n", 1) == [str(modules), "torch.Size([2, 1, 8, 8])\n"]


@pytest.mark.parametrize("use, extra", [
    ("attnrank.data.images('digits', count=2)", "data"), ("attnrank.report.setup()", "book"),
    ("attnrank.sweep.run('T', print, [{'n': 1}], folder='.', cluster='tcp://127.0.0.1:1')", "cluster"),
])
def test_what_is_missing_is_named_with_its_extra(use, extra, bare, tmp_path):
    code = f"import attnrank\ntry: {use}\nexcept (ImportError, ValueError) as error: print(error)"
    assert f"pip install 'attnrank[{extra}]'" in run(bare, code, tmp_path)


@pytest.mark.skipif(not (LIB.parent / "README.md").exists(), reason="the package is tested without the book")
def test_the_lines_of_the_front_page_run_on_queries_and_keys(bare, tmp_path):
    section = (
        (LIB.parent / "README.md")
        .read_text(encoding="utf-8")
        .split("## Measure your own heads")[1]
        .split("\nOr ")[0]
        .split("\n## ")[0]
    )
    lines = [line.strip() for line in section.splitlines() if line.startswith("    ") and "pip install" not in line]
    assert sum("attnrank." in line for line in lines) >= 4
    given = "import torch\nlayer = torch.nn.MultiheadAttention(32, 4, batch_first=True)\n"
    given += "x, heads = torch.randn(2, 10, 32), 4\n"
    run(bare, given + "\n".join(lines), tmp_path)


def test_tables_can_be_listed_and_computed_without_any_extra(bare, tmp_path):
    done = subprocess.run([str(bare), "-I", "-m", "attnrank.sweep", "causal_bounds", "--folder", str(tmp_path)],
                          cwd=tmp_path, capture_output=True, text=True)  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "causal_bounds (quick): 3 rows, complete\n"), done.stderr
