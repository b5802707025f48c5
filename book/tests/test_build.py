"""``jupyter-book build .`` fails when it must, and never shows outputs of another library than the present one."""

from __future__ import annotations

import os
import re
from pathlib import Path
from types import SimpleNamespace

import fresh_outputs
import pytest
import redirects
from docutils import nodes
from sphinx.errors import ConfigError

import building
import forking

RUNS = "from pathlib import Path\nwith Path('../runs').open('a') as file:\n    file.write('x')\n"
TEXT = """---
kernelspec:
  display_name: Python 3
  language: python
  name: python3
---

# Small notebook

```{code-cell}
print('quiet')
```
"""
ANSWER = "import runpy\nprint(runpy.run_path('../lib/attnrank/__init__.py')['ANSWER'])"


@pytest.mark.parametrize("forked", [True, False])
def test_a_command_gives_its_status_and_what_it_prints(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, forked: bool
) -> None:
    if not forked:  # as on systems where builds are not forked
        monkeypatch.setattr(forking, "server", lambda: None)
    shown = building.run(["--version"], tmp_path, dict(os.environ))
    assert (shown.returncode, "Jupyter Book" in shown.stdout) == (0, True), shown.stdout
    failed = building.run(["build", "nowhere"], tmp_path, dict(os.environ))
    assert failed.returncode != 0 and "nowhere" in failed.stdout


class TestFailures:
    def test_a_faultless_book_builds(self, small_book) -> None:
        result = small_book.build()
        assert result.returncode == 0, result.stdout
        assert "quiet" in small_book.page() and "stored output" not in small_book.page()
        assert '<span class="section-number">3' in small_book.page()  # the chapter number is that of the file

    def test_sections_and_contents_take_the_number_of_the_file(self, small_book) -> None:
        notebook = small_book.folder / "notebooks/03_small.ipynb"
        text = notebook.read_text(encoding="utf-8").replace("# Small notebook", "# Small notebook\\n\\n## Inside")
        for number in (3, 17):
            notebook.unlink()
            notebook = small_book.folder / f"notebooks/{number:02}_small.ipynb"
            notebook.write_text(text, encoding="utf-8")
            contents = (small_book.folder / "_toc.yml").read_text(encoding="utf-8")
            small_book.write("_toc.yml", re.sub(r"\d+_small", notebook.stem, contents))
            result = small_book.build(execute="off")
            assert result.returncode == 0, result.stdout
            own, index = (small_book.page(name) for name in (f"notebooks/{notebook.stem}", "book/index"))
            numbers = re.findall(r'section-number">([\d.]+)', own)
            assert numbers[:2] == [f"{number}", f"{number}.1"], numbers
            assert re.search(rf'href="[^"]*{notebook.stem}.html">\s*{number}[.\u2002 ]', index), index

    @pytest.mark.parametrize(
        ("cell", "message", "times"),
        [
            ("raise ValueError('planted fault')", "planted fault", 2),
            ("import sys\nprint('planted', file=sys.stderr)", "stderr", 2),
            ("import warnings\nwarnings.warn('planted')", "stderr", 1),
        ],
    )
    def test_a_faulty_cell_fails_the_build_each_time(self, small_book, cell: str, message: str, times: int) -> None:
        small_book.notebook("print('before')", cell)
        for _ in range(times):
            result = small_book.build()
            assert result.returncode != 0
            assert message in result.stdout

    def test_every_broken_reference_is_a_warning_and_fails_the_build(self, small_book) -> None:
        """A single warning is enough: see the next test."""
        lines = [
            "[text](#no-such-label)", "[text](no_such_page.md)", "{ref}`no-such-label`", "{numref}`no-such-figure`",
            "{eq}`no-such-equation`", "{cite}`no_such_paper`", "{prf:ref}`no-such-theorem`",
            "![alt](no_such_picture.png)",
        ]  # fmt: skip
        small_book.write("book/index.md", "\n\n".join(["# Small book", *(f"Here: {line}" for line in lines)]))
        result = small_book.build(execute="off")
        assert result.returncode != 0
        found = {int(number) for number in re.findall(r"index\.md:(\d+): WARNING", result.stdout)}
        assert found == set(range(3, 3 + 2 * len(lines), 2)), result.stdout

    def test_a_label_that_goes_away_fails_the_build_of_unchanged_pages(self, small_book) -> None:
        assert small_book.build(execute="off").returncode == 0
        small_book.write("book/other.md", "# Other page\n\n## A section\n\nText.\n")
        for _ in range(2):
            assert small_book.build(execute="off").returncode != 0

    def test_an_edit_that_the_executed_half_lacks_stops_the_build(self, small_book) -> None:
        small_book.write("notebooks/03_small.md", TEXT)
        for source in ("# Small notebook\n", "# Small notebook, edited\n"):
            small_book.write("notebooks/03_small.md", TEXT.replace("# Small notebook\n", source))
            result = small_book.build(execute="off")
            assert (result.returncode != 0) == ("edited" in source), result.stdout
        assert "python book/_ext/pairs.py notebooks/03_small.md" in result.stdout


