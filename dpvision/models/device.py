"""The machine that computes: its devices by name, and how the process keeps its memory."""

from __future__ import annotations

import ctypes
from functools import cache

import torch

from dpvision.errors import ConfigError

# Parameters of glibc's mallopt (malloc.h).
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8


def find_device(name: str) -> torch.device:
    """The device with this name, after a trial allocation on it; a ConfigError if it cannot be used."""
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
        if device.type == "meta":
            raise RuntimeError("it holds no values")
    except (RuntimeError, AssertionError, NotImplementedError) as exc:  # torch asserts that it was built for CUDA
        raise ConfigError(f"device {name!r}: cannot be used here ({str(exc).splitlines()[0]}). Fix: cpu.") from exc
    return device


@cache
def keep_freed_memory() -> bool:
    """Keep memory that is freed for the next allocation, in the whole process; False where the C library cannot.

    Requesting it from the system again costs up to a quarter of the time of a pass. No result changes.
    """
    try:
        library = ctypes.CDLL(None)
        settings = ((_ARENA_MAX, 1), (_MMAP_THRESHOLD, 1 << 30), (_TRIM_THRESHOLD, (1 << 31) - 1))
        return all(library.mallopt(*setting) for setting in settings)
    except (OSError, AttributeError):
        return False
