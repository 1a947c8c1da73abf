"""What verbs print: lines, tables and JSON on stdout, and the progress of long work on stderr."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NoReturn, Protocol

# In a log: seconds until the first line about a part of the work, and between two lines.
FIRST_LINE, NEXT_LINE = 5.0, 30.0


def say(text: str = "") -> None:
    """Print one line at once, also into a pipe."""
    print(text, flush=True)


def as_json(value: Any) -> None:
    """Print a value as JSON."""
    say(json.dumps(value, indent=1))


def table(rows: Mapping[str, Any], *, title: str | None = None) -> None:
    """Print two columns: names and values."""
    if title:
        say(title)
    width = max((len(k) for k in rows), default=0)
    for key, value in rows.items():
        say(f"  {key:<{width}}  {value}")


def grid(header: list[str], rows: list[list[str]]) -> None:
    """Print a table with a line under its header."""
    widths = [max(len(r[i]) for r in [header, *rows]) for i in range(len(header))]
    for row in [header, ["-" * w for w in widths], *rows]:
        say("  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip())


def duration(seconds: float) -> str:
    """Format seconds in the unit that suits them."""
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.0f} days"


class Show(Protocol):
    """Show how far a part of the work is; without a total, only that it runs."""

    def __call__(self, what: str, done: int = 0, total: int = 0, note: str = "") -> None: ...


@contextmanager
def progress(what: str) -> Iterator[Show]:
    """Show the progress of long work that has several parts, of which `what` is the first.

    On a terminal each part has a bar. Elsewhere, as in the log of a batch system, a line is printed from time to time.
    Of several worker processes the first one shows it.
    """
    if os.environ.get("RANK", "0") != "0":
        yield lambda what, done=0, total=0, note="": None
    elif sys.stderr.isatty():
        with _bars(what) as show:
            yield show
    else:
        with _Lines(what) as lines:
            yield lines.show


@contextmanager
def counting(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show the progress of long work that has one part: call it with how much is done, and of how much."""
    with progress(what) as show:
        yield lambda done, total: show(what, done, total)


def in_percent(show: Show) -> Callable[[str, int, int], None]:
    """Return `show` in per cent, for work on private records: a log must not show how many there are."""
    return lambda what, done, total: show(f"{what}, per cent", round(100 * done / max(total, 1)), 100)


def stop(state: object) -> NoReturn:
    """Say that work was stopped on request and can be continued, and exit."""
    say(f"stopped; the same command continues it (its state is in {state})")
    sys.exit(130)


@contextmanager
def _bars(what: str) -> Iterator[Show]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Bar(*columns, console=Console(stderr=True)) as bar:
        tasks: dict[str, TaskID] = {}

        def show(what: str, done: int = 0, total: int = 0, note: str = "") -> None:
            if what not in tasks:
                for name in [name for name, task in tasks.items() if bar.tasks[bar.task_ids.index(task)].total is None]:
                    bar.remove_task(tasks.pop(name))  # a part without a total has ended
                tasks[what] = bar.add_task(what, total=None, note=note)
            bar.update(tasks[what], total=total or None, completed=done, note=note)

        show(what)
        yield show


@dataclass(frozen=True)
class _Part:
    """A part of the work: when it began, how much was done when it was first counted, and how much is done now."""

    what: str
    began: float
    counted: tuple[float, int] | None = None
    done: int = 0
    total: int = 0
    note: str = ""

    def line(self, now: float) -> str:
        """Describe the part: how much of it is done, how fast, and how much time is left."""
        if not self.total or self.counted is None:
            return f"{self.what}: {duration(now - self.began)} so far"
        text = f"{self.what}: {self.done:,} of {self.total:,}"
        since, first = self.counted
        if self.done > first and now > since:
            rate = (self.done - first) / (now - since)
            text += f", {rate:,.0f}/s" if rate >= 10 else f", {rate:.1f}/s" if rate >= 1 else f", {1 / rate:.1f} s each"
            text += f", about {duration((self.total - self.done) / rate)} left" if self.done < self.total else ""
        return text + (f", {self.note}" if self.note else "")


class _Lines:
    """A line about the current part: the first after FIRST_LINE seconds, then one every NEXT_LINE.

    A thread prints them, so that a part which reports nothing for minutes is seen to run.
    """

    def __init__(self, what: str) -> None:
        self._began = self._last = time.monotonic()
        self._part, self._named = _Part(what, self._began), set[str]()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def show(self, what: str, done: int = 0, total: int = 0, note: str = "") -> None:
        part, now = self._part, time.monotonic()
        if what != part.what or done < part.done or (part.total and total != part.total):
            part = _Part(what, now)
        counted = part.counted or ((now, done) if total else None)
        self._part = replace(part, counted=counted, done=done, total=total, note=note)

    def _run(self) -> None:
        while not self._end.wait(min(0.5, FIRST_LINE / 4)):
            part, now = self._part, time.monotonic()
            new = part.what not in self._named and now - part.began >= FIRST_LINE
            if new or now - self._last >= NEXT_LINE:
                self._named.add(part.what)
                self._last = now
                print(part.line(now), file=sys.stderr, flush=True)

    def __enter__(self) -> _Lines:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


@contextmanager
def stoppable() -> Iterator[Callable[[], bool]]:
    """Let Ctrl-C or SIGTERM request a stop after the current step; a second one stops at once."""
    asked: list[int] = []

    def ask(number: int, _frame: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    before = {s: signal.signal(s, ask) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