class TestRedirects:
    def app(self, folder: Path, moved: dict[str, str], form: str = "html") -> SimpleNamespace:
        env = SimpleNamespace(found_docs={"new/b", "c"}, titles={"new/b": nodes.title("", "A < B")})
        return SimpleNamespace(builder=SimpleNamespace(format=form), outdir=folder, env=env,
                               config=SimpleNamespace(redirects=moved))  # fmt: skip

    def test_an_old_address_leads_to_the_page(self, tmp_path: Path) -> None:
        """Also where its folder has gone with it."""
        redirects.write_redirects(self.app(tmp_path, {"old/deep/a": "new/b"}), None)
        page = (tmp_path / "old/deep/a.html").read_text(encoding="utf-8")
        assert page.count('"../../new/b.html"') == 2 and "url=../../new/b.html" in page and ">A &lt; B</a>" in page

    @pytest.mark.parametrize("moved", [{"c": "new/b"}, {"a": "gone"}])
    def test_an_address_that_is_a_page_or_leads_to_none_is_refused(self, tmp_path: Path, moved: dict) -> None:
        with pytest.raises(ConfigError, match="redirects: .* must have gone and .* must be a page"):
            redirects.write_redirects(self.app(tmp_path, moved), None)

    def test_there_are_none_of_a_build_that_failed_or_is_no_site(self, tmp_path: Path) -> None:
        redirects.write_redirects(self.app(tmp_path, {"a": "new/b"}), ValueError("failed"))
        redirects.write_redirects(self.app(tmp_path, {"a": "new/b"}, form="latex"), None)
        assert not list(tmp_path.iterdir())


class TestFreshOutputs:
    def test_the_digest_is_of_names_and_contents(self, tmp_path: Path) -> None:
        def digest(ignored: tuple[str, ...] = (), **files: bytes) -> str:
            for path in tmp_path.glob("*/*"):
                path.unlink()
            for name, content in files.items():
                (tmp_path / "of").mkdir(exist_ok=True)
                (tmp_path / "of" / name).write_bytes(content)
            return fresh_outputs.digest(tmp_path, ["of/*", "*/a", "*"], list(ignored))

        first = digest(a=b"one\ntwo", b=b"three")
        assert digest(a=b"one\r\ntwo", b=b"three") == first  # as another system checks the files out
        assert digest(("of/c",), a=b"one\ntwo", b=b"three", c=b"ignored") == first
        changed = [digest(a=b"one\nTwo", b=b"three"), digest(a=b"one\ntwo", c=b"three"), digest(a=b"one\ntwo"),
                   digest(a=b"one\ntwot", b=b"hree"), digest(a=b"three", b=b"one\ntwo")]  # fmt: skip
        assert digest(a=b"x", b=b"y") != digest(a=b"xof/b 1\ny") and digest(a=b"x", b=b"y") != digest(a=b"xof/by")
        assert len({first, *changed}) == 6 and {len(one) for one in changed} == {16}

    def test_outputs_follow_what_they_depend_on(self, small_book) -> None:
        small_book.notebook(RUNS + ANSWER)

        def build_and_count() -> int:
            result = small_book.build()
            assert result.returncode == 0, result.stdout
            return len((small_book.folder / "runs").read_text())

        assert build_and_count() == 1
        assert build_and_count() == 1, "nothing changed, yet the notebook ran"
        small_book.write("lib/attnrank/__init__.py", "ANSWER = 'second answer'\n")
        assert build_and_count() == 2
        assert "second answer" in small_book.page() and "first answer" not in small_book.page()
        small_book.write("lib/attnrank/__init__.py", "ANSWER = 'first answer'\n")
        assert build_and_count() == 2, "the outputs of this library are at hand"
        assert "first answer" in small_book.page() and "second answer" not in small_book.page()
        small_book.write("book/results/table.csv", "n,rank\n1,2\n")
        assert build_and_count() == 3
        small_book.write("book/results/ledger.csv", "claim\nother\n")
        assert build_and_count() == 3, "the ledger is written by the notebooks"
        small_book.write("requirements.txt", "numpy\n")
        assert build_and_count() == 4
        small_book.notebook(RUNS + ANSWER, "print('a cell more')")
        assert build_and_count() == 5
        assert len(list((small_book.folder / "_build" / ".jupyter_cache").iterdir())) == 3

    def test_execution_can_be_switched_off(self, small_book) -> None:
        small_book.notebook(RUNS + ANSWER)
        result = small_book.build(execute="off")
        assert result.returncode == 0, result.stdout
        assert "stored output" in small_book.page()
        assert not (small_book.folder / "runs").exists()

    def test_a_word_it_does_not_know_is_refused(self, small_book) -> None:
        result = small_book.build(execute="sometimes")
        assert result.returncode != 0
        assert "ATTNRANK_BOOK_EXECUTE must be 'cache' or 'off', got 'sometimes'" in result.stdout
