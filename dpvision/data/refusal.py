"""How a refusal is worded: the name of the file, the reason, the fix."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike, fspath

from dpvision.errors import DataError

_SHOWN_CHARACTERS = 300


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
        raise DataError(f"{shown(path)}: can not be read or written ({exc.strerror or exc}).") from exc
    except MemoryError:
        raise DataError(f"{shown(path)}: does not fit into memory. Fix: pack it on a larger machine.") from None
    except RecursionError:
        raise DataError(f"{shown(path)}: is nested too deeply to be genuine.") from None
    except UnicodeError:
        raise DataError(f"{shown(path)}: holds text that is not UTF-8. Fix: save it as UTF-8.") from None


class Refusal(Exception):
    """The reason why a file is refused, before the file's name is put in front of it."""
