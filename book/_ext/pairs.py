"""Notebook pairs: NN_name.md is what authors edit, NN_name.ipynb beside it carries the outputs.

    python book/_ext/pairs.py notebooks/02_barrier.md     write the executed half: without running where only prose
                                                          differs, else by running the text
    python book/_ext/pairs.py                             the same for every pair whose halves differ
    python book/_ext/pairs.py --run                       run every pair
    python book/_ext/pairs.py --check                     run nothing, report every fault of every pair
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from collections import Counter
from pathlib import Path

import jupytext
import nbformat
from nbformat import NotebookNode

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
FORMAT = "md:myst"
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


def contents(notebook: NotebookNode) -> tuple[dict, list[tuple[str, str, dict]]]:
    """What the two files of a pair share: everything except outputs, counts, ids and the tools' own metadata."""
    tools = ("jupytext", "kernelspec", "language_info")
    metadata = {key: value for key, value in notebook.metadata.items() if key not in tools}
    return metadata, [(cell.cell_type, cell.source, dict(cell.metadata)) for cell in notebook.cells]


def code(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def sync(source: Path) -> Path | None:
    """Write the prose of a text notebook into the executed one, with the outputs there; None if code differs, too.

    None also where there is nothing to write, or the executed half is not one: then the notebook is to be run.
    """
    target = source.with_suffix(".ipynb")
    if not target.exists():
        return None
    notebook, executed = jupytext.read(source, fmt=FORMAT), nbformat.read(target, as_version=4)
    old, new = code(executed), code(notebook)
    if contents(notebook) == contents(executed) or [cell.source for cell in old] != [cell.source for cell in new]:
        return None
    if [cell.execution_count for cell in old] != [*range(1, len(old) + 1)]:
        return None
    for cell, stored in zip(new, old, strict=True):
        cell.outputs, cell.execution_count = stored.outputs, stored.execution_count
    return write(notebook, target)


def run(source: Path) -> Path:
    """Execute a text notebook in its own folder and write the executed one beside it."""
    from nbclient import NotebookClient

    for name in ONE_THREAD:
        os.environ[name] = "1"
    notebook = jupytext.read(source, fmt=FORMAT)
    client = NotebookClient(
        notebook,
        kernel_name="python3",
        timeout=None,
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(source.parent)}},
    )
    client.execute()
    return write(notebook, source.with_suffix(".ipynb"))


def write(notebook: NotebookNode, target: Path) -> Path:
    """Write the executed half of a pair, the same bytes for the same contents."""
    stable_ids(notebook)
    notebook.metadata.update(kernelspec=KERNEL, language_info={"name": "python"})
    notebook.metadata.pop("jupytext", None)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    target.write_text(nbformat.writes(notebook).rstrip("\n") + "\n", encoding="utf-8", newline="\n")
    return target


def stable_ids(notebook: NotebookNode) -> None:
    """Name each cell by its content, so that running a notebook again changes no id."""
    seen: Counter[str] = Counter()
    for cell in notebook.cells:
        digest = hashlib.sha256(f"{cell.cell_type}\n{cell.source}".encode()).hexdigest()[:8]
        cell.id = f"{digest}-{seen[digest]}" if seen[digest] else digest
        seen[digest] += 1


def drift(executed: Path) -> list[str]:
    """Whether the halves of a pair differ, in words with the remedy; a notebook without text half does not."""
    source = executed.with_suffix(".md")
    if not source.exists():
        return []
    if contents(nbformat.read(executed, as_version=4)) == contents(jupytext.read(source, fmt=FORMAT)):
        return []
    remedy = f"python book/_ext/pairs.py notebooks/{source.name}"
    return [f"{executed.name}: differs from {source.name}; run: {remedy}"]


def faults(executed: Path) -> list[str]:
    """What is wrong with one pair, in words: drift, cells that did not run in order, errors, stderr."""
    source = executed.with_suffix(".md")
    if not source.exists():
        return [f"{executed.name}: {source.name} is missing"]
    notebook = nbformat.read(executed, as_version=4)
    found = drift(executed)
    if not code(notebook):
        found.append(f"{executed.name}: no code cell")
    for expected, cell in enumerate(code(notebook), start=1):
        if cell.execution_count != expected:
            found.append(f"{executed.name}: code cell {expected} has execution count {cell.execution_count}")
        for output in cell.outputs:
            if output.output_type == "error":
                found.append(f"{executed.name}: code cell {expected} raised {output.ename}: {output.evalue}")
            elif output.get("name") == "stderr":
                found.append(f"{executed.name}: code cell {expected} wrote to stderr: {output.text.strip()[:200]}")
    return found


def check(folder: Path = NOTEBOOKS) -> list[str]:
    """The faults of every pair of a folder; a folder without notebooks is a fault too."""
    executed = sorted(folder.glob("*.ipynb"))
    found = [fault for path in executed for fault in faults(path)]
    lonely = {path.stem for path in folder.glob("*.md")} - {path.stem for path in executed}
    found += [f"{name}.md: {name}.ipynb is missing" for name in sorted(lonely)]
    return found if executed else [*found, f"no notebook in {folder.name}/"]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebooks", nargs="*", type=Path, help="text notebooks (default: all)")
    parser.add_argument("--run", action="store_true", help="run them, also where only prose differs")
    parser.add_argument("--check", action="store_true", help="run nothing, report the faults of all pairs")
    options = parser.parse_args(arguments)
    sources = [path.with_suffix(".md") for path in options.notebooks] or sorted(NOTEBOOKS.glob("*.md"))
    if missing := [str(source) for source in sources if not source.is_file()]:
        parser.error(f"notebooks: there is no {', no '.join(missing)}")
    if not options.check:
        for source in sources:
            whole = not options.notebooks and not options.run and source.with_suffix(".ipynb").exists()
            if whole and not faults(source.with_suffix(".ipynb")):
                continue
            print(not options.run and sync(source) or run(source))
    found = check()
    print("\n".join(found), file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
