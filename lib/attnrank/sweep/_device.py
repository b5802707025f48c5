"""The device that an experiment computes on."""

from __future__ import annotations

import os

import torch


def device() -> torch.device:
    """Return the accelerator if there is one, else the CPU.

    Only CUDA devices count (ROCm's included): float64, in which this package measures, is missing from others. Of
    several, each process uses one, given by its number, so that the workers of a sweep spread over them.

    A function of a sweep draws its inputs on the CPU and moves them here, so that every device sees the same ones. The
    workers on one machine share its accelerators; a row that runs out of memory beside others is computed again alone.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", os.getpid() % torch.cuda.device_count())


def device_name() -> str:
    """What this process has computed on so far: an accelerator only if it was used."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.cuda.get_device_name(device())
    return "cpu"


def free_memory() -> None:
    """Give the memory that a finished row leaves unused back to the other processes on the device."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
