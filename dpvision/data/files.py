"""Opens untrusted files if they are regular and below their root, and names the file in every refusal."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike, fspath
from typing import BinaryIO

from dpvision.core import files
from dpvision.errors import DataError

_PRINTED_CHARACTERS = 300


def open_regular(path: str | PathLike[str]) -> BinaryIO:
    """Open a file for reading. A link is followed, because the user named this file."""
    return _open(path, follow=True)


def open_inside(root: str, relative: str) -> BinaryIO:
    """Open a file below `root`, which must be a real path. A link may point inside the root but not out of it."""
    return _open(resolve_inside(root, relative), follow=False)


def resolve_inside(root: str, relative: str) -> str:
    """Return the real path of `relative`, which must be below the real path `root`."""
    if "\0" in relative:
        raise Refusal("its path contains a NUL character.")
    if not relative or relative.startswith("/") or os.path.isabs(relative):
        raise Refusal("its path is not relative to the data. Fix: give paths below the folder of the data.")
    if ".." in relative.replace("\\", "/").split("/"):
        raise Refusal("its path contains '..', which may leave the data. Fix: give paths below the folder of the data.")
    real = os.path.realpath(os.path.join(root, relative))
    if not real.startswith(root.rstrip(os.sep) + os.sep):
        raise Refusal("is a link that leaves the folder of the data. Fix: copy the file into the folder.")
    return real


def _open(path: str | PathLike[str], *, follow: bool) -> BinaryIO:
    try:
        return files.open_regular(path, follow=follow)
    except FileNotFoundError as exc:
        raise PassingRefusal(f"{exc}.") from None
    except OSError as exc:
        raise PassingRefusal(f"cannot be opened ({exc.strerror or exc}).") from exc
    except files.NotRegular as exc:
        raise Refusal(f"{exc}.") from None
    except ValueError:
        raise Refusal("its path contains a character that no path may contain.") from None


def file_length(file: BinaryIO) -> int:
    """Return the length of an open file in bytes."""
    return os.fstat(file.fileno()).st_size


def printable(text: str | PathLike[str]) -> str:
    """Return untrusted text as one short printable line: a name may contain terminal escapes or a megabyte."""
    raw = fspath(text)
    cut = raw if len(raw) <= _PRINTED_CHARACTERS else raw[: _PRINTED_CHARACTERS - 3] + "..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in cut)


@contextmanager
def name_errors(path: str | PathLike[str]) -> Iterator[None]:
    """Turn a refusal or an error of the system into a DataError that starts with `path`."""
    try:
        yield
    except Refusal as exc:
        raise DataError(f"{printable(path)}: {exc}") from exc.__cause__
    except OSError as exc:
        raise DataError(f"{printable(path)}: cannot be read or written ({exc.strerror or exc}).") from exc
    except MemoryError:
        raise DataError(f"{printable(path)}: does not fit into memory. Fix: pack it on a larger machine.") from None
    except RecursionError:
        raise DataError(f"{printable(path)}: is nested too deeply.") from None
    except UnicodeError:
        raise DataError(f"{printable(path)}: contains text that is not UTF-8. Fix: save it as UTF-8.") from None


class Refusal(Exception):
    """The reason why a file is refused; `name_errors` adds the name of the file."""


class PassingRefusal(Refusal):
    """A refusal because of the system, which says nothing about the file: another attempt may succeed."""
