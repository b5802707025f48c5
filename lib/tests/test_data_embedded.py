"""The data sets that need no download: digits, and docstrings of installed packages."""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from attnrank import data, docstrings
from data_files import offline  # noqa: F401 (fixtures)

# Digits


def test_digits_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    digits = load_digits()
    parts = {split: data.images("digits", split) for split in ("train", "test")}
    known = {image.tobytes(): [] for image in digits.images}
    for image, label in zip(digits.images, digits.target, strict=True):
        known[image.tobytes()].append(label)
    for values, labels in parts.values():
        assert values.shape[1:] == (1, 8, 8)
        for image, label in zip((values * 16).numpy(), labels.tolist(), strict=True):
            known[image.tobytes()].remove(label)
    assert not any(known.values()), "each image is in one split, once"
    source = data.SOURCES["digits"]
    for split, (_, labels) in parts.items():
        assert tuple(np.bincount(labels).tolist()) == source.counts[split]
    for label in range(10):
        assert source.counts["test"][label] == sum(digits.target == label) // 5
    values = parts["train"][0].numpy()
    assert abs(values.mean() - source.mean[0]) < 5e-6 and abs(values.std() - source.std[0]) < 5e-6
    loaded = data.load("digits", "test")
    assert np.array_equal(np.asarray(loaded[0]["image"]), parts["test"][0][0, 0].numpy() * 16)


# Docstrings


def test_docstrings_are_balanced_disjoint_and_nameless():
    names = "matplotlib|networkx|numpy|pandas|scipy|scikit-learn|sklearn|sympy|torch"
    names = re.compile(names + r"|\b(np|pd|plt|nx|sp)\b", re.IGNORECASE)
    parts = {split: data.texts("docstrings", split) for split in ("train", "test")}
    for split, (rows, labels) in parts.items():
        assert tuple(np.bincount(labels).tolist()) == data.SOURCES["docstrings"].counts[split]
        assert labels[:16].tolist() == [*range(8), *range(8)]
        assert min(map(len, rows)) >= docstrings.SHORTEST
        assert not [row for row in rows if names.search(row) or "\n" in row]
    assert len(set(parts["train"][0] + parts["test"][0])) == 1920 + 480
    assert data.load("docstrings", "test")[0]["text"] == parts["test"][0][0]


def test_docstrings_can_be_told_apart_but_not_trivially():
    """Counts of words reach well above the 1 in 8 of guessing; labels that are shifted by one do not."""
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.naive_bayes import MultinomialNB

    (train, train_labels), (test, test_labels) = (data.texts("docstrings", split) for split in ("train", "test"))
    counts = CountVectorizer(min_df=2)
    model = MultinomialNB().fit(counts.fit_transform(train), train_labels)
    found = model.predict(counts.transform(test))
    assert 0.5 < np.mean(found == test_labels.numpy()) < 0.98
    assert np.mean(found == (test_labels.numpy() + 1) % 8) < 0.2


