"""A file of rows that takes hours to compute: rows that were complete before a kill are used afterwards.

Until NAME.npy exists there are two files, readable by the owner only: NAME.partial has the bytes that are known so far,
and NAME.progress a line of JSON with the number of complete rows from the first on and their digest. Rows are synced to
the disk before the progress file counts them, so it is never ahead of them.

    edge case                               behaviour
    killed while writing                    rows beyond the progress are computed again
    killed when all rows are complete       nothing is computed again
    partial or progress of something else, cut short, edited, of another owner, open to others, or a link
                                            removed, and computed again; the target of a link is not touched
    not enough space on disk            refused before the first row is computed
    a folder has the name of a file         DataError that names it
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import secrets
import stat
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dpvision.core import files
from dpvision.errors import DataError

FORMAT = "dpvision-rows-1"
MAX_PROGRESS = 4096  # bytes of a progress file
AT_A_TIME = 16 << 20  # bytes that are read back at a time
FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class ResumableFile:
    """float32 rows of `shape` that will become the file `path`. One process calls `begin`; others may `join` it."""

    def __init__(self, path: Path, shape: tuple[int, ...]) -> None:
        self.path, self.shape = path, shape
        self.partial, self.progress = path.with_suffix(".partial"), path.with_suffix(".progress")
        self._header, self._row = _header(shape), 4 * math.prod(shape[1:])
        self._file, self._complete = -1, 0
        self._digest = hashlib.blake2b(self._header, digest_size=32)
        self.token = ""  # of this computation: files of the same name on two file systems have different tokens

    def begin(self) -> int:
        """Open what an earlier process left, or create it; returns the number of complete rows."""
        self.token = secrets.token_hex(8)
        try:
            if not self._resume():
                self._create()
            self.record(self._complete)
            return self._complete
        except OSError as exc:
            raise DataError(
                f"{self.partial}: rows cannot be written there ({exc.strerror or exc}). Fix: check the disk, or remove "
                "whatever has that name."
            ) from exc

    def join(self) -> Self:
        """Open the file that another process has begun on the same file system."""
        try:
            self._file = os.open(self.partial, FLAGS)
        except OSError as exc:
            raise DataError(
                f"{self.partial}: this rank does not see the file that rank 0 created ({exc.strerror or exc}). Fix: "
                "put DPVISION_HOME on a file system that all ranks share."
            ) from exc
        if not self._is_sound(os.fstat(self._file)):
            raise DataError(f"{self.partial}: is not the file that rank 0 created. Fix: remove it, and start again.")
        self.token = str(_read_progress(self.progress).get("token"))
        return self

    def write(self, first: int, rows: NDArray[np.float32]) -> None:
        """Write rows, starting at number `first`; they are on disk when the call returns."""
        assert rows.dtype == np.float32 and rows.shape[1:] == self.shape[1:] and first + len(rows) <= self.shape[0]
        left, place = np.ascontiguousarray(rows).reshape(-1).view(np.uint8), self._place(first)
        while len(left):
            done = os.pwrite(self._file, left.data, place)
            left, place = left[done:], place + done
        os.fsync(self._file)

    def record(self, rows: int) -> None:
        """Record on disk that the first `rows` rows are complete, whichever process wrote them."""
        self._read_on(rows)
        progress = {**self._facts(), "token": self.token, "rows": rows, "digest": self._digest.hexdigest()}
        files.write(self.progress, json.dumps(progress) + "\n")

    def finish(self) -> None:
        """Give the file its name; all rows must be complete."""
        assert self._complete == self.shape[0]
        os.rename(self.partial, self.path)
        files.sync_folder(self.path.parent)
        self.progress.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _facts(self) -> dict[str, Any]:
        """Return what the rows are; the name stands for records, network and machine."""
        return {"format": FORMAT, "of": self.path.stem, "shape": list(self.shape), "dtype": "float32"}

    def _create(self) -> None:
        for path in (self.progress, self.partial, *self.path.parent.glob(f".{self.progress.name}.*.new")):
            path.unlink(missing_ok=True)
        self._file = os.open(self.partial, FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self._file, 0, self._place(self.shape[0]))
        else:  # on some systems a full disk is detected later
            os.ftruncate(self._file, self._place(self.shape[0]))
        os.pwrite(self._file, self._header, 0)
        os.fsync(self._file)
        files.sync_folder(self.path.parent)

    def _resume(self) -> bool:
        """Return whether an earlier process left rows of the same kind, complete as far as it recorded."""
        progress = _read_progress(self.progress)
        rows, digest, _ = (progress.pop(name, None) for name in ("rows", "digest", "token"))
        if progress != self._facts() or type(rows) is not int or not 0 <= rows <= self.shape[0]:
            return False
        try:
            self._file = os.open(self.partial, FLAGS)
        except OSError:
            return False
        if self._is_sound(os.fstat(self._file)) and os.pread(self._file, len(self._header), 0) == self._header:
            self._read_on(rows)
            if self._digest.hexdigest() == digest:
                return True
        self.__exit__()
        self._complete, self._digest = 0, hashlib.blake2b(self._header, digest_size=32)
        return False

    def _is_sound(self, status: os.stat_result) -> bool:
        """Return whether it is a regular file of this user alone and of the right length."""
        ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and status.st_nlink == 1
        return ours and not status.st_mode & 0o077 and status.st_size == self._place(self.shape[0])

    def _read_on(self, rows: int) -> None:
        place, end = self._place(self._complete), self._place(rows)
        while place < end:
            data = os.pread(self._file, min(AT_A_TIME, end - place), place)
            if not data:
                raise DataError(f"{self.partial}: was truncated while it was read. Fix: start again.")
            self._digest.update(data)
            place += len(data)
        self._complete = rows

    def _place(self, row: int) -> int:
        return len(self._header) + row * self._row


def read_complete(path: Path) -> int:
    """Return the recorded number of complete rows for `path`, from which the remaining time is estimated."""
    rows = _read_progress(path.with_suffix(".progress")).get("rows")
    return rows if type(rows) is int and rows > 0 else 0


def _read_progress(path: Path) -> dict[str, Any]:
    """Return the content of a progress file; empty if it is not a small file with JSON."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            data = os.read(descriptor, MAX_PROGRESS + 1)
        finally:
            os.close(descriptor)
        progress = json.loads(data) if len(data) <= MAX_PROGRESS else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return progress if isinstance(progress, dict) else {}


def _header(shape: tuple[int, ...]) -> bytes:
    """Return the header of an .npy file, as numpy writes it."""
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return out.getvalue()
