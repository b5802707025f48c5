"""_files: a file is replaced although another process has it open, as far as that can be."""

import os

import pytest
import torch

from attnrank import _files, training
from attnrank.sweep import _session


@pytest.fixture
def refused(monkeypatch):
    """A system that refuses to replace a file so many times, as Windows does while another process reads it."""
    left, plain = [0], os.replace

    def replace(*paths):
        if left[0]:
            left[0] -= 1
            raise PermissionError("another process has the file open")
        plain(*paths)

    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr(_files.time, "sleep", lambda seconds: None)
    return left


@pytest.mark.parametrize("write", [
    lambda path: _session.write(path, "new"), lambda path: training.save(path, {"x": torch.ones(2)}, {}),
], ids=["table", "checkpoint"])
def test_a_file_that_another_process_reads_is_replaced_when_it_is_free(write, refused, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    refused[0] = 50
    write(path)
    assert path.read_bytes() != b"old" and refused[0] == 0 and os.listdir(tmp_path) == ["file"]


def test_one_that_stays_open_is_an_error_and_stays_as_it_was(refused, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    refused[0] = 1000
    with pytest.raises(PermissionError, match="open"):
        training.save(path, {"x": torch.ones(2)}, {})
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["file"]
