"""Memory that a pass frees is kept for the next one: asking the system anew costs up to a quarter of the time."""

from __future__ import annotations

import ctypes
import mmap
from functools import cache

import torch
from torch import Tensor

# From so many bytes on, memory is asked for in large pages.
LARGE = 4 << 20
# Of glibc's malloc.h: give memory back above, take it page-wise from the system above, pools for threads.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8


@cache
def keep_freed_memory() -> bool:
    """For the whole process; False where the C library has no such setting. It changes no result."""
    try:
        library = ctypes.CDLL(None)
        settings = ((_ARENA_MAX, 1), (_MMAP_THRESHOLD, 1 << 30), (_TRIM_THRESHOLD, (1 << 31) - 1))
        return all(library.mallopt(*setting) for setting in settings)
    except (OSError, AttributeError):
        return False


def zeros(units: int, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros, in large pages where the system has them: rows are written and read from end to end."""
    count = units * size
    if device.type != "cpu" or count * dtype.itemsize < LARGE:
        return torch.zeros(units, size, dtype=dtype, device=device)
    memory = mmap.mmap(-1, count * dtype.itemsize)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype, count=count).view(units, size)
