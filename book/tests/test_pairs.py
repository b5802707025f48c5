"""Notebook pairs: the .ipynb is its .md, executed from top to bottom without errors. Each fault is planted once."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

import pairs

TEXT = """---
kernelspec:
  display_name: Python 3
  language: python
  name: python3
---

# A title

```{code-cell} ipython3
print("one")
```

Words.

```{code-cell} ipython3
---
tags: [hide-input]
mystnb:
  image:
    alt: described
---
1 + 1
```
"""


def test_every_pair_of_the_book() -> None:
    assert pairs.check() == []


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> NotebookNode:
    source = tmp_path_factory.mktemp("executed") / "01_title.md"
    source.write_text(TEXT, encoding="utf-8")
    return nbformat.read(pairs.run(source), as_version=4)


def save(folder: Path, notebook: NotebookNode, text: str = TEXT) -> Path:
    (folder / "01_title.md").write_text(text, encoding="utf-8")
    nbformat.write(notebook, folder / "01_title.ipynb")
    return folder


def test_a_pair_that_was_run_passes(executed: NotebookNode, tmp_path: Path) -> None:
    assert [cell.execution_count for cell in executed.cells if cell.cell_type == "code"] == [1, 2]
    assert executed.cells[1].outputs[0].text == "one\n"
    assert pairs.check(save(tmp_path, executed)) == []


def test_running_again_changes_nothing(tmp_path: Path) -> None:
    source = tmp_path / "01_title.md"
    source.write_text(TEXT, encoding="utf-8")
    first = pairs.run(source).read_bytes()
    assert pairs.run(source).read_bytes() == first
    assert source.read_text(encoding="utf-8") == TEXT



def test_prose_alone_is_written_without_running(executed: NotebookNode, tmp_path: Path) -> None:
    """Also captions and alternative texts, which say nothing to the code; a planted output shows that nothing ran."""
    executed = copy.deepcopy(executed)
    executed.cells[1].outputs[0].text = "planted\n"
    edited = TEXT.replace("Words.", "Other words.").replace("alt: described", "alt: told") + "\nLast words.\n"
    folder = save(tmp_path, executed, edited)
    assert pairs.check(folder) != []
    assert pairs.sync(folder / "01_title.md") == folder / "01_title.ipynb"
    assert pairs.check(folder) == []
    written = nbformat.read(folder / "01_title.ipynb", as_version=4)
    assert written.cells[1].outputs[0].text == "planted\n" and written.cells[-1].source == "Last words."
    assert written.cells[3].metadata.mystnb.image.alt == "told"
    before = (folder / "01_title.ipynb").read_bytes()
    assert pairs.sync(folder / "01_title.md") is None  # nothing to write: whoever asks wants it run
    assert (folder / "01_title.ipynb").read_bytes() == before


def test_changed_code_is_run(executed: NotebookNode, tmp_path: Path) -> None:
    folder = save(tmp_path, executed, TEXT.replace("1 + 1", "1 + 2"))
    assert pairs.sync(folder / "01_title.md") is None
    assert pairs.main([str(folder / "01_title.md")]) in (0, 1)  # the verdict is on the book's own pairs
    assert pairs.check(folder) == []
    never = copy.deepcopy(executed)
    never.cells[1].execution_count = None
    assert pairs.sync(save(tmp_path, never, TEXT.replace("Words.", "Other words.")) / "01_title.md") is None


def test_all_pairs_whose_halves_differ_are_written(executed: NotebookNode, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(pairs, "NOTEBOOKS", save(tmp_path, executed, TEXT.replace("Words.", "Other words.")))
    monkeypatch.setattr(pairs, "check", lambda: [])  # the verdict is on the book's own pairs
    for said in (f"{tmp_path / '01_title.ipynb'}\n", ""):  # the second time there is nothing to write
        assert pairs.main([]) == 0 and capsys.readouterr().out == said
        assert pairs.faults(tmp_path / "01_title.ipynb") == []


def test_equal_cells_have_ids_of_their_own() -> None:
    cells = [nbformat.v4.new_code_cell("1 + 1"), nbformat.v4.new_code_cell("1 + 1"), nbformat.v4.new_raw_cell("1 + 1")]
    notebook = nbformat.v4.new_notebook(cells=cells)
    pairs.stable_ids(notebook)
    ids = [cell.id for cell in notebook.cells]
    assert len(set(ids)) == 3 and ids[1] == f"{ids[0]}-1"


def changed_source(notebook: NotebookNode) -> None:
    notebook.cells[1].source = 'print("two")'


def changed_words(notebook: NotebookNode) -> None:
    notebook.cells[2].source = "Other words."


def changed_tags(notebook: NotebookNode) -> None:
    notebook.cells[3].metadata.tags = ["hide-output"]


def changed_alt(notebook: NotebookNode) -> None:
    notebook.cells[3].metadata.mystnb.image.alt = "something else"


def changed_metadata(notebook: NotebookNode) -> None:
    notebook.metadata.title = "Another title"


def changed_type(notebook: NotebookNode) -> None:
    notebook.cells[2].cell_type = "raw"


def missing_cell(notebook: NotebookNode) -> None:
    del notebook.cells[2]


def never_run(notebook: NotebookNode) -> None:
    notebook.cells[1].execution_count = None


def out_of_order(notebook: NotebookNode) -> None:
    notebook.cells[1].execution_count, notebook.cells[3].execution_count = 2, 1


def an_error(notebook: NotebookNode) -> None:
    notebook.cells[1].outputs = [nbformat.v4.new_output("error", ename="ValueError", evalue="planted", traceback=[])]


def on_stderr(notebook: NotebookNode) -> None:
    notebook.cells[1].outputs = [nbformat.v4.new_output("stream", name="stderr", text="planted")]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (changed_source, "differs"), (changed_words, "differs"), (changed_tags, "differs"), (changed_alt, "differs"),
        (changed_metadata, "differs"),
        (changed_type, "differs"), (missing_cell, "differs"), (never_run, "execution count None"),
        (out_of_order, "execution count 2"), (an_error, "raised ValueError: planted"), (on_stderr, "stderr: planted"),
    ],
)
def test_faults_are_found(
    executed: NotebookNode, tmp_path: Path, fault: Callable[[NotebookNode], None], message: str
) -> None:
    notebook = nbformat.from_dict(executed)
    fault(notebook)
    assert any(message in found for found in pairs.check(save(tmp_path, notebook)))


def test_a_missing_half_is_found(executed: NotebookNode, tmp_path: Path) -> None:
    save(tmp_path, executed)
    (tmp_path / "01_title.md").rename(tmp_path / "02_other.md")
    assert pairs.check(tmp_path) == ["01_title.ipynb: 01_title.md is missing", "02_other.md: 02_other.ipynb is missing"]


def test_an_argument_that_is_no_notebook_is_named(executed: NotebookNode, tmp_path: Path, capsys) -> None:
    """Before any other is run or written; the .ipynb stands for its text."""
    save(tmp_path, executed, TEXT.replace("Words.", "Other words."))
    given = [str(tmp_path / name) for name in ("01_title.ipynb", "99_nope.ipynb")]
    with pytest.raises(SystemExit) as stopped:
        pairs.main(given)
    said = capsys.readouterr()
    assert stopped.value.code == 2 and said.out == ""
    assert said.err.endswith(f"error: notebooks: there is no {tmp_path / '99_nope.md'}\n")


def test_no_notebook_is_a_fault(tmp_path: Path) -> None:
    assert pairs.check(tmp_path) != []


def test_a_notebook_without_code_is_a_fault(tmp_path: Path) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# A title")])
    assert any("no code cell" in found for found in pairs.check(save(tmp_path, notebook, "# A title\n")))


def test_the_options_and_the_status_of_the_command(executed: NotebookNode, tmp_path: Path, monkeypatch, capsys) -> None:
    """--check writes nothing and ends with 1 where there is a fault; --run runs also what is clean, or differs in
    prose alone."""
    folder, ran = save(tmp_path, executed, TEXT.replace("Words.", "Other words.")), []
    monkeypatch.setattr(pairs, "NOTEBOOKS", folder)
    monkeypatch.setattr(pairs, "check", lambda check=pairs.check: check(folder))
    monkeypatch.setattr(pairs, "run", lambda source: ran.append(source.name) or source)
    before = (folder / "01_title.ipynb").read_bytes()
    assert pairs.main(["--check"]) == 1 and "01_title.ipynb: differs from 01_title.md" in capsys.readouterr().err
    assert pairs.main(["--run"]) == 1 and ran == ["01_title.md"]
    assert (folder / "01_title.ipynb").read_bytes() == before
    assert pairs.main([]) == 0 and ran == ["01_title.md"]
    assert pairs.main(["--check"]) == 0 and ran == ["01_title.md"]
    assert pairs.main(["--run"]) == 0 and ran == ["01_title.md", "01_title.md"]


def test_notebooks_run_in_their_own_folder_and_on_one_thread(tmp_path: Path, monkeypatch) -> None:
    for name in pairs.ONE_THREAD:
        monkeypatch.setenv(name, "2")
    source = tmp_path / "01_title.md"
    seen = f"import os\nprint(os.getcwd())\nprint(*map(os.environ.get, {pairs.ONE_THREAD}))"
    source.write_text(TEXT.replace('print("one")', seen), encoding="utf-8")
    (output,) = nbformat.read(pairs.run(source), as_version=4).cells[1].outputs
    folder, threads = output.text.splitlines()
    assert Path(folder).samefile(tmp_path) and threads == "1 1 1 1"
