"""Imports point one way: each part of the package imports only from those above it in the table of its layers."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import attnrank

PACKAGE = Path(attnrank.__file__).parent

#: From the bottom up; those of a line do not import each other. What begins with an underscore serves them all.
LAYERS = (
    ("_optional",), ("_files",), ("_check",), ("_quadrature",), ("_scaling",),
    ("theory",), ("scores",), ("ranks",), ("heads",), ("inputs",),
    ("docstrings",), ("sources",), ("parquet",), ("data",),
    ("models",), ("training",), ("probe",), ("convex",), ("sweep",), ("report",), ("benchmarks",), ("experiments",),
)  # fmt: skip
HEIGHT = {name: height for height, line in enumerate(LAYERS) for name in line}
#: The commands stand above everything, and the front page of the package shows what is below it.
ABOVE_ALL = {"__init__.py", "__main__.py", "sweep/__main__.py", "benchmarks/__main__.py", "probe/__main__.py"}
#: Within `experiments`, from the bottom up. Chapters may use each other's tables, but not in a circle.
ROOMS = {"experiment": 0, "shared": 1, "upkeep": 3}
#: The two places that need what another part keeps to itself: one times a path that is not public, one counts the
#: products inside the solver.
LOOKS_INSIDE = {"benchmarks/contests.py": "ranks", "experiments/convex_experiments/operations.py": "convex"}


def imports(path: Path, package: Path = PACKAGE) -> list[tuple[int, str]]:
    """Line and name of every module of the package that a file imports, however deep in it the import stands."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            found += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
    return [(line, name) for line, name in found if name.split(".")[0] == "attnrank"]


def part_of(name: str) -> str | None:
    """The part of the package that an imported name belongs to; None for the package itself and its public
    functions."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in HEIGHT else None


def faults(path: Path, package: Path = PACKAGE) -> list[str]:
    """The upward imports of a file."""
    place = path.relative_to(package)
    if place.as_posix() in ABOVE_ALL:
        return []
    own = place.parts[0].removesuffix(".py")
    if own not in HEIGHT:
        return [f"{place}: {own} has no place in the table of layers"]
    found = []
    for line, name in imports(path, package):
        part = part_of(name)
        if part is not None and HEIGHT[part] > HEIGHT[own]:
            found.append(f"{place}:{line}: {own} imports {part}, which stands above it")
        if part == own == "experiments":
            room = place.parts[1].removesuffix(".py") if len(place.parts) > 1 else "__init__"
            other = (name.split(".") + [""])[2]
            if room != "__init__" and ROOMS.get(other, 2) > ROOMS.get(room, 2):
                found.append(f"{place}:{line}: {room} imports {other}, which stands above it")
    return found


def private(path: Path, package: Path = PACKAGE) -> list[str]:
    """What a file imports that another part, or another chapter's experiments, keep to themselves."""
    place = path.relative_to(package)
    own = [part.removesuffix(".py") for part in place.parts]
    found = []
    for line, name in imports(path, package):
        parts = name.split(".")[1:]
        hidden = [at for at, part in enumerate(parts) if part.startswith("_") and not part.startswith("__")]
        for at in hidden:
            owner = parts[:at]  # none at the front of the package: what is hidden there serves it all
            if owner != own[:at] and LOOKS_INSIDE.get(place.as_posix()) != owner[0]:
                found.append(f"{place}:{line}: {name} belongs to {'.'.join(owner)} alone")
    return found


def test_no_module_imports_upward():
    assert [fault for path in sorted(PACKAGE.rglob("*.py")) for fault in faults(path)] == []


def test_what_is_private_stays_where_it_is():
    assert [fault for path in sorted(PACKAGE.rglob("*.py")) for fault in private(path)] == []


@pytest.fixture
def planted(tmp_path):
    """Writes a line into a file of a package of its own, and gives its path."""

    def write(place, line):
        path = tmp_path / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(line, encoding="utf-8")
        return path

    return write


@pytest.mark.parametrize("place, line, seen", [
    ("experiments/barrier.py", "from attnrank.ranks._hardmax import Heads", True),
    ("experiments/barrier.py", "from attnrank.experiments.convex_attention.training import _point", True),
    ("benchmarks/contests.py", "from attnrank.convex import _gram", True),
    ("benchmarks/contests.py", "def f():\n    from attnrank.ranks._hardmax import Heads", False),
    ("ranks/_hardmax/ties.py", "from attnrank.ranks._hardmax.tiles import _scaled", True),
    ("ranks/spectra.py", "from attnrank.ranks._hardmax import Heads", False),
    ("experiments/barrier.py", "from attnrank import _check", False),
    ("experiments/text/__main__.py", "from attnrank.experiments.accuracy.__main__ import main", False),
])
def test_planted_private_imports(place, line, seen, planted, tmp_path):
    assert bool(private(planted(place, line), tmp_path)) == seen


@pytest.mark.parametrize("place, line, fault", [
    ("theory/barrier.py", "from attnrank.ranks import hardmax_rank", "theory imports ranks"),
    ("ranks/spectra.py", "def f():\n    from attnrank import sweep", "ranks imports sweep"),
    ("sweep/_run.py", "import attnrank.experiments", "sweep imports experiments"),
    ("experiments/shared/heads.py", "from attnrank.experiments import barrier", "shared imports barrier"),
    ("experiments/barrier.py", "from attnrank.experiments.upkeep import cost", "barrier imports upkeep"),
    ("novelty.py", "", "novelty has no place"),
    ("sweep/_run.py", "from attnrank.ranks import hardmax_rank", None),
    ("experiments/barrier.py", "from attnrank.experiments.shared import heads", None),
    ("experiments/upkeep/cost.py", "from attnrank.experiments.growth import HEAD_DIMS", None),
])
def test_planted_imports(place, line, fault, planted, tmp_path):
    found = faults(planted(place, line), tmp_path)
    assert (not found) if fault is None else fault in found[0]


def test_chapters_import_each_other_without_a_circle():
    """A chapter that measures another's rows imports it; the order in which they can be loaded exists."""
    edges = {}
    for path in (PACKAGE / "experiments").rglob("*.py"):
        parts = path.relative_to(PACKAGE / "experiments").parts
        room = parts[0].removesuffix(".py")
        if room in ROOMS or room == "__init__":
            continue
        names = {name.split(".")[2] for _, name in imports(path) if name.startswith("attnrank.experiments.")}
        edges[room] = edges.get(room, set()) | names - set(ROOMS) - {room}
    while free := {room for room, others in edges.items() if not others & edges.keys()}:
        edges = {room: others for room, others in edges.items() if room not in free}
    assert not edges, f"a circle among {sorted(edges)}"


def test_parts_of_scipy_wait_until_they_are_used() -> None:
    code = """import sys, attnrank.report, attnrank.sweep.__main__
import scipy
loaded = lambda: [name for name in scipy.__all__ if f"scipy.{name}" in sys.modules]
print(loaded())
attnrank.theory.head_dim_bound(8, 4)
print("special" in loaded())  # the negative control"""
    run = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, encoding="utf-8", check=True)
    assert run.stdout.split() == ["[]", "True"]
