"""How many scores are held at once, what fits the second-level cache of a core or keeps a GPU busy, and how precise."""

from __future__ import annotations

import functools
from pathlib import Path

import torch

#: Bytes where the processor does not say, and bounds of what it is believed.
DEFAULT_CACHE, LEAST_CACHE, MOST_CACHE = 1 << 20, 1 << 20, 1 << 22

#: Bytes of a tile, and of a block, at least: with less, calls cost more than a cache of the next level does. More of
#: them pass over a block.
LEAST_TILE, LEAST_BLOCK = 3 << 19, 1 << 21

#: Scores of a block on a GPU, and held at most by the threads of a processor: what float32 counts is exact so far.
MOST_SCORES = 1 << 24

#: Compute capabilities of the GPUs that multiply float64 at half the rate of float32 or more: those of NVIDIA's P100,
#: V100, A100 and H100 (CUDA C++ Programming Guide, arithmetic instructions). Measured on one, an H200.
FAST_DOUBLE = {(6, 0), (7, 0), (8, 0), (9, 0)}


def tile_scores(device: torch.device) -> int:
    """Scores of a tile: each thread has a share of it, in a cache of its own."""
    return _held(device, max(cache_bytes(), LEAST_TILE))


def block_scores(device: torch.device) -> int:
    """Scores of a block, of whole matrices where they are small: each thread has a share of it, too."""
    return _held(device, max(cache_bytes(), LEAST_BLOCK))


def shared(most: int, device: torch.device) -> int:
    """How many of the ``most`` matrices, or queries, that fit are held: as many for each thread, if each has one; 1 at
    least."""
    share = threads(device)
    return max(1, most - most % share if most > share else most)


def threads(device: torch.device) -> int:
    """Threads that share the work; on a GPU one."""
    return torch.get_num_threads() if device.type == "cpu" else 1


def cached_numbers(device: torch.device) -> int:
    """Numbers in float32 that the caches of all threads hold together; on a GPU as many as a tile has."""
    return _held(device, cache_bytes())


def _held(device: torch.device, each: int) -> int:
    return min(each // 4 * threads(device), MOST_SCORES) if device.type == "cpu" else MOST_SCORES


@functools.cache
def block_dtype(device: torch.device) -> torch.dtype:
    """Precision of scores that are all computed: on some GPUs float64, which leaves next to nothing undecided, costs
    less than the calls that decide."""
    fast = device.type == "cuda" and torch.cuda.get_device_capability(device) in FAST_DOUBLE
    return torch.float64 if fast else torch.float32


@functools.cache
def cache_bytes() -> int:
    """Size of the second-level cache of a core."""
    try:
        size = torch.cpu.get_capabilities()["l2_cache_size"]
    except (AttributeError, KeyError, RuntimeError):  # older versions of torch
        size = _cache_as_linux_says()
    return min(max(size or DEFAULT_CACHE, LEAST_CACHE), MOST_CACHE)


def _cache_as_linux_says() -> int:
    try:
        text = Path("/sys/devices/system/cpu/cpu0/cache/index2/size").read_text(encoding="ascii").strip()
        return int(text.rstrip("KM")) << {"K": 10, "M": 20}.get(text[-1], 0)
    except (OSError, ValueError):
        return 0
