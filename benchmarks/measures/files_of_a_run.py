"""Count the files of dpvision in which a function runs during one command: what a reader of that run must open.

    python -m benchmarks.measures.files_of_a_run photos --epsilon 3 --steps 2 --out /tmp/run

Imports are not counted, and neither is code of the top level of a file, which runs only then. Threads are.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import dpvision

PACKAGE = str(Path(dpvision.__file__).parent)


def files_of(words: list[str]) -> Counter[str]:
    """Run `dpvision` with these words; return the number of calls of functions in each file of the package."""
    from dpvision.cli import main

    calls: Counter[str] = Counter()
    importing = threading.local()

    def count(frame: FrameType, what: str, _: Any) -> None:
        if what not in ("call", "return"):
            return
        name = frame.f_code.co_filename
        if name.startswith("<frozen importlib") and frame.f_code.co_name == "_find_and_load":
            importing.depth = getattr(importing, "depth", 0) + (1 if what == "call" else -1)
        elif what == "call" and name.startswith(PACKAGE) and not getattr(importing, "depth", 0):
            calls[name[len(PACKAGE) + 1 :]] += 1

    sys.argv = ["dpvision", *words]
    threading.setprofile(count)
    sys.setprofile(count)
    try:
        with suppress(SystemExit):
            main()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return calls


if __name__ == "__main__":
    results = files_of(["train", *sys.argv[1:]])
    for file, calls in sorted(results.items()):
        print(f"{calls:8,} {file}")
    print(f"{len(results)} files")
