"""What the tests of the book share: its root, the site from the stored outputs, a small book to break, a browser."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
import yaml
from filelock import FileLock

import browsing
import building
import kernels

ROOT = Path(__file__).resolve().parents[2]


def pytest_configure() -> None:
    kernels.fork()


def build(book: Path, *options: str, execute: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run ``jupyter-book build`` on a folder, as a reader does."""
    environment = {**os.environ, "PYTHONUTF8": "1", "ATTNRANK_BOOK_EXECUTE": execute or ""}
    for _ in range(3):
        result = building.run(["build", str(book), *options], book, environment)
        if "ZMQError: Address already in use" not in result.stdout:
            break  # else a kernel of another worker took the port that this one had chosen
    return result


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """The HTML of the whole book, built once from the stored outputs with warnings as errors."""
    shared = tmp_path_factory.getbasetemp()
    shared = shared if worker_id == "master" else shared.parent
    log = shared / "site.log"
    with FileLock(shared / "site.lock"):
        if not log.exists():
            result = build(ROOT, "-W", "-n", "--keep-going", "--path-output", str(shared / "site"), execute="off")
            log.write_text(f"{result.returncode}\n{result.stdout}", encoding="utf-8")
    status, _, output = log.read_text(encoding="utf-8").partition("\n")
    if status != "0":
        pytest.fail(f"the site does not build from the stored outputs (status {status}):\n{output}", pytrace=False)
    return shared / "site" / "_build" / "html"


class SmallBook:
    """A book of two pages and one notebook with the settings and extensions of the real one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        names = ["_config.yml", "requirements.txt", "book/references.bib"]
        names += [f"book/_static/{name}" for name in ("logo.svg", "book.css", "book.js")]
        names += [path.relative_to(ROOT).as_posix() for path in ROOT.glob("book/_ext/*.py")]
        names += [path.relative_to(ROOT).as_posix() for path in ROOT.glob("book/_templates/*.html")]
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
        settings = yaml.safe_load((folder / "_config.yml").read_text(encoding="utf-8"))
        del settings["sphinx"]["config"]["redirects"]  # this book has none of the pages that moved
        self.write("_config.yml", yaml.safe_dump(settings))
        self.write("_toc.yml", "format: jb-book\nroot: book/index\nparts:\n- numbered: 2\n  chapters:\n"
                   "  - file: notebooks/03_small\n  - file: book/other\n")
        self.write("book/index.md", "# Small book\n\nSee [](#a-label).\n")
        self.write("book/other.md", "# Other page\n\n(a-label)=\n## A section\n\nText.\n")
        self.write("lib/attnrank/__init__.py", "ANSWER = 'first answer'\n")
        self.write("book/results/table.csv", "n,rank\n1,1\n")
        self.write("book/results/ledger.csv", "claim\n")
        self.notebook("print('quiet')")

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def notebook(self, *sources: str) -> None:
        cells = [nbformat.v4.new_markdown_cell("# Small notebook")]
        cells += [nbformat.v4.new_code_cell(source, execution_count=count) for count, source in enumerate(sources, 1)]
        cells[1].outputs = [nbformat.v4.new_output("stream", name="stdout", text="stored output\n")]
        kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
        notebook = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})
        self.write("notebooks/03_small.ipynb", nbformat.writes(notebook))

    def build(self, **options: str) -> subprocess.CompletedProcess[str]:
        return build(self.folder, **options)

    def page(self, name: str = "notebooks/03_small") -> str:
        return (self.folder / "_build" / "html" / f"{name}.html").read_text(encoding="utf-8")


@pytest.fixture
def small_book(tmp_path: Path) -> SmallBook:
    return SmallBook(tmp_path / "small")


@pytest.fixture(scope="session")
def browser() -> Iterator[browsing.Browser]:
    """One for all tests that open a few pages."""
    executable = browsing.find_chromium()
    if executable is None:
        pytest.skip("no Chromium, Chrome or Edge found: install one or name it in ATTNRANK_CHROMIUM")
    with browsing.open_browser(executable) as opened:
        yield opened


@pytest.fixture
def fresh_browser(browser: browsing.Browser) -> Iterator[browsing.Browser]:
    """One for a test that opens every page, which leaves a browser too worn for the tests after it."""
    with browsing.launched(browser.browser_type, browsing.find_chromium()) as opened:
        yield opened
