"""What is installed is what is tested: the wheel in an environment that has nothing but what it declares.

The environment is bare: the wheel is installed by pip, and its other packages are links to those of this one, of the
distributions that the wheel requires and those that they require in turn, and nothing else. What the package imports
without declaring it is not there.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from email import message_from_string
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
    if sys.platform == "win32":
        pytest.skip("the environment is made of links, which Windows lets few users make")
    venv.create(folder, with_pip=False, symlinks=True)
    command = [sys.executable, "-m", "pip", "--python", str(folder), "install", "--quiet", "--no-deps", "--no-index",
               "--no-compile", str(wheel)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [packages] = folder.glob("lib/python*/site-packages")
    [installed] = packages.glob("attnrank-*.dist-info")
    declared = metadata.Distribution.at(installed).requires or []
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


def examples(text: str) -> list[tuple[str, str]]:
    """The Python blocks of a page, each with the output that is printed below it ("" where none is)."""
    found: list[tuple[str, str]] = []
    for language, block in re.findall(r"```(python|text)\n(.*?)```", text, re.DOTALL):
        if language == "python":
            found.append((block, ""))
        else:
            found[-1] = (found[-1][0], block)
    return found


def test_the_examples_of_the_package_page_run_as_they_stand_without_any_extra(bare, tmp_path):
    """One after the other, as a reader types them: what they print is what the page shows. (mpmath is torch's.) None
    waits for scipy.stats, whose import takes as long as all of theirs but torch's."""
    blocks = examples((LIB / "README.md").read_text(encoding="utf-8"))
    assert len(blocks) == 3 and all(output for _, output in blocks)
    end = "\nprint('----')\n"
    code = end.join(block for block, _ in blocks) + end
    code += f"import sys\nprint(sorted({HEAVY - {'mpmath'} | {'scipy.stats'}!r} & sys.modules.keys()))"
    *printed, heavy = run(bare, code, tmp_path).split("----\n")
    assert printed == [output for _, output in blocks] and heavy.strip() == "[]"


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        [info] = {name.split("/")[0] for name in names} - {"attnrank"}
        about = archive.read(f"{info}/METADATA").decode()
        assert "attnrank = attnrank.__main__:main" in archive.read(f"{info}/entry_points.txt").decode()
    assert info.endswith(".dist-info") and "attnrank/py.typed" in names and f"{info}/licenses/LICENSE" in names
    assert [name for name in names if Path(name).suffix not in (".py", ".typed", ".csv") and info not in name] == []
    assert wheel.stat().st_size < 1_000_000
    page = message_from_string(about)
    assert {"Programming Language :: Python :: 3.13", "Typing :: Typed"} <= set(page.get_all("Classifier"))
    assert page["License-Expression"] == "MIT" and page["Description-Content-Type"] == "text/markdown"
    assert f"\n## {page['Version']}\n" in (LIB / "CHANGELOG.md").read_text(encoding="utf-8")


#: For each command its status and what it prints on either stream.
EACH_COMMAND = """
import contextlib, io, runpy, sys
for command in {commands}:
    sys.argv, streams, status = ["attnrank", *command], (io.StringIO(), io.StringIO()), 0
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
        try:
            runpy.run_module("attnrank", run_name="__main__", alter_sys=True)
        except SystemExit as end:
            status = end.code or 0
    print((status, *(stream.getvalue() for stream in streams)))
"""


def test_the_command_leads_to_the_others(bare, tmp_path):
    """Once as the program that pip has installed, then all in one process."""
    command = [str(bare.with_name("attnrank")), "sweep", "causal_bounds", "--folder", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "causal_bounds (quick): 3 rows, complete\n"), done.stderr
    commands = [["--help"], [], ["--version"], ["probe", "--help"], ["benchmarks", "--help"], ["porbe"]]
    printed = run(bare, EACH_COMMAND.format(commands=commands), tmp_path).splitlines()
    (status, shown, _), empty, (_, version, _), probe, benchmarks, wrong = map(ast.literal_eval, printed)
    assert status == empty[0] == 0 and all(name in shown for name in ("probe", "sweep", "benchmarks"))
    assert empty[1] == shown and version.startswith("attnrank 0.")
    assert probe[0] == benchmarks[0] == 0 and "usage: python -m attnrank.probe" in probe[1]
    assert wrong[0] == 2 and "'porbe' is no command" in wrong[2]


def test_every_module_can_be_imported_without_any_extra(bare, modules, tmp_path):
    """What a module needs of an extra it imports when it is used; a module that was not packed is found missing."""
    assert int(run(bare, EVERY_MODULE, tmp_path)) == modules


def test_every_module_can_be_imported_with_all_extras(full, modules, tmp_path):
    code = (
        EVERY_MODULE
        + "\nfrom attnrank import data, report\nreport.setup()\nprint(data.images('digits', count=2)[0].shape)"
    )
    assert run(full, code, tmp_path).split("\n", 1) == [str(modules), "torch.Size([2, 1, 8, 8])\n"]


def test_what_is_missing_is_named_with_its_extra(bare, tmp_path):
    uses = {
        "data": "attnrank.data.images('digits', count=2)", "book": "attnrank.report.setup()",
        "cluster": "attnrank.sweep.run('T', print, [{'n': 1}], folder='.', cluster='tcp://127.0.0.1:1')",
    }  # fmt: skip
    lines = [f"try: {use}\nexcept (ImportError, ValueError) as error: print(repr(str(error)))" for use in uses.values()]
    messages = run(bare, "\n".join(["import attnrank", *lines]), tmp_path).splitlines()
    for extra, message in zip(uses, messages, strict=True):
        assert f"pip install 'attnrank[{extra}]'" in ast.literal_eval(message)


#: A layer and input in the place of those of the front page, its bias random; and its own weights, with and without
#: that bias.
GIVEN = """
torch.manual_seed(0)
layer = torch.nn.MultiheadAttention(32, 4, batch_first=True, dtype=torch.float64)
torch.nn.init.normal_(layer.in_proj_bias)
x = torch.randn(2, 10, 32, dtype=torch.float64)
"""
COMPARED = """
def own():
    return attnrank.hardmax_rank_of(layer(x, x, x, average_attn_weights=False)[1])
ranks, whole = attnrank.hardmax_rank(q, k), own()
torch.nn.init.zeros_(layer.in_proj_bias)
print(torch.equal(ranks, whole), torch.equal(ranks, own()))
"""


@pytest.fixture
def front_page():
    """The lines of Python of the front page."""
    page = LIB.parent / "README.md"
    if not page.exists():
        pytest.skip("the package is tested without the book")
    section = page.read_text(encoding="utf-8").split("## Measure your own heads")[1].split("\nOr ")[0]
    lines = [line.strip() for line in section.split("\n## ")[0].splitlines() if line.startswith("    ")]
    return [line for line in lines if "pip install" not in line]


def test_the_lines_of_the_front_page_run_as_they_stand(bare, front_page, tmp_path):
    """The table of 2 x 4 heads is printed with all its columns."""
    printed = run(bare, "\n".join(front_page), tmp_path).splitlines()
    assert sum(line.count("attnrank.") for line in front_page) == 4
    assert len(printed) == 9 and printed[0].split()[:2] == ["batch", "head"] and "..." not in printed[0]


def test_the_lines_of_the_front_page_give_the_queries_and_keys_of_a_layer(bare, front_page, tmp_path):
    [drawn] = [at for at, line in enumerate(front_page) if line.startswith("layer, x = ")]
    lines = [*front_page[:drawn], GIVEN, *front_page[drawn + 1 :], COMPARED]
    assert run(bare, "\n".join(lines), tmp_path).splitlines()[-1] == "True False"
