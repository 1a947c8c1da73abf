"""Opens regular files only, and inside a root only files that really lie in it."""

from __future__ import annotations

import os
import stat
from typing import BinaryIO

from dpvision.data.refusal import Refusal

# Opening a FIFO would wait for a writer for ever; O_NONBLOCK closes the gap between looking and opening.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """The file for reading. A link is followed: who names a file on the command line means it."""
    return _open(path, flags=_FLAGS | getattr(os, "O_NOCTTY", 0))


def open_inside(root: str, relative: str) -> BinaryIO:
    """A file below `root`, which must be a real path: a link may stay inside it but not leave it."""
    return _open(resolve_inside(root, relative), flags=_FLAGS | getattr(os, "O_NOFOLLOW", 0))


def resolve_inside(root: str, relative: str) -> str:
    """The real path of `relative` below the real path `root`."""
    if "\0" in relative:
        raise Refusal("its path holds a NUL character.")
    if not relative or relative.startswith("/") or os.path.isabs(relative):
        raise Refusal("its path is not relative to the data. Fix: give paths below the folder of the data.")
    if ".." in relative.replace("\\", "/").split("/"):
        raise Refusal(
            "its path has '..' in it, which may leave the data. Fix: give paths below the folder of the data."
        )
    real = os.path.realpath(os.path.join(root, relative))
    if not real.startswith(root.rstrip(os.sep) + os.sep):
        raise Refusal("is a link that leaves the folder of the data. Fix: copy the file into the folder.")
    return real


def file_length(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size


def _open(path: str | os.PathLike[str], *, flags: int) -> BinaryIO:
    try:
        _require_regular(os.stat(path).st_mode)
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        raise Refusal("there is no such file.") from None
    except OSError as exc:
        raise Refusal(f"can not be opened ({exc.strerror or exc}).") from exc
    except ValueError:
        raise Refusal("its path holds a character that no path may have.") from None
    try:
        _require_regular(os.fstat(descriptor).st_mode)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _require_regular(mode: int) -> None:
    if not stat.S_ISREG(mode):
        kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}
        raise Refusal(f"is {kinds.get(stat.S_IFMT(mode), 'a device')}, not a regular file.")
