"""Atomic, durable file writes (a file exists completely or not at all), safe reads, and locks between processes."""

from __future__ import annotations

import fcntl
import io
import os
import re
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from dpvision.errors import DataError


def write(path: Path, data: bytes | str, *, mode: int = 0o600) -> None:
    """Write a temporary file next to `path`, sync it, and rename it to `path`. Raises DataError for a folder."""
    with open_to_write(path, mode=mode) as file:
        file.write(data.encode() if isinstance(data, str) else data)


@contextmanager
def open_to_write(path: Path, *, mode: int = 0o600) -> Iterator[BinaryIO]:
    """Open a file to write piece by piece; it gets its name when the block ends without an error."""
    if path.is_dir():
        raise DataError(f"{path}: cannot be written, because a folder has this name. Fix: move the folder away.")
    temporary = path.with_name(f".{path.name}.{threading.get_native_id()}.new")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        with open(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def read(path: Path, *, most: int) -> bytes:
    """Return the content of a regular file of at most `most` bytes, or raise an OSError or ValueError."""
    with open_regular(path) as file:
        length = os.fstat(file.fileno()).st_size
        if length > most:
            raise ValueError(f"it has {length:,} bytes, more than the {most:,} allowed")
        return file.read(length)


def open_regular(path: str | os.PathLike[str], *, follow: bool = True) -> io.BufferedReader:
    """Open a regular file for reading, or raise an OSError or ValueError; never opens a device or waits for a pipe."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        _require_regular(os.stat(path).st_mode)  # first, because merely opening a device may trigger an action
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        raise FileNotFoundError("there is no such file") from None
    try:
        _require_regular(os.fstat(descriptor).st_mode)  # the path may have been replaced since
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _require_regular(mode: int) -> None:
    if not stat.S_ISREG(mode):
        kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}
        raise NotRegular(f"is {kinds.get(stat.S_IFMT(mode), 'a device')}, not a regular file")


class NotRegular(ValueError):
    """The path is a folder, a pipe, a socket or a device."""


def is_unfinished(path: Path) -> bool:
    """Whether this is a temporary file that `write` left behind when it was killed."""
    return re.fullmatch(r"\..+\.\d+\.new", path.name) is not None


@contextmanager
def locked(lock: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold an exclusive lock until the block ends or the process dies; others wait, or get a BlockingIOError."""
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        raise DataError(f"{lock}: cannot be locked ({exc.strerror}). Fix: remove what has this name.") from exc
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(descriptor)


def make_folder(folder: Path, *, mode: int = 0o700) -> None:
    """Create a folder and its missing parents durably, by default accessible only to the owner."""
    missing = [p for p in (folder, *folder.parents) if not p.exists()]
    for path in reversed(missing):
        path.mkdir(mode=mode, exist_ok=True)
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Sync a folder's entries to disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
