"""Where the arrays of a source are put: into memory, or into the .npy files of a store that is being written."""

from __future__ import annotations

import math
import os
import shutil
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np

from dpvision.data import limits
from dpvision.data.npy_header import written_header
from dpvision.data.refusal import Refusal

_BLOCK = 4 * limits.MIB


class Room(Protocol):
    """Gives arrays to write into."""

    copies: bool
    """Whether an array that exists already has to be copied."""

    def require(self, count: int) -> None:
        """Refuses before anything is allocated when `count` bytes are too many."""

    def array(self, name: str, *, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """An array to fill; what it holds before is undefined."""

    def keep(self, name: str, array: np.ndarray) -> np.ndarray:
        """An array that exists already."""

    def shorten(self, name: str, *, count: int, array: np.ndarray) -> np.ndarray:
        """The first `count` records of an array of this room; the rest is given up."""


class MemoryRoom:
    """Arrays in memory."""

    copies = False

    def require(self, count: int) -> None:
        if count > limits.TOTAL_BYTES:
            raise Refusal(
                f"needs {count / limits.GIB:,.1f} GiB of memory; at most {limits.TOTAL_BYTES / limits.GIB:,.0f} are "
                "taken. Fix: pack it first; a packed store stays on disk."
            )

    def array(self, name: str, *, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        return np.empty(shape, dtype)

    def keep(self, name: str, array: np.ndarray) -> np.ndarray:
        return array

    def shorten(self, name: str, *, count: int, array: np.ndarray) -> np.ndarray:
        return array[:count]


class FolderRoom:
    """Arrays that are memory-mapped .npy files in a folder, so that they may be larger than memory."""

    copies = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def require(self, count: int) -> None:
        free = shutil.disk_usage(self._folder).free
        if count > free:
            raise Refusal(
                f"needs {count / limits.GIB:,.1f} GiB of disk, {free / limits.GIB:,.1f} are free. "
                "Fix: write the store to another disk."
            )

    def array(self, name: str, *, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        header = written_header(shape, dtype)
        with self._path(name).open("xb") as file:
            file.write(header)
            _reserve(file, len(header) + math.prod(shape) * dtype.itemsize)
        return np.memmap(self._path(name), dtype=dtype, mode="r+", offset=len(header), shape=shape)

    def keep(self, name: str, array: np.ndarray) -> np.ndarray:
        out = self.array(name, shape=array.shape, dtype=array.dtype)
        step = max(1, _BLOCK * len(array) // max(1, array.nbytes))
        for start in range(0, len(array), step):
            out[start : start + step] = array[start : start + step]
        return out

    def shorten(self, name: str, *, count: int, array: np.ndarray) -> np.ndarray:
        shape = (count, *array.shape[1:])
        header = written_header(shape, array.dtype)
        array.flush()  # type: ignore[attr-defined]
        with self._path(name).open("r+b") as file:
            file.write(header)
            file.truncate(len(header) + math.prod(shape) * array.dtype.itemsize)
        return np.memmap(self._path(name), dtype=array.dtype, mode="r+", offset=len(header), shape=shape)

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.npy"


def _reserve(file: BinaryIO, length: int) -> None:
    """Takes the disk space now: a full disk must be an error here, not a dead process at a later page fault."""
    file.flush()
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, length)
    else:
        file.truncate(length)
