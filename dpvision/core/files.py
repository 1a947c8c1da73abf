"""Files that are there whole or not at all, and on the disk when the call returns; regular files only are read; and one
process at a time."""

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
    """Write to a file beside and rename it over `path`; both are synced. A folder of that name is a DataError."""
    with writing(path, mode=mode) as file:
        file.write(data.encode() if isinstance(data, str) else data)


@contextmanager
def writing(path: Path, *, mode: int = 0o600) -> Iterator[BinaryIO]:
    """The same for what is written piece by piece: the file gets its name at the end, or never."""
    if path.is_dir():
        raise DataError(f"{path}: cannot be written, for a folder has this name. Fix: move it away.")
    temporary = path.with_name(f".{path.name}.{threading.get_native_id()}.new")  # of a process: its number
    try:
        # Readable by the owner only: what is shared is shared on purpose.
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
    """The bytes of a regular file, which has at most `most` of them; or an OSError or ValueError."""
    with open_regular(path) as file:
        length = os.fstat(file.fileno()).st_size
        if length > most:
            raise ValueError(f"it has {length:,} bytes, and should have {most:,} at most")
        return file.read(length)


def open_regular(path: str | os.PathLike[str], *, follow: bool = True) -> io.BufferedReader:
    """A regular file to read from, or an OSError or ValueError: never a device, nor a pipe to wait for.

    A link is followed, for who names a file means it, unless `follow` is false.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        _require_regular(os.stat(path).st_mode)  # before it is opened: that alone may start something in a device
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        raise FileNotFoundError("there is no such file") from None
    try:
        _require_regular(os.fstat(descriptor).st_mode)  # another may have the name by now
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _require_regular(mode: int) -> None:
    if not stat.S_ISREG(mode):
        kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}
        raise NotRegular(f"is {kinds.get(stat.S_IFMT(mode), 'a device')}, not a regular file")


class NotRegular(ValueError):
    """What has the name of a file is a folder, a pipe, a socket or a device."""


def left_by_a_kill(path: Path) -> bool:
    """Whether this is what `write` leaves when it is killed: a file that never got its name."""
    return re.fullmatch(r"\..+\.\d+\.new", path.name) is not None


@contextmanager
def alone(lock: Path, *, wait: bool = True) -> Iterator[None]:
    """Let one process at a time in, until it ends or dies: the others wait, or get a BlockingIOError."""
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        raise DataError(f"{lock}: cannot be locked ({exc.strerror}). Fix: see to what is in the way.") from exc
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(descriptor)


def make_folder(folder: Path, *, mode: int = 0o700) -> None:
    """Make a folder for the owner only (or with another mode), with its parents, each of them on the disk."""
    missing = [p for p in (folder, *folder.parents) if not p.exists()]
    for path in reversed(missing):
        path.mkdir(mode=mode, exist_ok=True)
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
