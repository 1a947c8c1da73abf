"""One planted bug: what, from where, and who catches it."""

from __future__ import annotations

from dataclasses import dataclass

from tests.system.planted.planting import Edit


@dataclass(frozen=True)
class Bug:
    name: str
    number: int
    source: str
    edits: tuple[Edit, ...]
    killers: tuple[str, ...]


def planted(number: int, name: str, source: str, *edits: tuple[str, str, str], by: str) -> Bug:
    return Bug(name, number, source, tuple(Edit(*edit) for edit in edits), tuple(by.split(", ")))
