"""One file with the weights, the memories of the optimiser and the history of a run: safetensors, with JSON inside.

The file is replaced in one step, so that a process that is killed leaves the old one or the new one. A checksum over
everything in it is stored with it, and so is what run it belongs to. Who writes it holds a lock beside it, NAME.lock,
that the operating system frees when a process ends, however it ends; the empty file may stay.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import torch
from filelock import FileLock, Timeout
from torch import Tensor

from attnrank._files import replace

ENDING = ".safetensors"
FORMAT = "attnrank.training 1"
REMEDY = "delete the file to train from the start, or restore it from where it came"


def save(path: str | Path, tensors: Mapping[str, Tensor], record: Mapping) -> None:
    """Write tensors and a record of plain values (JSON) to one file, replacing what was there in one step."""
    _require_safetensors()
    from safetensors.torch import save_file

    path = Path(path)
    plain = _apart({name: value.detach().cpu().contiguous() for name, value in tensors.items()})
    text = json.dumps(record, allow_nan=False)
    metadata = {"format": FORMAT, "record": text, "sha256": _digest(plain, text)}
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        save_file(plain, temporary, metadata)
        replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def load(
    path: str | Path, *, run: Mapping | None = None, details: Mapping | None = None
) -> tuple[dict[str, Tensor], dict]:
    """Return tensors and record of a file, checked.

    ``run`` is what the record must say under "run"; None asks for nothing. ``details`` is what it must say under
    "details" of the names that it has there: files that were written before a name came in lack it. Raises ValueError
    for a file that is damaged, of another format, or of another run, with what differs and what to do;
    FileNotFoundError where there is none.
    """
    _require_safetensors()
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no checkpoint {path}")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                _refuse(path, f"not a checkpoint of this package ({FORMAT}), but {metadata.get('format')!r}")
            # copies: a tensor may be a piece of the file in memory, and Windows does not replace a file that is in use
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        _refuse(path, f"damaged: {error}")
    text = metadata.get("record", "")
    if _digest(tensors, text) != metadata.get("sha256"):
        _refuse(path, "damaged: its checksum is not that of its contents")
    record = json.loads(text)
    if run is not None and record.get("run") != json.loads(json.dumps(run)):
        _refuse(path, f"it belongs to another run: {_differences(record.get('run') or {}, run)}")
    stored = record.get("details", {})
    wanted = {name: value for name, value in (details or {}).items() if name in stored}
    if other := _differences({name: stored[name] for name in wanted}, wanted):
        _refuse(path, f"it belongs to another run: {other}")
    return tensors, record


def lock_of(path: str | Path) -> FileLock:
    """The lock of a checkpoint: one object in a process, which may take it again where it has it already."""
    return FileLock(f"{Path(path).resolve()}.lock", is_singleton=True)


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold the lock of a checkpoint; RuntimeError where another process, or another thread, has it."""
    lock = lock_of(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise RuntimeError(
            f"{path}: another process trains this run; wait until it has ended, or name another checkpoint"
        ) from None
    try:
        yield
    finally:
        lock.release()


def _require_safetensors() -> None:
    try:
        import safetensors  # noqa: F401
    except ImportError as error:
        raise ImportError("checkpoints need safetensors: pip install 'attnrank[models]'") from error


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies of tensors that share memory with one before, as tied weights do: safetensors takes none that share."""
    found: set[int] = set()
    apart = {}
    for name, value in tensors.items():
        place = value.untyped_storage().data_ptr()
        apart[name] = value.clone() if place in found else value
        found.add(place)
    return apart


def _digest(tensors: Mapping[str, Tensor], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(f"\0{name}\0{value.dtype}\0{tuple(value.shape)}\0".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b"")
    return digest.hexdigest()


def _differences(stored: Mapping, wanted: Mapping) -> str:
    wanted = json.loads(json.dumps(wanted))
    names = [name for name in {**stored, **wanted} if stored.get(name) != wanted.get(name)]
    return "; ".join(f"{name} is {stored.get(name)!r}, not {wanted.get(name)!r}" for name in names)


def _refuse(path: Path, why: str) -> NoReturn:
    raise ValueError(f"{path}: {why}; {REMEDY}")
