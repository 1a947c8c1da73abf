"""A hostile file in these tests, and the code that every payload would run if anything executed it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

MARKER = "executed-by-payload"


@dataclass(frozen=True)
class Case:
    """`build` writes the files into an empty folder and returns the source; `want` is the required outcome.

    "refused": a DataError. "same": a DataError, or exactly the data that was there before the damage.
    "valid": a DataError, or data that satisfies every condition of `Split` (JPEG has no checksums).
    """

    name: str
    build: Callable[[Path], Path]
    want: str = "refused"
    blames: str | None = None
    """The file, below the folder, whose name must start the message; the source where not given."""
    verb: str = "load"
    options: dict[str, object] = field(default_factory=dict)
    only_load: bool = False
    """`check` would open each of a very large number of files."""


def pickle_payload(folder: Path) -> bytes:
    """A pickle, written by hand, that creates the marker file when it is loaded."""
    return b"cos\nsystem\n(S'touch " + str(folder / MARKER).encode() + b"'\ntR."


def python_payload(folder: Path) -> bytes:
    return b"__import__('os').system('touch " + str(folder / MARKER).encode() + b"')"