def test_no_test_text_is_a_near_copy_of_a_train_text():
    """Independent measure: cosine of term frequencies; a planted copy with a word changed is found by it."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    (train, _), (test, _) = (data.texts("docstrings", split) for split in ("train", "test"))
    planted = train[5].replace("the", "this", 1)
    terms = TfidfVectorizer(dtype=np.float32)
    nearest = (terms.fit_transform(train) @ terms.transform([*test, planted]).T).max(axis=0).toarray().ravel()
    assert nearest[:-1].max() < 0.95 < nearest[-1]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package that cannot be imported, with files of every kind."""
    root = tmp_path / "unimportable"
    for folder in ("tests", "deep/tests"):
        (root / folder).mkdir(parents=True)
    (root / "__init__.py").write_text("raise RuntimeError('imported')", encoding="utf-8")
    random = np.random.default_rng(0)

    def text(mark):
        return " ".join([mark, "numpy Torch np", *map(str, random.integers(0, 10**6, 60))])

    def function(name, doc):
        return f'def {name}():\n    """{doc}"""\n'

    files = {
        f"part{part}.py": "".join(function(f"f{n}", text(f"p{part}f{n}")) for n in range(4)) for part in range(9)
    }
    shared = text("copied")
    files["copy_one.py"] = function("one", shared)
    files["copy_two.py"] = function("two", shared + " and a word more")
    files["hidden.py"] = function("_private", text("private")) + function("short", "short")
    files["tests/test_it.py"] = function("seen", text("intests"))
    files["deep/tests/test_it.py"] = function("seen", text("intests"))
    files["broken.py"] = function("fine", text("broken")) + "def ("
    files["methods.py"] = (
        f'class Public:\n    """{text("klass")}"""\n    def go(self):\n        """{text("method")}"""\n'
    )
    for name, content in files.items():
        (root / name).write_text(content, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(docstrings, "ROWS_PER_CLASS", {"train": 31, "test": 8})
    return "unimportable"


def test_docstrings_are_parsed_not_imported(package):
    splits = docstrings._of_package(package, set())
    assert "unimportable" not in sys.modules
    marks = {split: {text.split()[0] for text in texts} for split, texts in splits.items()}
    everything = marks["train"] | marks["test"]
    assert len(everything) == 39 == 9 * 4 + 3
    assert {"klass", "method", "copied"} < everything and not {"private", "intests", "broken"} & everything
    files = [{re.sub(r"f\d+", "", mark) for mark in marks[split] if mark.startswith("p")} for split in marks]
    assert not files[0] & files[1], "a file gives to one split only"
    assert not [text for texts in splits.values() for text in texts if re.search("numpy|torch|np", text, re.I)]


def test_docstrings_do_not_depend_on_the_order_of_the_disk(package, monkeypatch):
    once = docstrings._of_package(package, set())
    walk = Path.rglob
    monkeypatch.setattr(Path, "rglob", lambda self, pattern: reversed(list(walk(self, pattern))))
    assert docstrings._of_package(package, set()) == once


def test_docstrings_say_what_is_missing(package, monkeypatch):
    monkeypatch.setattr(docstrings, "ROWS_PER_CLASS", {"train": 32, "test": 8})
    with pytest.raises(RuntimeError, match="unimportable as installed has 31 docstrings for train; 32 needed"):
        docstrings._of_package(package, set())
    with pytest.raises(ImportError, match="needs the package not_installed_at_all"):
        docstrings._of_package("not_installed_at_all", set())


def source(folder, *texts, code=""):
    """A file of functions with these docstrings and nothing else that is long."""
    path = folder / "source.py"
    functions = [f'def f{number}():\n    """{text}"""\n' for number, text in enumerate(texts)]
    path.write_text("".join(functions) + code, encoding="utf-8")
    return path


def test_names_leave_other_words_whole_and_a_text_of_the_least_length_counts(tmp_path):
    """ "np" in "inputs" is no name, "torch" in "torchvision" is one; the length is that of what is left."""
    padding = "x" * (docstrings.SHORTEST - len("inputs of a .vision and a wasp, by "))
    text = f"Inputs of a torch.torchvision and\n    a wasp, by np {padding}".replace("Inputs", "inputs")
    (kept,) = docstrings._of_file(source(tmp_path, text, text[:-1]))
    assert kept == f"inputs of a .vision and a wasp, by {padding}" and len(kept) == docstrings.SHORTEST


def test_a_file_with_much_code_for_its_docstrings_is_left_out(tmp_path):
    """Parsing takes the time; bytes count, for each pair of triple quotes."""
    texts = ["y" * docstrings.SHORTEST, "z" * docstrings.SHORTEST]
    short = len(source(tmp_path, *texts).read_bytes())
    longest = "#" + "." * (2 * docstrings.MOST_BYTES - short - 1)
    assert docstrings._of_file(source(tmp_path, *texts, code=longest)) == texts
    assert docstrings._of_file(source(tmp_path, *texts, code=longest + ".")) == []


def test_what_is_private_is_left_out_with_all_its_methods(tmp_path):
    text = "y" * docstrings.SHORTEST
    method = f'def go(self):\n            """{text}"""\n'
    inner = f"    {method}    class _In:\n        {method}"
    code = f"class _Hidden:\n{inner}class Shown:\n{inner}def f():\n{inner}"
    assert docstrings._of_file(source(tmp_path, code=code)) == [text]


def test_invalid_escapes_of_others_are_passed_over_in_silence(tmp_path, recwarn):
    text = "y" * docstrings.SHORTEST
    assert docstrings._of_file(source(tmp_path, text, code='z = "\\d"\n')) == [text]
    assert not recwarn.list


def test_near_copies_share_most_of_their_runs_of_eight_words():
    words = [f"Word{number}" for number in range(16)]
    seen: set[int] = set()

    def new(*parts):
        return docstrings._new([" ".join(parts)], seen) != []

    assert new(*words)  # nine runs
    assert not new(*[word.upper() for word in words])  # the case of letters makes no text new
    assert new(*words[:12], *"abcdef")  # five old runs of eleven
    assert not new(*words[:13], *"ghijk")  # six of eleven
    assert new(*words[:12], *"lmnop")  # five of ten: half is not most
    assert not new(*"cdef", *words[:13])  # six of ten; the other four are noted all the same
    assert not new(*"cdef", *words[:7], *"qr")  # four of six are of that one, which was itself left out


def test_one_file_gives_a_part_of_its_docstrings_and_files_come_scattered(tmp_path, monkeypatch):
    names = [f"m{number}" for number in range(6)]
    for name in names:
        (tmp_path / "scattered" / name).mkdir(parents=True)
        texts = [" ".join(f"{name}t{number}w{word}" for word in range(40)) for number in range(25)]
        source(tmp_path / "scattered" / name, *texts)
    (tmp_path / "scattered" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(docstrings, "ROWS_PER_CLASS", {"train": 60, "test": 30})
    splits = docstrings._of_package("scattered", set())
    order = sorted(names, key=lambda name: hashlib.sha256(f"{name}/source.py".encode()).hexdigest())
    assert order != names
    marks = {split: [tuple(text.split("w")[0].split("t")) for text in texts] for split, texts in splits.items()}
    of = [(name, str(number)) for name in order for number in range(docstrings.MOST_PER_FILE)]
    assert marks == {"test": of[:30], "train": of[40:100]}  # the second file is that of the tests, to its end
