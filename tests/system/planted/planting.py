"""Plant a bug into the real code: modules are compiled from their source with some text exchanged, as they are imported.

It must be done before dpvision is imported, so in its own process (nursery.py). Nothing is written to the disk.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any


@dataclass(frozen=True)
class Edit:
    """In this module, text that occurs once becomes other text."""

    module: str
    old: str
    new: str

    def apply(self, source: str) -> str:
        times = source.count(self.old)
        if times != 1:
            raise ValueError(f"{self.module}: the text to be exchanged is there {times} times, not once:\n{self.old}")
        return source.replace(self.old, self.new)


class _Edited(SourceFileLoader):
    def __init__(self, name: str, path: str, edits: Sequence[Edit]) -> None:
        super().__init__(name, path)
        self._edits = edits

    def get_source(self, fullname: str) -> str:
        source = Path(self.path).read_text("utf-8")
        for edit in self._edits:
            source = edit.apply(source)
        return source

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.get_source(fullname), self.path, "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    def __init__(self, edits: Sequence[Edit]) -> None:
        self._edits = edits

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        mine = [edit for edit in self._edits if edit.module == name]
        result = PathFinder.find_spec(name, path) if mine else None
        if result is not None and result.origin is not None:
            result.loader = _Edited(name, result.origin, mine)
        return result


def plant(edits: Sequence[Edit]) -> None:
    """From now on these modules are imported with the edits."""
    if loaded := sorted(name for name in sys.modules if name.split(".")[0] == "dpvision"):
        raise RuntimeError(f"{loaded[0]} is imported already, so a bug planted now would not be in it.")
    sys.meta_path.insert(0, _Finder(edits))
