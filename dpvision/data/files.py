"""Opens untrusted files: regular ones alone, inside a root where there is one; and words why a file is refused."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike, fspath
from typing import BinaryIO

from dpvision.core import files
from dpvision.errors import DataError

_SHOWN_CHARACTERS = 300


def open_regular(path: str | PathLike[str]) -> BinaryIO:
    """The file for reading. A link is followed: who names a file on the command line means it."""
    return _open(path, follow=True)


def open_inside(root: str, relative: str) -> BinaryIO:
    """A file below `root`, which must be a real path: a link may stay inside it but not leave it."""
    return _open(resolve_inside(root, relative), follow=False)


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


def _open(path: str | PathLike[str], *, follow: bool) -> BinaryIO:
    try:
        return files.open_regular(path, follow=follow)
    except FileNotFoundError as exc:
        raise Refusal(f"{exc}.") from None
    except OSError as exc:
        raise Refusal(f"cannot be opened ({exc.strerror or exc}).") from exc
    except files.NotRegular as exc:
        raise Refusal(f"{exc}.") from None
    except ValueError:
        raise Refusal("its path holds a character that no path may have.") from None


def file_length(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size


def shown(text: str | PathLike[str]) -> str:
    """Text from an untrusted file as one printable line: a name may hold terminal escapes or a megabyte."""
    raw = fspath(text)
    cut = raw if len(raw) <= _SHOWN_CHARACTERS else raw[: _SHOWN_CHARACTERS - 3] + "..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in cut)


@contextmanager
def named(path: str | PathLike[str]) -> Iterator[None]:
    """Turns a refusal, or what the system says, into a DataError that starts with the name of `path`."""
    try:
        yield
    except Refusal as exc:
        raise DataError(f"{shown(path)}: {exc}") from exc.__cause__
    except OSError as exc:
        raise DataError(f"{shown(path)}: cannot be read or written ({exc.strerror or exc}).") from exc
    except MemoryError:
        raise DataError(f"{shown(path)}: does not fit into memory. Fix: pack it on a larger machine.") from None
    except RecursionError:
        raise DataError(f"{shown(path)}: is nested too deeply to be genuine.") from None
    except UnicodeError:
        raise DataError(f"{shown(path)}: holds text that is not UTF-8. Fix: save it as UTF-8.") from None


class Refusal(Exception):
    """The reason why a file is refused, before the file's name is put in front of it."""
